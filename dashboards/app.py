"""Mounts the pages on the web application that serves the API."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import dash_mantine_components as dmc  # type: ignore[import-untyped]
import httpx
from dash import Dash, Input, Output, State, dcc, html
from dash.exceptions import PreventUpdate
from fastapi import FastAPI

from dashboards import components, ids, live
from dashboards.api import Api
from dashboards.browser import aria, in_browser
from dashboards.feed import Feed
from dashboards.pages import frames, incidents, overview, submit, topology
from dashboards.theme import MANTINE

ASSETS = Path(__file__).parent / "assets"
PAGES = (("/", "Overview"), ("/topology", "Topology"), ("/incidents", "Incidents"), ("/frames", "Frames"))

INDEX = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{%title%}</title>
{%favicon%}
{%css%}
OWN_STYLE
</head>
<body>
{%app_entry%}
<footer>{%config%}OWN_SCRIPTS{%scripts%}{%renderer%}</footer>
</body>
</html>
"""


def create(server: FastAPI, api: httpx.AsyncClient) -> Dash:
    """Mount the pages at `/`, `/topology`, `/incidents` and `/frames`.

    Args:
        server: the application that serves /api/v1. Its lifespan is extended: the feed of live values begins and ends
            with it.
        api: a client with a base_url, whose requests reach that application. The caller closes it.
    """
    asking = Api(api)
    mounted: Any = server  # Dash declares Flask's types only
    feed = Feed(asking)
    _follow_lifespan(server, feed)
    app = Dash(
        "dashboards.app",
        server=mounted,
        backend="fastapi",
        title="Media Observatory",
        update_title="",
        assets_folder=str(ASSETS),
        assets_ignore=".*",  # see _index
        serve_locally=True,
        suppress_callback_exceptions=True,
        add_log_handler=False,
        websocket_inactivity_timeout=0,  # live values come for as long as the page is open
    )
    app.index_string = _index()
    app.layout = _frame()
    live.register(app, feed)
    submit.register(app, asking)
    topology.register(app, asking)
    frames.register(app, asking)
    incidents.register(app, asking)
    _route(app, asking, feed)
    return app


def _index() -> str:
    """The page that all pages start from, with our own files named in it.

    Dash would name them itself, but not in an answer to an address below `/` that is the first one asked for. The part
    behind the question mark changes with the content, so that no browser keeps an old file.
    """

    def address(name: str) -> str:
        return f"/assets/{name}?{zlib.crc32((ASSETS / name).read_bytes()):08x}"

    style = f'<link rel="stylesheet" href="{address("style.css")}">'
    scripts = "".join(f'<script src="{address(name)}"></script>' for name in ("live.js", "pages.js"))
    return INDEX.replace("OWN_STYLE", style).replace("OWN_SCRIPTS", scripts)


def _follow_lifespan(server: FastAPI, feed: Feed) -> None:
    inner = server.router.lifespan_context

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[Any]:
        async with inner(app) as state:
            task = asyncio.create_task(feed.run())
            try:
                yield state
            finally:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    server.router.lifespan_context = lifespan


def _frame() -> Any:
    """What all pages have around them."""
    links = [dcc.Link(name, href=path, className="nav-link", id=f"nav-{name.lower()}") for path, name in PAGES]
    return dmc.MantineProvider(
        [
            dcc.Location(id=ids.URL, refresh="callback-nav"),
            html.Div(id=ids.LIVE, hidden=True),
            dcc.Store(id=ids.BATCH),
            dcc.Store(id=ids.SHOWN, data={}),
            html.A("Skip to the content", href="#" + ids.PAGE, className="skip"),
            html.Header(
                [
                    dcc.Link([html.Span(className="mark"), "Media Observatory"], href="/", className="brand"),
                    html.Nav(links, **aria(label="Pages")),
                    html.Div(
                        [
                            html.Span("connecting", id=ids.BADGE, className="live", role="status"),
                            dmc.ColorSchemeToggle(
                                lightIcon=html.Span("☀", **aria(hidden="true")),
                                darkIcon=html.Span("☾", **aria(hidden="true")),
                                variant="default",
                                size="md",
                                **aria(label="Switch between light and dark"),
                            ),
                        ],
                        className="head-right",
                    ),
                ],
                className="head",
            ),
            html.Main(id=ids.PAGE, className="page", tabIndex=-1),
        ],
        theme=MANTINE,
        defaultColorScheme="auto",
    )


def _not_here() -> Any:
    return html.Div(components.empty("There is no such page.", dcc.Link("Overview", href="/")))


def _route(app: Dash, api: Api, feed: Feed) -> None:
    @app.callback(
        Output(ids.PAGE, "children"),
        Output(ids.SHOWN, "data"),
        Input(ids.URL, "pathname"),
        Input(ids.URL, "search"),
        State(ids.SHOWN, "data"),
    )
    async def show(path: str | None, search: str | None, shown: dict[str, Any] | None) -> tuple[Any, Any]:
        page = (path or "/").rstrip("/") or "/"
        if page == "/":
            wanted = parse_qs((search or "").lstrip("?")).get("pipeline", [None])[0]
            moment = await feed.newest()
            shape = overview.shape(moment, wanted)
            return overview.layout(feed, moment, wanted), {"page": page, "pipeline": wanted, "shape": shape}
        if (shown or {}).get("page") == page:
            raise PreventUpdate  # the page itself follows what stands behind the question mark
        if page in ("/incidents", "/topology"):
            live_page = incidents if page == "/incidents" else topology
            return live_page.layout(await feed.newest()), {"page": page}
        return (frames.layout() if page == "/frames" else _not_here()), {"page": page}

    in_browser(
        app,
        "here",
        Output(ids.PAGE, "title"),
        Input(ids.URL, "pathname"),
    )
