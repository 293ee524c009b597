"""Sweeps a frame store every few seconds, in a thread of the process that owns it."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from observatory.frames.retention import Retention, RetentionPolicy, SweepResult
from observatory.model.errors import MediaObservatoryError

CALM = 0.9
"""Below this share of the budget nothing is said of it any more."""


@dataclass(frozen=True, slots=True)
class RetentionStatus:
    """How retention is doing.

    error: why the last sweep failed, in words. warning: what the disk budget took although it should have been kept;
    it stays until less than 90 % of the budget are in use.
    """

    policy: RetentionPolicy
    last: SweepResult | None
    sweeps: int
    error: str | None
    warning: str | None


class RetentionThread:
    """Calls `retention.sweep` every `check_seconds`, the first time after as long.

    What goes wrong is kept for `status`, and tried again the next time: a job goes on without it. `policy` and
    `check_seconds` may be set at any time.
    """

    def __init__(self, retention: Retention, check_seconds: float = 10.0) -> None:
        self._retention = retention
        self._check_seconds = check_seconds
        self._wake = threading.Condition()
        self._stopping = False
        self._last: SweepResult | None = None
        self._sweeps = 0
        self._error: str | None = None
        self._warning: str | None = None
        self._thread: threading.Thread | None = None

    @property
    def policy(self) -> RetentionPolicy:
        """What is kept from the next sweep on."""
        return self._retention.policy

    @policy.setter
    def policy(self, policy: RetentionPolicy) -> None:
        self._retention.policy = policy

    @property
    def check_seconds(self) -> float:
        """Pause between two sweeps."""
        return self._check_seconds

    @check_seconds.setter
    def check_seconds(self, seconds: float) -> None:
        with self._wake:
            self._check_seconds = seconds
            self._wake.notify_all()

    def start(self) -> None:
        """Sweep in a thread of its own until `stop`."""
        self._thread = threading.Thread(target=self._run, name="frame-retention", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, at the next transaction of the sweep that it is at. The store may be closed then."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def status(self) -> RetentionStatus:
        """How it is doing."""
        with self._wake:
            return RetentionStatus(self.policy, self._last, self._sweeps, self._error, self._warning)

    def _run(self) -> None:
        while self._wait():
            self._sweep()

    def _wait(self) -> bool:
        """Wait for the next sweep, anew when `check_seconds` changes; False when it is time to end."""
        with self._wake:
            while not self._stopping:
                if not self._wake.wait(self._check_seconds):
                    break
            return not self._stopping

    def _sweep(self) -> None:
        try:
            result = self._retention.sweep(stop=lambda: self._stopping)
        except MediaObservatoryError as error:
            self._note(None, str(error))
        except Exception as error:
            self._note(None, f"{type(error).__name__}: {error}")
        else:
            self._note(result, None)

    def _note(self, result: SweepResult | None, error: str | None) -> None:
        with self._wake:
            self._sweeps += 1
            self._error = error
            if result is not None:
                self._last = result
                budget = self.policy.disk_budget_bytes
                if result.warning is not None:
                    self._warning = result.warning
                elif budget is None or result.bytes_after < CALM * budget:
                    self._warning = None
