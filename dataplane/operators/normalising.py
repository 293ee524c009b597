"""Bringing decoded frames to the format and size that their edge was promised."""

from __future__ import annotations

from collections.abc import Callable

from av.video.frame import VideoFrame
from av.video.reformatter import ColorRange, Colorspace, VideoReformatter

from dataplane.operators.formats import even, nearest_format, same_planes
from dataplane.operators.reading import InputDescription
from observatory.model.media import VideoFormat


class Normaliser:
    """Turns whatever the decoder gives into frames with the planes of the promised format.

    Frames that fit are returned as they are. Others are converted, and rescaled where their size has changed in
    mid-stream, which is said once by `warn`.
    """

    def __init__(self, found: InputDescription, promised: VideoFormat, warn: Callable[[str], None]) -> None:
        """`found` is what the input is now; a live one may have changed since its format was promised."""
        self._video = promised
        self._warn = warn
        self._from_rgb = found.from_rgb
        self._reformatter = VideoReformatter()
        self._seen: tuple[str, int, int] | None = None
        self._fits = False
        kept = nearest_format(found.libav_format) is promised.pixel_format
        same = even(found.size) == (promised.width, promised.height)
        self._first = (found.libav_format, *found.size) if kept and same else None

    def normalise(self, frame: VideoFrame) -> VideoFrame:
        """A frame with the promised planes and at least the promised size."""
        shape = (frame.format.name, frame.width, frame.height)
        if shape != self._seen:
            self._look(shape)
        return frame if self._fits else self._convert(frame)

    def _look(self, shape: tuple[str, int, int]) -> None:
        self._seen = shape
        video = self._video
        self._same_size = even(shape[1:]) == (video.width, video.height)
        self._fits = self._same_size and same_planes(shape[0]) is video.pixel_format
        if shape != self._first:
            wanted = f"{video.pixel_format.label} {video.width}x{video.height}"
            self._warn(f"the input changes to {shape[0]} {shape[1]}x{shape[2]} on its way: brought back to {wanted}")

    def _convert(self, frame: VideoFrame) -> VideoFrame:
        video = self._video
        rgb = self._from_rgb
        return self._reformatter.reformat(
            frame,
            width=frame.width if self._same_size else video.width,
            height=frame.height if self._same_size else video.height,
            format=video.pixel_format.label,
            dst_colorspace=Colorspace.ITU709 if rgb else None,
            dst_color_range=ColorRange.MPEG if rgb else None,
            threads=1,
        )
