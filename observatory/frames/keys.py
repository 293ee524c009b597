"""Byte layout of the frame store: keys that sort as their tuples do, and the value of one record.

Keys are big-endian, so that LMDB's byte order is the order of (stream, epoch, source index, hop). A PTS is signed: in
keys it is stored with its sign bit flipped ("offset binary"), which makes byte order its order, negative ones first.
Values are little-endian, as the records in memory: `struct mo_frame_record` without the four fields of the key.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from observatory.model.kinds import UNKNOWN_I64, EventKind

_SIGN = 1 << 63

RUN_KEY = struct.Struct(">II")  # stream, epoch; of the tables runs, epochs and counters
FRAME_KEY = struct.Struct(">IIQ")  # stream, epoch, source index
RECORD_KEY = struct.Struct(">IIQI")  # stream, epoch, source index, hop
LOST_KEY = RECORD_KEY  # stream, epoch, source index (all ones when unknown), running number
INDEX_KEY = struct.Struct(">IIBIIQ")  # stream, epoch, origin, time base numerator and denominator, PTS
INDEX_VALUE = struct.Struct("<Q")  # source index
RECORD_VALUE = struct.Struct("<qIIIIHHHHHH8q")

ORIGIN_SOURCE = 0
"""Index entries of PTS as the source operator gave them."""
ORIGIN_HOP = 1
"""Index entries of PTS that an operator changed on the way (rebased), as found on a later hop."""


class IndexEntry(NamedTuple):
    """One entry of the PTS index."""

    stream: int
    epoch: int
    origin: int
    time_base_num: int
    time_base_den: int
    pts: int


class StoredRecord(NamedTuple):
    """One record as stored: the fields of RECORD_DTYPE. Unknown values are the sentinels of `model.kinds`."""

    stream: int
    epoch: int
    source_index: int
    hop: int
    pts: int
    time_base_num: int
    time_base_den: int
    slot: int
    bytes: int
    producer_device: int
    consumer_device: int
    producer_real_device: int
    consumer_real_device: int
    flags: int
    version: int
    times_ns: tuple[int, ...]

    def time(self, kind: EventKind) -> int | None:
        """CLOCK_MONOTONIC nanoseconds of one event, or None when it was not seen."""
        value = self.times_ns[kind]
        return None if value == UNKNOWN_I64 else value


def run_key(stream: int, epoch: int) -> bytes:
    """Prefix of everything that belongs to one stream in one epoch."""
    return RUN_KEY.pack(stream, epoch)


def frame_key(stream: int, epoch: int, source_index: int) -> bytes:
    """Prefix of all records of one frame."""
    return FRAME_KEY.pack(stream, epoch, source_index)


def record_key(stream: int, epoch: int, source_index: int, hop: int) -> bytes:
    """Key of one record."""
    return RECORD_KEY.pack(stream, epoch, source_index, hop)


def index_key(stream: int, epoch: int, origin: int, time_base: tuple[int, int], pts: int) -> bytes:
    """Key of one entry of the PTS index."""
    return INDEX_KEY.pack(stream, epoch, origin, time_base[0], time_base[1], pts + _SIGN)


def parse_index_key(key: bytes) -> IndexEntry:
    """Inverse of `index_key`."""
    stream, epoch, origin, num, den, pts = INDEX_KEY.unpack(key)
    return IndexEntry(stream, epoch, origin, num, den, pts - _SIGN)


def parse_record(key: bytes, value: bytes) -> StoredRecord:
    """The record stored under `key`. Raises struct.error when a length is wrong (a damaged store)."""
    stream, epoch, source_index, hop = RECORD_KEY.unpack(key)
    fields = RECORD_VALUE.unpack(value)
    return StoredRecord._make((stream, epoch, source_index, hop, *fields[:11], fields[11:]))


def after(prefix: bytes) -> bytes | None:
    """The smallest key greater than every key that starts with `prefix`, or None when there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None
