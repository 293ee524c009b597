"""Frames at their own pace: as far apart as their times say, by the monotonic clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from dataplane.errors import Stopped

MOST_CAUGHT_UP_SECONDS = 0.5


class Pacer:
    """Waits until a frame is due.

    Due times are counted from the first frame, so that nothing adds up over hours. Who is late hurries until it has
    caught up; after a stall of more than MOST_CAUGHT_UP_SECONDS the clock is set anew instead, and nothing is made up.
    """

    def __init__(self, stopping: threading.Event, clock: Callable[[], float] = time.monotonic) -> None:
        self._stopping = stopping
        self._clock = clock
        self._zero: float | None = None  # on the clock, of the time 0

    def wait(self, seconds: float) -> None:
        """Return when the frame of that time is due. Raises Stopped."""
        now = self._clock()
        if self._zero is None or now - (self._zero + seconds) > MOST_CAUGHT_UP_SECONDS:
            self._zero = now - seconds
            return
        early = self._zero + seconds - now
        if early > 0 and self._stopping.wait(early):
            raise Stopped("stopped between two frames")
