"""Growth of counters: what a counter grew by between two readings, told from resets, wraps and blank values.

A hardware counter only grows, until its driver is loaded anew, the card is reset, or its register is full. A reading
that is lower than the one before is one of three things:

- a wrap: the register went through zero; only where that makes a growth that the register and the link could have;
- a reset: what was lost is not known, so the growth is not (it is no negative number, and not the whole new reading);
- a dip: one wrong reading. The next one is as high as before, and the growth is counted across it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

_HIGHEST = 2.0**63 - 2**16
_BLANKS = frozenset({0xFFFFFFFF, *range(0x7FFFFFF0, 0x7FFFFFF4), *range(1 << 47, (1 << 47) + 4)})
_NANOSECONDS = 1e9
_TOLERANCE = 1.1  # of the time between two readings: the source reads its counters at times of its own


def known(value: float | None) -> float | None:
    """The value, or None where it says that there is none.

    Blank are NaN, infinity, negative numbers, all ones in 32 bits, and the values by which DCGM says `not supported` or
    `not found` (dcgm_structs.h: DCGM_INT32_BLANK 0x7ffffff0, DCGM_INT64_BLANK 0x7ffffffffffffff0, DCGM_FP64_BLANK
    2^47, and the three after each). Nothing counts up to 2^63, so whatever is as large is blank as well, also where a
    floating-point number has rounded it.
    """
    if value is None or not math.isfinite(value) or value < 0 or value >= _HIGHEST or value in _BLANKS:
        return None
    return value


class Step(StrEnum):
    """What happened to a counter between two readings."""

    FIRST = "first"  # nothing to compare with
    GROWN = "grown"  # or stood still
    WRAPPED = "wrapped"
    RESET = "reset"
    DIPPED = "dipped"  # the reading before was wrong: it is back where it was
    BLANK = "blank"  # the source does not know
    REPEATED = "repeated"  # no time has passed since the reading before


@dataclass(frozen=True, slots=True)
class Growth:
    """What a counter grew by over `seconds`; None where that is not known."""

    step: Step
    amount: float | None = None
    seconds: float | None = None

    @property
    def per_second(self) -> float | None:
        """The rate; None where the growth is not known."""
        return None if self.amount is None or not self.seconds else self.amount / self.seconds


class Counter:
    """One counter, told reading after reading.

    Args:
        bits: width of its register where it is known. Where it is not, only a counter that was in the last quarter of
            32 bits and is in the first is taken to have wrapped.
        most_per_second: the highest rate it can have (a link's bandwidth); what would be faster is no wrap.
    """

    __slots__ = ("_at_ns", "_before", "_value", "bits", "most_per_second")

    def __init__(self, *, bits: int | None = None, most_per_second: float | None = None) -> None:
        self.bits = bits
        self.most_per_second = most_per_second
        self._value: float | None = None
        self._at_ns = 0
        self._before: tuple[float, int] | None = None  # the reading before a reset, and when that was

    def read(self, value: float | None, at_ns: int) -> Growth:
        """Tell the next reading. A blank one changes nothing: the growth is counted across it."""
        now = known(value)
        if now is None:
            return Growth(Step.BLANK)
        if self._value is None:
            self._value, self._at_ns = now, at_ns
            return Growth(Step.FIRST)
        if at_ns <= self._at_ns:
            return Growth(Step.REPEATED)
        last, seconds = self._value, (at_ns - self._at_ns) / _NANOSECONDS
        before, self._before = self._before, None
        self._value, self._at_ns, last_ns = now, at_ns, self._at_ns
        if before is not None and now >= before[0]:
            since = (at_ns - before[1]) / _NANOSECONDS
            if self._possible(now - before[0], since) and not self._possible_restart(now - last, seconds):
                return Growth(Step.DIPPED, now - before[0], since)
        if now >= last:
            return Growth(Step.GROWN, now - last, seconds)
        around = self._around(last, now, seconds)
        if around is not None:
            return Growth(Step.WRAPPED, around, seconds)
        self._before = (last, last_ns)
        return Growth(Step.RESET, None, seconds)

    def _around(self, last: float, now: float, seconds: float) -> float | None:
        """The growth if the register went through zero; None if it cannot have."""
        size = 2.0 ** (self.bits or 32)
        if last >= size:
            return None
        grown = now + size - last
        sure = grown < size / 2 if self.bits is not None else last >= size * 3 / 4 and now < size / 4
        return grown if sure and self._possible(grown, seconds) else None

    def _possible(self, amount: float, seconds: float) -> bool:
        return self.most_per_second is None or amount <= self.most_per_second * seconds * _TOLERANCE

    def _possible_restart(self, amount: float, seconds: float) -> bool:
        """Whether it can have come from the reset value to here by counting, where the highest rate tells."""
        return self.most_per_second is not None and self._possible(amount, seconds)
