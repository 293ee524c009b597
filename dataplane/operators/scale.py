"""scale: another picture size."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import TYPE_CHECKING, ClassVar, Literal, cast

import numpy as np
import numpy.typing as npt
from av.video.reformatter import Interpolation, VideoReformatter
from pydantic import Field, model_validator

from dataplane.operators.base import LUMA_SAMPLES, Parameters
from dataplane.operators.formats import copy_to_slot
from dataplane.operators.frames import frame_of_lease
from dataplane.operators.per_frame import PerFrameOperator, check_size
from observatory.model.media import VideoFormat

if TYPE_CHECKING:
    from dataplane._ring import ReadLease

KEEP_ASPECT = -2

Method = Literal["fast_bilinear", "bilinear", "bicubic", "area", "lanczos", "spline", "point"]


class ScaleParameters(Parameters):
    """Parameters of scale."""

    width: int = Field(
        ge=KEEP_ASPECT, le=16384, json_schema_extra=LUMA_SAMPLES, description="Width, even; -2 keeps the aspect ratio"
    )
    height: int = Field(
        ge=KEEP_ASPECT, le=16384, json_schema_extra=LUMA_SAMPLES, description="Height, even; -2 keeps the aspect ratio"
    )
    method: Method = Field(default="bilinear", description="How samples between samples are found")
    threads: int = Field(default=1, ge=0, le=64, description="Threads of the scaler; 0: one per CPU")

    @model_validator(mode="after")
    def _sizes(self) -> ScaleParameters:
        for name, value in (("width", self.width), ("height", self.height)):
            if value != KEEP_ASPECT and (value <= 0 or value % 2):
                raise ValueError(f"{name} is {value}; it is an even number above 0, or -2 to keep the aspect ratio")
        if self.width == self.height == KEEP_ASPECT:
            raise ValueError("width and height cannot both be -2")
        return self

    def size(self, source: VideoFormat) -> tuple[int, int]:
        """Width and height of the output for that input."""
        width, height = self.width, self.height
        if width == KEEP_ASPECT:
            width = max(2, round(source.width * height / source.height / 2) * 2)
        elif height == KEEP_ASPECT:
            height = max(2, round(source.height * width / source.width / 2) * 2)
        return width, height


class Scale(PerFrameOperator):
    """Resizes frames with libswscale; the pixel format stays. The sample aspect ratio keeps the picture's shape."""

    op = "scale"
    Params = ScaleParameters
    summary = "Resizes frames; the pixel format stays, the shape is kept by the sample aspect ratio"
    engines: ClassVar[Mapping[str, str]] = {"cpu": "compute", "gpu": "compute", "fpga": "compute"}
    copies_reason = "libswscale writes into a frame of its own, which is copied: PyAV gives it no destination"

    @classmethod
    def output_format(cls, params: Parameters, source: VideoFormat) -> VideoFormat:
        """The input's format with another size."""
        width, height = cast(ScaleParameters, params).size(source)
        check_size(cls.op, width, height)
        aspect = scaled_aspect(source.sample_aspect, source, (width, height))
        return source.model_copy(update={"width": width, "height": height, "sample_aspect": aspect})

    def prepare(self, source: VideoFormat, target: VideoFormat) -> None:
        """Make the scaler, which keeps its tables from frame to frame."""
        params = cast(ScaleParameters, self.params)
        self._scaler = VideoReformatter()
        self._method = Interpolation[params.method.upper()]
        self._threads = params.threads
        self.sample_aspect = target.sample_aspect

    def render(self, frame: ReadLease, target: npt.NDArray[np.uint8]) -> None:
        """Scale into a frame of libswscale's, then copy that."""
        layout = self.target_layout
        scaled = self._scaler.reformat(
            frame_of_lease(frame, self.source_layout),
            width=layout.width,
            height=layout.height,
            interpolation=self._method,
            threads=self._threads,
        )
        copy_to_slot(scaled, layout, target)


def scaled_aspect(aspect: tuple[int, int] | None, source: VideoFormat, size: tuple[int, int]) -> tuple[int, int] | None:
    """The sample aspect ratio that keeps a picture's shape when it is resized; None stays None."""
    if aspect is None:
        return None
    num = aspect[0] * source.width * size[1]
    den = aspect[1] * source.height * size[0]
    if not num or not den:
        return None
    common = gcd(num, den)
    num, den = num // common, den // common
    while max(num, den) > 32767:  # what containers can hold
        num, den = max(1, num // 2), max(1, den // 2)
    return num, den
