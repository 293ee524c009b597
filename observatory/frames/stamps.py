"""Time stamps as a source's input has them and as they are in the job: within an epoch they differ by one offset.

Everything is exact: a time stamp is a number of ticks of a time base (seconds per tick, numerator and denominator).
"""

from __future__ import annotations

from math import gcd

TimeBase = tuple[int, int]
"""Seconds per tick: numerator and denominator."""


def shifted(pts: int, base: TimeBase, offset: int, offset_base: TimeBase) -> tuple[int, TimeBase]:
    """`pts` ticks of `base`, moved by `offset` ticks of `offset_base`: in `base` if that is whole, else in a finer one.

    >>> shifted(5, (1, 25), 90_000, (1, 90_000))
    (30, (1, 25))
    >>> shifted(5, (1, 25), 1, (1, 50))
    (11, (1, 50))
    """
    if not offset:
        return pts, base
    own, other = base[0] * offset_base[1], offset_base[0] * base[1]
    ticks, rest = divmod(offset * other, own)
    if not rest:
        return pts + ticks, base
    common = gcd(own, other)
    num, den = common, base[1] * offset_base[1]
    whole = gcd(num, den)
    return (pts * own + offset * other) // common, (num // whole, den // whole)


def later(pts: int, base: TimeBase, than: int, than_base: TimeBase) -> bool:
    """Whether the first point in time comes after the second."""
    return pts * base[0] * than_base[1] > than * than_base[0] * base[1]
