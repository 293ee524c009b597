"""Puts a platform together and runs it: lock, socket, control, web process, pipelines, and the way back."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dataplane.process import NurseryProcess
from observatory.app.board import Board
from observatory.app.config.changes import ConfigWatch
from observatory.app.config.load import Config
from observatory.app.configured import ConfiguredPipelines
from observatory.app.control import ControlServer
from observatory.app.keeping import Keeping
from observatory.app.leftovers import sweep_leftovers
from observatory.app.links import LinkWish
from observatory.app.platform import Platform, PlatformOptions
from observatory.app.service import Helper, Service, Wishes, signals
from observatory.app.state_lock import StateLock
from observatory.app.submission import Submission
from observatory.model.errors import ExitCode, MediaObservatoryError

if TYPE_CHECKING:
    from observatory.app.hardware import Hardware
    from observatory.app.web.process import WebProcess


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that decides how a platform runs.

    Args:
        watch: the configuration in force, and how to read it again.
        submissions: pipelines to start with; None: those of the configuration, which SIGHUP then changes.
        stay: go on when no pipeline runs.
        web: serve pages, API and metrics.
        links: how to emulate the topology's links; None: all operators share a memory.
    """

    watch: ConfigWatch
    submissions: tuple[Submission, ...] | None
    stay: bool
    duration_seconds: float | None
    web: bool
    quiet: bool
    links: LinkWish | None = None


def launch(setup: Setup, nursery: NurseryProcess) -> tuple[ExitCode, dict[str, Any]]:
    """Run until it ends; the exit code, and what became of it.

    Raises:
        AlreadyRunning: a platform has this state directory.
        MediaObservatoryError: the port is taken, or one of the first pipelines could not be started.
    """
    config = setup.watch.config
    state = config.platform.state
    with contextlib.ExitStack() as stack:
        wishes = Wishes()
        stack.callback(wishes.close)
        stack.enter_context(signals(wishes))  # first, and so restored last: no signal finds the way back half done
        lock = stack.enter_context(StateLock(state))
        sweep_leftovers(state)
        listening = _listen(config, stack) if setup.web else None
        board = stack.enter_context(Board(quiet=setup.quiet))
        platform = Platform(replace(options_of(config), links=setup.links), nursery, board.event)
        stack.callback(platform.close)
        platform.config_file = None if config.file is None else str(config.file)
        platform.keeping = keeping = stack.enter_context(
            Keeping(state, config.frames.retention(), config.frames.check_seconds)
        )
        hardware = _look_at_hardware(config, platform, stack, board)
        server = ControlServer(state, platform.commands())
        stack.callback(server.close)
        helpers: list[Helper] = []
        if listening is not None:
            helpers.append(_serve_pages(config, platform, listening, server, stack, board))
            lock.write(platform.url)
        configured = None if setup.submissions is not None else ConfiguredPipelines(platform, board.event)
        reloading = Reloading(setup.watch, platform, keeping, configured, board)
        for words in (*config.warnings, *keeping.notes):
            board.event("platform", words, bad=words in config.warnings)
        if platform.links is not None:
            board.event("platform", platform.links.words)
        if platform.url is not None:
            board.event("platform", f"pages at {platform.url}")
        platform.more_warnings = lambda: _warnings(lock, configured, nursery, hardware)
        if configured is not None:
            configured.want(config.pipelines)
        service = Service(
            platform,
            stay=setup.stay,
            duration_seconds=setup.duration_seconds,
            helpers=helpers,
            on_tick=board.show,
            on_reload=reloading.reload,
            on_end=(lambda: None) if configured is None else configured.stop,
            on_trouble=lambda words: board.event("platform", words, bad=True),
            wishes=wishes,
        )
        code = service.run(setup.submissions or ())
        return code, _document(platform)


