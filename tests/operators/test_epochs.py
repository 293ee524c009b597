"""What is made from a frame is of that frame's epoch: every operator passes it on, encoders that reorder too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from dataplane._ring import Descriptor
from dataplane.operators.base import Operator
from dataplane.operators.convert import Convert
from dataplane.operators.crop import Crop
from dataplane.operators.encode import Encode
from dataplane.operators.formats import layout_of
from dataplane.operators.scale import Scale
from dataplane.operators.super_res import SuperRes
from dataplane.operators.watermark import Watermark
from observatory.model.media import PayloadKind, PixelFormat, TimeBase, VideoFormat
from tests.operators.harness import Bench, Payload, run

FORM = VideoFormat(
    width=64,
    height=36,
    pixel_format=PixelFormat.YUV420P,
    time_base=TimeBase(num=1, den=90_000),
    frames_per_second=25,
)
EPOCHS = [0] * 7 + [4] * 2 + [5] * 6 + [2**32 - 1]  # 0: as the trace of the worker says


def frames() -> list[Payload]:
    layout = layout_of(FORM)
    noise = np.random.default_rng(5)
    return [
        Payload(
            Descriptor(
                payload_kind=PayloadKind.VIDEO_FRAME,
                source_index=number,
                pts=3600 * number,
                duration=3600,
                time_base=(1, 90_000),
                pixel_format=FORM.pixel_format,
                width=FORM.width,
                height=FORM.height,
                planes=layout.offsets_and_strides,
                epoch=epoch,
            ),
            noise.integers(16, 235, layout.total_bytes, np.uint8),
        )
        for number, epoch in enumerate(EPOCHS)
    ]


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        (Scale, {"width": 32, "height": 18}),
        (Crop, {"width": 32, "height": 18}),
        (Convert, {"pixel_format": "nv12"}),
        (SuperRes, {}),
        (Watermark, {"text": "x"}),
        (Encode, {"codec": "libx264", "preset": "medium", "bitrate": "300k"}),
        (Encode, {"codec": "libx265", "preset": "ultrafast"}),
        (Encode, {"codec": "libsvtav1", "preset": 12}),
        (Encode, {"codec": "libvpx-vp9", "preset": 8}),
    ],
    ids=lambda value: value.get("codec", "") if isinstance(value, dict) else value.op,
)
def test_the_epoch_of_a_frame_is_passed_on(kind: type[Operator], params: Mapping[str, Any]) -> None:
    made = run(Bench(kind, params, {"a->b": FORM}), frames())
    video = [p.descriptor for p in made if p.kind != PayloadKind.CODEC_PARAMETERS]
    assert sorted((said.source_index, said.epoch) for said in video) == list(enumerate(EPOCHS))
