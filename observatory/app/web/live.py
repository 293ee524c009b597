"""The live feed: a snapshot per interval over a WebSocket.

All clients share one snapshot (`Backend.snapshot` asks once for whoever waits), and each is sent to at its own pace: a
browser that does not read delays nobody. The server holds one message for it and the connection's buffer, no more, and
hangs up when it stays so (`serve.Patience`).
"""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from observatory.app.web.backend import SNAPSHOT_SECONDS, Backend
from observatory.app.web.errors import document_of
from observatory.model.errors import MediaObservatoryError

MOST_CLIENTS = 500
DEFAULT_SECONDS, LEAST_SECONDS, MOST_SECONDS = 1.0, 0.2, 10.0

MALFORMED_CODE = 1008
FULL_CODE = 1013


class Live:
    """The WebSocket endpoint, and how many clients it has."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.clients = 0

    async def serve(self, websocket: WebSocket) -> None:
        """One client, until it leaves. While the platform is gone it gets `{"error": ...}` instead of snapshots."""
        await websocket.accept()
        try:
            interval = _interval(websocket)
        except ValueError as error:
            await _end(websocket, MALFORMED_CODE, str(error), parameter="interval")
            return
        if self.clients >= MOST_CLIENTS:
            await _end(websocket, FULL_CODE, f"{self.clients} clients are connected already; try again later")
            return
        self.clients += 1
        gone = asyncio.ensure_future(_until_gone(websocket))
        try:
            await self._feed(websocket, interval, gone)
        except (WebSocketDisconnect, OSError):
            pass  # it left while it was sent to
        finally:
            self.clients -= 1
            gone.cancel()

    async def _feed(self, websocket: WebSocket, interval: float, gone: asyncio.Future[None]) -> None:
        clock = asyncio.get_running_loop().time
        due = clock()
        while not gone.done():
            await websocket.send_text(await self._message(interval))
            due = max(due + interval, clock())  # late ones are left out, not made up for
            await asyncio.wait({gone}, timeout=due - clock())

    async def _message(self, interval: float) -> str:
        try:
            return (await self._backend.snapshot(min(interval, SNAPSHOT_SECONDS))).text
        except MediaObservatoryError as error:
            return json.dumps(document_of(error))


def _interval(websocket: WebSocket) -> float:
    unknown = set(websocket.query_params) - {"interval"}
    if unknown:
        raise ValueError(f"there is no parameter {min(unknown)}; known: interval")
    text = websocket.query_params.get("interval", str(DEFAULT_SECONDS))
    words = f"interval: {text!r} is not a number of seconds from {LEAST_SECONDS:g} to {MOST_SECONDS:g}"
    try:
        seconds = float(text)
    except ValueError:
        raise ValueError(words) from None
    if not (math.isfinite(seconds) and LEAST_SECONDS <= seconds <= MOST_SECONDS):
        raise ValueError(words)
    return seconds


async def _until_gone(websocket: WebSocket) -> None:
    """What the client says is read and means nothing; ends when it leaves, or the server ends."""
    while (await websocket.receive())["type"] != "websocket.disconnect":
        pass


async def _end(websocket: WebSocket, code: int, message: str, **more: Any) -> None:
    error = {"kind": "BadRequest", "message": message, "file": None, "line": None, "mend": None, **more}
    if websocket.application_state is WebSocketState.CONNECTED:
        await websocket.send_text(json.dumps({"error": error}))
        await websocket.close(code, message[:120])
