"""crop: a part of the picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np
import numpy.typing as npt
from pydantic import Field

from dataplane.errors import BadParameters
from dataplane.operators.base import LUMA_SAMPLES, Parameters
from dataplane.operators.per_frame import PerFrameOperator, check_size
from observatory.model.media import VideoFormat

if TYPE_CHECKING:
    from dataplane._ring import ReadLease


class CropParameters(Parameters):
    """Parameters of crop."""

    width: int = Field(
        gt=0, le=16384, multiple_of=2, json_schema_extra=LUMA_SAMPLES, description="Width of the part, even"
    )
    height: int = Field(
        gt=0, le=16384, multiple_of=2, json_schema_extra=LUMA_SAMPLES, description="Height of the part, even"
    )
    x: int = Field(default=0, ge=0, multiple_of=2, json_schema_extra=LUMA_SAMPLES, description="Left edge, even")
    y: int = Field(default=0, ge=0, multiple_of=2, json_schema_extra=LUMA_SAMPLES, description="Top edge, even")


class Crop(PerFrameOperator):
    """Cuts a rectangle out of every frame."""

    op = "crop"
    Params = CropParameters
    summary = "Cuts a rectangle out of every frame"
    engines: ClassVar[Mapping[str, str]] = {"cpu": "compute", "gpu": "compute"}
    copies_reason = "the rectangle is copied out of the input's slot, which readers cannot change"

    @classmethod
    def output_format(cls, params: Parameters, source: VideoFormat) -> VideoFormat:
        """The input's format with the rectangle's size. Raises BadParameters when it sticks out."""
        part = cast(CropParameters, params)
        check_size(cls.op, part.width, part.height)
        if part.x + part.width > source.width or part.y + part.height > source.height:
            raise BadParameters(
                f"crop: {part.width}x{part.height} at ({part.x}, {part.y}) is outside the picture of "
                f"{source.width}x{source.height}",
                mend=f"x + width is at most {source.width}, y + height at most {source.height}",
            )
        return source.model_copy(update={"width": part.width, "height": part.height})

    def prepare(self, source: VideoFormat, target: VideoFormat) -> None:
        """Find the rectangle in each plane, in rows and bytes."""
        part = cast(CropParameters, self.params)
        left = part.x * source.pixel_format.bytes_per_sample
        self._corners = []
        for plane in self.source_layout.planes:
            full = plane.rows == source.height
            across = left if full or plane.samples == 2 else left // 2
            self._corners.append((part.y if full else part.y // 2, across))

    def render(self, frame: ReadLease, target: npt.NDArray[np.uint8]) -> None:
        """Copy the rectangle, plane by plane."""
        payload = frame.array
        planes = zip(self.source_layout.views(payload), self.target_layout.views(target), self._corners, strict=True)
        for source, destination, (top, left) in planes:
            rows, columns = destination.shape
            np.copyto(destination, source[top : top + rows, left : left + columns])
