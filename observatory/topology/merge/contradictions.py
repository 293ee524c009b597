"""What two sources say differently: told in words that name both."""

from __future__ import annotations

from typing import Any

_NEAR = 0.02  # rounding and units of tools: 80 GB, 79.6 GiB of it usable


class Contradictions:
    """Collects them."""

    def __init__(self) -> None:
        self._found: list[str] = []

    def warnings(self) -> tuple[str, ...]:
        """In the order in which they came up."""
        return tuple(dict.fromkeys(self._found))

    def add(self, thing: str, what: str, first: tuple[Any, str], second: tuple[Any, str]) -> None:
        """`first` and `second` are a value and its source; equal values are none."""
        if not same(first[0], second[0]):
            self._found.append(
                f"contradiction: {thing} {what}: {_words(first[0])} by {first[1]}, {_words(second[0])} by {second[1]}"
            )

    def say(self, words: str) -> None:
        """Anything else about how the sources fit together."""
        self._found.append(words)


def same(a: Any, b: Any) -> bool:
    """Whether two known values are one; numbers of bytes may differ by rounding."""
    if isinstance(a, int | float) and isinstance(b, int | float) and max(abs(a), abs(b)) > 1 << 20:
        return abs(a - b) <= _NEAR * max(abs(a), abs(b))
    return bool(a == b)


def _words(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
