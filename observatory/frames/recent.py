"""The latency of the last seconds, told from a histogram that only grows: its counts now, less those of then."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from observatory.frames.latency import Histogram

WINDOW_SECONDS = 10.0
STEP_SECONDS = 1.0  # how often the counts are remembered


class RecentLatency:
    """Remembers the counts of one histogram over the last `WINDOW_SECONDS`, in steps. Not thread-safe."""

    def __init__(self, histogram: Histogram, now: float) -> None:
        self._histogram = histogram
        self._remembered: deque[tuple[float, npt.NDArray[np.int64]]] = deque([(now, histogram.counts.copy())])

    def note(self, now: float) -> None:
        """Time has gone on (CLOCK_MONOTONIC, seconds)."""
        if now - self._remembered[-1][0] >= STEP_SECONDS:
            self._remembered.append((now, self._histogram.counts.copy()))
        while len(self._remembered) > 1 and now - self._remembered[1][0] >= WINDOW_SECONDS:
            self._remembered.popleft()

    def histogram(self) -> Histogram:
        """What was counted since the oldest counts that are remembered; its largest value is only bounded."""
        recent = Histogram()
        recent.counts = self._histogram.counts - self._remembered[0][1]
        recent.largest_ns = self._histogram.largest_ns
        return recent
