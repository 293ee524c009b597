"""encode: packets that decode to the same pictures and times, in the order and with the marks they should have."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise
from typing import Any

import av
import numpy as np
import pytest
from pydantic import ValidationError

from dataplane._ring import Descriptor
from dataplane.errors import BadParameters
from dataplane.operators.encode import Encode, EncodeParameters
from observatory.model.media import CodecParameters, PacketFormat, PayloadKind, PixelFormat, VideoFormat
from tests.operators.harness import Bench, Payload, run
from tests.operators.media import pictures, planes_of
from tests.operators.test_per_frame import COLOR, raw, video_format

SIZE = (160, 96)
FORMAT = video_format(SIZE, color_primaries=9, color_transfer=16, color_matrix=9, color_range=1, sample_aspect=(4, 3))
CODECS: list[tuple[str, dict[str, Any], str]] = [
    ("libx264", {"preset": "veryfast", "threads": 2}, "h264"),
    ("libx265", {"preset": "ultrafast", "threads": 2}, "hevc"),
    ("libsvtav1", {"preset": "12", "threads": 2}, "av1"),
    ("libvpx-vp9", {"preset": "8", "threads": 2}, "vp9"),
    ("libvpx-vp9", {"preset": "4", "threads": 2}, "vp9"),
]


def encoded(
    params: Mapping[str, Any], form: VideoFormat = FORMAT, count: int = 40
) -> tuple[Bench, CodecParameters, list[Payload]]:
    frames = [frame.reformat(format=form.pixel_format.label) for frame in pictures(count, (form.width, form.height))]
    bench = Bench(Encode, params, {"a->b": form})
    first, *packets = run(bench, raw(frames, form))
    assert first.kind == PayloadKind.CODEC_PARAMETERS
    return bench, CodecParameters.model_validate_json(first.data.tobytes()), packets


def decode_all(said: CodecParameters, packets: list[Payload]) -> list[av.VideoFrame]:
    """By libavcodec, from parameters and packets alone."""
    context = av.CodecContext.create({"av1": "libdav1d"}.get(said.codec, said.codec), "r")
    assert isinstance(context, av.VideoCodecContext)
    if said.extradata_hex:
        context.extradata = bytes.fromhex(said.extradata_hex)
    frames = []
    for payload in packets:
        packet = av.Packet(payload.data.tobytes())
        packet.pts, packet.dts = payload.descriptor.pts, payload.descriptor.dts
        packet.time_base = Fraction(*payload.descriptor.time_base)
        frames += context.decode(packet)
    return frames + context.decode(None)


@pytest.mark.parametrize(("codec", "params", "name"), CODECS, ids=lambda value: str(value))
def test_packets_carry_every_frame_once(codec: str, params: dict[str, Any], name: str) -> None:
    bench, said, packets = encoded({"codec": codec, "gop": 16, **params})

    assert (said.codec, said.width, said.height) == (name, *SIZE)
    assert said.extradata_hex or name == "vp9"
    by_time = sorted(packets, key=lambda payload: payload.pts)
    assert [payload.pts for payload in by_time] == [number * 3600 + 5 for number in range(40)]
    assert [payload.descriptor.source_index for payload in by_time] == [100 + number for number in range(40)]
    assert all(payload.kind == PayloadKind.VIDEO_PACKET for payload in packets)
    assert all(payload.descriptor.duration == 3600 for payload in packets)
    dts = [payload.descriptor.dts for payload in packets]
    assert all(a < b for a, b in pairwise(dts))
    assert all(payload.descriptor.dts <= payload.pts for payload in packets)
    keys = [payload.descriptor.source_index - 100 for payload in packets if payload.descriptor.flags & 1]
    assert keys[0] == 0
    assert max(b - a for a, b in pairwise([*keys, 40])) <= 17
    assert not bench.warnings

    frames = decode_all(said, packets)

    assert [frame.pts for frame in frames] == [payload.pts for payload in by_time]
    for frame, original in zip(frames, pictures(40, SIZE), strict=True):
        error = planes_of(frame)[0].astype(float) - planes_of(original)[0]
        assert np.sqrt((error**2).mean()) < 22  # the picture, though squeezed
    assert (frames[0].color_primaries, frames[0].color_trc, frames[0].colorspace, frames[0].color_range) == COLOR or (
        name == "vp9" and (frames[0].colorspace, frames[0].color_range) == (9, 1)  # it has no place for the others
    )


@pytest.mark.parametrize(
    ("codec", "pixel_format"),
    [
        ("libx264", PixelFormat.NV12),
        ("libx264", PixelFormat.YUV420P10LE),
        ("libx265", PixelFormat.YUV420P10LE),
        ("libsvtav1", PixelFormat.YUV420P10LE),
    ],
)
def test_other_formats_are_encoded_as_they_are(codec: str, pixel_format: PixelFormat) -> None:
    form = video_format(SIZE, pixel_format)

    _, said, packets = encoded({"codec": codec, "crf": 12, "threads": 1}, form, count=12)

    frames = decode_all(said, packets)
    assert len(frames) == 12
    ten = pixel_format.bytes_per_sample == 2
    assert {frame.format.name for frame in frames} == {"yuv420p10le" if ten else "yuv420p"}
    (original, *_) = pictures(1, SIZE)
    luma = planes_of(frames[0])[0]
    got = luma.view("<u2") / 4 if ten else luma.astype(float)
    assert np.abs(got - planes_of(original)[0]).mean() < 4


@pytest.mark.parametrize("rate", ["200k", 200_000, "0.2M"])
def test_the_bit_rate_is_kept(rate: str | int) -> None:
    _, _, packets = encoded({"bitrate": rate, "preset": "ultrafast"}, count=150)

    bits = sum(payload.data.size for payload in packets) * 8
    assert bits / (150 / 25) == pytest.approx(200_000, rel=0.25)


def test_a_better_quality_takes_more_bytes() -> None:
    def total(crf: float) -> int:
        return sum(payload.data.size for payload in encoded({"crf": crf, "preset": "ultrafast"}, count=10)[2])

    assert total(15) > 2 * total(40)


def test_times_that_do_not_rise_are_moved_and_said() -> None:
    payloads = raw(list(pictures(4, SIZE)), FORMAT)
    times = [0, 3600, 3600, 3000]
    moved = [Payload(_at(p, time), p.data) for p, time in zip(payloads, times, strict=True)]
    bench = Bench(Encode, {"preset": "ultrafast"}, {"a->b": FORMAT})

    _, *packets = run(bench, moved)

    assert [payload.pts for payload in packets] == [0, 3600, 3601, 3602]
    assert [payload.descriptor.source_index for payload in packets] == [100, 101, 102, 103]
    assert len(bench.warnings) == 1


def _at(payload: Payload, pts: int) -> Descriptor:
    said = payload.descriptor
    return Descriptor(
        payload_kind=said.payload_kind,
        source_index=said.source_index,
        pts=pts,
        duration=said.duration,
        time_base=said.time_base,
        pixel_format=said.pixel_format,
        width=said.width,
        height=said.height,
        planes=said.planes,
    )


def test_no_frames_still_give_parameters() -> None:
    bench = Bench(Encode, {"preset": "ultrafast"}, {"a->b": FORMAT})

    (only,) = run(bench, [])

    assert only.kind == PayloadKind.CODEC_PARAMETERS


def test_inputs_are_released_as_a_prefix_of_what_is_published() -> None:
    """B-frames are published after the frames they refer to: the later frame is not acknowledged before them."""
    bench = Bench(Encode, {"preset": "medium", "look_ahead": 4, "threads": 1, "gop": 50}, {"a->b": FORMAT})
    ring = bench._in["a->b"]
    published: set[int] = set()
    reordered = False

    for number, payload in enumerate(raw(list(pictures(40, SIZE)), FORMAT)):
        new = [p.descriptor.source_index - 100 for p in bench.feed(payload).get("video", []) if p.kind == 2]
        published.update(new)
        reordered |= new != sorted(new) or bool(published and max(published) + 1 > len(published))
        prefix = next(index for index in range(number + 2) if index not in published)
        assert ring.producer.outstanding == number + 1 - prefix
    bench.finish()

    assert reordered  # or this tests nothing


def test_raw_options_reach_the_encoder() -> None:
    _, _, packets = encoded({"options": {"tune": "zerolatency", "x264-params": "keyint=4:scenecut=0"}}, count=12)

    assert [payload.descriptor.source_index for payload in packets] == list(range(100, 112))
    assert [bool(payload.descriptor.flags & 1) for payload in packets] == [n % 4 == 0 for n in range(12)]


def test_the_port_has_room_for_the_largest_packet() -> None:
    form = video_format((640, 360))
    noise = np.random.default_rng(1)
    bench = Bench(Encode, {"crf": 0, "preset": "ultrafast"}, {"a->b": form})
    payloads = [
        Payload(p.descriptor, noise.integers(0, 255, p.data.size, np.uint8))
        for p in raw(list(pictures(4, (640, 360))), form)
    ]

    packets = run(bench, payloads)

    packet_format = bench.format()
    assert isinstance(packet_format, PacketFormat)
    assert 200_000 < max(payload.data.size for payload in packets) <= packet_format.largest_packet_bytes


def test_a_preset_may_be_a_number() -> None:
    wanted = EncodeParameters.model_validate({"codec": "libsvtav1", "preset": 12})
    assert wanted.wish.preset == "12"


@pytest.mark.parametrize(
    "params",
    [
        {"bitrate": "fast"},
        {"bitrate": -1},
        {"bitrate": "3M", "crf": 20},
        {"gop": 0},
        {"threads": -1},
        {"look_ahead": 500},
    ],
)
def test_parameters_that_cannot_work_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Encode.Params.model_validate(params)


@pytest.mark.parametrize(
    ("params", "words", "mend"),
    [
        ({"codec": "no_such_codec"}, "no_such_codec", "libx264"),
        ({"codec": "libx265", "preset": "warp"}, "warp", "ultrafast"),
        ({"preset": "12"}, "no preset", "veryfast"),
        ({"profile": "main12"}, "main12", "high"),
        ({"codec": "libsvtav1", "profile": "main"}, "profile", ""),
        ({"crf": 70}, "crf 70", ""),
        ({"codec": "libsvtav1", "options": {"svtav1-params": "pred-struct=1"}}, "low-delay", "zerolatency"),
        ({"codec": "libsvtav1", "options": {"svtav1-params": "rtc=1:lp=2"}}, "low-delay", "zerolatency"),
        ({"options": {"no-such-option": "1"}}, "no-such-option", "ffmpeg"),
        ({"options": {"tune": "nonsense"}}, "cannot be opened", "options"),
    ],
)
def test_what_an_encoder_does_not_have_is_named(params: dict[str, Any], words: str, mend: str) -> None:
    with pytest.raises(BadParameters, match=words) as caught:
        Encode.output(Encode.Params.model_validate(params), [FORMAT])
    assert mend in (caught.value.mend or "")


@pytest.mark.parametrize(
    ("codec", "pixel_format", "mend"),
    [
        ("libx264", PixelFormat.P010LE, "yuv420p10le"),
        ("libx265", PixelFormat.NV12, "yuv420p"),
        ("libvpx-vp9", PixelFormat.YUV420P10LE, "yuv420p"),
    ],
)
def test_a_format_the_encoder_does_not_take_is_refused(codec: str, pixel_format: PixelFormat, mend: str) -> None:
    with pytest.raises(BadParameters, match=pixel_format.label) as caught:
        Encode.output(Encode.Params.model_validate({"codec": codec}), [video_format(SIZE, pixel_format)])
    assert f"convert, params: {{pixel_format: {mend}}}" in (caught.value.mend or "")


def test_encoders_leave_the_scheduling_as_it_was() -> None:
    """In a process of its own: what goes wrong here would be before everything else on the machine."""
    script = """
import os
from dataplane.operators.encode import Encode
from tests.operators.test_encode import FORMAT, Bench, pictures, raw, run
frames = [frame.reformat(format="yuv420p") for frame in pictures(5, (FORMAT.width, FORMAT.height))]
run(Bench(Encode, {"codec": "libsvtav1", "preset": "12"}, {"a->b": FORMAT}), raw(frames, FORMAT))
print({os.sched_getscheduler(int(thread)) for thread in os.listdir("/proc/self/task")} == {os.SCHED_OTHER})
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1:] == ["True"], done.stderr
