"""With 10 bits a sample, and with forced key frames, encoders hold no more frames than pools are sized for."""

from __future__ import annotations

from typing import Any

import pytest

from dataplane.operators.encode import Encode
from observatory.model.media import PayloadKind, PixelFormat
from tests.operators.harness import Bench, Payload
from tests.operators.media import pictures
from tests.operators.test_per_frame import raw, video_format

SIZE = (128, 96)
FORMAT = video_format(SIZE, PixelFormat.YUV420P10LE)
CASES: list[dict[str, Any]] = [
    {"codec": "libx265", "threads": 2, "preset": "ultrafast"},
    {"codec": "libx265", "threads": 2, "preset": "veryfast"},
    {"codec": "libx265", "threads": 2, "preset": "ultrafast", "keyframe_seconds": 0.5},
    {"codec": "libx264", "threads": 2, "preset": "veryfast", "keyframe_seconds": 0.5},
    {"codec": "libsvtav1", "threads": 1, "preset": "12"},
    {"codec": "libsvtav1", "threads": 2, "preset": "10"},
    {"codec": "libsvtav1", "threads": 4, "preset": "12", "keyframe_seconds": 0.4},
]


@pytest.fixture(scope="module")
def payloads() -> list[Payload]:
    return raw([frame.reformat(format="yuv420p10le") for frame in pictures(130, SIZE)], FORMAT)


@pytest.mark.parametrize("params", CASES, ids=lambda params: "-".join(str(v) for v in params.values()))
def test_no_encoder_holds_more_than_it_says(params: dict[str, Any], payloads: list[Payload]) -> None:
    bench = Bench(Encode, params, {"a->b": FORMAT})  # whose pool has as many slots as the encoder says
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
    assert said - (32 if params["codec"] == "libsvtav1" else 4) <= most <= said
