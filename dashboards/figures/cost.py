"""C_ij as a heatmap: seconds to move one message from a device (row) to another (column), on a logarithmic scale.

Cells are quantised to one byte: 0 is unknown, 1 the same device, 2 to 255 the logarithmic scale. 512 x 512 cells are
262 kB that way.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dashboards import numbers
from dashboards.figures.base import Figure, axis, figure

LARGEST = 512
EXACT_UP_TO = 96
"""Matrices up to this size also carry the exact seconds for who points at a cell."""
FIRST_CODE, LAST_CODE = 2, 255
UNKNOWN_COLOUR = "#9aa1ab"
SAME_COLOUR = "rgba(0,0,0,0)"
# Viridis at even steps: reads for colour-blind people, and in print.
SCALE = (
    "#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725",
)  # fmt: skip

Seconds = Sequence[Sequence[float | None]]


def bounds(seconds: Seconds) -> tuple[float, float] | None:
    """The least and largest positive value; None when there is none."""
    values = [v for row in seconds for v in row if v is not None and v > 0]
    return (min(values), max(values)) if values else None


def quantised(seconds: Seconds, low: float, high: float) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Codes as the module says."""
    values = np.array([[np.nan if v is None else v for v in row] for row in seconds], dtype=np.float64)
    width = math.log(high / low) or 1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.clip(np.log(values / low) / width, 0, 1) if high > low else np.full(values.shape, 0.5)
        codes = np.rint(FIRST_CODE + share * (LAST_CODE - FIRST_CODE))
    codes = np.where(values <= 0, 1, codes)
    return np.where(np.isnan(values), 0, codes).astype(np.uint8)


def words_of_codes(low: float, high: float) -> list[str]:
    """What each code means, for who points at a cell of a large matrix."""
    steps = LAST_CODE - FIRST_CODE
    between = [low * (high / low) ** ((code - FIRST_CODE) / steps) for code in range(FIRST_CODE, LAST_CODE + 1)]
    return ["unknown: no path with known bandwidth and latency", "the same device: nothing to move"] + [
        f"about {numbers.seconds(v)}" for v in between
    ]


def heatmap(labels: Sequence[str], seconds: Seconds, keep: str) -> Figure:
    """The figure. `seconds` has one row per label and at most 512 of them."""
    low, high = bounds(seconds) or (1e-6, 1e-6)
    codes = quantised(seconds, low, high)
    trace: dict[str, Any] = {
        "type": "heatmap",
        "z": {
            "dtype": "u1",
            "bdata": base64.b64encode(codes.tobytes()).decode(),
            "shape": ", ".join(map(str, codes.shape)),
        },
        "x": list(labels),
        "y": list(labels),
        "zmin": -0.5,
        "zmax": 255.5,
        "colorscale": _colours(),
        "xgap": 1 if len(labels) <= 64 else 0,
        "ygap": 1 if len(labels) <= 64 else 0,
        "colorbar": _legend(low, high),
        "hovertemplate": "%{y} → %{x}<extra></extra>",
    }
    if len(labels) <= EXACT_UP_TO:
        trace["customdata"] = [[_words(value) for value in row] for row in seconds]
        trace["hovertemplate"] = "%{y} → %{x}<br>%{customdata}<extra></extra>"
    side = {"type": "category", "showgrid": False, "tickfont": {"size": 11}, "constrain": "domain"}
    return figure(
        [trace],
        keep=keep,
        xaxis=axis("to", side="top", tickangle=-60 if len(labels) > 8 else 0, **side),
        yaxis=axis("from", autorange="reversed", scaleanchor="x", **side),
        margin={"l": 60, "r": 8, "t": 60, "b": 8},
        dragmode="zoom",
    )


def _words(value: float | None) -> str:
    if value is None:
        return "unknown: no path with known bandwidth and latency"
    return numbers.seconds(value) if value > 0 else "the same device: nothing to move"


def _colours() -> list[tuple[float, str]]:
    """Steps of one code for unknown and same, then the scale."""
    found = [(0.0, UNKNOWN_COLOUR), (1 / 256, UNKNOWN_COLOUR), (1 / 256, SAME_COLOUR), (2 / 256, SAME_COLOUR)]
    for i, colour in enumerate(SCALE):
        found.append((2 / 256 + (254 / 256) * i / (len(SCALE) - 1), colour))
    return found


def _legend(low: float, high: float) -> dict[str, Any]:
    """Ticks at the ends, and at round times (1, 2, 5 of every decade) where there is room."""
    ticks = [low, high] if high > low else [low]
    if high > low:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for between in sorted(m * 10.0**d for d in decades for m in (1, 2, 5)):
            near = min(abs(math.log(between / tick)) for tick in ticks) / math.log(high / low)
            if low < between < high and near > 0.09:
                ticks.append(between)
    width = math.log(high / low) or 1.0
    at = [FIRST_CODE + math.log(t / low) / width * (LAST_CODE - FIRST_CODE) if high > low else 128 for t in ticks]
    return {
        "title": {"text": "time", "side": "top", "font": {"size": 12}},
        "tickvals": at,
        "ticktext": [numbers.seconds(t) for t in ticks],
        "thickness": 12,
        "outlinewidth": 0,
        "len": 0.9,
    }
