"""The kernel's list format for processors and nodes: `0-3,8`."""

from __future__ import annotations

import re

_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?\Z")


def parse_cpulist(text: str) -> tuple[int, ...]:
    """The numbers in a list such as `0-3,8`, ascending; empty text is the empty list.

    Raises:
        ValueError: the text has another form, or a range that runs backwards.
    """
    numbers: set[int] = set()
    for part in filter(None, (p.strip() for p in text.strip().split(","))):
        match = _RANGE.match(part)
        if match is None:
            raise ValueError(f"{part!r} is no processor range")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f"{part!r} runs backwards")
        numbers.update(range(first, last + 1))
    return tuple(sorted(numbers))


def format_cpulist(numbers: tuple[int, ...]) -> str:
    """The shortest list text of these ascending numbers: (0, 1, 2, 8) is `0-2,8`."""
    parts: list[str] = []
    start: int | None = None
    for i, number in enumerate(numbers):
        if start is None:
            start = number
        if i + 1 == len(numbers) or numbers[i + 1] != number + 1:
            parts.append(f"{start}" if start == number else f"{start}-{number}")
            start = None
    return ",".join(parts)
