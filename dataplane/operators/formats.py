"""Raw pictures in memory: how the four pixel formats lie in a slot, and what libav's other formats become.

A frame in a slot is packed: plane after plane, no padding between rows, so `stride` is exactly the bytes of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import av
import numpy as np
import numpy.typing as npt
from av.video.frame import VideoFrame

from observatory.model.media import PixelFormat, VideoFormat

# Same planes under another name: the "j" formats are full range, which travels in the colour range instead.
_SAME_PLANES = {
    "yuv420p": PixelFormat.YUV420P,
    "yuvj420p": PixelFormat.YUV420P,
    "nv12": PixelFormat.NV12,
    "yuv420p10le": PixelFormat.YUV420P10LE,
    "p010le": PixelFormat.P010LE,
}


@dataclass(frozen=True, slots=True)
class Plane:
    """One plane of a packed frame. `samples` counts the components interleaved in it (2 for UV)."""

    offset: int  # bytes from the start of the frame
    stride: int  # bytes from row to row, all of them used
    rows: int
    samples: int = 1


@dataclass(frozen=True, slots=True)
class PlaneLayout:
    """Where the planes of a packed frame of one format and size are."""

    pixel_format: PixelFormat
    width: int
    height: int
    planes: tuple[Plane, ...]
    total_bytes: int

    @property
    def dtype(self) -> np.dtype[np.uint8] | np.dtype[np.uint16]:
        """Type of one sample."""
        return np.dtype("<u2") if self.pixel_format.bytes_per_sample == 2 else np.dtype("u1")

    @property
    def offsets_and_strides(self) -> tuple[tuple[int, int], ...]:
        """As a descriptor wants them."""
        return tuple((plane.offset, plane.stride) for plane in self.planes)

    def views(self, payload: npt.NDArray[np.uint8]) -> list[npt.NDArray[np.uint8]]:
        """The planes of a payload as arrays of shape (rows, stride) in bytes, without a copy."""
        return [
            payload[plane.offset : plane.offset + plane.rows * plane.stride].reshape(plane.rows, plane.stride)
            for plane in self.planes
        ]

    def sample_views(self, payload: npt.NDArray[np.uint8]) -> list[npt.NDArray[np.integer]]:
        """Y, U and V as arrays of samples (interleaved planes are split by stride), without a copy."""
        found: list[npt.NDArray[np.integer]] = []
        for plane, view in zip(self.planes, self.views(payload), strict=True):
            samples = view.view(self.dtype)
            found += [samples[:, part :: plane.samples] for part in range(plane.samples)]
        return found


@cache
def plane_layout(pixel_format: PixelFormat, width: int, height: int) -> PlaneLayout:
    """The packed layout of frames of `width` x `height` (both even, in luma samples)."""
    if width % 2 or height % 2:
        raise ValueError(f"{width}x{height}: 4:2:0 pictures have even sizes")
    row = width * pixel_format.bytes_per_sample
    luma = Plane(0, row, height)
    size = row * height
    chroma: tuple[Plane, ...]
    if pixel_format.semi_planar:
        chroma = (Plane(size, row, height // 2, samples=2),)
    else:
        quarter = row // 2 * (height // 2)
        chroma = (Plane(size, row // 2, height // 2), Plane(size + quarter, row // 2, height // 2))
    return PlaneLayout(pixel_format, width, height, (luma, *chroma), size * 3 // 2)


def layout_of(video: VideoFormat) -> PlaneLayout:
    """The packed layout of an edge's frames."""
    return plane_layout(video.pixel_format, video.width, video.height)


def same_planes(libav_name: str) -> PixelFormat | None:
    """Our format whose planes are those of libav's `libav_name`; None when it has to be converted."""
    return _SAME_PLANES.get(libav_name)


def nearest_format(libav_name: str) -> PixelFormat:
    """The format that keeps most of a picture in libav's `libav_name`: 10 bit when it has more than 8."""
    same = same_planes(libav_name)
    if same is not None:
        return same
    depth = max((component.bits for component in av.VideoFormat(libav_name).components), default=8)
    return PixelFormat.YUV420P10LE if depth > 8 else PixelFormat.YUV420P


def is_rgb(libav_name: str) -> bool:
    """Whether libav's `libav_name` holds red, green and blue (or a palette of them)."""
    return av.VideoFormat(libav_name).is_rgb or libav_name == "pal8"


def is_full_range(libav_name: str) -> bool:
    """Whether the name itself says full range (the "j" formats)."""
    return libav_name.startswith("yuvj")


def plane_rows(frame: VideoFrame, index: int) -> npt.NDArray[np.uint8]:
    """Plane `index` of a libav frame as (rows, bytes per row with padding), without a copy."""
    plane = frame.planes[index]
    stride = plane.line_size
    rows = np.frombuffer(memoryview(plane), np.uint8).reshape(-1, abs(stride))
    return rows if stride > 0 else rows[::-1]


def copy_to_slot(frame: VideoFrame, layout: PlaneLayout, payload: npt.NDArray[np.uint8]) -> None:
    """Copy a libav frame into a slot, plane by plane.

    The frame has the layout's planes and at least its size; rows and columns beyond it are cut off, padding is skipped.
    """
    for index, plane in enumerate(layout.planes):
        target = payload[plane.offset : plane.offset + plane.rows * plane.stride].reshape(plane.rows, plane.stride)
        np.copyto(target, plane_rows(frame, index)[: plane.rows, : plane.stride])


def even(size: Sequence[int]) -> tuple[int, int]:
    """Width and height cut to even numbers."""
    width, height = size
    return width - width % 2, height - height % 2
