"""Descriptors: what is said is what is read, and nonsense is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane._ring import Descriptor, RingError, layouts
from observatory.model.event import UNKNOWN_I64, UNKNOWN_U32, UNKNOWN_U64
from observatory.model.media import PayloadKind, PixelFormat

u8, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (8, 32, 64))
i64 = st.integers(-(2**63), 2**63 - 1)

fields = st.fixed_dictionaries(
    {"payload_kind": st.sampled_from(PayloadKind).map(int)},
    optional={
        "source_index": u64,
        "pts": i64,
        "dts": i64,
        "duration": i64,
        "time_base": st.tuples(u32, u32),
        "stream_index": u32,
        "pixel_format": st.sampled_from(PixelFormat).map(int),
        "width": u32,
        "height": u32,
        "planes": st.lists(st.tuples(u32, u32), max_size=4).map(tuple),
        "color": st.tuples(u8, u8, u8, st.integers(0, 2)),
        "sample_aspect": st.tuples(u32, u32),
        "flags": u32,
        "parent_count": u32,
        "epoch": u32,
    },
)

SAID_BY_DEFAULT: dict[str, Any] = {
    "source_index": UNKNOWN_U64,
    "pts": UNKNOWN_I64,
    "dts": UNKNOWN_I64,
    "duration": UNKNOWN_I64,
    "time_base": (0, 1),
    "stream_index": 0,
    "pixel_format": 0,
    "width": 0,
    "height": 0,
    "planes": (),
    "color": (2, 2, 2, 0),
    "sample_aspect": (0, 1),
    "flags": 0,
    "parent_count": 0,
    "epoch": 0,
}


@given(fields)
def test_fields_survive_the_struct(said: dict[str, Any]) -> None:
    descriptor = Descriptor(**said)
    raw = descriptor.to_bytes()
    assert len(raw) == 256
    for read in (descriptor, Descriptor.from_bytes(raw)):
        assert {name: getattr(read, name) for name in [*SAID_BY_DEFAULT, "payload_kind"]} == SAID_BY_DEFAULT | said
        assert read.to_bytes() == raw
    assert (descriptor.slab, descriptor.slot) == (UNKNOWN_U32, UNKNOWN_U32)
    assert (descriptor.alloc_ns, descriptor.launch_ns, descriptor.signal_ns) == (UNKNOWN_I64,) * 3


@given(st.binary(min_size=256, max_size=256))
def test_any_bytes_are_a_descriptor_or_refused(raw: bytes) -> None:
    try:
        descriptor = Descriptor.from_bytes(raw)
    except RingError:
        return
    assert descriptor.to_bytes() == raw
    assert descriptor.payload_kind in set(PayloadKind)
    assert len(descriptor.planes) <= 4


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("payload_kind", 0, "payload kind 0"),
        ("payload_kind", 6, "payload kind 6"),
        ("pixel_format", 5, "pixel format 5"),
        ("plane_count", 5, "5 planes"),
        ("color_range", 3, "color range 3"),
    ],
)
def test_fields_out_of_range_are_refused(field: str, value: int, words: str) -> None:
    raw = bytearray(Descriptor(payload_kind=PayloadKind.VIDEO_FRAME).to_bytes())
    raw[layouts()["mo_descriptor"]["fields"][field]] = value
    with pytest.raises(RingError, match=words):
        Descriptor.from_bytes(bytes(raw))


def test_wrong_lengths_are_refused() -> None:
    with pytest.raises(RingError, match="256 bytes, not 255"):
        Descriptor.from_bytes(bytes(255))


@pytest.mark.parametrize(
    "wrong",
    [
        {"payload_kind": 9},
        {"payload_kind": 1, "pixel_format": 17},
        {"payload_kind": 1, "planes": [(0, 1)] * 5},
        {"payload_kind": 1, "color": (1, 1, 1, 3)},
        {"payload_kind": 1, "color": (1, 1, 1)},
    ],
)
def test_the_constructor_refuses_the_same(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"kind|format|planes|range|color"):
        Descriptor(**wrong)


def test_the_constructor_wants_keywords_and_fitting_numbers() -> None:
    with pytest.raises(TypeError):
        Descriptor(1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Descriptor()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Descriptor(payload_kind=1, width=-1)
