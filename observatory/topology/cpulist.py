"""The kernel's formats for sets of processors and nodes: lists (`0-3,8`) and masks (`00000001,0000010f`)."""

from __future__ import annotations

import re

_MASK = re.compile(r"(?:0x)?[0-9a-fA-F]{1,16}(?:,[0-9a-fA-F]{1,8})*\Z")
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


def parse_cpumask(text: str) -> tuple[int, ...]:
    """The numbers of the bits that are set in a mask such as `00000001,0000010f`, words of 32 bits, highest first.

    Raises:
        ValueError: the text has another form.
    """
    text = text.strip()
    if _MASK.match(text) is None:
        raise ValueError(f"{text[:40]!r} is no processor mask")
    first, *rest = text.removeprefix("0x").split(",")
    bits = int(first + "".join(word.zfill(8) for word in rest), 16)
    return tuple(n for n in range(bits.bit_length()) if bits >> n & 1)


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
