"""watermark: a text blended over a part of the picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, cast

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageColor, ImageDraw, ImageFont
from pydantic import Field, model_validator

from dataplane.errors import BadParameters
from dataplane.operators.base import LUMA_SAMPLES, Parameters
from dataplane.operators.blend import PlaneBlend, rgb_to_yuv
from dataplane.operators.per_frame import PerFrameOperator
from observatory.model.media import VideoFormat

if TYPE_CHECKING:
    from dataplane._ring import ReadLease

Position = Literal["top-left", "top-right", "bottom-left", "bottom-right", "center"]


class WatermarkParameters(Parameters):
    """Parameters of watermark."""

    text: str = Field(min_length=1, max_length=1000, description="What is written; line breaks are kept")
    position: Position = Field(default="bottom-right", description="Corner, unless x and y are given")
    x: int | None = Field(
        default=None, ge=0, json_schema_extra=LUMA_SAMPLES, description="Left edge; odd ones are cut by 1"
    )
    y: int | None = Field(
        default=None, ge=0, json_schema_extra=LUMA_SAMPLES, description="Top edge; odd ones are cut by 1"
    )
    margin: int = Field(default=16, ge=0, json_schema_extra=LUMA_SAMPLES, description="Distance from the corner")
    size: int | None = Field(
        default=None,
        ge=4,
        le=2000,
        json_schema_extra=LUMA_SAMPLES,
        description="Height of the letters; a 16th of the picture's if absent",
    )
    opacity: float = Field(default=0.7, ge=0.0, le=1.0, description="0 invisible, 1 opaque")
    color: str = Field(default="white", description="A CSS colour name or #rrggbb")
    font: str | None = Field(default=None, description="Path of a TrueType or OpenType file; built-in font if absent")

    @model_validator(mode="after")
    def _place(self) -> WatermarkParameters:
        if (self.x is None) != (self.y is None):
            raise ValueError("x and y are given together, or neither")
        if not self.text.strip():
            raise ValueError("text is blank")
        try:
            ImageColor.getrgb(self.color)
        except ValueError:
            raise ValueError(f"color {self.color!r} is neither a CSS colour name nor #rrggbb") from None
        return self


class Watermark(PerFrameOperator):
    """Renders the text once; per frame, one copy into the new slot, then a blend of the text's rectangle in place."""

    op = "watermark"
    Params = WatermarkParameters
    summary = "Blends a text over a part of every frame"
    engines: ClassVar[Mapping[str, str]] = {"cpu": "compute", "gpu": "compute"}
    copies_reason = "readers cannot change a frame, so it is copied once and the text blended into the copy"

    @classmethod
    def output_format(cls, params: Parameters, source: VideoFormat) -> VideoFormat:
        """The input's format. Raises BadParameters when the font cannot be read or the text does not fit."""
        mark = cast(WatermarkParameters, params)
        left, top, alpha = _place_text(mark, source)
        if not alpha.any():
            raise BadParameters(
                f"watermark: {mark.text!r} shows nothing in this font", mend="set font to one that has it"
            )
        rows, columns = alpha.shape
        if left + columns > source.width or top + rows > source.height:
            raise BadParameters(
                f"watermark: the text takes {columns}x{rows} at ({left}, {top}) of a picture of "
                f"{source.width}x{source.height}",
                mend="use a smaller size, a shorter text, or another position",
            )
        return source

    def prepare(self, source: VideoFormat, target: VideoFormat) -> None:
        """Render the text and make the tables of the blend for each plane."""
        mark = cast(WatermarkParameters, self.params)
        left, top, alpha = _place_text(mark, source)
        red, green, blue = ImageColor.getrgb(mark.color)[:3]
        color = rgb_to_yuv((red, green, blue), source)
        # A chroma sample stands for 2x2 luma samples.
        small = (alpha[0::2, 0::2] + alpha[1::2, 0::2] + alpha[0::2, 1::2] + alpha[1::2, 1::2]) / 4
        places = [(left, top, alpha), (left // 2, top // 2, small), (left // 2, top // 2, small)]
        # P010 keeps 10 bits at the top of 16.
        shift = 6 if source.pixel_format.semi_planar and source.pixel_format.bytes_per_sample == 2 else 0
        self._blends = [
            PlaneBlend(x, y, weights, value, shift) for (x, y, weights), value in zip(places, color, strict=True)
        ]

    def render(self, frame: ReadLease, target: npt.NDArray[np.uint8]) -> None:
        """Copy the frame, then blend the text's rectangle into Y, U and V."""
        np.copyto(target, frame.array[: target.size])
        for blend, samples in zip(self._blends, self.target_layout.sample_views(target), strict=True):
            blend.apply(samples)


def _place_text(mark: WatermarkParameters, video: VideoFormat) -> tuple[int, int, npt.NDArray[np.float64]]:
    """Left, top (even) and the weights (rows, columns; even sizes; 0 to 1) of the text in a picture of that format."""
    weights = _render(mark, mark.size or max(8, video.height // 16)) * mark.opacity
    rows, columns = weights.shape
    if mark.x is not None and mark.y is not None:
        left, top = mark.x, mark.y
    elif mark.position == "center":
        left, top = (video.width - columns) // 2, (video.height - rows) // 2
    else:
        top = mark.margin if mark.position.startswith("top") else video.height - rows - mark.margin
        left = mark.margin if mark.position.endswith("left") else video.width - columns - mark.margin
    return max(0, left - left % 2), max(0, top - top % 2), weights


def _render(mark: WatermarkParameters, size: int) -> npt.NDArray[np.float64]:
    """The text as weights of 0 to 1, cut to its own box, padded to even sizes."""
    font = _load_font(mark.font, size)
    probe = ImageDraw.Draw(Image.new("L", (1, 1)))
    left, top, right, bottom = probe.multiline_textbbox((0, 0), mark.text, font=font)
    width, height = max(1, round(right - left + 0.5)), max(1, round(bottom - top + 0.5))
    image = Image.new("L", (width + width % 2, height + height % 2))
    ImageDraw.Draw(image).multiline_text((-left, -top), mark.text, font=font, fill=255)
    return np.asarray(image, np.float64) / 255


def _load_font(path: str | None, size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    if path is None:
        return ImageFont.load_default(size)
    if not Path(path).is_file():
        raise BadParameters(f"watermark: there is no font {path}", mend="give the path of a .ttf or .otf file")
    try:
        return ImageFont.truetype(path, size)
    except OSError as error:
        raise BadParameters(f"watermark: {path} is no font that can be read ({error})") from None
