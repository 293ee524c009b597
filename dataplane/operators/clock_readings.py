"""When the pictures of a live presentation were taken in, for its playlists."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

from dataplane.operators.segments import Segment


class ClockReadings:
    """What the clock said at some times of the job.

    The clock is read at the first segment and after discontinuities, once for all renditions: between them dates rise
    as the times in the job do. Each reading is given to `keep` before use, as data that `add` takes.
    """

    def __init__(self, segment_seconds: Fraction, keep: Callable[[list[Any]], None]) -> None:
        self._length = segment_seconds
        self._keep = keep
        self._known: deque[tuple[Fraction, datetime]] = deque(maxlen=4)

    def date(self, segment: Segment) -> datetime:
        """When its first picture was taken in."""
        begun = any(abs(time - segment.start) < self._length for time, _ in self._known)
        if not self._known or (segment.discontinuity and not begun):
            # A segment is complete when its end has been taken in.
            clock = datetime.now(UTC) - timedelta(seconds=float(segment.seconds))
            self._keep(_said(segment.start, clock))
            self._known.append((segment.start, clock))
        earlier = [known for known in self._known if known[0] <= segment.start]
        time, clock = earlier[-1] if earlier else self._known[0]
        return clock + timedelta(seconds=float(segment.start - time))

    def state(self) -> list[list[Any]]:
        """All that are known, as data."""
        return [_said(time, clock) for time, clock in self._known]

    def add(self, said: Iterable[Sequence[Any]]) -> None:
        """Readings of an instance before, the oldest first."""
        self._known.extend((Fraction(num, den), datetime.fromisoformat(clock)) for num, den, clock in said)


def _said(time: Fraction, clock: datetime) -> list[Any]:
    return [time.numerator, time.denominator, clock.isoformat()]
