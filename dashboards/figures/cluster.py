"""Several nodes at once: switches between them above, a box of device dots for each node below."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dashboards.figures import hardware
from dashboards.figures.base import Figure, figure, hidden_axis
from dashboards.figures.hardware import Document, Placed
from dashboards.figures.layers import ordered, spread
from dashboards.theme import ACCENT, LINE, SURFACE

DOTS_ABREAST = 8
NODE_PIXELS = (128, 112)
FABRIC_ROW = 0.8
BOX = (0.44, 0.4)

Spot = tuple[float, float]


class Plan:
    """Where nodes and the vertices between them stand; y grows downwards. A unit is one node's place."""

    def __init__(self, topology: Document) -> None:
        self.topology = topology
        self.nodes = [node["id"] for node in topology["nodes"]]
        self.owner = {name: hardware.node_of(name, topology) for name in _names(topology)}
        self.links = [link for link in topology["links"] if self._end(link["a"]) != self._end(link["b"])]
        fabric = [name for name, node in self.owner.items() if node is None]
        edges = [(self._end(link["a"]), self._end(link["b"])) for link in self.links]
        rows = self._fabric_rows(fabric, edges)
        self.columns = max(2, min(len(self.nodes), math.ceil(math.sqrt(len(self.nodes) * 1.7))))
        self.at: dict[str, Spot] = {}
        top = len(rows) * FABRIC_ROW
        for i, node in enumerate(self.nodes):
            self.at[node] = (i % self.columns, top + i // self.columns)
        self._place_fabric(rows, edges)
        self.height = top + math.ceil(len(self.nodes) / self.columns)

    def _end(self, name: str) -> str:
        return self.owner.get(name) or name

    def _fabric_rows(self, fabric: list[str], edges: list[tuple[str, str]]) -> list[list[str]]:
        """Furthest from the nodes first."""
        far = dict.fromkeys(self.nodes, 0)
        pending = set(fabric)
        while pending:
            reached = {name for a, b in edges for name, other in ((a, b), (b, a)) if name in pending and other in far}
            step = max(far.values()) + 1
            far |= dict.fromkeys(reached or pending, step)
            pending -= reached or pending
        rows = [[n for n in fabric if far[n] == step] for step in range(max(far.values(), default=0), 0, -1)]
        return ordered([*rows, self.nodes], edges)[:-1] if rows else []

    def _place_fabric(self, rows: list[list[str]], edges: list[tuple[str, str]]) -> None:
        across = spread([*rows, self.nodes], edges)
        for number, row in enumerate(rows):
            means = [across[name] for name in row]
            low, high = min(means), max(means)
            for i, name in enumerate(row):
                share = (means[i] - low) / (high - low) if high > low else 0.5
                margin = 0.5 * (self.columns - 1) / (len(row) + 1) if high > low else 0.0
                x = margin + share * (self.columns - 1 - 2 * margin)
                self.at[name] = (x if len(row) > 1 else (self.columns - 1) / 2, number * FABRIC_ROW)
            del i

    def ends(self, link: Document) -> tuple[Spot, Spot]:
        """Where a link is drawn from and to."""
        return self.at[self._end(link["a"])], self.at[self._end(link["b"])]


def size(drawn: Plan) -> tuple[int, int]:
    """Least width and height in pixels."""
    return drawn.columns * 84, round(drawn.height * NODE_PIXELS[1]) + 20


def cluster(drawn: Plan, placed: Placed, keep: str) -> Figure:
    """The figure of several nodes."""
    return figure(
        [*_lines(drawn), _link_marks(drawn), *_dots(drawn, placed), _labels(drawn)],
        keep=keep,
        xaxis=hidden_axis(-0.55, drawn.columns - 0.45),
        yaxis=hidden_axis(drawn.height - 0.45, -0.45),
        shapes=_boxes(drawn, placed),
        hovermode="closest",
        dragmode="pan",
        margin={"l": 0, "r": 0, "t": 0, "b": 0},
    )


def _names(topology: Document) -> list[str]:
    return [d["id"] for d in topology["devices"]] + [v["id"] for v in topology.get("vertices", ())]


def _boxes(drawn: Plan, placed: Placed) -> list[dict[str, Any]]:
    used = {drawn.owner.get(device) for device, operators in placed.items() if operators}
    shapes = []
    for name, (x, y) in drawn.at.items():
        node = name in drawn.nodes
        wide, high = BOX if node else (min(0.44, 0.36), 0.15)
        line = {"color": ACCENT, "width": 1.5} if node and name in used else {"color": LINE, "width": 1}
        shapes.append(
            {
                "type": "rect",
                "x0": x - wide,
                "x1": x + wide,
                "y0": y - high,
                "y1": y + high,
                "layer": "between",
                "fillcolor": SURFACE,
                "line": line,
            }
        )
    return shapes


def _lines(drawn: Plan) -> list[dict[str, Any]]:
    traces = []
    for words, links in hardware.classes(drawn.links).items():
        x: list[float | None] = []
        y: list[float | None] = []
        for link in links:
            (x0, y0), (x1, y1) = drawn.ends(link)
            x += [x0, x1, None]
            y += [y0, y1, None]
        line = hardware.link_line(links[0])
        troubled = line["dash"] != "solid"
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": x,
                "y": y,
                "name": words,
                "line": line,
                "hoverinfo": "skip",
                "opacity": 1 if troubled else 0.55,
            }
        )
    return list(reversed(traces))  # troubled ones are drawn last, above


