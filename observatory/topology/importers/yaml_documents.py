"""The YAML or JSON documents of a file: several, one after the other, each with its lines."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from observatory.documents import Document, parse_document
from observatory.topology.errors import BadTopology
from observatory.topology.importers.source import Source

_BREAK = re.compile(r"^---(?:[ \t].*)?$", re.MULTILINE)
_ONLY_COMMENTS = re.compile(r"(?:\s*(?:#.*)?(?:\n|$))*\Z")
_MOST_DOCUMENTS = 20_000


@dataclass(frozen=True)
class Part:
    """One document, its value, and how many lines are before it in the file."""

    source: Source
    value: Any
    document: Document | None
    before: int

    def line(self, *path: str | int) -> int | None:
        """The line in the file of the value at `path`; None for JSON."""
        return None if self.document is None else self.document.line_of(path) + self.before

    def fail(self, message: str, *path: str | int, mend: str | None = None) -> NoReturn:
        """Refuse the file at that line."""
        self.source.fail(message, self.line(*path), mend)


def read_parts(source: Source) -> list[Part]:
    """All documents of the file. Raises BadTopology with the line of what is neither YAML nor JSON."""
    text = source.text or ""
    if text.lstrip()[:1] in ("{", "["):
        return [Part(source, _json(source, text), None, 0)]
    parts: list[Part] = []
    at = 0
    for match in [*_BREAK.finditer(text), None]:
        end = len(text) if match is None else match.start()
        if not _ONLY_COMMENTS.match(text[at:end]):
            before = text.count("\n", 0, at)
            parts.append(_part(source, text[at:end], before))
            if len(parts) > _MOST_DOCUMENTS:
                source.fail(f"holds more than {_MOST_DOCUMENTS:,} documents", before)
        at = len(text) if match is None else match.end()
    if not parts:
        source.fail("is empty", 1, "write a document into it")
    return parts


def _part(source: Source, text: str, before: int) -> Part:
    try:
        document = parse_document(text, source.name, BadTopology)
    except BadTopology as failure:
        line = None if failure.line is None else failure.line + before
        raise BadTopology(failure.message, file=failure.file, line=line, mend=failure.mend) from None
    return Part(source, document.value, document, before)


def _json(source: Source, text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        source.fail("nests too deep", mend="no tool writes such a file")
    except ValueError as failure:
        words = str(getattr(failure, "msg", failure))
        source.fail(
            f"is not JSON: {words[:1].lower()}{words[1:]}", getattr(failure, "lineno", None), "the file may be cut off"
        )


def mapping(value: Any) -> dict[str, Any]:
    """The value if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def sequence(value: Any) -> list[Any]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def word(value: Any) -> str | None:
    """The value as one word of text; None for what is none. Numbers are names, too."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    try:
        text = str(value).strip()
    except ValueError:  # Python writes no number of more than 4300 digits
        return None
    return text if 0 < len(text) <= 253 else None