def _warnings(
    lock: StateLock, configured: ConfiguredPipelines | None, nursery: NurseryProcess, hardware: Hardware | None
) -> list[str]:
    """What somebody should know who looks at the platform."""
    found = [] if configured is None else list(configured.warnings)
    if hardware is not None:
        found += hardware.warnings
    if nursery.restarts:
        found.append(f"the process that starts workers died, {nursery.restarts} times, and its workers with it")
    if lock.lost:
        found.insert(0, "the state directory was removed or replaced: no command finds this platform; restart it")
    return found


def options_of(config: Config) -> PlatformOptions:
    """What the configuration says of where and how pipelines run."""
    section = config.platform
    return PlatformOptions(
        state=section.state,
        topology=section.topology,
        queue_frames=section.queue_frames,
        memory_limit_bytes=section.memory_limit_bytes,
        pool_policy=section.pool_policy(),
        share_prefixes=section.share_prefixes,
    )


class Reloading:
    """What SIGHUP means to a platform. For the thread of its main loop."""

    def __init__(
        self,
        watch: ConfigWatch,
        platform: Platform,
        keeping: Keeping,
        configured: ConfiguredPipelines | None,
        board: Board,
    ) -> None:
        self._watch = watch
        self._platform = platform
        self._keeping = keeping
        self._configured = configured
        self._board = board

    def reload(self) -> None:
        """Read the configuration again and act on what is different; a broken file changes nothing."""
        found = self._watch.reload()
        if found is None:
            self._board.event("platform", f"configuration not reloaded, the old one goes on: {self._watch.error}", True)
            return
        config = self._watch.config
        self._keeping.change(config.frames.retention(), config.frames.check_seconds)
        # Of where it runs nothing changes before a restart.
        before = self._platform.options
        self._platform.options = replace(
            before,
            queue_frames=config.platform.queue_frames,
            memory_limit_bytes=config.platform.memory_limit_bytes,
            pool_policy=config.platform.pool_policy(),
            share_prefixes=config.platform.share_prefixes,
        )
        if self._configured is not None:
            self._configured.want(config.pipelines)
        self._board.event("platform", "configuration reloaded" + ("" if found else ": nothing has changed"))
        for words in found.words():
            self._board.event("platform", words)


def _listen(config: Config, stack: contextlib.ExitStack) -> socket.socket:
    """Bound before anything else starts, so that a port in use is said at once."""
    from observatory.app.web.process import bind

    return stack.enter_context(bind(config.platform.host, config.platform.port))


def _look_at_hardware(config: Config, platform: Platform, stack: contextlib.ExitStack, board: Board) -> Hardware | None:
    """Receivers, and the emulated machine where there is to be one. Frames flow also where neither can be had."""
    if not config.telemetry.enabled:
        return None
    from observatory.app.hardware import Hardware

    fabric = None if platform.links is None else platform.links.fabric
    try:
        hardware = Hardware(
            config.telemetry,
            config.otlp,
            platform.topology,
            config.platform.topology,
            fabric,
            config.platform.state,
            lambda words, bad: board.event("hardware", words, bad),
        )
    except MediaObservatoryError as error:
        board.event("hardware", f"is not looked at: {error}", bad=True)
        return None
    stack.callback(hardware.close)
    platform.look_at(hardware)
    board.event("hardware", hardware.words)
    return hardware


def _serve_pages(
    config: Config,
    platform: Platform,
    listening: socket.socket,
    server: ControlServer,
    stack: contextlib.ExitStack,
    board: Board,
) -> Helper:
    from observatory.app.web.process import WebProcess

    hosts = config.platform.allowed_hosts
    web = WebProcess(listening, config.platform.state, server.path, allow_hosts=hosts)
    stack.callback(web.close)
    platform.web_restarts = lambda: web.restarts
    platform.url = web.url
    return _Announced(web, board)


class _Announced:
    """The web process, and a line for people whenever it had to be started again."""

    def __init__(self, web: WebProcess, board: Board) -> None:
        self._web = web
        self._board = board
        self._told = 0

    def poll(self) -> None:
        """See to the process."""
        self._web.poll()
        if self._web.restarts > self._told:
            self._told = self._web.restarts
            self._board.event("platform", f"the web process was started again: {self._web.reason}", bad=True)


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
