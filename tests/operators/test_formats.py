"""Planes, packed frames, and frames that libav sees without a copy."""

from __future__ import annotations

import av
import numpy as np
import pytest

from dataplane.operators.formats import copy_to_slot, nearest_format, plane_layout
from dataplane.operators.frames import borrow_frame
from observatory.model.media import PixelFormat
from tests.operators.media import pictures, planes_of

FORMATS = [PixelFormat.YUV420P, PixelFormat.NV12, PixelFormat.YUV420P10LE, PixelFormat.P010LE]


@pytest.mark.parametrize("pixel_format", FORMATS)
@pytest.mark.parametrize("size", [(64, 48), (318, 182), (2, 2), (66, 270)])
def test_a_slot_is_the_same_picture_to_libav(pixel_format: PixelFormat, size: tuple[int, int]) -> None:
    layout = plane_layout(pixel_format, *size)
    payload = np.random.default_rng(1).integers(0, 255, layout.total_bytes, np.uint8)
    payload.flags.writeable = False

    frame = borrow_frame(payload, layout)

    assert (frame.width, frame.height, frame.format.name) == (*size, pixel_format.label)
    assert b"".join(plane.tobytes() for plane in planes_of(frame)) == payload.tobytes()
    address = payload.__array_interface__["data"][0]
    assert [plane.buffer_ptr - address for plane in frame.planes] == [plane.offset for plane in layout.planes]


@pytest.mark.parametrize("pixel_format", FORMATS)
def test_padding_is_skipped_and_odd_edges_are_cut(pixel_format: PixelFormat) -> None:
    (frame,) = pictures(1, (322, 182), "yuv420p")
    frame = frame.reformat(format=pixel_format.label)
    assert frame.planes[0].line_size > 322 * pixel_format.bytes_per_sample  # there is padding to skip
    layout = plane_layout(pixel_format, 318, 180)
    slot = np.zeros(layout.total_bytes, np.uint8)

    copy_to_slot(frame, layout, slot)

    samples = layout.sample_views(slot)
    assert [plane.shape for plane in samples] == [(180, 318), (90, 159), (90, 159)]
    luma = planes_of(frame)[0].view(layout.dtype).reshape(182, 322)
    assert np.array_equal(samples[0], luma[:180, :318])


def test_the_views_of_interleaved_chroma_are_u_and_v() -> None:
    (planar,) = pictures(1, (64, 48), "yuv420p")
    packed = planar.reformat(format="nv12")
    layout = plane_layout(PixelFormat.NV12, 64, 48)
    slot = np.zeros(layout.total_bytes, np.uint8)
    copy_to_slot(packed, layout, slot)

    _, u, v = layout.sample_views(slot)

    assert np.array_equal(u.ravel(), planes_of(planar)[1])
    assert np.array_equal(v.ravel(), planes_of(planar)[2])


@pytest.mark.parametrize(
    ("libav", "ours"),
    [
        ("yuv420p", PixelFormat.YUV420P),
        ("yuvj420p", PixelFormat.YUV420P),
        ("nv12", PixelFormat.NV12),
        ("yuv422p", PixelFormat.YUV420P),
        ("yuv444p12le", PixelFormat.YUV420P10LE),
        ("p010le", PixelFormat.P010LE),
        ("yuv422p10le", PixelFormat.YUV420P10LE),
        ("rgb24", PixelFormat.YUV420P),
        ("gbrp10le", PixelFormat.YUV420P10LE),
        ("gray", PixelFormat.YUV420P),
        ("gray12le", PixelFormat.YUV420P10LE),
        ("pal8", PixelFormat.YUV420P),
    ],
)
def test_the_nearest_format_keeps_more_than_8_bits(libav: str, ours: PixelFormat) -> None:
    assert nearest_format(libav) is ours


def test_odd_sizes_have_no_layout() -> None:
    with pytest.raises(ValueError, match="even"):
        plane_layout(PixelFormat.YUV420P, 63, 48)


def test_a_borrowed_frame_keeps_its_memory() -> None:
    layout = plane_layout(PixelFormat.YUV420P, 64, 48)
    payload = np.full(layout.total_bytes, 7, np.uint8)
    frame = borrow_frame(payload, layout)
    copied = av.VideoFrame.from_ndarray(frame.to_ndarray(), format="yuv420p")
    del payload

    assert np.array_equal(frame.to_ndarray(), copied.to_ndarray())
