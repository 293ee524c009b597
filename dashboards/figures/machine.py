"""One node as a graph in layers: CPUs and memory, sockets, switches, devices, NVSwitches, and what leads outside."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any

from dashboards import numbers
from dashboards.figures import hardware
from dashboards.figures.base import Figure, figure, hidden_axis
from dashboards.figures.hardware import Document, Placed
from dashboards.figures.layers import Edge, ordered, spread
from dashboards.theme import ACCENT, SURFACE

COLUMN_PIXELS = 92
ROW_PIXELS = 104
MOST_ABREAST = 14
"""Rows with more stand in several lines, offset against each other."""
MOST_LABELS = 48
MOST_ARC_LABELS = 6
ARC_ROOM = 0.35
BOX = (0.4, 0.24)
"""Half the width and height of a box."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Where everything of a node stands; y grows downwards."""

    at: dict[str, tuple[float, float]]
    links: list[Document]
    devices: dict[str, Document]
    kinds: dict[str, str]

    @property
    def columns(self) -> float:
        """How many of the narrowest columns lie side by side."""
        xs = [x for x, _ in self.at.values()]
        return max(xs, default=0) - min(xs, default=0) + 1

    @property
    def rows(self) -> float:
        """How many rows lie below each other, with room for arcs below the last."""
        lowest = max((y for _, y in self.at.values()), default=0.0)
        room = ARC_ROOM if any(lowest == self.at[link["a"]][1] == self.at[link["b"]][1] for link in self.links) else 0
        return lowest + 1 + room


def plan(topology: Document, node: str) -> Plan:
    """The layout of one node."""
    devices = {d["id"]: d for d in topology["devices"] if d["node"] == node}
    kinds = {name: str(d["kind"]) for name, d in devices.items()}
    kinds |= {
        v["id"]: str(v["kind"]) for v in topology.get("vertices", ()) if hardware.node_of(v["id"], topology) == node
    }
    links = [link for link in topology["links"] if link["a"] in kinds or link["b"] in kinds]
    outside = {end: "outside" for link in links for end in (link["a"], link["b"]) if end not in kinds}
    kinds |= outside
    edges = [(link["a"], link["b"]) for link in links]
    rows = [row for row in _rows(kinds, edges) if row]
    rows = ordered(rows, edges)
    gaps = [1.0 / math.ceil(len(row) / MOST_ABREAST) for row in rows]
    across = spread(rows, edges, max(min(gaps, default=1.0), 0.34))
    at: dict[str, tuple[float, float]] = {}
    y = 0.0
    for row, gap in zip(rows, gaps, strict=True):
        lines = round(1 / gap)
        for i, name in enumerate(row):
            at[name] = (across[name], y + (i % lines) * 0.62)
        y += 1 + (lines - 1) * 0.62
    return Plan(at, links, devices, kinds)


def _rows(kinds: dict[str, str], edges: list[Edge]) -> list[list[str]]:
    """Names by row. PCIe switches below switches go one row deeper."""
    depth = _switch_depth(kinds, edges)
    deepest = max(depth.values(), default=0)
    rows: list[list[str]] = [[] for _ in range(deepest + 6)]
    for name, kind in kinds.items():
        if kind in ("cpu", "cxl_memory"):
            row = 0
        elif kind in ("socket", "numa"):
            row = 1
        elif kind == "pcie_switch":
            row = 1 + depth[name]
        elif kind in ("nvswitch", "switch"):
            row = deepest + 3
        elif kind == "outside":
            row = deepest + 4
        else:
            row = deepest + 2
        rows[row].append(name)
    return rows


def _switch_depth(kinds: dict[str, str], edges: list[Edge]) -> dict[str, int]:
    """How many PCIe switches lie between each of them and a socket, itself counted."""
    near: dict[str, list[str]] = {}
    for a, b in edges:
        near.setdefault(a, []).append(b)
        near.setdefault(b, []).append(a)
    queue = deque((name, 0) for name, kind in kinds.items() if kind in ("socket", "numa", "cpu"))
    seen = {name for name, _ in queue}
    depth = {}
    while queue:
        name, far = queue.popleft()
        for other in near.get(name, ()):
            if other not in seen and kinds[other] == "pcie_switch":
                seen.add(other)
                depth[other] = far + 1
                queue.append((other, far + 1))
    return {name: depth.get(name, 1) for name, kind in kinds.items() if kind == "pcie_switch"}


def size(drawn: Plan) -> tuple[int, int]:
    """Least width and height in pixels."""
    return round(drawn.columns * COLUMN_PIXELS), round(drawn.rows * ROW_PIXELS) + 20


def machine(drawn: Plan, placed: Placed, keep: str) -> Figure:
    """The figure of one node."""
    xs = [x for x, _ in drawn.at.values()] or [0.0]
    shapes = [_box(drawn, name, bool(placed.get(name))) for name in drawn.at]
    return figure(
        [*_lines(drawn), _link_marks(drawn), _names(drawn, placed)],
        keep=keep,
        xaxis=hidden_axis(min(xs) - 0.55, max(xs) + 0.55),
        yaxis=hidden_axis(drawn.rows - 0.45, -0.45),
        shapes=shapes,
        hovermode="closest",
        dragmode="pan",
        margin={"l": 0, "r": 0, "t": 0, "b": 0},
    )


