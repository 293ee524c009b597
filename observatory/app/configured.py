"""Pipelines of the configuration: started when they can be, again when they fail, ended when they are taken out.

A camera that is switched off in the morning is no reason for a platform not to start: what cannot be started now is
tried again, after a pause that doubles. Each has a keeper of its own, so that none waits for another's camera.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence

from dataplane.errors import Stopped
from observatory.app.config.load import ConfiguredPipeline
from observatory.app.errors import PlatformError, ShuttingDown
from observatory.app.managed import ManagedPipeline
from observatory.app.platform import Platform
from observatory.app.submission import Submission
from observatory.model.errors import MediaObservatoryError

FIRST_PAUSE_SECONDS = 2.0
LONGEST_PAUSE_SECONDS = 60.0
HEALTHY_SECONDS = 60.0  # one that ran so long and failed then is started again after the first pause
LOOK_SECONDS = 0.25

OnEvent = Callable[[str, str, bool], None]
"""Called with (pipeline name, what happened, whether it is bad)."""


class ConfiguredPipelines:
    """Keeps a platform at what its configuration wants. `want` and `stop` are for one thread."""

    def __init__(self, platform: Platform, on_event: OnEvent) -> None:
        self._platform = platform
        self._on_event = on_event
        self._keepers: dict[str, _Keeper] = {}
        self._retired: list[_Keeper] = []

    def want(self, pipelines: Sequence[ConfiguredPipeline]) -> None:
        """What is to run from now on; returns at once."""
        target = {one.name: one.submission for one in pipelines}
        before: dict[str, _Keeper] = {}
        for name, keeper in list(self._keepers.items()):
            if target.get(name) != keeper.submission:
                keeper.retire()
                before[name] = self._keepers.pop(name)
        self._retired = [k for k in (*self._retired, *before.values()) if k.is_alive()]
        for name, submission in target.items():
            if name not in self._keepers:
                keeper = _Keeper(name, submission, self._platform, self._on_event, after=before.get(name))
                self._keepers[name] = keeper
                keeper.start()

    def stop(self) -> None:
        """Start nothing any more. The platform ends what runs."""
        for keeper in self._keepers.values():
            keeper.leave()

    @property
    def warnings(self) -> list[str]:
        """Those that do not run though they should."""
        return [f"{name} does not run: {k.error}" for name, k in list(self._keepers.items()) if k.error]


class _Keeper(threading.Thread):
    """Keeps one pipeline running until it is retired (then it ends the pipeline) or told to leave."""

    def __init__(
        self, name: str, submission: Submission, platform: Platform, on_event: OnEvent, after: _Keeper | None
    ) -> None:
        super().__init__(name=f"keeper of {name}", daemon=True)
        self.submission = submission
        self.error: str | None = None
        self._pipeline_name = name
        self._platform = platform
        self._on_event = on_event
        self._after = after  # who keeps the pipeline that this one is in place of
        self._done = threading.Event()
        self._retired = False
        self._pause_seconds = FIRST_PAUSE_SECONDS

    def retire(self) -> None:
        """The pipeline is no longer wanted."""
        self._retired = True
        self._done.set()

    def leave(self) -> None:
        """The platform ends."""
        self._done.set()

    def run(self) -> None:
        """Start it, watch it, start it again."""
        if self._after is not None:
            self._after.join()
            self._after = None
        while not self._done.is_set():
            began = time.monotonic()
            try:
                pipeline = self._platform.submit(self.submission, self._done.is_set)
            except (Stopped, ShuttingDown):
                self._done.wait(LOOK_SECONDS)  # the end is near
                continue
            except Exception as error:  # also a defect of ours is said, and tried again like everything else
                self._postpone(error, told=False)
                continue
            self.error = None
            self._watch(pipeline)
            if pipeline.error is not None and not self._done.is_set():
                if time.monotonic() - began >= HEALTHY_SECONDS:
                    self._pause_seconds = FIRST_PAUSE_SECONDS
                self._postpone(pipeline.error, told=True)
            else:
                self._done.wait()  # its input has ended, or somebody removed it: it is not started again

    def _watch(self, pipeline: ManagedPipeline) -> None:
        while pipeline.running and not self._done.wait(LOOK_SECONDS):
            pass
        if self._retired and pipeline.running:
            with contextlib.suppress(PlatformError):  # somebody was faster; or it does not end, which `ps` shows
                self._platform.remove(self._pipeline_name)

    def _postpone(self, error: Exception, *, told: bool) -> None:
        """Wait before the next try; say so when the reason is a new one."""
        pause = self._pause_seconds
        self._pause_seconds = min(2 * pause, LONGEST_PAUSE_SECONDS)
        words = str(error) if isinstance(error, MediaObservatoryError) else f"{type(error).__name__}: {error}"
        if self.error != words:
            reason = "" if told else f"cannot be started: {words}; "
            self._on_event(self._pipeline_name, f"{reason}tried again in {pause:g} s", True)
        self.error = words
        self._done.wait(pause)
