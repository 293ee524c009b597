"""The HTTP API's reference, from its OpenAPI document.

python -m observatory.app.web.reference            docs/reference/http-api.md
python -m observatory.app.web.reference --json     docs/reference/http-api.openapi.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INTRODUCTION = """\
# HTTP API

`observatory up` serves this beside the pages, by default at `http://127.0.0.1:8050`. The same as an OpenAPI document:
[http-api.openapi.json](http-api.openapi.json), from a running platform `/api/v1/openapi.json`, as a page
`/api/v1/docs` (it needs no internet).

{description}
This page is made from the OpenAPI document.
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """One status that an operation answers with."""

    status: str
    description: str
    schema: str | None
    example: Any


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    method: str
    path: str
    tag: str
    description: str
    parameters: tuple[dict[str, Any], ...]
    body: str | None
    answers: tuple[Answer, ...]


def operations(document: dict[str, Any]) -> Iterator[Operation]:
    """All operations of an OpenAPI document, in its order."""
    for path, methods in document["paths"].items():
        for method, said in methods.items():
            body = said.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            yield Operation(
                method=method.upper(),
                path=path,
                tag=said.get("tags", ["other"])[0],
                description=said.get("description", ""),
                parameters=tuple(said.get("parameters", ())),
                body=None if body is None else schema_words(body),
                answers=tuple(_answer(status, answer) for status, answer in sorted(said["responses"].items())),
            )


def _answer(status: str, said: dict[str, Any]) -> Answer:
    content = said.get("content", {})
    first: dict[str, Any] = next(iter(content.values()), {})
    schema = content.get("application/json", {}).get("schema")
    return Answer(
        status=status,
        description=said["description"],
        schema=None if not schema else schema_words(schema),
        example=first.get("example"),
    )


def schema_words(schema: dict[str, Any]) -> str:
    """A schema on one line: `integer or null`, `array of FrameRow`."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return " or ".join(json.dumps(value) for value in schema["enum"])
    for many in ("anyOf", "oneOf", "allOf"):
        if many in schema:
            return " or ".join(dict.fromkeys(schema_words(one) for one in schema[many]))
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"array of {schema_words(schema['items'])}" if schema.get("items") else "array"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {schema_words(schema['additionalProperties'])}"
    return str(kind)


def limits_words(schema: dict[str, Any]) -> str:
    """What a value may be, beside its type: `default 20, at least 1`."""
    words = []
    if schema.get("default") is not None:
        words.append(f"default {schema['default']}")
    for one in (schema, *schema.get("anyOf", ())):
        if "minimum" in one:
            words.append(f"at least {one['minimum']}")
        if "maximum" in one:
            words.append(f"at most {one['maximum']}")
    return ", ".join(words)


def fields(schema: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Name, type and description of each field of an object."""
    for name, said in schema.get("properties", {}).items():
        yield name, schema_words(said), str(said.get("description", ""))


def markdown(document: dict[str, Any]) -> str:
    """The page docs/reference/http-api.md."""
    parts = [INTRODUCTION.format(description=document["info"]["description"])]
    tag = None
    for operation in operations(document):
        if operation.tag != tag:
            tag = operation.tag
            parts.append(f"## {tag.capitalize()}\n")
        parts.append(_operation(operation))
    parts.append("## Documents\n")
    for name, schema in sorted(document["components"]["schemas"].items()):
        parts.append(_schema(name, schema))
    return "\n".join(parts).rstrip() + "\n"


def _operation(operation: Operation) -> str:
    lines = [f"### {operation.method} {operation.path}", "", operation.description, ""]
    if operation.parameters:
        lines += ["| parameter | in | type | |", "|---|---|---|---|"]
        for parameter in operation.parameters:
            schema = parameter["schema"]
            words = "; ".join(filter(None, (parameter.get("description", ""), limits_words(schema))))
            lines.append(_row(f"`{parameter['name']}`", parameter["in"], schema_words(schema), words))
        lines.append("")
    if operation.body:
        lines += [f"Body: {operation.body}.", ""]
    lines += ["| status | document | |", "|---|---|---|"]
    lines += [_row(a.status, a.schema or "", a.description) for a in operation.answers]
    lines.append("")
    shown = next((a for a in operation.answers if a.status.startswith("2") and a.example is not None), None)
    if shown is not None and not isinstance(shown.example, str):
        lines += ["```json", json.dumps(shown.example, indent=1), "```", ""]
    return "\n".join(lines)


def _schema(name: str, schema: dict[str, Any]) -> str:
    lines = [f"### {name}", "", schema.get("description", ""), ""]
    if schema.get("properties"):
        lines += ["| field | type | |", "|---|---|---|"]
        lines += [_row(f"`{field}`", words, description) for field, words, description in fields(schema)]
        lines.append("")
    elif "enum" in schema:
        lines += [f"{schema_words(schema)}.", ""]
    return "\n".join(lines)


def _row(*cells: str) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def openapi() -> dict[str, Any]:
    """The OpenAPI document of the API alone, without a platform."""
    from observatory.app.web.app import build_app
    from observatory.app.web.backend import Backend

    nowhere = Path("/nonexistent")
    backend = Backend(nowhere / "control.sock", nowhere)
    try:
        return build_app(backend, with_pages=False).openapi()
    finally:
        backend.close()


def openapi_text() -> str:
    """The file docs/reference/http-api.openapi.json."""
    return json.dumps(openapi(), indent=1) + "\n"


if __name__ == "__main__":
    sys.stdout.write(openapi_text() if "--json" in sys.argv[1:] else markdown(openapi()))
