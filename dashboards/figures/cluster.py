"""Several nodes at once: switches between them above, a box of device dots for each node below."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from dashboards.figures import hardware
from dashboards.figures.base import Figure, figure, hidden_axis
from dashboards.figures.hardware import Document, Placed
from dashboards.figures.layers import Edge, apart
from dashboards.theme import ACCENT, LINE, SURFACE

DOTS_ABREAST = 8
NODE_PIXELS = 112
FABRIC_ROW = 0.8
HALF = (0.44, 0.38)
"""Half the width and height of a node's box. A unit is one node's place."""
FABRIC_HALF_HEIGHT = 0.14
GUTTER = 0.5 - (0.5 - HALF[1]) / 2
"""How far above the middle of a node its row's bus runs."""

Spot = tuple[float, float]


class Plan:
    """Where nodes and what lies between them stand; y grows downwards.

    Nodes stand in blocks below the switch that most of their links go to. Links run down a trunk at the left of the
    block, and along a bus above each row of nodes.
    """

    def __init__(self, topology: Document) -> None:
        self.topology = topology
        self.nodes = [node["id"] for node in topology["nodes"]]
        self.owner = {name: hardware.node_of(name, topology) for name in _names(topology)}
        self.links = [link for link in topology["links"] if self.end(link["a"]) != self.end(link["b"])]
        self.fabric = [name for name, node in self.owner.items() if node is None]
        edges = [(self.end(link["a"]), self.end(link["b"])) for link in self.links]
        self.parent = self._parents(edges)
        rows = self._fabric_rows(edges)
        self.at: dict[str, Spot] = {}
        self.trunk: dict[str | None, float] = {}
        self.top = max(len(rows) * FABRIC_ROW + 0.1, 0.2)
        self._place_nodes()
        self._place_fabric(rows, edges)

    def end(self, name: str) -> str:
        """What stands for the end of a link: its node, or itself."""
        return self.owner.get(name) or name

    def _parents(self, edges: list[Edge]) -> dict[str, str | None]:
        """Of each node the switch that most of its links go to; None when it has none."""
        counts: dict[str, Counter[str]] = {node: Counter() for node in self.nodes}
        for edge in edges:
            for node, other in (edge, edge[::-1]):
                if node in counts and other not in counts:
                    counts[node][other] += 1
        return {node: next((name for name, _ in found.most_common(1)), None) for node, found in counts.items()}

    def _fabric_rows(self, edges: list[Edge]) -> list[list[str]]:
        """Furthest from the nodes first."""
        far = dict.fromkeys(self.nodes, 0)
        pending = set(self.fabric)
        while pending:
            reached = {n for edge in edges for n, other in (edge, edge[::-1]) if n in pending and other in far}
            far |= dict.fromkeys(reached or pending, max(far.values(), default=0) + 1)
            pending -= reached or pending
        return [[n for n in self.fabric if far[n] == step] for step in range(max(far.values(), default=0), 0, -1)]

    def _place_nodes(self) -> None:
        blocks: dict[str | None, list[str]] = {}
        for node in self.nodes:
            blocks.setdefault(self.parent[node], []).append(node)
        wanted = max(4, math.ceil(math.sqrt(len(self.nodes) * 2.6)))
        abreast = max(1, round(wanted / max(1, len(blocks))))
        left, lines = 0, 1
        for parent, nodes in blocks.items():
            rows = math.ceil(len(nodes) / abreast)
            columns = math.ceil(len(nodes) / rows)
            for i, node in enumerate(nodes):
                self.at[node] = (left + i % columns, self.top + i // columns)
            self.trunk[parent] = left - 0.5
            left, lines = left + columns, max(lines, rows)
        self.columns, self.height = max(left, 1), self.top + lines

    def _place_fabric(self, rows: list[list[str]], edges: list[Edge]) -> None:
        """Each row from below: above the middle of what hangs on it, with room between."""
        for number in range(len(rows) - 1, -1, -1):
            means = {}
            for name in rows[number]:
                below = [o for e in edges for n, o in (e, e[::-1]) if n == name and o in self.at]
                spots = [self.at[o][0] for o in below if self.parent.get(o, name) == name] or [(self.columns - 1) / 2]
                means[name] = sum(spots) / len(spots)
            row = sorted(rows[number], key=means.__getitem__)
            wide = 2.4 * self.fabric_half_width()
            for name, x in zip(row, apart([means[n] for n in row], wide), strict=True):
                self.at[name] = (x, number * FABRIC_ROW)

    def fabric_half_width(self) -> float:
        """Of a switch's box: about as wide on the screen however many nodes stand abreast."""
        return min(0.4, 0.045 * self.columns)

    def points(self, link: Document) -> list[Spot]:
        """From border to border."""
        a, b = sorted((self.end(link["a"]), self.end(link["b"])), key=lambda name: self.at[name][1])
        (x0, y0), (x1, y1) = self.at[a], self.at[b]
        if b in self.parent and self.parent[b] == a:
            trunk, bus = self.trunk[a], y1 - GUTTER
            first = self.top - GUTTER
            start = [(x0, y0 + FABRIC_HALF_HEIGHT), (x0, first)]
            side = [(trunk, first), (trunk, bus)] if bus > first else []
            return [*start, *side, (x1, bus), (x1, y1 - HALF[1])]
        if a in self.parent and b in self.parent:
            return [(x0, y0 + HALF[1]), (x1, y1 - HALF[1])] if y1 > y0 else [(x0, y0 - HALF[1]), (x1, y1 - HALF[1])]
        return [(x0, y0 + FABRIC_HALF_HEIGHT), (x1, y1 - (HALF[1] if b in self.parent else FABRIC_HALF_HEIGHT))]


def size(drawn: Plan) -> tuple[int, int]:
    """Least width and height in pixels."""
    return drawn.columns * 84, round(drawn.height * NODE_PIXELS) + 10


def cluster(drawn: Plan, placed: Placed, keep: str) -> Figure:
    """The figure of several nodes."""
    return figure(
        [*_lines(drawn), _link_marks(drawn), *_dots(drawn, placed), _labels(drawn)],
        keep=keep,
        xaxis=hidden_axis(-0.58, drawn.columns - 0.42),
        yaxis=hidden_axis(drawn.height - 0.5, -0.25),
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
        wide, high = HALF if node else (drawn.fabric_half_width(), FABRIC_HALF_HEIGHT)
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
            points = drawn.points(link)
            x += [*(px for px, _ in points), None]
            y += [*(py for _, py in points), None]
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
    """Where links can be pointed at: near their lower end. Links between the same two places share a mark."""
    marks: dict[Spot, list[Document]] = {}
    for link in drawn.links:
        (x0, y0), (x1, y1) = drawn.points(link)[-2:]
        near = 0.5 if abs(x0 - x1) < 1e-9 else 0.75
        marks.setdefault((x0 + (x1 - x0) * near, y0 + (y1 - y0) * near), []).append(link)
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [x for x, _ in marks],
        "y": [y for _, y in marks],
        "marker": {"size": 16, "opacity": 0},
        "hoverinfo": "text",
        "showlegend": False,
        "hovertext": ["<br>".join(hardware.link_words(link) for link in links[:3]) for links in marks.values()],
    }


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
                    "size": 9 if drawn.columns <= 8 else 6.5,
                    "color": colour,
                    "symbol": "square",
                    "line": {"width": [3 if u else 0 for u in used], "color": ACCENT},
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
                spots[name] = (x + (i - (DOTS_ABREAST - 1) / 2) * 0.098, y - 0.09 + number * step)
    return spots


def _labels(drawn: Plan) -> dict[str, Any]:
    names = list(drawn.at)
    return {
        "type": "scatter", "mode": "text", "x": [drawn.at[n][0] for n in names],
        "y": [drawn.at[n][1] - (0.27 if n in drawn.nodes else 0) for n in names],
        "text": [f"<b>{n}</b>" if n in drawn.nodes else hardware.short(n) for n in names],
        "textfont": {"size": 11}, "hoverinfo": "skip", "showlegend": False,
    }  # fmt: skip
