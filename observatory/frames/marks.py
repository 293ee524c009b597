"""What the store remembers about retention: how far each run was thinned out, by which rules, and what to spare.

All of it lies in the table `meta`, so that stores of earlier versions need no other layout. Needs no NumPy: look-ups
say with it that a frame is not kept any more.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from observatory.frames.keys import run_key

RULES_KEY = b"retention"
_MARK_PREFIX = b"mark:"
_RANGE_PREFIX = b"keep:"
_MARK = struct.Struct("<4Q")
_RANGE = struct.Struct(">QQI")
_EVERY_STREAM = 0  # streams are numbered from 1


class Mark(NamedTuple):
    """How far one stream in one epoch was thinned out.

    decided: every frame below this source index was looked at; what is left of them is to be kept.
    sampled_from: below it, frames that were kept only as one in N are gone too (the disk budget took them).
    special_from: below it, also the slow, lost and incident frames are gone.
    changed_ns: wall clock (ns) when `decided` last moved, or when the run was first seen without frames.
    """

    decided: int = 0
    sampled_from: int = 0
    special_from: int = 0
    changed_ns: int = 0

    def to_bytes(self) -> bytes:
        """As stored."""
        return _MARK.pack(*self)


class Rules(NamedTuple):
    """By what frames were thinned out, for people who look for one that is gone."""

    keep_all_seconds: float
    keep_one_in: int


class KeepRange(NamedTuple):
    """Frames alive between these two times of the wall clock (ns) are kept; `stream` None means every stream's."""

    start_ns: int
    end_ns: int
    stream: int | None = None
    reason: str = ""

    def key(self) -> bytes:
        """Key in the table `meta`."""
        return _RANGE_PREFIX + _RANGE.pack(self.start_ns, self.end_ns, self.stream or _EVERY_STREAM)


def mark_key(stream: int, epoch: int) -> bytes:
    """Key of one run's mark in the table `meta`."""
    return _MARK_PREFIX + run_key(stream, epoch)


def parse_mark(raw: bytes | None) -> Mark:
    """A mark as stored; nothing was thinned out where there is none."""
    return Mark() if raw is None else Mark(*_MARK.unpack(raw))


def parse_rules(raw: bytes | None) -> Rules | None:
    """The rules as stored, or None."""
    if raw is None:
        return None
    values = json.loads(raw)
    return Rules(float(values["keep_all_seconds"]), int(values["keep_one_in"]))


def rules_to_bytes(rules: Rules) -> bytes:
    """As stored: JSON."""
    return json.dumps(rules._asdict()).encode()


def keep_ranges(cursor: Any) -> Iterator[KeepRange]:
    """All ranges to spare, by their start. `cursor` is over the table `meta`."""
    found = cursor.set_range(_RANGE_PREFIX)
    while found and cursor.key().startswith(_RANGE_PREFIX):
        start, end, stream = _RANGE.unpack(cursor.key()[len(_RANGE_PREFIX) :])
        yield KeepRange(start, end, None if stream == _EVERY_STREAM else stream, cursor.value().decode())
        found = cursor.next()
