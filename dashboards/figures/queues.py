"""The pipeline as a graph from left to right: operators, and on every edge how full its queue is."""

from __future__ import annotations

from collections import Counter
from typing import Any

from dashboards import numbers
from dashboards.figures.base import Figure, figure, hidden_axis
from dashboards.figures.layers import layers_of, ordered, spread
from dashboards.theme import ACCENT, BAD, CAUTION, FAINT, LINE
from observatory.model.status import EdgeStatus, PipelineStatus, WorkerStatus

HALF = 0.34
"""Half the width of an operator's box; columns are 1 apart."""
GAUGE = 0.2
ROW_PIXELS = 86
COLUMN_PIXELS = 190
LONGEST_NAME = 17

Spot = tuple[float, float]


def size(pipeline: PipelineStatus) -> tuple[int, int]:
    """Width below which it would be crowded, and height, in pixels."""
    rows = layers_of(_ends(pipeline), _operators(pipeline))
    return max(1, len(rows)) * COLUMN_PIXELS - 40, max((len(row) for row in rows), default=1) * ROW_PIXELS + 30


def queues(pipeline: PipelineStatus) -> Figure:
    """Boxes, edges as curves, and a gauge on each edge: queued and held frames against the depth of its port."""
    ends = _ends(pipeline)
    rows = ordered(layers_of(ends, _operators(pipeline)), ends)
    across = spread(rows, ends)
    at = {name: (float(column), across[name]) for column, row in enumerate(rows) for name in row}
    low, high = min(across.values(), default=0) - 0.55, max(across.values(), default=0) + 0.55
    workers = {worker.operator: worker for worker in pipeline.workers}
    shapes: list[dict[str, Any]] = []
    gauges = _gauge_spots(pipeline, at)
    for edge in gauges:
        shapes += _edge_shapes(edge, at[edge.producer], at[edge.consumer], gauges[edge])
    for name, (x, y) in at.items():
        shapes.append(_box(x, y, workers.get(name)))
    return figure(
        [_names(at, workers), _gauges(gauges)],
        keep=pipeline.name,
        xaxis=hidden_axis(-HALF - 0.04, len(rows) - 1 + HALF + 0.04, fixedrange=True),
        yaxis=hidden_axis(high, low, fixedrange=True),
        shapes=shapes,
        margin={"l": 4, "r": 4, "t": 4, "b": 4},
        hovermode="closest",
        dragmode=False,
    )


def _ends(pipeline: PipelineStatus) -> list[tuple[str, str]]:
    return [(edge.producer, edge.consumer) for edge in pipeline.edges]


def _operators(pipeline: PipelineStatus) -> list[str]:
    return [worker.operator for worker in pipeline.workers]


def _box(x: float, y: float, worker: WorkerStatus | None) -> dict[str, Any]:
    bad = worker is not None and worker.state in ("failed", "died", "dead")
    return {
        "type": "rect", "x0": x - HALF, "x1": x + HALF, "y0": y - 0.27, "y1": y + 0.27, "layer": "below",
        "fillcolor": FAINT, "line": {"color": BAD if bad else LINE, "width": 2 if bad else 1},
    }  # fmt: skip


def _gauge_spots(pipeline: PipelineStatus, at: dict[str, Spot]) -> dict[EdgeStatus, Spot]:
    """The middle of each edge's gauge: before its consumer; where several edges end there, behind its producer."""
    edges = [edge for edge in pipeline.edges if edge.producer in at and edge.consumer in at]
    arriving = Counter(edge.consumer for edge in edges)
    leaving = Counter(edge.producer for edge in edges)
    spots = {}
    for edge in edges:
        (x0, y0), (x1, y1) = at[edge.producer], at[edge.consumer]
        if arriving[edge.consumer] > 1 and leaving[edge.producer] == 1:
            spots[edge] = (x0 + HALF + GAUGE / 2 + 0.04, y0)
        elif arriving[edge.consumer] > 1:
            spots[edge] = ((x0 + x1) / 2, (y0 + y1) / 2)
        else:
            spots[edge] = (x1 - HALF - GAUGE / 2 - 0.04, y1)
    return spots


def _edge_shapes(edge: EdgeStatus, start: Spot, end: Spot, gauge: Spot) -> list[dict[str, Any]]:
    x0, x1 = start[0] + HALF, end[0] - HALF
    bend = (x0 + x1) / 2
    path = f"M {x0},{start[1]} C {bend},{start[1]} {bend},{end[1]} {x1},{end[1]}"
    shapes: list[dict[str, Any]] = [
        {"type": "path", "path": path, "line": {"color": LINE, "width": 2}, "layer": "below"}
    ]
    fill = _fill(edge)
    left, right, y = gauge[0] - GAUGE / 2, gauge[0] + GAUGE / 2, gauge[1]
    track = {"type": "line", "x0": left, "x1": right, "y0": y, "y1": y, "layer": "above"}
    shapes.append(track | {"line": {"color": "rgba(128,136,148,0.38)", "width": 9}})
    if fill:
        colour = CAUTION if fill >= 0.9 else ACCENT
        shapes.append(track | {"x1": left + (right - left) * fill, "line": {"color": colour, "width": 9}})
    return shapes


def _fill(edge: EdgeStatus) -> float | None:
    return None if not edge.depth else min(1.0, (edge.queued + edge.held) / edge.depth)


def _names(at: dict[str, tuple[float, float]], workers: dict[str, WorkerStatus]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "text",
        "x": [x for x, _ in at.values()],
        "y": [y for _, y in at.values()],
        "text": [f"<b>{_short(name)}</b><br>{_place(workers.get(name))}" for name in at],
        "hovertext": [_worker_words(name, workers.get(name)) for name in at],
        "hoverinfo": "text",
        "textfont": {"size": 12},
    }


def _gauges(gauges: dict[EdgeStatus, Spot]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers+text",
        "x": [x for x, _ in gauges.values()],
        "y": [y for _, y in gauges.values()],
        "text": [f"{e.queued + e.held}/{e.depth}" if e.depth else f"{e.queued + e.held}" for e in gauges],
        "textposition": "top center",
        "textfont": {"size": 11},
        "cliponaxis": False,
        "marker": {"size": 24, "opacity": 0},
        "hovertext": [_edge_words(e) for e in gauges],
        "hoverinfo": "text",
    }


def _short(name: str) -> str:
    if len(name) <= LONGEST_NAME:
        return name
    return name[: LONGEST_NAME // 2] + "…" + name[-(LONGEST_NAME // 2) :]


def _place(worker: WorkerStatus | None) -> str:
    return "" if worker is None else worker.device


def _worker_words(name: str, worker: WorkerStatus | None) -> str:
    if worker is None:
        return f"<b>{name}</b><br>no worker yet"
    lines = [
        f"<b>{name}</b> ({worker.op})",
        f"{worker.state}, pid {worker.pid}, {worker.restarts} restarts",
        f"planned on {worker.device}, runs on {worker.real_device}",
        f"{numbers.count(worker.frames, 'unknown number of')} frames",
    ]
    return "<br>".join(lines)


def _edge_words(edge: EdgeStatus) -> str:
    depth = "of unknown depth" if edge.depth is None else f"of {edge.depth} slots"
    return (
        f"<b>{edge.producer} → {edge.consumer}</b><br>{edge.queued} queued, {edge.held} held, {depth}"
        f"<br>{numbers.rate(edge.bytes_per_second, 'unknown rate')}"
    )
