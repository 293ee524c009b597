"""The NumPy dtypes say what the C++ compiler says."""

from __future__ import annotations

import numpy as np
import pytest

from dataplane._ring import EventRing, layouts
from observatory.model.event import EVENT_DTYPE, EventKind
from observatory.model.record import RECORD_DTYPE, RECORD_VERSION


@pytest.mark.parametrize(
    ("struct", "dtype", "version"),
    [("mo_frame_event", EVENT_DTYPE, 1), ("mo_frame_record", RECORD_DTYPE, RECORD_VERSION)],
)
def test_dtypes_mirror_the_structs(struct: str, dtype: np.dtype[np.void], version: int) -> None:
    layout = layouts()[struct]
    assert dtype.fields is not None
    assert layout["size"] == dtype.itemsize
    assert layout["version"] == version
    # In order, and with the sizes that the gaps between the offsets leave.
    offsets = {name: field[1] for name, field in dtype.fields.items()}
    assert list(layout["fields"].items()) == list(offsets.items())
    ends = [*list(offsets.values())[1:], dtype.itemsize]
    sizes = {name: field[0].itemsize for name, field in dtype.fields.items()}
    assert sizes == {name: end - offsets[name] for name, end in zip(offsets, ends, strict=True)}


def test_every_layout_is_listed_with_its_size() -> None:
    sizes = {name: layout["size"] for name, layout in layouts().items()}
    assert sizes == {
        "mo_frame_event": 64,
        "mo_event_ring": 384,
        "mo_frame_record": 120,
        "mo_descriptor": 256,
        "mo_ring_header": 2688,
        "mo_consumer_page": 640,
        "mo_fabric_header": 256,
        "mo_link": 256,
        "mo_traffic_header": 256,
        "mo_way": 1152,
        "mo_fence": 384,
        "mo_fence_waiters": 256,
    }


def test_words_of_different_writers_are_two_cache_lines_apart() -> None:
    fields = {struct: layout["fields"] for struct, layout in layouts().items()}
    lines = [
        [fields["mo_ring_header"][name] for name in ("magic", "tail", "doorbell", "producer_waiting", "final_seq")],
        [fields["mo_consumer_page"][name] for name in ("magic", "taken", "acked", "held", "waiting")],
        [fields["mo_event_ring"][name] for name in ("magic", "head", "tail")],
        [fields["mo_link"][name] for name in ("constants", "sequence")],
        [fields["mo_way"][name] for name in ("bytes", "seats")],
        [fields["mo_fence"][name] for name in ("magic", "value", "closed")],
        [fields["mo_fence_waiters"][name] for name in ("magic", "asleep_after")],
    ]
    for offsets in lines:
        assert all(offset % 128 == 0 for offset in offsets)
        assert len(set(offsets)) == len(offsets)


def test_times_are_in_the_order_of_the_event_kinds() -> None:
    assert RECORD_DTYPE["times_ns"].shape == (len(EventKind),)
    assert [kind.value for kind in EventKind] == list(range(8))


def test_what_the_rings_return_has_these_dtypes() -> None:
    assert EventRing.create(1).drain().dtype == EVENT_DTYPE
