"""Pipelines of the configuration: started when they can be, again when they fail, ended when they are taken out.

A camera that is switched off in the morning is no reason for a platform not to start: what cannot be started now is
tried again, after a pause that doubles.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from observatory.app.config.load import ConfiguredPipeline
from observatory.app.errors import NoSuchPipeline
from observatory.app.managed import ManagedPipeline
from observatory.app.platform import Platform
from observatory.app.submission import Submission
from observatory.model.errors import MediaObservatoryError

FIRST_PAUSE_SECONDS = 2.0
LONGEST_PAUSE_SECONDS = 60.0
HEALTHY_SECONDS = 60.0  # one that ran so long and failed then is started again after the first pause
LOOK_SECONDS = 0.5


@dataclass(slots=True)
class _Wanted:
    """One of them, and how it went so far."""

    submission: Submission
    pipeline: ManagedPipeline | None = None
    due: float = 0.0
    began: float = 0.0
    pause_seconds: float = FIRST_PAUSE_SECONDS
    error: str | None = None


class ConfiguredPipelines:
    """Keeps a platform at what its configuration wants, in a thread of its own.

    Args:
        on_event: called with (pipeline name, what happened, whether it is bad).
    """

    def __init__(self, platform: Platform, on_event: Callable[[str, str, bool], None]) -> None:
        self._platform = platform
        self._on_event = on_event
        self._lock = threading.Lock()
        self._target: dict[str, Submission] = {}
        self._wanted: dict[str, _Wanted] = {}  # used by the thread, and read for warnings
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="configured-pipelines", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def want(self, pipelines: Sequence[ConfiguredPipeline]) -> None:
        """What is to run from now on; returns at once."""
        with self._lock:
            self._target = {one.name: one.submission for one in pipelines}
        self._wake.set()

    def stop(self) -> None:
        """Start nothing any more. The platform ends what runs."""
        self._stopping = True
        self._wake.set()
        self._thread.join()

    @property
    def warnings(self) -> list[str]:
        """Those that do not run though they should."""
        return [f"{name} does not run: {one.error}" for name, one in list(self._wanted.items()) if one.error]

    def _run(self) -> None:
        while not self._stopping:
            with self._lock:
                target = dict(self._target)
            for name in [n for n, one in self._wanted.items() if target.get(n) != one.submission]:
                self._end(name)
            for name, submission in target.items():
                if not self._stopping:
                    self._see_to(name, self._wanted.setdefault(name, _Wanted(submission)))
            self._wake.wait(LOOK_SECONDS)
            self._wake.clear()

    def _end(self, name: str) -> None:
        one = self._wanted.pop(name)
        if one.pipeline is not None and one.pipeline.running:
            with contextlib.suppress(NoSuchPipeline):  # somebody was faster
                self._platform.remove(name)

    def _see_to(self, name: str, one: _Wanted) -> None:
        now = time.monotonic()
        if one.pipeline is not None:
            if one.pipeline.running or one.pipeline.error is None:
                return  # it runs; or its input has ended, or somebody removed it
            if now - one.began >= HEALTHY_SECONDS:
                one.pause_seconds = FIRST_PAUSE_SECONDS
            self._postpone(name, one, one.pipeline.error, told=True)
            one.pipeline = None
        if now >= one.due:
            self._start(name, one)

    def _start(self, name: str, one: _Wanted) -> None:
        one.began = time.monotonic()
        try:
            one.pipeline = self._platform.submit(one.submission)
            one.error = None
        except MediaObservatoryError as error:
            self._postpone(name, one, error, told=False)
        except Exception as error:  # a defect of ours: said, and tried again like everything else
            self._postpone(name, one, MediaObservatoryError(f"{type(error).__name__}: {error}"), told=False)

    def _postpone(self, name: str, one: _Wanted, error: MediaObservatoryError, *, told: bool) -> None:
        pause = one.pause_seconds
        one.due = time.monotonic() + pause
        one.pause_seconds = min(2 * pause, LONGEST_PAUSE_SECONDS)
        if one.error != str(error) and not self._stopping:
            reason = "" if told else f"cannot be started: {error}; "
            self._on_event(name, f"{reason}tried again in {pause:g} s", True)
        one.error = str(error)
