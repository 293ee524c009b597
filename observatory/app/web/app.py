"""Puts the web application together: the API first, then the pages, whose catch-all takes what is left."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from fastapi import APIRouter, FastAPI, Request, WebSocket
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from observatory.app.web import errors
from observatory.app.web.backend import Backend
from observatory.app.web.docs_page import docs_page, start_page
from observatory.app.web.frame_routes import decision_routes, frame_routes
from observatory.app.web.guard import INSIDE, Access, Guard
from observatory.app.web.incident_routes import incident_routes
from observatory.app.web.live import Live
from observatory.app.web.platform_routes import metrics_route, platform_routes
from observatory.app.web.responses import with_nulls
from observatory.app.web.topology_routes import topology_routes

_log = logging.getLogger("observatory.web")

API_VERSION = "1"
PAGES = "dashboards.app"
DESCRIPTION = """\
What the pages show and the commands do, as JSON. Times are seconds, sizes bytes, unknown values null (never 0). Every
answer that is no success is `{"error": {"kind", "message", "file", "line", "mend"}}`.

A query parameter that a route does not have is refused; limits that are too large are cut to the largest. Requests to
foreign names (DNS rebinding) are answered with 421, changes asked for by foreign pages with 403.
"""


@dataclass(slots=True)
class Pages:
    """How the pages are: `ok`, `none`, or why they could not be loaded."""

    state: str = "none"
    api: httpx.AsyncClient | None = None

    async def close(self) -> None:
        """Close what they asked through."""
        if self.api is not None:
            await self.api.aclose()


def build_app(backend: Backend, access: Access | None = None, *, with_pages: bool = True) -> FastAPI:
    """The application.

    Args:
        backend: where answers come from; closed when the application ends.
        access: who may ask; None: anybody.
        with_pages: whether to load the pages, which takes a second.
    """

    pages = Pages()

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        await pages.close()
        backend.close()

    app = FastAPI(
        title="Media Observatory",
        version=API_VERSION,
        description=DESCRIPTION,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        separate_input_output_schemas=False,
    )
    access = access or Access()
    live = Live(backend)
    routers = (
        platform_routes(backend, live, pages),
        topology_routes(backend),
        frame_routes(backend),
        decision_routes(backend),
        incident_routes(backend),
        metrics_route(backend),
    )
    for router in routers:
        app.include_router(router)
    _add_live(app, live)
    _add_docs(app)
    _add_unknown(app, [route for router in routers for route in router.routes])
    errors.install(app)
    _keep_nulls(app)
    if with_pages:
        _add_pages(app, pages, access)
    if pages.state != "ok":
        _add_start_page(app, pages)
    # The last added is the first to see a request: before the pages' own middleware, which reads whole bodies.
    app.add_middleware(_PackedApi)
    app.add_middleware(errors.Defects)
    app.add_middleware(Guard, access=access)
    return app


def _add_live(app: FastAPI, live: Live) -> None:
    @app.websocket("/api/v1/live")
    async def feed(websocket: WebSocket) -> None:
        await live.serve(websocket)


def _keep_nulls(app: FastAPI) -> None:
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = with_nulls(made())
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _add_docs(app: FastAPI) -> None:
    @app.get("/api/v1/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(docs_page(app.openapi()))


def _add_unknown(app: FastAPI, routes: Iterable[BaseRoute]) -> None:
    """What is not there under /api is said in JSON, whatever the pages' catch-all would answer."""
    everything = APIRouter()
    known = list(routes)

    async def unknown(request: Request) -> Response:
        methods: set[str] = set()
        for route in known:
            match, _ = route.matches(request.scope)
            if match is Match.PARTIAL:
                methods |= getattr(route, "methods", None) or set()
        if methods:
            raise HTTPException(405, "it has no such method", {"allow": ", ".join(sorted(methods))})
        raise HTTPException(404, "there is no such thing")

    for path in ("/api", "/api/{rest:path}"):
        everything.add_route(path, unknown, ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"], None, False)
    app.include_router(everything)


def _add_pages(app: FastAPI, pages: Pages, access: Access) -> None:
    """Load the pages, if there are any: importing them (and Dash) is left to this process alone."""
    if importlib.util.find_spec("dashboards") is None or importlib.util.find_spec(PAGES) is None:
        return
    try:
        create = importlib.import_module(PAGES).create
        pages.api = inside_client(app)
        create(server=app, api=pages.api)
        access.script_hashes = _script_hashes()
    except Exception as error:  # the API is of use without them; what is wrong is shown in their place
        _log.exception("the pages could not be loaded")
        pages.state = f"{type(error).__name__}: {error}"
    else:
        pages.state = "ok"


def _script_hashes() -> list[str]:
    import dash

    app: dash.Dash = dash.get_app()  # type: ignore[no-untyped-call]
    return [str(digest) for digest in app.csp_hashes()]


def inside_client(app: ASGIApp) -> httpx.AsyncClient:
    """A client of the API within this process: no socket, no guard, nothing compressed."""

    async def inside(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, INSIDE: True}, receive, send)

    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=inside),
        base_url="http://observatory",
        headers={"accept-encoding": "identity"},
    )


def _add_start_page(app: FastAPI, pages: Pages) -> None:
    @app.get("/", include_in_schema=False)
    async def start() -> Response:
        return HTMLResponse(start_page(pages.state))


class _PackedApi:
    """Compresses JSON and metrics. Not the pages' scripts: compressing those takes longer than sending them here."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._packing = GZipMiddleware(app, minimum_size=2048, compresslevel=4)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        packing = scope["type"] == "http" and scope["path"].startswith(("/api/", "/metrics"))
        await (self._packing if packing else self._app)(scope, receive, send)


def application(control: Path, state: Path, access: Access) -> FastAPI:
    """The application of one platform, with its pages."""
    return build_app(Backend(control, state), access)
