"""The most frames an encoder holds is a promise: the bench's pool has exactly that many slots.

An encoder that held one frame more would find no slot and fail its test (see harness.Bench.feed); one that holds far
fewer wastes memory. Small real pictures, long enough to fill every look-ahead.
"""

from __future__ import annotations

from typing import Any

import pytest

from dataplane.operators.encode import Encode
from observatory.model.media import PayloadKind
from tests.operators.harness import Bench, Payload
from tests.operators.media import pictures
from tests.operators.test_per_frame import raw, video_format

SIZE = (128, 96)
FORMAT = video_format(SIZE)

X264 = [
    {"preset": preset, "threads": threads}
    for preset in ("ultrafast", "superfast", "veryfast", "medium", "veryslow")
    for threads in (1, 3)
]
CASES: list[dict[str, Any]] = [
    *({"codec": "libx264", **params} for params in X264),
    {"codec": "libx264", "threads": 2, "look_ahead": 7},
    {"codec": "libx264", "threads": 8},
    {"codec": "libx264", "threads": 2, "options": {"tune": "zerolatency"}},
    {"codec": "libx264", "threads": 2, "options": {"bf": 5, "x264-params": "b-adapt=2:rc-lookahead=6"}},
    {"codec": "libx264", "threads": 2, "bitrate": "100k"},
    {"codec": "libx265", "threads": 1, "preset": "ultrafast"},
    {"codec": "libx265", "threads": 2, "preset": "veryfast"},
    {"codec": "libx265", "threads": 2, "preset": "ultrafast", "look_ahead": 20, "bitrate": "100k"},
    {"codec": "libx265", "threads": 2, "preset": "ultrafast", "options": {"tune": "zerolatency"}},
    {"codec": "libsvtav1", "threads": 1},
    {"codec": "libsvtav1", "threads": 2, "preset": "8"},
    {"codec": "libsvtav1", "threads": 4, "preset": "12", "look_ahead": 16},
    {"codec": "libsvtav1", "threads": 2, "bitrate": "100k"},
    {"codec": "libsvtav1", "threads": 2, "options": {"svtav1-params": "hierarchical-levels=3"}},
    {"codec": "libvpx-vp9", "threads": 2, "preset": "8"},
    {"codec": "libvpx-vp9", "threads": 2, "preset": "5", "look_ahead": 10},
    {"codec": "libvpx-vp9", "threads": 1, "preset": "4"},
]


@pytest.fixture(scope="module")
def payloads() -> list[Payload]:
    return raw(list(pictures(130, SIZE)), FORMAT)


@pytest.mark.parametrize("params", CASES, ids=lambda params: "-".join(str(v) for v in params.values()))
def test_no_encoder_holds_more_than_it_says(params: dict[str, Any], payloads: list[Payload]) -> None:
    bench = Bench(Encode, params, {"a->b": FORMAT})
    said = Encode.contract(bench.operator.params).held_frames
    ring = bench._in["a->b"].producer
    most = packets = 0

    for payload in payloads:
        new = bench.feed(payload).get("video", [])
        packets += sum(p.kind == PayloadKind.VIDEO_PACKET for p in new)
        most = max(most, ring.outstanding + 1)  # with the one that comes next
    packets += len(bench.finish().get("video", []))

    assert packets == len(payloads)
    assert not bench.warnings
    slack = 32 if params["codec"] == "libsvtav1" else 6 if params.get("preset") == "veryslow" else 4
    assert said - slack <= most <= said


def test_an_encoder_that_holds_more_lets_go_and_says_so(payloads: list[Payload]) -> None:
    bench = Bench(Encode, {"threads": 1}, {"a->b": FORMAT})
    operator = bench.operator
    assert isinstance(operator, Encode)
    operator._most_held = 3

    packets = [p for payload in payloads for p in bench.feed(payload).get("video", [])]
    packets += bench.finish().get("video", [])

    assert sorted(p.descriptor.source_index for p in packets[1:]) == [100 + number for number in range(len(payloads))]
    assert len(bench.warnings) == 1
    assert "acknowledged before" in bench.warnings[0]
