"""Where streams are cut: at multiples of a time, counted from time 0 of the job.

Encoders and packagers that never hear of each other, or were restarted, agree on every boundary that way.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any


def exact(seconds: float) -> Fraction:
    """The decimal number that was written: 0.1 is a tenth, not the double next to it."""
    return Fraction(str(seconds))


class Boundaries:
    """The multiples of `seconds`, seen from times in ticks of `time_base` (seconds)."""

    def __init__(self, seconds: float, time_base: Fraction) -> None:
        per_tick = time_base / exact(seconds)
        self._num, self._den = per_tick.numerator, per_tick.denominator

    def before(self, pts: int) -> int:
        """How many multiples (from 0 on) are not after that time: the number of the stretch it lies in."""
        return pts * self._num // self._den


class SharedBreaks:
    """Discontinuities, which all streams of a presentation have in the same number and order (RFC 8216, 6.2.4).

    The first stream with a cause for one sets its time; the others break there too, whether they have a cause or not.
    Times are in seconds of the job.
    """

    _KEPT = 1000

    def __init__(self) -> None:
        self._times: list[Fraction] = []
        self._done: dict[str, int] = {}

    def due(self, stream: str, time: Fraction, cause: bool) -> bool:
        """Whether that stream breaks before what it has at `time`; `cause`: it has a reason of its own."""
        done = self._done.get(stream, 0)
        if done == len(self._times):
            if not cause:
                return False
            self._times.append(time)
        elif not cause and time < self._times[done]:
            return False
        self._done[stream] = done + 1
        self._forget()
        return True

    def state(self) -> dict[str, Any]:
        """What has to be known to go on; data."""
        return {"times": [[time.numerator, time.denominator] for time in self._times], "done": dict(self._done)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """As `state` said it."""
        self._times = [Fraction(*time) for time in state["times"]]
        self._done = dict(state["done"])

    def _forget(self) -> None:
        """Of a source that is never at rest, only the latest; a stream that is so far behind has ended."""
        if len(self._times) > self._KEPT:
            half = self._KEPT // 2
            del self._times[:half]
            self._done = {stream: max(0, done - half) for stream, done in self._done.items()}
