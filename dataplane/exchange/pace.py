"""How often something may happen."""

from __future__ import annotations

import time
from collections.abc import Callable


class Pace:
    """At most `per_second` on average, and `burst` at once.

    Args:
        per_second: how fast permits grow again.
        burst: how many there are at most.
        clock: seconds; for tests.
    """

    def __init__(self, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._permits = float(burst)
        self._at = clock()

    def take(self) -> bool:
        """Whether it may happen now; counts it if so."""
        now = self._clock()
        self._permits = min(self._burst, self._permits + (now - self._at) * self._per_second)
        self._at = now
        if self._permits < 1.0:
            return False
        self._permits -= 1.0
        return True

    @property
    def wait_seconds(self) -> float:
        """Until the next permit."""
        return max(0.0, (1.0 - self._permits) / self._per_second)

    @property
    def full(self) -> bool:
        """Whether as much may happen as if nothing ever had."""
        return self._permits + (self._clock() - self._at) * self._per_second >= self._burst
