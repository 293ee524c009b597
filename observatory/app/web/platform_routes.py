"""Routes about the platform: health, snapshot, pipelines, metrics."""

from __future__ import annotations

import gzip
import os
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from observatory.app.control import Gone
from observatory.app.web.answers import Health, Pipelines, Problem, SubmitRequest
from observatory.app.web.backend import Backend, BadAnswer
from observatory.app.web.errors import no_such_pipeline
from observatory.app.web.examples import PIPELINE, SNAPSHOT
from observatory.app.web.live import LEAST_SECONDS, MOST_SECONDS, Live
from observatory.app.web.queries import NO_QUERY
from observatory.app.web.responses import GONE, MALFORMED, example, json_answer, problem
from observatory.model.status import PipelineStatus, Snapshot

NO_PIPELINE = problem(
    "There is no such pipeline", "there is no pipeline 'laddr'", "NoSuchPipeline", "did you mean ladder?"
)
Name = Annotated[str, Path(description="The pipeline's name (`metadata.name`)", examples=["abr-ladder"])]


def platform_routes(backend: Backend, live: Live, pages: Any) -> APIRouter:
    """The routes. `pages.state` says how the pages are."""
    routes = APIRouter(prefix="/api/v1", responses={422: MALFORMED})

    @routes.get(
        "/health",
        dependencies=NO_QUERY,
        tags=["platform"],
        response_model=Health,
        responses={503: {"model": Health, "description": "The web process answers, the platform does not"}},
    )
    async def health() -> Response:
        """Whether the web process and the platform behind it answer."""
        document: dict[str, Any] = {
            "status": "ok",
            "version": version("media-observatory"),
            "pid": os.getpid(),
            "live_clients": live.clients,
            "pages": pages.state,
            "platform": None,
        }
        try:
            said = (await backend.snapshot()).snapshot.platform
        except (Gone, BadAnswer):
            return JSONResponse(document | {"status": "platform gone"}, 503)
        document["platform"] = {
            "version": said.version,
            "pid": said.pid,
            "started_unix_seconds": said.started_unix_seconds,
        }
        return JSONResponse(document)

    @routes.get(
        "/snapshot",
        dependencies=NO_QUERY,
        tags=["platform"],
        response_model=Snapshot,
        responses={200: example(SNAPSHOT), 503: GONE},
    )
    async def snapshot() -> Response:
        """Everything at one moment, at most half a second old. Times are seconds; unknown values are null."""
        return json_answer((await backend.snapshot()).text)

    @routes.get(
        "/live",
        tags=["platform"],
        status_code=101,
        response_class=Response,
        responses={
            101: {"description": "A WebSocket: one text message per interval"},
            426: problem("Not asked for as a WebSocket", "GET /api/v1/live is a WebSocket", "UpgradeRequired"),
        },
        openapi_extra={
            "parameters": [
                {
                    "name": "interval",
                    "in": "query",
                    "required": False,
                    "description": f"Seconds between two messages, {LEAST_SECONDS:g} to {MOST_SECONDS:g}",
                    "schema": {"type": "number", "default": 1.0, "minimum": LEAST_SECONDS, "maximum": MOST_SECONDS},
                }
            ]
        },
    )
    async def live_without_upgrade() -> Response:
        """WebSocket: the document of /snapshot once per `interval`, the first one at once.

        While the platform does not answer, messages are `{"error": {...}}`; snapshots go on when it is back. What the
        client sends is ignored. A client that does not read is disconnected: when what waits for it has not moved for
        10 s, or it has not answered a ping for 10 s (pings go out every 10 s).
        """
        raise HTTPException(426, "this is a WebSocket", {"upgrade": "websocket"})

    @routes.get(
        "/pipelines",
        dependencies=NO_QUERY,
        tags=["pipelines"],
        response_model=Pipelines,
        responses={200: example({"pipelines": [PIPELINE]}), 503: GONE},
    )
    async def pipelines() -> Response:
        """All pipelines, those that have ended too."""
        return json_answer(Pipelines(pipelines=(await backend.snapshot()).snapshot.pipelines).model_dump_json())

    @routes.get(
        "/pipelines/{name}",
        dependencies=NO_QUERY,
        tags=["pipelines"],
        response_model=PipelineStatus,
        responses={200: example(PIPELINE), 404: NO_PIPELINE, 503: GONE},
    )
    async def pipeline(name: Name) -> Response:
        """One pipeline."""
        found = (await backend.snapshot()).snapshot.pipelines
        for status in found:
            if status.name == name:
                return json_answer(status.model_dump_json())
        raise no_such_pipeline(name, [status.name for status in found])

    @routes.post(
        "/pipelines",
        dependencies=NO_QUERY,
        tags=["pipelines"],
        status_code=201,
        response_model=PipelineStatus,
        responses={
            201: example(PIPELINE, "Started"),
            400: problem(
                "The pipeline file, or an input, is not right",
                "small (scale): widht: there is no such key",
                "BadSpec",
                "did you mean width?",
            ),
            409: problem("A pipeline of that name runs", "pipeline ladder is running", "NameTaken"),
            413: problem("The body is larger than 1 MiB", "the body is larger than 1048576 bytes", "BodyTooLarge"),
            500: problem("It could not be started", "worker encode ended with signal 9", "WorkerDied"),
            503: GONE,
            507: {"model": Problem, "description": "Not enough memory for its frame pools, or the disk is full"},
        },
    )
    async def submit(request: Request, asked: SubmitRequest) -> Response:
        """Start a pipeline: its file's text, and where its sources read from. Answers when its inputs are open."""
        status = await backend.submit(asked.as_submission())
        headers = {"location": str(request.url_for("pipeline", name=status.name).path)}
        return Response(status.model_dump_json(), 201, headers, "application/json")

    @routes.delete(
        "/pipelines/{name}",
        dependencies=NO_QUERY,
        tags=["pipelines"],
        response_model=PipelineStatus,
        responses={200: example(PIPELINE | {"state": "draining"}), 404: NO_PIPELINE, 503: GONE},
    )
    async def remove(name: Name) -> Response:
        """End a pipeline: what is in flight is finished, its outputs play. Answers at once, with its state."""
        return json_answer((await backend.remove(name)).model_dump_json())

    return routes


