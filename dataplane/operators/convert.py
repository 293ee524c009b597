"""convert: another pixel format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, cast

import numpy as np
import numpy.typing as npt
from av.video.reformatter import Interpolation, VideoReformatter
from pydantic import Field

from dataplane.operators.base import Parameters
from dataplane.operators.formats import copy_to_slot
from dataplane.operators.frames import frame_of_lease
from dataplane.operators.per_frame import PerFrameOperator
from observatory.model.media import PixelFormat, VideoFormat

if TYPE_CHECKING:
    from dataplane._ring import ReadLease


class ConvertParameters(Parameters):
    """Parameters of convert."""

    pixel_format: Literal["yuv420p", "nv12", "yuv420p10le", "p010le"] = Field(
        description="Pixel format of the output: planar or interleaved chroma, 8 or 10 bit"
    )
    threads: int = Field(default=1, ge=0, le=64, description="Threads of the converter; 0: one per CPU")


class Convert(PerFrameOperator):
    """Changes how samples are stored; size and colours stay."""

    op = "convert"
    Params = ConvertParameters
    summary = "Changes the pixel format; size and colours stay"
    engines: ClassVar[Mapping[str, str]] = {"cpu": "compute", "gpu": "compute"}
    copies_reason = "libswscale writes into a frame of its own, which is copied: PyAV gives it no destination"

    @classmethod
    def output_format(cls, params: Parameters, source: VideoFormat) -> VideoFormat:
        """The input's format with another pixel format."""
        wanted = PixelFormat[cast(ConvertParameters, params).pixel_format.upper()]
        return source.model_copy(update={"pixel_format": wanted})

    def prepare(self, source: VideoFormat, target: VideoFormat) -> None:
        """Make the converter of each step, which keeps its tables from frame to frame."""
        self._threads = cast(ConvertParameters, self.params).threads
        steps = [target.pixel_format]
        if (source.pixel_format, target.pixel_format) == (PixelFormat.P010LE, PixelFormat.NV12) and source.width % 8:
            # libswscale 9.5 writes wrong samples at the right edge here, and only here.
            steps = [PixelFormat.YUV420P, PixelFormat.NV12]
        self._steps = [(VideoReformatter(), step.label) for step in steps]

    def render(self, frame: ReadLease, target: npt.NDArray[np.uint8]) -> None:
        """Convert into a frame of libswscale's, then copy that; the same format is copied at once."""
        if self.source_layout is self.target_layout:
            np.copyto(target, frame.array)
            return
        picture = frame_of_lease(frame, self.source_layout)
        for converter, label in self._steps:
            picture = converter.reformat(
                picture, format=label, interpolation=Interpolation.BILINEAR, threads=self._threads
            )
        copy_to_slot(picture, self.target_layout, target)
