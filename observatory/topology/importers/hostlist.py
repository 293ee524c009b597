"""Slurm's lists of host names: `tux[0-3,12,018-020],leaf1` names 8 of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

MOST_NAMES = 100_000
_ONE_RANGE = re.compile(r"([^\[\]]*)\[([^\[\]]*)\]([^\[\]]*)\Z")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?\Z")


def expand_hostlist(text: str) -> list[str]:
    """The names in a list. Zeros before numbers are kept, several brackets in a name are all expanded.

    Raises:
        ValueError: the brackets do not match, a range makes no sense, or the list names more than MOST_NAMES.
    """
    names: list[str] = []
    for item in _items(text):
        if len(names) > MOST_NAMES:
            raise ValueError(f"the list names more than {MOST_NAMES:,} hosts")
        if "[" not in item:
            names.append(item)
            continue
        if match := _ONE_RANGE.match(item):
            numbers = _numbers(match[2])
            if len(numbers) + len(names) > MOST_NAMES:
                raise ValueError(f"{item[:40]!r} names more than {MOST_NAMES:,} hosts")
            names += [f"{match[1]}{number}{match[3]}" for number in numbers]
            continue
        parts = re.split(r"(\[[^\[\]]*\])", item)
        choices: list[list[str]] = []
        total = 1
        for part in parts:
            values = _numbers(part[1:-1]) if part.startswith("[") else [part]
            choices.append(values)
            total *= len(values)
            if total + len(names) > MOST_NAMES:
                raise ValueError(f"{item[:40]!r} names more than {MOST_NAMES:,} hosts")
        names += ["".join(chosen) for chosen in product(*choices)]
    return names


def _items(text: str) -> Iterator[str]:
    """What stands between commas outside brackets."""
    depth = start = 0
    for at, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if depth not in (0, 1):
            raise ValueError(f"the brackets of {text[:40]!r} do not match")
        if character == "," and depth == 0:
            if item := text[start:at].strip():
                yield item
            start = at + 1
    if depth:
        raise ValueError(f"the brackets of {text[:40]!r} do not match")
    if item := text[start:].strip():
        yield item


def _numbers(text: str) -> list[str]:
    found: list[str] = []
    for part in text.split(","):
        match = _RANGE.match(part.strip())
        if match is None:
            raise ValueError(f"{part[:40]!r} is no range of numbers")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first) or int(last) - int(first) >= MOST_NAMES:
            raise ValueError(f"{part[:40]!r} is no range that makes sense")
        width = len(first) if first.startswith("0") or len(first) == len(last) else 0
        found += [f"{n:0{width}d}" for n in range(int(first), int(last) + 1)]
    return found