def metrics_route(backend: Backend) -> APIRouter:
    """`/metrics`, where Prometheus looks for it."""
    routes = APIRouter()

    @routes.get(
        "/metrics",
        tags=["metrics"],
        response_class=Response,
        responses={
            200: {
                "description": "Metrics as text",
                "content": {
                    "text/plain": {"example": "# TYPE observatory_up gauge\nobservatory_up 1\n"},
                    "application/openmetrics-text": {},
                },
            },
            503: GONE,
        },
    )
    async def metrics(request: Request) -> Response:
        """Metrics for Prometheus: OpenMetrics where `Accept` prefers it, else the classic text format."""
        packed, content_type = await backend.metrics(prefers_openmetrics(request.headers.get("accept", "")))
        headers = {"content-type": content_type, "vary": "Accept, Accept-Encoding"}
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(gzip.decompress(packed), headers=headers)
        return Response(packed, headers=headers | {"content-encoding": "gzip"})

    return routes


def prefers_openmetrics(accept: str) -> bool:
    """Whether this `Accept` header (RFC 9110, section 12.5.1) takes OpenMetrics at least as gladly as plain text."""
    quality = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for part in accept.split(","):
        kind, *parameters = (piece.strip().lower() for piece in part.split(";"))
        if kind in quality:
            quality[kind] = max(quality[kind], _quality(parameters))
    openmetrics = quality["application/openmetrics-text"]
    return openmetrics > 0.0 and openmetrics >= quality["text/plain"]


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0
