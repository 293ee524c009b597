"""Counters as they are read: how much one grew since the last look, whatever resets, wraps and misreadings do.

A counter that is smaller than before was reset, or wrapped at 32 or 64 bits: a wrap only where it was in the last
sixteenth of its range and is in the first one now. After a reset nobody knows how much was missed, so nothing is
counted. A jump that no hardware can make is held apart until the next look tells a misreading from a new base.
"""

from __future__ import annotations

from dataclasses import dataclass

_RANGES = (float(1 << 32), float(1 << 64))
_EDGE = 1 / 16
MOST_COUNTERS = 1_000_000  # more are made up by a source that lies: they are not followed


@dataclass(slots=True)
class Counter:
    """One counter; `last` is the last value believed."""

    last: float
    at_ns: int
    doubtful: float | None = None


class Counters:
    """Many counters by key. `most_per_second` is the fastest growth that is believed."""

    def __init__(self, most_per_second: float) -> None:
        self.most_per_second = most_per_second
        self._counters: dict[object, Counter] = {}

    def grew(self, key: object, value: float, at_ns: int) -> tuple[float, int] | None:
        """By how much it grew and in how many nanoseconds; None where that cannot be told (first look, reset, jump)."""
        counter = self._counters.get(key)
        if counter is None:
            if len(self._counters) < MOST_COUNTERS:
                self._counters[key] = Counter(value, at_ns)
            return None
        elapsed = at_ns - counter.at_ns
        if value == counter.last:
            counter.at_ns, counter.doubtful = max(at_ns, counter.at_ns), None
            return 0.0, max(elapsed, 0)
        if elapsed < 0:  # an older look than the last one
            return None
        grown = _growth(counter.last, value)
        if grown is not None and grown > self.most_per_second * max(elapsed, 1_000_000) / 1e9:
            self._jump(counter, value, at_ns)
            return None
        counter.last, counter.at_ns, counter.doubtful = value, at_ns, None
        return None if grown is None else (grown, elapsed)

    def _jump(self, counter: Counter, value: float, at_ns: int) -> None:
        """Believe a jump as a new base only when the next look is at or just above it."""
        doubtful = counter.doubtful
        if doubtful is not None and value >= doubtful:
            counter.last, counter.at_ns, counter.doubtful = value, at_ns, None
        else:
            counter.doubtful = value


def _growth(before: float, now: float) -> float | None:
    """None after a reset."""
    if now >= before:
        return now - before
    for top in _RANGES:
        if top * (1 - _EDGE) <= before < top:
            return top - before + now if now < top * _EDGE else None
    return None
