"""watermark against a blend in floating point of a text drawn by Pillow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageDraw, ImageFont
from pydantic import ValidationError

from dataplane.errors import BadParameters
from dataplane.operators.formats import layout_of
from dataplane.operators.watermark import Watermark
from observatory.model.media import PixelFormat
from tests.operators.harness import Bench, run
from tests.operators.media import pictures, planes_of
from tests.operators.test_per_frame import PIXEL_FORMATS, raw, video_format

SIZE = (320, 180)
BT601, BT709 = (0.299, 0.114), (0.2126, 0.0722)


def drawn(text: str, size: int, left: int, top: int) -> npt.NDArray[np.float64]:
    """The text's coverage on a whole picture, its box starting at (left, top)."""
    font = ImageFont.load_default(size)
    image = Image.new("L", SIZE)
    draw = ImageDraw.Draw(image)
    box = draw.multiline_textbbox((0, 0), text, font=font)
    draw.multiline_text((left - box[0], top - box[1]), text, font=font, fill=255)
    return np.asarray(image, float) / 255


def yuv(rgb: tuple[float, float, float], matrix: tuple[float, float], full: bool) -> tuple[float, float, float]:
    """The textbook conversion, 8 bit."""
    red, green, blue = (value / 255 for value in rgb)
    kr, kb = matrix
    y = kr * red + (1 - kr - kb) * green + kb * blue
    u, v = (blue - y) / (2 - 2 * kb), (red - y) / (2 - 2 * kr)
    return (255 * y, 255 * u + 128, 255 * v + 128) if full else (16 + 219 * y, 128 + 224 * u, 128 + 224 * v)


@pytest.mark.parametrize("pixel_format", PIXEL_FORMATS)
@pytest.mark.parametrize(("matrix", "color_range"), [(None, None), (1, 2)], ids=["601-limited", "709-full"])
def test_the_blend_is_right_in_all_formats(
    pixel_format: PixelFormat, matrix: int | None, color_range: int | None
) -> None:
    form = video_format(SIZE, pixel_format, color_matrix=matrix, color_range=color_range)
    frames = [frame.reformat(format=pixel_format.label) for frame in pictures(2, SIZE)]
    params = {"text": "Ag8\nyo", "x": 40, "y": 30, "size": 24, "opacity": 0.6, "color": "#e0a020"}

    out = run(Bench(Watermark, params, {"a->b": form}), raw(frames, form))

    alpha = drawn("Ag8\nyo", 24, 40, 30) * 0.6
    chroma = alpha.reshape(90, 2, 160, 2).mean((1, 3))
    color = yuv((0xE0, 0xA0, 0x20), BT709 if matrix == 1 else BT601, color_range == 2)
    unit = {PixelFormat.P010LE: 256, PixelFormat.YUV420P10LE: 4}.get(pixel_format, 1)
    step = 64 if pixel_format is PixelFormat.P010LE else 1  # one code value, in memory
    for frame, payload in zip(frames, out, strict=True):
        before = layout_of(form).sample_views(np.concatenate(planes_of(frame)))
        for was, now, weight, value in zip(before, payload.planes(), (alpha, chroma, chroma), color, strict=True):
            # full range scales 8 to 10 bit by 1023/255, limited by 4
            target = value * unit if color_range != 2 or unit == 1 else _full(value, was is before[0]) * unit / 4
            expected = was * (1 - weight) + target * weight
            assert np.abs(now - expected).max() <= 1.01 * step
            assert np.array_equal(now[weight == 0], was[weight == 0])
            if pixel_format is PixelFormat.P010LE:
                assert not (now & 63).any()
    assert (alpha > 0.3).sum() > 100


def _full(value: float, luma: bool) -> float:
    """An 8 bit full range value as 10 bit one."""
    return value * 1023 / 255 if luma else (value - 128) * 1023 / 255 + 512


@pytest.mark.parametrize(
    ("position", "rows", "columns"),
    [
        ("top-left", slice(0, 90), slice(0, 160)),
        ("top-right", slice(0, 90), slice(160, 320)),
        ("bottom-left", slice(90, 180), slice(0, 160)),
        ("bottom-right", slice(90, 180), slice(160, 320)),
        ("center", slice(70, 110), slice(120, 200)),
    ],
)
def test_corners(position: str, rows: slice, columns: slice) -> None:
    form = video_format(SIZE)
    frames = list(pictures(1, SIZE))
    bench = Bench(Watermark, {"text": "demo", "position": position}, {"a->b": form})

    (payload,) = run(bench, raw(frames, form))

    before = layout_of(form).sample_views(np.concatenate(planes_of(frames[0])))[0]
    changed = payload.planes()[0] != before
    assert changed[rows, columns].sum() == changed.sum() > 20


def test_a_font_of_ones_own(tmp_path: Path) -> None:
    builtin: Any = ImageFont.load_default(12)  # a machine may have no other
    font = tmp_path / "own.ttf"
    font.write_bytes(builtin.path.getvalue())
    form = video_format(SIZE)
    bench = Bench(Watermark, {"text": "demo", "font": str(font)}, {"a->b": form})

    assert len(run(bench, raw(list(pictures(1, SIZE)), form))) == 1


@pytest.mark.parametrize(
    "params",
    [
        {"text": ""},
        {"text": "  "},
        {"text": "a", "x": 4},
        {"text": "a", "opacity": 1.5},
        {"text": "a", "color": "nocolor"},
        {"text": "a", "position": "middle"},
    ],
)
def test_parameters_that_cannot_work_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Watermark.Params.model_validate(params)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"text": "a very long text that is far too wide for it", "size": 60}, "picture of"),
        ({"text": "demo", "x": 310, "y": 0}, "picture of"),
        ({"text": "demo", "font": "/nowhere/x.ttf"}, "no font"),
        ({"text": "demo", "opacity": 0.0}, "shows nothing"),
    ],
)
def test_what_does_not_fit_the_picture_is_refused(params: dict[str, Any], words: str) -> None:
    with pytest.raises(BadParameters, match=words) as caught:
        Watermark.output(Watermark.Params.model_validate(params), [video_format(SIZE)])
    assert caught.value.mend or "font" in words
