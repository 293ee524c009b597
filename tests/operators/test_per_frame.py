"""scale, crop, convert and super_res against plain PyAV and NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import av
import numpy as np
import pytest
from av.filter import Graph
from av.video.frame import VideoFrame
from av.video.reformatter import Interpolation
from pydantic import ValidationError

from dataplane._ring import Descriptor
from dataplane.errors import BadParameters
from dataplane.operators.base import Operator
from dataplane.operators.convert import Convert
from dataplane.operators.crop import Crop
from dataplane.operators.formats import layout_of
from dataplane.operators.scale import Scale
from dataplane.operators.super_res import SuperRes
from observatory.model.media import PacketFormat, PayloadKind, PixelFormat, TimeBase, VideoFormat
from tests.operators.harness import Bench, Payload, run
from tests.operators.media import digest_of, pictures, planes_of

COLOR = (9, 16, 9, 1)
PIXEL_FORMATS = [PixelFormat.YUV420P, PixelFormat.NV12, PixelFormat.YUV420P10LE, PixelFormat.P010LE]


def video_format(size: tuple[int, int], pixel_format: PixelFormat = PixelFormat.YUV420P, **more: Any) -> VideoFormat:
    time_base = TimeBase(num=1, den=90000)
    return VideoFormat(
        width=size[0], height=size[1], pixel_format=pixel_format, time_base=time_base, frames_per_second=25, **more
    )


def raw(frames: list[VideoFrame], form: VideoFormat) -> list[Payload]:
    """Frames as a decoder would publish them."""
    layout = layout_of(form)
    return [
        Payload(
            Descriptor(
                payload_kind=PayloadKind.VIDEO_FRAME,
                source_index=100 + number,
                pts=number * 3600 + 5,
                duration=3600,
                time_base=(1, 90000),
                pixel_format=form.pixel_format,
                width=form.width,
                height=form.height,
                planes=layout.offsets_and_strides,
                color=COLOR,
                sample_aspect=form.sample_aspect or (0, 1),
                flags=number % 2,
            ),
            np.concatenate(planes_of(frame)),
        )
        for number, frame in enumerate(frames)
    ]


def transform(
    kind: type[Operator], params: Mapping[str, Any], form: VideoFormat, count: int = 2
) -> tuple[list[VideoFrame], Bench, list[Payload]]:
    """Run an operator on test pictures; the pictures, and what came out."""
    size, label = (form.width, form.height), form.pixel_format.label
    frames = [frame.reformat(format=label) for frame in pictures(count, size, "yuv420p")]
    for frame in frames:
        frame.color_primaries, frame.color_trc, frame.colorspace, frame.color_range = COLOR
    bench = Bench(kind, params, {"a->b": form})
    return frames, bench, run(bench, raw(frames, form))


@pytest.mark.parametrize("pixel_format", PIXEL_FORMATS)
@pytest.mark.parametrize("method", ["bilinear", "bicubic", "lanczos"])
def test_scaling_is_libswscales(pixel_format: PixelFormat, method: str) -> None:
    params = {"width": 190, "height": 102, "method": method}

    frames, _, out = transform(Scale, params, video_format((322, 182), pixel_format))

    for frame, payload in zip(frames, out, strict=True):
        expected = frame.reformat(width=190, height=102, interpolation=Interpolation[method.upper()], threads=1)
        assert digest_of(payload.data) == digest_of(np.concatenate(planes_of(expected)))


@pytest.mark.parametrize("pixel_format", PIXEL_FORMATS)
def test_halving_by_area_is_the_mean_of_four(pixel_format: PixelFormat) -> None:
    form = video_format((316, 180), pixel_format)

    frames, _, out = transform(Scale, {"width": 158, "height": 90, "method": "area"}, form)

    for frame, payload in zip(frames, out, strict=True):
        before = layout_of(form).sample_views(np.concatenate(planes_of(frame)))
        for was, now in zip(before, payload.planes(), strict=True):
            rows, columns = now.shape
            mean = _ten_bit(was, pixel_format)[: rows * 2, : columns * 2].reshape(rows, 2, columns, 2).mean((1, 3))
            error = np.abs(_ten_bit(now, pixel_format) - mean)[:, :-1]
            assert error.max() <= 6  # 1.5 steps of 8 bit


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        (Scale, {"width": 64, "height": 48}),
        (Crop, {"width": 64, "height": 48}),
        (Convert, {"pixel_format": "nv12"}),
        (SuperRes, {}),
    ],
)
def test_identity_times_colours_and_flags_are_kept(kind: type[Operator], params: Mapping[str, Any]) -> None:
    form = video_format((128, 96), sample_aspect=(1, 1))

    _, bench, out = transform(kind, params, form, count=3)

    for number, payload in enumerate(out):
        said = payload.descriptor
        assert (said.source_index, said.pts, said.duration) == (100 + number, number * 3600 + 5, 3600)
        assert (said.time_base, said.color, said.flags) == ((1, 90000), COLOR, number % 2)
        assert said.sample_aspect == (1, 1)
        made = bench.format()
        assert isinstance(made, VideoFormat)
        assert (said.width, said.height, said.pixel_format) == (made.width, made.height, made.pixel_format)
        assert payload.data.size == made.bytes_per_frame


@pytest.mark.parametrize(
    ("given", "size"),
    [((640, -2), (640, 272)), ((-2, 136), (320, 136)), ((100, -2), (100, 42)), ((-2, 2), (4, 2))],
)
def test_one_side_can_follow_the_aspect_ratio(given: tuple[int, int], size: tuple[int, int]) -> None:
    params = Scale.Params.model_validate({"width": given[0], "height": given[1]})

    (port,) = Scale.output(params, [video_format((640, 272))])

    assert isinstance(port.format, VideoFormat)
    assert (port.format.width, port.format.height) == size


@pytest.mark.parametrize(
    ("aspect", "expected"), [((1, 1), (45, 34)), (None, None), ((4, 3), (30, 17))], ids=["square", "unknown", "wide"]
)
def test_the_sample_aspect_keeps_the_shape(aspect: tuple[int, int] | None, expected: tuple[int, int] | None) -> None:
    form = video_format((640, 272), sample_aspect=aspect)

    _, _, out = transform(Scale, {"width": 640, "height": 360}, form, count=1)

    assert out[0].descriptor.sample_aspect == (expected or (0, 1))
    if expected and aspect:  # the shape on the screen, before and after
        assert 640 * aspect[0] / aspect[1] / 272 == pytest.approx(640 * expected[0] / expected[1] / 360)


@pytest.mark.parametrize("pixel_format", PIXEL_FORMATS)
def test_cropping_is_slicing(pixel_format: PixelFormat) -> None:
    form = video_format((128, 96), pixel_format)

    frames, _, out = transform(Crop, {"width": 66, "height": 34, "x": 10, "y": 50}, form)

    layout = layout_of(form)
    for frame, payload in zip(frames, out, strict=True):
        y, u, v = layout.sample_views(np.concatenate(planes_of(frame)))
        got = payload.planes()
        assert np.array_equal(got[0], y[50:84, 10:76])
        assert np.array_equal(got[1], u[25:42, 5:38])
        assert np.array_equal(got[2], v[25:42, 5:38])


@pytest.mark.parametrize("target", PIXEL_FORMATS)
@pytest.mark.parametrize("source", PIXEL_FORMATS)
def test_every_format_becomes_every_other(source: PixelFormat, target: PixelFormat) -> None:
    form = video_format((66, 34), source)

    frames, _, out = transform(Convert, {"pixel_format": target.label}, form, count=1)

    before = layout_of(form).sample_views(np.concatenate(planes_of(frames[0])))
    for was, now in zip(before, out[0].planes(), strict=True):
        assert np.abs(_ten_bit(was, source) - _ten_bit(now, target)).max() <= (4 if target.bytes_per_sample == 1 else 0)


def _ten_bit(samples: np.ndarray[Any, Any], pixel_format: PixelFormat) -> np.ndarray[Any, Any]:
    factor = {PixelFormat.YUV420P10LE: 1, PixelFormat.P010LE: 1 / 64}.get(pixel_format, 4)
    return samples.astype(float) * factor


def test_super_resolution_without_sharpening_is_lanczos() -> None:
    frames, _, out = transform(SuperRes, {"sharpen": 0.0}, video_format((98, 54)))

    for frame, payload in zip(frames, out, strict=True):
        expected = frame.reformat(width=196, height=108, interpolation=Interpolation.LANCZOS, threads=1)
        assert digest_of(payload.data) == digest_of(np.concatenate(planes_of(expected)))


@pytest.mark.parametrize("pixel_format", PIXEL_FORMATS)
def test_sharpening_is_libavfilters_unsharp_on_luma(pixel_format: PixelFormat) -> None:
    planar = "yuv420p" if pixel_format.bytes_per_sample == 1 else "yuv420p10le"
    frames, _, out = transform(SuperRes, {"sharpen": 1.0}, video_format((98, 54), pixel_format))
    graph = Graph()
    source = graph.add("buffer", f"video_size=196x108:pix_fmt={planar}:time_base=1/90000:pixel_aspect=1/1")
    graph.link_nodes(source, graph.add("unsharp", "5:5:1.0:5:5:0"), graph.add("buffersink")).configure()

    for frame, payload in zip(frames, out, strict=True):
        large = frame.reformat(width=196, height=108, format=planar, interpolation=Interpolation.LANCZOS, threads=1)
        graph.vpush(large)
        expected = graph.vpull().reformat(format=pixel_format.label)
        assert digest_of(payload.data) == digest_of(np.concatenate(planes_of(expected)))


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        (Scale, {"width": -64, "height": 64}),
        (Scale, {"width": 63, "height": 64}),
        (Scale, {"width": 0, "height": 64}),
        (Scale, {"width": -2, "height": -2}),
        (Scale, {"width": 20000, "height": 64}),
        (Scale, {"width": 64, "height": 64, "method": "magic"}),
        (Crop, {"width": 63, "height": 64}),
        (Crop, {"width": 64, "height": 64, "x": -2}),
        (Convert, {"pixel_format": "rgb24"}),
        (SuperRes, {"factor": 3}),
        (Scale, {"width": 64, "height": 64, "hight": 64}),
    ],
)
def test_parameters_that_cannot_work_are_refused(kind: type[Operator], params: Mapping[str, Any]) -> None:
    with pytest.raises(ValidationError):
        kind.Params.model_validate(params)


@pytest.mark.parametrize(
    ("kind", "params", "size", "words"),
    [
        (Crop, {"width": 100, "height": 50, "x": 30}, (128, 96), "outside"),
        (Crop, {"width": 100, "height": 50, "y": 48}, (128, 96), "outside"),
        (SuperRes, {}, (8194, 96), "16388"),
        (Scale, {"width": 16384, "height": -2}, (64, 96), "24576"),
    ],
)
def test_sizes_that_the_input_rules_out_are_refused(
    kind: type[Operator], params: Mapping[str, Any], size: tuple[int, int], words: str
) -> None:
    with pytest.raises(BadParameters, match=words) as caught:
        kind.output(kind.Params.model_validate(params), [video_format(size)])
    assert caught.value.mend


def test_packets_are_no_input_for_a_picture_operator() -> None:
    packets = PacketFormat(codec="h264", video=video_format((64, 48)), bytes_per_packet=9, largest_packet_bytes=99)

    with pytest.raises(BadParameters, match="raw video"):
        Scale.output(Scale.Params.model_validate({"width": 64, "height": 48}), [packets])


def test_the_input_is_not_changed_and_not_copied() -> None:
    """Libswscale is given the slot itself: PyAV sees the address of the ring's memory."""
    seen = []
    original = av.video.reformatter.VideoReformatter

    class Spy:
        def __init__(self) -> None:
            self._real = original()

        def reformat(self, frame: VideoFrame, **how: Any) -> VideoFrame:
            seen.append(frame.planes[0].buffer_ptr)
            return self._real.reformat(frame, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dataplane.operators.scale.VideoReformatter", Spy)
        form = video_format((128, 96))
        bench = Bench(Scale, {"width": 64, "height": 48}, {"a->b": form})
        ring = bench._in["a->b"]
        frames = list(pictures(1, (128, 96)))
        payload = raw(frames, form)[0]
        slot = ring.producer.acquire(payload.data.size, 0.0)
        assert slot is not None
        slot.array[: payload.data.size] = payload.data
        slot.publish(payload.descriptor, payload.data.size)
        lease = ring.consumer.take(0.0)
        assert lease is not None
        address = lease.array.__array_interface__["data"][0]
        bench.operator.process(lease, "a->b", bench)
        bench.finish()

    assert seen == [address]
