"""super_res: twice the size by filters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, cast

import av
import numpy as np
import numpy.typing as npt
from av.filter import Graph
from av.video.reformatter import Interpolation, VideoReformatter
from pydantic import Field

from dataplane.operators.base import Parameters
from dataplane.operators.formats import copy_to_slot
from dataplane.operators.frames import frame_of_lease
from dataplane.operators.per_frame import PerFrameOperator, check_size
from observatory.model.media import PixelFormat, VideoFormat

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

    from dataplane._ring import ReadLease


class SuperResParameters(Parameters):
    """Parameters of super_res."""

    factor: Literal[2] = Field(default=2, description="How much wider and higher the output is")
    sharpen: float = Field(
        default=0.5, ge=0.0, le=2.0, description="Strength of the unsharp mask on luma after enlarging; 0: none"
    )
    threads: int = Field(default=1, ge=0, le=64, description="Threads of the filters; 0: one per CPU")


class SuperRes(PerFrameOperator):
    """Lanczos enlargement by libswscale, then libavfilter's unsharp mask on luma.

    This is filtering, not a learned model: it makes edges steeper, but invents no detail.
    """

    op = "super_res"
    Params = SuperResParameters
    summary = "Doubles the size by a Lanczos filter and an unsharp mask: a filter, not a learned model; no new detail"
    engines: ClassVar[Mapping[str, str]] = {"cpu": "compute", "gpu": "compute", "fpga": "compute"}
    copies_reason = "the filters write into a frame of their own, which is copied: PyAV gives them no destination"

    @classmethod
    def output_format(cls, params: Parameters, source: VideoFormat) -> VideoFormat:
        """The input's format, enlarged. Raises BadParameters above 16384."""
        factor = cast(SuperResParameters, params).factor
        width, height = source.width * factor, source.height * factor
        check_size(cls.op, width, height)
        return source.model_copy(update={"width": width, "height": height})

    def prepare(self, source: VideoFormat, target: VideoFormat) -> None:
        """Make the scaler and, when sharpening is asked for, the filter graph."""
        params = cast(SuperResParameters, self.params)
        self._scaler = VideoReformatter()
        self._threads = params.threads
        # unsharp takes planar pictures only: interleaved ones are taken apart by the scaler and put together again.
        kept = target.pixel_format
        if params.sharpen and kept.semi_planar:
            kept = PixelFormat.YUV420P if kept.bytes_per_sample == 1 else PixelFormat.YUV420P10LE
        self._planar = kept
        self._sharpener = self._graph(params.sharpen, target) if params.sharpen else None

    def _graph(self, amount: float, target: VideoFormat) -> Graph:
        graph = Graph()
        graph.threads = self._threads
        libav_format = av.VideoFormat(self._planar.label, target.width, target.height)
        source = graph.add_buffer(
            width=target.width, height=target.height, format=libav_format, time_base=target.time_base.fraction
        )
        unsharp = graph.add("unsharp", f"lx=5:ly=5:la={amount}:ca=0")
        sink = graph.add("buffersink")
        graph.link_nodes(source, unsharp, sink).configure()
        return graph

    def render(self, frame: ReadLease, target: npt.NDArray[np.uint8]) -> None:
        """Enlarge, sharpen, copy."""
        layout = self.target_layout
        picture = self._resize(frame_of_lease(frame, self.source_layout), self._planar)
        if self._sharpener is not None:
            self._sharpener.vpush(picture)
            picture = self._sharpener.vpull()
        if self._planar is not layout.pixel_format:
            picture = self._resize(picture, layout.pixel_format)
        copy_to_slot(picture, layout, target)

    def _resize(self, frame: VideoFrame, pixel_format: PixelFormat) -> VideoFrame:
        return self._scaler.reformat(
            frame,
            width=self.target_layout.width,
            height=self.target_layout.height,
            format=pixel_format.label,
            interpolation=Interpolation.LANCZOS,
            threads=self._threads,
        )
