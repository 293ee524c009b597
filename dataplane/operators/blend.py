"""Integer alpha blending of one constant colour into a rectangle of samples."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from observatory.model.media import VideoFormat

WEIGHT_BITS = 12
"""Weights are fixed-point numbers of that many bits: the result is within half a step of exact for 10 bit samples."""

_KR_KB = {1: (0.2126, 0.0722), 4: (0.30, 0.11), 5: (0.299, 0.114), 6: (0.299, 0.114), 7: (0.212, 0.087)}
_KR_KB |= {9: (0.2627, 0.0593), 10: (0.2627, 0.0593)}
FULL_RANGE = 2


class PlaneBlend:
    """`sample = sample * (1 - weight) + value * weight`, rounded, in place, with tables made once.

    Args:
        left: first column of the rectangle, in samples of the plane.
        top: first row.
        weights: (rows, columns), 0 to 1.
        value: the colour's component in this plane (8 or 10 bit number).
        shift: how far samples are shifted up in memory (6 for P010, else 0).
    """

    def __init__(self, left: int, top: int, weights: npt.NDArray[np.float64], value: int, shift: int = 0) -> None:
        rows, columns = weights.shape
        self._where = (slice(top, top + rows), slice(left, left + columns))
        one = 1 << WEIGHT_BITS
        fixed = np.rint(weights * one).astype(np.uint32)
        self._keep = one - fixed
        self._add = fixed * np.uint32(value) + np.uint32(one // 2)
        self._shift = shift
        self._work = np.empty((rows, columns), np.uint32)

    def apply(self, plane: npt.NDArray[np.integer]) -> None:
        """Blend into a plane of samples, shape (rows, columns); anything strided will do."""
        samples = plane[self._where]
        work = self._work
        np.copyto(work, samples)
        if self._shift:
            np.right_shift(work, self._shift, out=work)
        np.multiply(work, self._keep, out=work)
        np.add(work, self._add, out=work)
        np.right_shift(work, WEIGHT_BITS, out=work)
        if self._shift:
            np.left_shift(work, self._shift, out=work)
        np.copyto(samples, work, casting="unsafe")


def rgb_to_yuv(rgb: tuple[int, int, int], video: VideoFormat) -> tuple[int, int, int]:
    """An 8 bit sRGB colour as Y, U, V numbers of that format's matrix, range and depth.

    A matrix nobody has said is taken as players do: BT.709 from 720 lines, BT.601 below; an unknown range as limited.
    """
    guess = 1 if video.height >= 720 else 6
    kr, kb = _KR_KB.get(guess if video.color_matrix is None else video.color_matrix, _KR_KB[guess])
    red, green, blue = (part / 255 for part in rgb)
    luma = kr * red + (1 - kr - kb) * green + kb * blue
    u, v = (blue - luma) / (2 * (1 - kb)), (red - luma) / (2 * (1 - kr))
    depth = 10 if video.pixel_format.bytes_per_sample == 2 else 8
    scale, top = 1 << (depth - 8), (1 << depth) - 1
    if video.color_range == FULL_RANGE:
        numbers = (luma * top, u * top + 128 * scale, v * top + 128 * scale)
    else:
        numbers = ((16 + 219 * luma) * scale, (128 + 224 * u) * scale, (128 + 224 * v) * scale)
    y, cb, cr = (min(top, max(0, round(number))) for number in numbers)
    return y, cb, cr
