"""JSON answers as bytes, and what the OpenAPI document says of the others."""

from __future__ import annotations

import gzip
from typing import Any

from fastapi import Request
from starlette.responses import Response

from observatory.app.web.answers import Problem

JSON = "application/json"


def json_answer(body: bytes | str, status: int = 200) -> Response:
    """A JSON document that is written already."""
    return Response(body, status, media_type=JSON)


def packed(body: bytes) -> bytes:
    """A document as it is kept when it is large: compressed once, for whoever asks."""
    return gzip.compress(body, 4, mtime=0)


def packed_answer(request: Request, body: bytes) -> Response:
    """A `packed` document, unpacked for who does not take it so."""
    vary = {"vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(body, media_type=JSON, headers={**vary, "content-encoding": "gzip"})
    return Response(gzip.decompress(body), media_type=JSON, headers=vary)


def problem(description: str, message: str, kind: str, mend: str | None = None, model: Any = Problem) -> dict[str, Any]:
    """An entry of `responses` for one status, with an example."""
    error = {"kind": kind, "message": message, "file": None, "line": None, "mend": mend}
    return {"model": model, "description": description, "content": {JSON: {"example": marked({"error": error})}}}


_NULL = "\0null"
"""Stands for null in examples: FastAPI leaves nulls out when it writes the OpenAPI document."""


def marked(document: Any) -> Any:
    """An example whose nulls will be in the OpenAPI document."""
    if isinstance(document, dict):
        return {key: marked(value) for key, value in document.items()}
    if isinstance(document, list):
        return [marked(value) for value in document]
    return _NULL if document is None else document


def with_nulls(document: Any) -> Any:
    """Inverse of `marked`, over a whole OpenAPI document."""
    if isinstance(document, dict):
        return {key: with_nulls(value) for key, value in document.items()}
    if isinstance(document, list):
        return [with_nulls(value) for value in document]
    return None if document == _NULL else document


def example(document: Any, description: str = "Done") -> dict[str, Any]:
    """An entry of `responses` for a success, with an example."""
    return {"description": description, "content": {JSON: {"example": marked(document)}}}


MALFORMED = problem(
    "A parameter is malformed, or there is no such parameter; it is named",
    "limit: Input should be greater than or equal to 1",
    "BadRequest",
)
GONE = problem(
    "The platform does not answer, or is of another version",
    "the platform does not answer: nothing runs there any more",
    "Gone",
    "wait; if it stays so, see whether `observatory up` still runs",
)