def _link_marks(drawn: Plan) -> dict[str, Any]:
    """Links between the same two places share a mark, at two fifths of the way from the lower end."""
    by_ends: dict[tuple[Spot, Spot], list[Document]] = {}
    for link in drawn.links:
        ends = drawn.ends(link)
        by_ends.setdefault(ends if ends[0][1] >= ends[1][1] else (ends[1], ends[0]), []).append(link)
    spots = [
        (low[0] + (high[0] - low[0]) * share, low[1] + (high[1] - low[1]) * share)
        for low, high in by_ends
        for share in [0.5 if abs(low[1] - high[1]) < 1 else 0.5 / abs(low[1] - high[1])]
    ]
    return {
        "type": "scatter", "mode": "markers", "x": [x for x, _ in spots], "y": [y for _, y in spots],
        "marker": {"size": 16, "opacity": 0}, "hoverinfo": "text", "showlegend": False,
        "hovertext": ["<br>".join(hardware.link_words(link) for link in links[:3]) for links in by_ends.values()],
    }  # fmt: skip


def _dots(drawn: Plan, placed: Placed) -> list[dict[str, Any]]:
    """One dot per device, one trace per kind; a ring in the accent where operators are placed."""
    spots = device_spots(drawn)
    traces = []
    for kind, colour in hardware.DEVICE_COLOURS.items():
        devices = [d for d in drawn.topology["devices"] if d["kind"] == kind and d["id"] in spots]
        if not devices:
            continue
        used = [bool(placed.get(d["id"])) for d in devices]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": kind,
                "x": [spots[d["id"]][0] for d in devices],
                "y": [spots[d["id"]][1] for d in devices],
                "marker": {
                    "size": 9,
                    "color": colour,
                    "symbol": ["diamond" if u else "square" for u in used],
                    "line": {"width": [2.5 if u else 0 for u in used], "color": ACCENT},
                },
                "hovertext": [hardware.device_words(d, placed.get(d["id"], ())) for d in devices],
                "hoverinfo": "text",
            }
        )
    return traces


def device_spots(drawn: Plan) -> Mapping[str, Spot]:
    """Devices of a node in lines of eight, kinds one below the other."""
    spots: dict[str, Spot] = {}
    for node in drawn.nodes:
        x, y = drawn.at[node]
        lines = []
        for kind in hardware.DEVICE_COLOURS:
            own = [d["id"] for d in drawn.topology["devices"] if d["node"] == node and d["kind"] == kind]
            lines += [own[i : i + DOTS_ABREAST] for i in range(0, len(own), DOTS_ABREAST)]
        step = min(0.15, 0.5 / max(1, len(lines)))
        for number, line in enumerate(lines):
            for i, name in enumerate(line):
                spots[name] = (x + (i - (DOTS_ABREAST - 1) / 2) * 0.098, y - 0.1 + number * step)
    return spots


def _labels(drawn: Plan) -> dict[str, Any]:
    names = list(drawn.at)
    return {
        "type": "scatter", "mode": "text", "x": [drawn.at[n][0] for n in names],
        "y": [drawn.at[n][1] - (0.27 if n in drawn.nodes else 0) for n in names],
        "text": [f"<b>{n}</b>" if n in drawn.nodes else hardware.short(n) for n in names],
        "textfont": {"size": 11}, "hoverinfo": "skip", "showlegend": False,
    }  # fmt: skip
