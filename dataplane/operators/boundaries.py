"""Where streams are cut: at multiples of a time, counted from time 0 of the job.

Encoders and packagers that never hear of each other, or were restarted, agree on every boundary that way.
"""

from __future__ import annotations

from fractions import Fraction


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
