"""The order of bytes is the order of what they mean."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from observatory.frames import keys
from observatory.frames.ingest import record_pairs, sort_records, stored_to_records
from observatory.model.kinds import EventKind
from observatory.model.record import RECORD_DTYPE

u16 = st.integers(0, 2**16 - 1)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
record_keys = st.tuples(u32, u32, u64, u32)
index_keys = st.tuples(u32, u32, st.integers(0, 1), st.tuples(u32, u32), i64)


@given(record_keys, record_keys)
def test_record_keys_sort_as_their_tuples(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    assert (keys.record_key(*one) < keys.record_key(*other)) == (one < other)


@given(index_keys, index_keys)
def test_index_keys_sort_as_their_tuples(one: tuple, other: tuple) -> None:  # type: ignore[type-arg]
    assert (keys.index_key(*one) < keys.index_key(*other)) == (one < other)


def test_negative_pts_sort_before_positive() -> None:
    ordered = [-(2**63), -90000, -1, 0, 1, 90000, 2**63 - 1]
    assert sorted(ordered, key=lambda pts: keys.index_key(1, 1, 0, (1, 90000), pts)) == ordered


@given(index_keys)
def test_index_keys_can_be_read_again(key: tuple) -> None:  # type: ignore[type-arg]
    stream, epoch, origin, base, pts = key
    assert keys.parse_index_key(keys.index_key(*key)) == (stream, epoch, origin, *base, pts)


@given(st.binary(min_size=1, max_size=8))
def test_after_is_the_end_of_a_prefix(prefix: bytes) -> None:
    end = keys.after(prefix)
    if end is None:
        assert set(prefix) == {0xFF}
    else:
        assert prefix + b"\xff" * 40 < end
        assert not end.startswith(prefix)


@given(st.lists(st.tuples(u32, u32, u64, i64, u32, u32, u32, u32, u16, u16, st.lists(i64, min_size=8, max_size=8))))
def test_bulk_and_single_codecs_agree(rows: list) -> None:  # type: ignore[type-arg]
    records = np.zeros(len(rows), RECORD_DTYPE)
    for at, (stream, epoch, index, pts, num, den, hop, slot, device, flags, times) in enumerate(rows):
        one = records[at]
        one["stream"], one["epoch"], one["source_index"], one["hop"] = stream, epoch, index, hop
        one["pts"], one["time_base_num"], one["time_base_den"] = pts, num, den
        one["slot"], one["bytes"], one["consumer_real_device"], one["flags"] = slot, slot ^ 5, device, flags
        one["times_ns"] = times
    pairs = list(record_pairs(records))
    for row, (key, value) in zip(rows, pairs, strict=True):
        read = keys.parse_record(key, value)
        assert read[:7] == (row[0], row[1], row[2], row[6], row[3], row[4], row[5])
        assert (read.slot, read.bytes, read.consumer_real_device, read.flags) == (row[7], row[7] ^ 5, row[8], row[9])
        assert read.times_ns == tuple(row[10])
    again = stored_to_records([k for k, _ in pairs], [v for _, v in pairs])
    assert again.tobytes() == records.tobytes()


@given(st.lists(record_keys, max_size=50), st.booleans())
def test_sorting_in_bulk_is_sorting_by_key(rows: list[tuple[int, int, int, int]], narrow: bool) -> None:
    if narrow:  # few bits each: the short cut with a single number
        rows = [(s % 9, 7, 2**40 + i % 100, h % 5) for s, _, i, h in rows]
    records = np.zeros(len(rows), RECORD_DTYPE)
    for at, (stream, epoch, index, hop) in enumerate(rows):
        records[at]["stream"], records[at]["epoch"] = stream, epoch
        records[at]["source_index"], records[at]["hop"] = index, hop
    found = [key for key, _ in record_pairs(sort_records(records))]
    assert found == sorted(keys.record_key(*row) for row in rows)


def test_sizes_are_those_of_the_reference() -> None:
    assert keys.RECORD_KEY.size == 20
    assert keys.RECORD_VALUE.size == 100
    assert keys.INDEX_KEY.size == 25
    assert len(EventKind) == 8