def _box(drawn: Plan, name: str, used: bool) -> dict[str, Any]:
    (x, y), wide, high = drawn.at[name], BOX[0], _half_height(drawn, name)
    return {
        "type": "rect", "x0": x - wide, "x1": x + wide, "y0": y - high, "y1": y + high, "layer": "between",
        "fillcolor": SURFACE, "line": hardware.box_line(used),
    }  # fmt: skip


def _lines(drawn: Plan) -> list[dict[str, Any]]:
    """One trace per class of links; the legend names the classes."""
    traces = []
    for words, links in hardware.classes(drawn.links).items():
        x: list[float | None] = []
        y: list[float | None] = []
        for link in links:
            for px, py in [*_points(drawn, link), (None, None)]:
                x.append(px)
                y.append(py)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": x,
                "y": y,
                "name": words,
                "line": hardware.link_line(links[0]),
                "hoverinfo": "skip",
            }
        )
    return traces


def _points(drawn: Plan, link: Document) -> list[tuple[float, float]]:
    """From border to border: a straight line, or an arc below between vertices of one row."""
    a, b = link["a"], link["b"]
    (x0, y0), (x1, y1) = drawn.at[a], drawn.at[b]
    if abs(y0 - y1) >= 0.9:
        down = 1 if y1 > y0 else -1
        return [(x0, y0 + down * _half_height(drawn, a)), (x1, y1 - down * _half_height(drawn, b))]
    bulge = min(0.5, 0.16 + 0.06 * abs(x1 - x0))
    y0, y1 = y0 + _half_height(drawn, a), y1 + _half_height(drawn, b)
    steps = [i / 12 for i in range(13)]
    return [(x0 + (x1 - x0) * t, y0 + (y1 - y0) * t + bulge * 4 * t * (1 - t)) for t in steps]


def _half_height(drawn: Plan, name: str) -> float:
    return BOX[1] if drawn.kinds[name] in hardware.DEVICE_COLOURS else 0.16


def _link_marks(drawn: Plan) -> dict[str, Any]:
    """Where a link can be pointed at, and its bandwidth where there is room."""
    degree: dict[str, int] = {}
    for link in drawn.links:
        for end in (link["a"], link["b"]):
            degree[end] = degree.get(end, 0) + 1
    spots = [_spot(drawn, link, degree) for link in drawn.links]
    room = len(drawn.links) <= MOST_LABELS
    return {
        "type": "scatter",
        "mode": "markers+text" if room else "markers",
        "x": [x for x, _ in spots],
        "y": [y for _, y in spots],
        "text": _bandwidths(drawn) if room else None,
        "textposition": "middle center",
        "textfont": {"size": 10},
        "marker": {"size": 22, "opacity": 0},
        "hovertext": [hardware.link_words(link) for link in drawn.links],
        "hoverinfo": "text",
        "showlegend": False,
    }


def _bandwidths(drawn: Plan) -> list[str]:
    """In words; none on arcs where many of them lie above each other."""
    arcs = [len(_points(drawn, link)) > 2 for link in drawn.links]
    return [
        "" if arc and sum(arcs) > MOST_ARC_LABELS else numbers.rate(link.get("bandwidth_bytes_per_second"), "?")
        for link, arc in zip(drawn.links, arcs, strict=True)
    ]


def _spot(drawn: Plan, link: Document, degree: dict[str, int]) -> tuple[float, float]:
    """Nearer to the end where fewer links meet: there is more room."""
    points = _points(drawn, link)
    if len(points) > 2:
        return points[len(points) // 2]
    first, last = points if degree[link["a"]] <= degree[link["b"]] else reversed(points)
    near = 0.5 if abs(first[0] - last[0]) < 0.7 else 0.36
    return (first[0] + (last[0] - first[0]) * near, first[1] + (last[1] - first[1]) * near)


def _names(drawn: Plan, placed: Placed) -> dict[str, Any]:
    colours = [hardware.DEVICE_COLOURS.get(drawn.kinds[name], ACCENT) for name in drawn.at]
    return {
        "type": "scatter",
        "mode": "markers+text",
        "x": [x for x, _ in drawn.at.values()],
        "y": [y for _, y in drawn.at.values()],
        "text": [_label(drawn, name, placed) for name in drawn.at],
        "textfont": {"size": 12},
        "marker": {"size": 40, "opacity": 0, "color": colours},
        "hovertext": [_vertex_words(drawn, name, placed) for name in drawn.at],
        "hoverinfo": "text",
        "showlegend": False,
    }


def _label(drawn: Plan, name: str, placed: Placed) -> str:
    operators = list(placed.get(name, ()))
    label = name if drawn.kinds[name] == "outside" else hardware.short(name)
    if name not in drawn.devices:
        return label
    head = f"<b>{label}</b>" if len(label) <= 8 else f"<b><span style='font-size:10px'>{label}</span></b>"
    if not operators:
        return head
    more = f" +{len(operators) - 1}" if len(operators) > 1 else ""
    room = 13 - len(more) if more else 11
    first = operators[0] if len(operators[0]) <= room else operators[0][: room - 1] + "…"
    return f"{head}<br><span style='font-size:10px'>{first}{more}</span>"


def _vertex_words(drawn: Plan, name: str, placed: Placed) -> str:
    if name in drawn.devices:
        return hardware.device_words(drawn.devices[name], placed.get(name, ()))
    kind = drawn.kinds[name].replace("_", " ")
    return f"<b>{name}</b><br>{'outside of this node' if kind == 'outside' else kind}"
