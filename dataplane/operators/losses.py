"""Reports lost frames, not more of them than anybody can read."""

from __future__ import annotations

import time
from collections.abc import Callable

BURST, PER_SECOND = 200, 10.0

Report = Callable[[int | None, int | None, str], None]


class LossReport:
    """Hands lost frames on one by one; of a live source few a second, and the rest as a number."""

    def __init__(self, report: Report, bounded: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._report = report
        self._bounded = bounded
        self._clock = clock
        self._allowed = float(BURST)
        self._filled = clock()
        self._more: dict[str, int] = {}

    def add(self, source_index: int | None, pts: int | None, reason: str, count: int = 1) -> None:
        """Report `count` lost frames."""
        for _ in range(count):
            if not self._may():
                break
            self._report(source_index, pts, reason)
            count -= 1
        if count:
            self._more[reason] = self._more.get(reason, 0) + count

    def flush(self) -> None:
        """Report what is only counted so far."""
        for reason, count in self._more.items():
            self._report(None, None, f"{reason} ({count} frames)")
        self._more.clear()

    def _may(self) -> bool:
        if not self._bounded:
            return True
        now = self._clock()
        self._allowed = min(BURST, self._allowed + (now - self._filled) * PER_SECOND)
        self._filled = now
        if self._allowed < 1:
            return False
        if self._more:  # there is room again: first what was held back
            self.flush()
        self._allowed -= 1
        return True
