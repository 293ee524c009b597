"""Errors as answers: the same document as the command line's `--json`, and a fitting status.

{"error": {"kind", "message", "file", "line", "mend", ...}}
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from observatory.anomalies.errors import NoSuchIncident
from observatory.app.control import Gone, Refused
from observatory.app.errors import NoSuchPipeline
from observatory.app.web.answers import SubmitRequest
from observatory.app.web.backend import BadAnswer
from observatory.documents import did_you_mean
from observatory.frames.errors import FrameStoreFull, NoSuchFrame, NoSuchStream
from observatory.model.errors import ExitCode, MediaObservatoryError
from observatory.topology.errors import NoSuchVertex
from scheduler.errors import NoSuchDecision

_log = logging.getLogger("observatory.web")

_BY_KIND = {
    "NoSuchPipeline": 404,
    "NameTaken": 409,
    "AlreadyRunning": 409,
    "NoProcess": 503,
    "ShuttingDown": 503,
    "AuditFull": 507,
    "FrameStoreFull": 507,
    "NotEnoughMemory": 507,
    "OutputFailed": 507,
}
"""What the platform refuses, by the kind of its error; anything else goes by its exit code."""
_OPTION = re.compile(r"--([a-z][a-z-]*)( (?=\S))?")


def no_such_pipeline(name: str, known: list[str]) -> NoSuchPipeline:
    """The error for a name, with the closest that there is."""
    mend = did_you_mean(name, known) if known else "submit one first"
    return NoSuchPipeline(f"there is no pipeline {name!r}", mend=mend)


def status_of(error: MediaObservatoryError, query: Mapping[str, str]) -> int:
    """The HTTP status that fits an error; what the platform refused goes by its kind first."""
    if isinstance(error, Gone | BadAnswer):
        return 503
    if isinstance(error, Refused) and (status := _BY_KIND.get(error.kind)) is not None:
        return status
    if isinstance(error, NoSuchStream):  # none was named although there are several: that is the asker's to mend
        return 404 if "stream" in query or "epoch" in query else 400
    if isinstance(error, NoSuchFrame | NoSuchVertex | NoSuchDecision | NoSuchPipeline | NoSuchIncident):
        return 404
    if isinstance(error, FrameStoreFull):
        return 507
    return 400 if error.exit_code == ExitCode.BAD_INPUT else 500


def document_of(error: MediaObservatoryError) -> dict[str, Any]:
    """The error as a document. Options of the command line are named as parameters of a request."""
    said: dict[str, Any] = error.as_dict()
    if isinstance(error, Gone):
        said |= {"message": f"the platform does not answer: {error.message}", "file": None}
        said["mend"] = "wait; if it stays so, see whether `observatory up` still runs"
    if isinstance(error, NoSuchStream | NoSuchFrame) and said["mend"]:
        said["mend"] = _OPTION.sub(_parameter, str(said["mend"]))
    return {"error": said}


def _parameter(option: re.Match[str]) -> str:
    return option[1].replace("-", "_") + ("=" if option[2] else "")


def _problem(kind: str, message: str, mend: str | None = None, **more: Any) -> dict[str, Any]:
    return {"error": {"kind": kind, "message": message, "file": None, "line": None, "mend": mend, **more}}


def install(app: FastAPI) -> None:
    """Make every error of this application an answer of that shape."""
    app.add_exception_handler(MediaObservatoryError, _known)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(HTTPException, _http)


async def _known(request: Request, error: Exception) -> Response:
    assert isinstance(error, MediaObservatoryError)
    headers = {"retry-after": "1"} if isinstance(error, Gone) else None
    return JSONResponse(document_of(error), status_of(error, request.query_params), headers)


async def _malformed(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where, *path = map(str, first["loc"])
    context = first.get("ctx", {})
    name = str(context.get("parameter") or ".".join(path) or where)
    mend = None
    if first["type"] == "extra_forbidden":
        words = f"there is no parameter {name}"
        mend = _known_instead(request, where, name)
    elif first["type"] == "missing":
        words = f"{name} is missing"
    elif first["type"] == "json_invalid":
        words, name = f"the body is not JSON: {context['error']}", where
    else:
        words = f"{name}: {first['msg'].removeprefix('Value error, ')}"
    if name == "body" and request.headers.get("content-type", "").partition(";")[0] != "application/json":
        mend = "send JSON, with Content-Type: application/json"
    return JSONResponse(_problem("BadRequest", words, mend, parameter=name), 422)


def _known_instead(request: Request, where: str, name: str) -> str:
    if where == "body":
        return did_you_mean(name, SubmitRequest.model_fields)
    path = getattr(request.scope.get("route"), "path", "")
    operation = request.app.openapi()["paths"].get(path, {}).get(request.method.lower(), {})
    known = [parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "query"]
    return did_you_mean(name, known) if known else "this path takes none"


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kinds = {404: "NotFound", 405: "MethodNotAllowed", 426: "UpgradeRequired"}
    kind = kinds.get(error.status_code, "BadRequest")
    message = str(error.detail)
    if error.status_code in (404, 405):
        message = f"{request.method} {request.url.path}: {message}"
    mend = "see /api/v1/docs" if error.status_code in (404, 405) else None
    return JSONResponse(_problem(kind, message, mend), error.status_code, error.headers)


class Defects:
    """ASGI middleware that makes an answer of what nobody expected, and a traceback in the log."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            if scope["type"] != "http" or started:
                raise
            _log.exception("%s %s failed", scope["method"], scope["path"])
            words = f"internal error: {type(error).__name__}: {error}"
            mend = "see the log of the web process, and report it"
            await JSONResponse(_problem("InternalError", words, mend), 500)(scope, receive, send)
