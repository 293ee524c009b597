"""Live updates: one persistent WebSocket callback per browser tab, paced by the tab itself.

Before each batch the tab is asked what it shows, and the batch waits for its answer. So a slow browser skips ticks
instead of queueing them here, a tab that is gone costs one unanswered question, and nobody waits for anybody else.

A batch is one value of one store, with what it is meant for; assets/live.js applies it, unless the reader has gone to
another page or pipeline in the meantime. It is told by an attribute of an element, for neither may be the input of a
callback: Dash keeps every value that an input ever had.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

from dash import Dash, ctx, set_props
from dash.exceptions import WebsocketDisconnected
from plotly.utils import PlotlyJSONEncoder  # type: ignore[import-untyped]

from dashboards import ids
from dashboards.feed import Feed, Moment
from dashboards.pages import incidents, overview, topology

PATIENCE_SECONDS = (15.0, 60.0, 300.0, 900.0, 1800.0)
"""How long a tab may leave questions unanswered (a browser freezes tabs that are hidden); then it is given up."""

Shown = dict[str, Any]


def register(app: Dash, feed: Feed) -> None:
    """The callback; it runs as long as the tab is there."""

    @app.callback(websocket=True, persistent=True)
    async def follow() -> None:
        sent: dict[tuple[str, str], str] = {}
        last: Shown | None = None
        number = 0
        while True:
            moment = await feed.after(number)
            number = moment.number
            if (shown := await _shown()) != last:
                sent, last = {}, shown
            changed = []
            for component, prop, value in _updates(feed, moment, shown):
                said = json.dumps(value, cls=PlotlyJSONEncoder)
                if sent.get((component, prop)) != said:
                    sent[component, prop] = said
                    changed.append((component, prop, value))
            error = moment.error and str(moment.error)
            set_props(ids.BATCH, {"data": {"error": error, "shown": shown, "updates": changed}})
            set_props(ids.LIVE, {"data-number": number})


def _updates(feed: Feed, moment: Moment, shown: Shown) -> Iterator[tuple[str, str, Any]]:
    if shown.get("page") == "/incidents":
        yield from incidents.updates(moment)
    if shown.get("page") == "/topology":
        yield from topology.updates(moment)
    if shown.get("page") != "/":
        return
    wanted = shown.get("pipeline")
    if (shape := overview.shape(moment, wanted)) != shown.get("shape"):
        yield ids.DETAIL, "children", overview.detail_of(feed, moment, wanted)
        yield ids.SHOWN, "data", shown | {"shape": shape}
    yield from overview.updates(feed, moment, wanted)


async def _shown() -> Shown:
    """What the tab shows. Raises WebsocketDisconnected when the tab is given up."""
    for patience in PATIENCE_SECONDS:
        try:
            return await ctx.websocket.get_prop(ids.SHOWN, "data", timeout=patience) or {}
        except TimeoutError:
            await asyncio.sleep(0)
    raise WebsocketDisconnected
