"""Serves an application with uvicorn on a socket that is there already, and knows when to stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

END_SECONDS = 1.8
"""From being told to end until the process is gone, whatever still runs."""
MOST_MESSAGE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client may not read, and what may wait for it.

    A client is cut off when its connection's buffer has been full for `stalled_seconds`, and a WebSocket also when it
    has not answered a ping for `ping_seconds` (one goes out every `ping_seconds`).
    """

    stalled_seconds: float = 10.0
    ping_seconds: float = 10.0
    kernel_buffer_bytes: int = 256 << 10


class _Impatient(asyncio.Protocol):
    """What both protocols of uvicorn lack: it waits for ever for a client that does not read.

    Closing does not help there, because closing flushes first: the connection has to be aborted.
    """

    patience = Patience()
    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        connection: socket.socket | None = transport.get_extra_info("socket")
        if connection is not None:  # else the kernel takes megabytes for a client that does not read
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.patience.kernel_buffer_bytes)
        super().connection_made(transport)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._calm()
        self._stalled = self.loop.call_later(self.patience.stalled_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        self._calm()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._calm()
        super().connection_lost(exc)

    def _calm(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None


class _Http(_Impatient, H11Protocol):
    def handle_websocket_upgrade(self, event: Any) -> None:
        self._calm()  # the WebSocket's protocol takes the connection over
        super().handle_websocket_upgrade(event)


class _WebSocket(_Impatient, WebSocketsSansIOProtocol):
    def shutdown(self) -> None:
        super().shutdown()
        if self._stalled is not None:  # it would not take the close frame either
            self.transport.abort()

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.loop.call_later(1.0, self.transport.abort)  # time for the close frame, if it can go out at all


class Server(uvicorn.Server):
    """Ends on SIGTERM, ignores SIGINT: Ctrl-C in a terminal goes to the platform, which decides."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._told, self._tell = os.pipe()

    def __del__(self) -> None:
        os.close(self._told)
        os.close(self._tell)

    def stop(self) -> None:
        """End. From any thread, and from a signal handler: it takes no lock, which the interrupted code may hold."""
        self.should_exit = True
        os.write(self._tell, b".")

    def end_in_any_case(self) -> None:
        """From now on, end the process `END_SECONDS` after `stop`, whatever still runs in it."""

        def watch() -> None:
            os.read(self._told, 1)
            time.sleep(END_SECONDS)
            os._exit(0)

        threading.Thread(target=watch, name="end", daemon=True).start()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take the signals over while serving, when this is the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(_number: int, _frame: FrameType | None) -> None:
            self.stop()

        before = {signal.SIGTERM: signal.signal(signal.SIGTERM, stop)}
        before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def make_server(app: ASGIApp, patience: Patience | None = None) -> Server:
    """A server for this application; call `serve(sockets=[...])` on it."""
    patience = patience or Patience()
    http = type("Http", (_Http,), {"patience": patience})
    websocket = type("WebSocket", (_WebSocket,), {"patience": patience})
    config = uvicorn.Config(
        app,
        http=http,  # h11 bounds what headers may take
        ws=websocket,
        loop="asyncio",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws_max_size=MOST_MESSAGE_BYTES,
        ws_ping_interval=patience.ping_seconds,
        ws_ping_timeout=patience.ping_seconds,
        ws_per_message_deflate=False,  # on the same machine it costs more than it saves
        timeout_graceful_shutdown=1,
        backlog=1024,
    )
    return Server(config)


def end_with(pid: int, server: Server) -> None:
    """End the server when that process, which is to be our parent, has ended.

    Not by PR_SET_PDEATHSIG: that goes by the thread that forked, and threads of a platform come and go.
    """
    descriptor = os.pidfd_open(pid)

    def watch() -> None:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        poller.poll()
        server.stop()

    threading.Thread(target=watch, name="parent", daemon=True).start()
    if os.getppid() != pid:  # it ended before we looked; its number may be somebody else's by now
        server.stop()
