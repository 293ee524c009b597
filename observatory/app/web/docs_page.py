"""Pages that need no internet and no script: the API's reference, and a start page where there is no other.

Swagger UI and ReDoc, which FastAPI would show, load their scripts from a CDN: machines of a cluster are often offline.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any

from observatory.app.web.reference import Operation, fields, limits_words, operations, schema_words

_STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
code, pre { font: 13px/1.45 ui-monospace, monospace }
pre { overflow: auto; padding: .6rem .8rem; border: 1px solid #8886; border-radius: 6px; max-height: 24rem }
table { border-collapse: collapse; margin: .5rem 0 }
td, th { text-align: left; vertical-align: top; padding: .15rem .8rem .15rem 0; border-bottom: 1px solid #8884 }
summary { cursor: pointer; padding: .3rem 0 }
details > *:not(summary) { margin-left: 1.2rem }
.method { display: inline-block; min-width: 4.5rem; font-weight: 600 }
"""


def _page(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><main>{body}</main></body></html>"
    )


def docs_page(document: dict[str, Any]) -> str:
    """The OpenAPI document for people."""
    parts = [
        f"<h1>{escape(document['info']['title'])}: HTTP API</h1>",
        f"<p>{escape(document['info']['description'])}</p>",
        '<p><a href="/api/v1/openapi.json">OpenAPI document</a>, <a href="/">pages</a>, '
        '<a href="/metrics">metrics</a></p>',
    ]
    tag = None
    for operation in operations(document):
        if operation.tag != tag:
            tag = operation.tag
            parts.append(f"<h2>{escape(tag.capitalize())}</h2>")
        parts.append(_operation(operation))
    parts.append("<h2>Documents</h2>")
    for name, schema in sorted(document["components"]["schemas"].items()):
        rows = [(f"<code>{escape(field)}</code>", escape(words), escape(said)) for field, words, said in fields(schema)]
        parts.append(
            f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>'
            f"<p>{escape(schema.get('description', ''))}</p>{_table(rows)}</details>"
        )
    return _page("Media Observatory: HTTP API", "".join(parts))


def _operation(operation: Operation) -> str:
    name = f'<span class="method">{operation.method}</span> <code>{escape(operation.path)}</code>'
    link = f' <a href="{escape(operation.path)}">open</a>'
    openable = operation.method == "GET" and "{" not in operation.path
    parts = [f"<p>{escape(operation.description)}{link if openable else ''}</p>"]
    parts.append(
        _table(
            [
                (
                    f"<code>{escape(parameter['name'])}</code>",
                    escape(schema_words(parameter["schema"])),
                    escape("; ".join(filter(None, (parameter.get("description"), limits_words(parameter["schema"]))))),
                )
                for parameter in operation.parameters
            ]
        )
    )
    if operation.body:
        parts.append(f"<p>Body: {_document(operation.body)}</p>")
    parts.append(_table([(a.status, _document(a.schema or ""), escape(a.description)) for a in operation.answers]))
    for answer in operation.answers:
        if answer.example is not None and answer.status.startswith("2"):
            text = answer.example if isinstance(answer.example, str) else json.dumps(answer.example, indent=1)
            parts.append(f"<pre>{escape(text)}</pre>")
    return f"<details><summary>{name}</summary>{''.join(parts)}</details>"


def _document(words: str) -> str:
    return f'<a href="#{escape(words)}">{escape(words)}</a>' if words.isidentifier() else escape(words)


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    return "<table>" + "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows) + "</table>"


def start_page(pages: str) -> str:
    """What `/` shows when there are no pages, and why."""
    why = "" if pages == "none" else f"<p>The pages could not be loaded: <code>{escape(pages)}</code></p>"
    links = (
        '<p><a href="/api/v1/docs">HTTP API</a>, <a href="/api/v1/snapshot">snapshot</a>, '
        '<a href="/metrics">metrics</a></p>'
    )
    return _page("Media Observatory", f"<h1>Media Observatory</h1>{why}{links}")
