"""Time bases as people write them."""

from __future__ import annotations


def parse_time_base(text: str) -> tuple[int, int]:
    """`1/12800` as (numerator, denominator) of seconds per tick, both positive and below 2**32.

    Raises:
        ValueError: it is none; the message says what one looks like.
    """
    numerator, slash, denominator = text.partition("/")
    if not (slash and numerator.isdecimal() and denominator.isdecimal()):
        raise ValueError(f"{text} is not a time base; write seconds per tick as a fraction, like 1/90000")
    base = (int(numerator), int(denominator))
    if not all(0 < part < 2**32 for part in base):
        raise ValueError(f"{text}: both parts must be from 1 to {2**32 - 1}")
    return base
