"""Frames in slots, as libav sees them and as descriptors describe them."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from av.video.frame import VideoFrame

from dataplane._ring import Descriptor
from dataplane.operators.formats import PlaneLayout
from observatory.model.media import PayloadKind, VideoFormat

if TYPE_CHECKING:
    from dataplane._ring import ReadLease

KEY_FRAME = 1 << 0  # enum mo_descriptor_flags
DISCONTINUITY = 1 << 1
CORRUPT = 1 << 2

UNSPECIFIED = 2  # H.273 code point
"""Colour property that nobody has said."""


class _Borrowed:
    """Memory of a read-only array, shown as writable because DLPack cannot say read-only.

    The mapping itself is read-only, and libav only reads from frames that it did not allocate. `owner` keeps the array
    (and so its lease) until libav lets go of the frame.
    """

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, owner: npt.NDArray[np.uint8], address: int, shape: tuple[int, int], typestr: str) -> None:
        self.owner = owner
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "shape": shape,
            "typestr": typestr,
            "data": (address, False),
        }


def borrow_frame(payload: npt.NDArray[np.uint8], layout: PlaneLayout) -> VideoFrame:
    """A libav frame whose planes are the payload itself: no copy; the payload lives as long as the frame does.

    `VideoFrame.from_numpy_buffer` would be twice as fast, but it takes heights that are no multiple of 4 for smaller
    ones, and has no 10 bit.
    """
    address = payload.__array_interface__["data"][0]
    typestr = layout.dtype.str
    size = layout.dtype.itemsize
    planes = tuple(
        np.asarray(_Borrowed(payload, address + plane.offset, (plane.rows, plane.stride // size), typestr))
        for plane in layout.planes
    )
    return VideoFrame.from_dlpack(planes, format=layout.pixel_format.label)


def frame_of_lease(lease: ReadLease, layout: PlaneLayout) -> VideoFrame:
    """The frame in a slot as libav sees it, without a copy, with the times and colours of its descriptor.

    The lease cannot be released before the frame is gone.
    """
    descriptor = lease.descriptor
    frame = borrow_frame(lease.array, layout)
    frame.pts = descriptor.pts
    frame.time_base = Fraction(*descriptor.time_base)
    frame.duration = max(0, descriptor.duration)
    set_colors(frame, descriptor.color)
    return frame


def set_colors(frame: VideoFrame, color: tuple[int, int, int, int]) -> None:
    """Put (primaries, transfer, matrix, range) on a libav frame."""
    frame.color_primaries, frame.color_trc, frame.colorspace, frame.color_range = color


def format_colors(video: VideoFormat) -> tuple[int, int, int, int]:
    """(primaries, transfer, matrix, range) of an edge; what is not known is 2, 2, 2, 0."""
    return (
        UNSPECIFIED if video.color_primaries is None else video.color_primaries,
        UNSPECIFIED if video.color_transfer is None else video.color_transfer,
        UNSPECIFIED if video.color_matrix is None else video.color_matrix,
        0 if video.color_range is None else video.color_range,
    )


def derived_descriptor(
    source: Descriptor, layout: PlaneLayout, sample_aspect: tuple[int, int] | None = None
) -> Descriptor:
    """Describe a frame made from one other frame: identity, epoch, times, colours and flags are those of `source`."""
    return Descriptor(
        payload_kind=PayloadKind.VIDEO_FRAME,
        source_index=source.source_index,
        pts=source.pts,
        duration=source.duration,
        time_base=source.time_base,
        pixel_format=layout.pixel_format,
        width=layout.width,
        height=layout.height,
        planes=layout.offsets_and_strides,
        color=source.color,
        sample_aspect=source.sample_aspect if sample_aspect is None else sample_aspect,
        flags=source.flags,
        epoch=source.epoch,
    )
