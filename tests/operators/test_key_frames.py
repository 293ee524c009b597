"""encode: key frames where a packager cuts, the same in every rendition."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane._ring import Descriptor
from dataplane.operators.boundaries import Boundaries
from dataplane.operators.encode import Encode
from observatory.model.media import PacketFormat
from tests.operators.harness import Bench, run
from tests.operators.media import pictures
from tests.operators.test_encode import decode_all, encoded
from tests.operators.test_per_frame import raw, video_format

SIZE = (128, 96)
FORMAT = video_format(SIZE)  # 25 frames a second, times from 5/90000 s on
ENCODERS: list[dict[str, Any]] = [
    {"codec": "libx264", "preset": "veryfast", "threads": 2},
    {"codec": "libx265", "preset": "ultrafast", "threads": 2},
    {"codec": "libsvtav1", "preset": "12", "threads": 2},
    {"codec": "libvpx-vp9", "preset": "8", "threads": 1},
]


@pytest.mark.parametrize("params", ENCODERS, ids=lambda params: params["codec"])
def test_key_frames_are_forced_at_multiples_and_stand_alone(params: dict[str, Any]) -> None:
    _, said, packets = encoded({**params, "keyframe_seconds": 0.8}, FORMAT, count=70)

    keys = [p.descriptor.source_index - 100 for p in packets if p.descriptor.flags & 1]
    assert {0, 20, 40, 60} <= set(keys)  # 0.8 s are 20 frames
    # The whole picture is there from the forced key frame on: nothing refers to what was before.
    start = next(i for i, p in enumerate(packets) if p.descriptor.source_index == 140)
    assert [f.pts for f in decode_all(said, packets[start:])] == [n * 3600 + 5 for n in range(40, 70)]


def test_a_fraction_of_a_frame_is_not_lost() -> None:
    """0.1 s are 2.5 frames: the first frame at or after each multiple."""
    _, _, packets = encoded({"keyframe_seconds": 0.1, "preset": "ultrafast", "threads": 1}, FORMAT, count=16)

    keys = [p.descriptor.source_index - 100 for p in packets if p.descriptor.flags & 1]
    assert keys == [0, 3, 5, 8, 10, 13, 15]  # worked out by hand: 0, 2.5, 5, 7.5, 10, 12.5, 15 rounded up


def test_a_new_epoch_begins_with_a_key_frame() -> None:
    frames = raw(list(pictures(12, SIZE)), FORMAT)
    moved = [replace(p, descriptor=_of_epoch(p.descriptor, 2 if n >= 7 else 0)) for n, p in enumerate(frames)]

    _, *packets = run(Bench(Encode, {"preset": "ultrafast", "threads": 1}, {"a->b": FORMAT}), moved)

    assert [p.descriptor.source_index - 100 for p in packets if p.descriptor.flags & 1] == [0, 7]


def _of_epoch(said: Descriptor, epoch: int) -> Descriptor:
    return Descriptor(
        payload_kind=said.payload_kind,
        source_index=said.source_index,
        pts=said.pts,
        duration=said.duration,
        time_base=said.time_base,
        pixel_format=said.pixel_format,
        width=said.width,
        height=said.height,
        planes=said.planes,
        color=said.color,
        epoch=epoch,
    )


def test_the_promise_travels_with_the_edge() -> None:
    for params, promised in (({"keyframe_seconds": 2.5}, 2.5), ({}, None)):
        (port,) = Encode.output(Encode.Params.model_validate(params), [FORMAT])
        assert isinstance(port.format, PacketFormat)
        assert port.format.keyframe_seconds == promised


@given(
    st.decimals(min_value="0.001", max_value="60", places=3),
    st.integers(1, 1001),
    st.integers(1, 10**9),
    st.integers(-(10**12), 10**15),
)
def test_boundaries_are_exact(seconds: Any, num: int, den: int, pts: int) -> None:
    number = Boundaries(float(seconds), Fraction(num, den)).before(pts)
    time = Fraction(pts * num, den)
    assert number * Fraction(seconds) <= time < (number + 1) * Fraction(seconds)
