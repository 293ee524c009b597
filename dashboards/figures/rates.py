"""Frame rate and latency of a pipeline's streams over the last minutes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from dashboards.feed import KEEP_SECONDS, Series
from dashboards.figures.base import Figure, axis, figure
from dashboards.theme import BAD, SERIES

SECONDS_FROM = 3.0
STOPS = [{"dtickrange": [None, 30_000], "value": "%H:%M:%S"}, {"dtickrange": [30_000, None], "value": "%H:%M"}]


def frame_rate(series: Mapping[str, Series], now: float, keep: str) -> Figure:
    """Frames per second, one line per stream."""
    lines = [
        _line(name, entry.times, entry.frames_per_second, SERIES[i % len(SERIES)], "%{y:.1f} frames/s")
        for i, (name, entry) in enumerate(series.items())
    ]
    return _figure(lines, now, keep, "frames/s", len(series) > 1)


def latency(series: Mapping[str, Series], now: float, keep: str, deadline_seconds: float | None = None) -> Figure:
    """Median (solid) and 99th percentile (dotted) per stream, and the deadline if there is one; in ms, or in s."""
    largest = max((v for entry in series.values() for v in entry.p99_seconds if v is not None), default=0.0)
    unit, scale = ("s", 1.0) if largest >= SECONDS_FROM else ("ms", 1e3)
    lines = []
    for i, (name, entry) in enumerate(series.items()):
        colour = SERIES[i % len(SERIES)]
        several = f"{name} " if len(series) > 1 else ""
        p50, p99 = ([None if v is None else v * scale for v in c] for c in (entry.p50_seconds, entry.p99_seconds))
        lines.append(_line(f"{several}p50", entry.times, p50, colour, f"%{{y:.3~g}} {unit}"))
        lines.append(_line(f"{several}p99", entry.times, p99, colour, f"%{{y:.3~g}} {unit}", dash="dot"))
    found = _figure(lines, now, f"{keep} {unit}", unit, True)
    if deadline_seconds is not None:
        at = deadline_seconds * scale
        line = {"color": BAD, "width": 1.5, "dash": "dash"}
        found["layout"]["shapes"] = [
            {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": at, "y1": at, "line": line}
        ]
        found["layout"]["annotations"] = [
            {
                "xref": "paper",
                "x": 1,
                "xanchor": "right",
                "y": at,
                "yanchor": "bottom",
                "text": f"deadline {at:g} {unit}",
                "showarrow": False,
                "font": {"size": 11},
            }
        ]
    return found


def _line(name: str, times: Any, values: Any, colour: str, shown: str, dash: str = "solid") -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [_local(t) for t in times],
        "y": [None if v is None else round(v, 3) for v in values],
        "line": {"color": colour, "width": 2, "dash": dash},
        "hovertemplate": f"{shown}<extra>{name}</extra>",
        "connectgaps": False,
    }


def _window(now: float) -> dict[str, Any]:
    """Two unseen points that keep the axis as wide as what is remembered.

    A range of the axis itself would be another one each second, and plotly.js gives up what the reader zoomed to when
    the range in the figure changes.
    """
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [_local(now - KEEP_SECONDS), _local(now)],
        "y": [0, 0],
        "line": {"width": 0},
        "opacity": 0,
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _figure(lines: list[dict[str, Any]], now: float, keep: str, unit: str, legend: bool) -> Figure:
    return figure(
        [_window(now), *lines],
        keep=keep,
        xaxis=axis(type="date", tickformatstops=STOPS, hoverformat="%H:%M:%S", nticks=6),
        yaxis=axis(unit, rangemode="tozero"),
        hovermode="x unified",
        showlegend=legend,
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "xanchor": "left"},
        margin={"l": 52, "r": 12, "t": 28 if legend else 12, "b": 24},
    )


def _local(unix_seconds: float) -> int:
    """The wall clock of the machine that serves the pages, as plotly.js takes it: ms as if that were UTC."""
    return round((unix_seconds + time.localtime(unix_seconds).tm_gmtoff) * 1e3)
