"""When a worker that died is succeeded, and when it is given up."""

from __future__ import annotations

from collections import deque

FIRST_DELAY_SECONDS = 0.1  # before the second restart; the first one is at once
LONGEST_DELAY_SECONDS = 5.0
WINDOW_SECONDS = 60.0
MOST_DEATHS = 6  # within the window: one more is a quarantine


class Backoff:
    """Of one operator: the delay doubles with every death within the window, and after too many it is quarantined."""

    def __init__(self) -> None:
        self._deaths: deque[float] = deque()

    @property
    def deaths(self) -> int:
        """Within the window before the last one."""
        return len(self._deaths)

    def died(self, now_seconds: float) -> float | None:
        """Count a death at that (monotonic) time: seconds until it is to be succeeded; None: it is given up."""
        self._deaths.append(now_seconds)
        while self._deaths[0] <= now_seconds - WINDOW_SECONDS:
            self._deaths.popleft()
        if len(self._deaths) > MOST_DEATHS:
            return None
        if len(self._deaths) == 1:
            return 0.0
        return min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** (len(self._deaths) - 2))
