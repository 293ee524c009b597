"""Puts a platform together and runs it: lock, socket, control, web process, pipelines, and the way back."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from dataplane.process import NurseryProcess
from observatory.app.board import Board
from observatory.app.control import ControlServer
from observatory.app.keeping import Keeping
from observatory.app.platform import Platform, PlatformOptions
from observatory.app.service import Helper, Service, signals
from observatory.app.state_lock import StateLock
from observatory.app.submission import Submission
from observatory.frames.retention import RetentionPolicy
from observatory.model.errors import ExitCode


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that decides how a platform runs. `port` None: no web process."""

    options: PlatformOptions
    submissions: tuple[Submission, ...]
    stay: bool = False
    duration_seconds: float | None = None
    host: str = "127.0.0.1"
    port: int | None = 8050
    quiet: bool = False
    retention: RetentionPolicy = field(default_factory=RetentionPolicy)
    check_seconds: float = 10.0
    config_file: str | None = None
    on_reload: Callable[[Platform], None] = field(default=lambda _: None)


def launch(setup: Setup, nursery: NurseryProcess) -> tuple[ExitCode, dict[str, Any]]:
    """Run until it ends; the exit code, and what became of it.

    Raises:
        AlreadyRunning: a platform has this state directory.
        MediaObservatoryError: the port is taken, or one of the first pipelines could not be started.
    """
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context(StateLock(setup.options.state))
        listening = _listen(setup, stack)
        board = stack.enter_context(Board(Console(stderr=True), quiet=setup.quiet))
        platform = Platform(setup.options, nursery, board.event)
        platform.config_file = setup.config_file
        platform.keeping = keeping = stack.enter_context(
            Keeping(setup.options.state, setup.retention, setup.check_seconds)
        )
        for words in keeping.notes:
            board.event("frame store", words)
        server = ControlServer(setup.options.state, platform.commands())
        stack.callback(server.close)
        helpers: list[Helper] = []
        if listening is not None:
            helpers.append(_serve_pages(setup, platform, listening, server, stack))
            lock.write(platform.url)
            board.event("platform", f"pages at {platform.url}")
        service = Service(
            platform,
            stay=setup.stay,
            duration_seconds=setup.duration_seconds,
            helpers=helpers,
            on_tick=board.show,
            on_reload=lambda: setup.on_reload(platform),
        )
        with signals(service.wishes):
            code = service.run(setup.submissions)
        return code, _document(platform)


def _listen(setup: Setup, stack: contextlib.ExitStack) -> socket.socket | None:
    """Bound before anything else starts, so that a port in use is said at once."""
    if setup.port is None:
        return None
    from observatory.app.web.process import bind

    return stack.enter_context(bind(setup.host, setup.port))


def _serve_pages(
    setup: Setup, platform: Platform, listening: socket.socket, server: ControlServer, stack: contextlib.ExitStack
) -> Helper:
    from observatory.app.web.process import WebProcess

    web = WebProcess(listening, setup.options.state, server.path)
    stack.callback(web.close)
    platform.web_restarts = lambda: web.restarts
    platform.url = web.url
    return web


def _document(platform: Platform) -> dict[str, Any]:
    """What became of every pipeline, for `--json`."""
    return {
        "platform": platform.snapshot().platform.model_dump(mode="json"),
        "pipelines": [
            pipeline.status.model_dump(mode="json", include={"name", "state", "reason", "streams", "warnings"})
            | {"summary": pipeline.summary.model_dump(mode="json") if pipeline.summary else None}
            for pipeline in platform.pipelines
        ],
    }
