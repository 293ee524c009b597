"""The main loop of `observatory up`: signals, the time that is up, the web process, and who ends when."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Protocol

from observatory.app import hang_up
from observatory.app.errors import ShuttingDown
from observatory.app.platform import Platform
from observatory.app.submission import Submission
from observatory.model.errors import ExitCode
from observatory.model.status import Snapshot

TICK_SECONDS = 0.25
DRAIN_SECONDS = 35.0  # then what still runs is ended at once
AT_ONCE_SECONDS = 10.0  # and what is left then is left to the kernel
MOST_TROUBLES = 100


class Helper(Protocol):
    """Something that the service keeps going beside the pipelines: the web process, for one."""

    def poll(self) -> None:
        """See to it; called a few times per second. Must not raise."""


class Wishes:
    """What signals have asked for, and a way to wait for them.

    Handlers only set attributes: a lock that the interrupted thread holds would never be given back. The kernel's
    signal writes into `wake` (signal.set_wakeup_fd), which the main loop waits for.
    """

    def __init__(self) -> None:
        self.stop = 0
        self.interrupted = False
        self.reload = False
        self._heard, self.wake = socket.socketpair()
        self._heard.setblocking(False)
        self.wake.setblocking(False)

    def wait(self, timeout_seconds: float) -> None:
        """Until a signal comes, or the timeout."""
        select.select([self._heard], [], [], timeout_seconds)
        with suppress(BlockingIOError):
            while self._heard.recv(4096):
                pass

    def close(self) -> None:
        """Free its descriptors."""
        self._heard.close()
        self.wake.close()


class Service:
    """Runs a platform until its pipelines have ended, its time is up, or somebody says so.

    Args:
        stay: go on when no pipeline runs.
        duration_seconds: end by itself after that; None: never.
        helpers: what else is to be kept going.
        on_tick: called with a snapshot a few times per second.
        on_reload: what SIGHUP means.
        on_end: called before the pipelines are ended.
        on_trouble: called with words when one of these fails: nothing of that ends a platform.
        wishes: what signals ask for.
    """

    def __init__(
        self,
        platform: Platform,
        *,
        stay: bool,
        duration_seconds: float | None,
        helpers: Sequence[Helper],
        on_tick: Callable[[Snapshot], None],
        on_reload: Callable[[], None],
        on_end: Callable[[], None],
        on_trouble: Callable[[str], None],
        wishes: Wishes,
    ) -> None:
        self._platform = platform
        self._stay = stay
        self._duration_seconds = duration_seconds
        self._helpers = helpers
        self._on_tick = on_tick
        self._on_reload = on_reload
        self._on_end = on_end
        self._on_trouble = on_trouble
        self._troubles: set[str] = set()
        self._started = time.monotonic()
        self.wishes = wishes
        platform.told_to_end = self._told_to_end

    def run(self, submissions: Sequence[Submission]) -> ExitCode:
        """Submit the first pipelines, then serve.

        Raises:
            MediaObservatoryError: one of the first pipelines could not be started; the others are ended again.
        """
        try:
            with suppress(ShuttingDown):  # told to end while an input was being opened
                if submissions:
                    self._platform.submit_together(submissions)
            while not self._done():
                self._tick()
        finally:
            self._drain()
        if self.wishes.interrupted:
            return ExitCode.INTERRUPTED
        failed = any(pipeline.error is not None for pipeline in self._platform.pipelines)
        return ExitCode.JOB_FAILED if failed else ExitCode.DONE

    def _told_to_end(self) -> bool:
        over = self._duration_seconds is not None and time.monotonic() - self._started >= self._duration_seconds
        return bool(self.wishes.stop) or over

    def _done(self) -> bool:
        idle = not self._stay and not self._platform.busy
        return idle or self._told_to_end()

    def _tick(self) -> None:
        self.wishes.wait(TICK_SECONDS)
        if self.wishes.reload:
            self.wishes.reload = False
            self._guarded("the reload", self._on_reload)
        for helper in self._helpers:
            self._guarded(type(helper).__name__, helper.poll)
        self._show()

    def _show(self) -> None:
        self._guarded("the display", lambda: self._on_tick(self._platform.snapshot()))

    def _guarded(self, what: str, work: Callable[[], None]) -> None:
        """Do it; what goes wrong is said once, and is no reason for pipelines to end."""
        try:
            work()
        except Exception as error:
            words = f"{what} failed: {type(error).__name__}: {error}"
            if words not in self._troubles and len(self._troubles) < MOST_TROUBLES:
                self._troubles.add(words)
                self._on_trouble(words)

    def _drain(self) -> None:
        """End what runs: in good order, and at once after a second signal or when it takes too long."""
        self._platform.stop()
        self._guarded("the end of configured pipelines", self._on_end)
        deadline, stops = time.monotonic() + DRAIN_SECONDS, max(1, self.wishes.stop)
        hard = False
        while self._platform.busy:
            if not hard and (self.wishes.stop > stops or time.monotonic() > deadline):
                hard = True
                deadline = time.monotonic() + AT_ONCE_SECONDS
                self._platform.stop(at_once=True)
            if hard and time.monotonic() > deadline:
                self._on_trouble("a pipeline does not end; its workers are killed with this process")
                return
            self.wishes.wait(0.05)
            self._show()


@contextmanager
def signals(wishes: Wishes) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the service in good order, a second one at once; SIGHUP reloads its configuration."""

    def stop(number: int, _frame: FrameType | None) -> None:
        wishes.stop += 1
        wishes.interrupted |= number == signal.SIGINT

    def reload(number: int, frame: FrameType | None) -> None:
        if on_terminal and not hang_up.terminal_there():  # it was closed: that is no wish to reload
            stop(number, frame)
        else:
            wishes.reload = True

    on_terminal = os.isatty(2)
    handlers = {signal.SIGINT: stop, signal.SIGTERM: stop, signal.SIGHUP: reload}
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # under nohup it stays ignored
        del handlers[signal.SIGHUP]
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    wishes.reload = signal.SIGHUP in handlers and hang_up.came()
    woken = signal.set_wakeup_fd(wishes.wake.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(woken)
        for number, handler in before.items():
            signal.signal(number, handler)
