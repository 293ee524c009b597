"""The best path between two devices for a payload, by `observatory.model.cost.transfer_seconds`.

A path's time is its latencies plus bytes over its bottleneck, so no single edge weight finds it. Kept are all paths of
which none has both less latency and a wider bottleneck: for every payload one of them is the best (Martins, "On a
multicriteria shortest path problem", 1984). They depend on the graph and the parameters only, so they are found once
per source device and serve every payload.

A path leaves the node it begins in once, and enters the node it ends in once: machines in between pass nothing on. A
network card passes on between its machine and the network only, and nothing that stays in its machine.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import NamedTuple

from observatory.model.cost import CostParameters, transfer_seconds
from observatory.model.link import Link, LinkState
from observatory.model.topology import Topology
from observatory.topology.graph import OUTSIDE, TopologyGraph

_INSIDE_FIRST, _OUTSIDE, _INSIDE_LAST = range(3)
"""Where on its way a path is: in the node it begins in, between nodes, in the node it ends in."""


@dataclass(frozen=True, slots=True)
class Path:
    """A way between two devices. `seconds` None: it cannot be predicted, `reason` says why; it is never 0 instead."""

    links: tuple[Link, ...]
    seconds: float | None
    reason: str | None = None

    @property
    def ids(self) -> tuple[str, ...]:
        """Link ids, from the first device to the second."""
        return tuple(link.id for link in self.links)


class _Label(NamedTuple):
    """A path found so far; of equal latency those with fewer links come first, then by link ids."""

    latency: float
    hops: int
    ids: tuple[str, ...]
    seconds_per_byte: float
    vertex: int
    phase: int
    path: tuple[int, ...]


class PathFinder:
    """Paths on one graph under one set of parameters. Links that are down are never used."""

    def __init__(self, topology: Topology | TopologyGraph, parameters: CostParameters) -> None:
        self.graph = topology if isinstance(topology, TopologyGraph) else TopologyGraph(topology)
        self.parameters = parameters
        links = self.graph.topology.links
        self._alive = [link.state is not LinkState.DOWN for link in links]
        self._inner = [self.graph.is_inner(index) for index in range(len(links))]
        of_kind = {kind: parameters.of(kind) for kind in {link.kind for link in links}}
        self._latency = [
            None if link.latency_seconds is None else of_kind[link.kind].alpha * link.latency_seconds for link in links
        ]
        self._seconds_per_byte = [
            None
            if link.bandwidth_bytes_per_second is None
            else of_kind[link.kind].beta / link.bandwidth_bytes_per_second
            for link in links
        ]
        self._found: dict[tuple[int, int], dict[int, list[tuple[int, ...]]]] = {}

    def best(self, source: str, target: str, payload_bytes: float, *, messages: int = 1) -> Path:
        """The fastest path that can be predicted; of equals the one with fewer links, then by link ids.

        When every path crosses a link of unknown bandwidth or latency, one of those with `seconds` None; when there is
        no path, no links and `seconds` None.

        Raises:
            NoSuchVertex: the graph has no such device.
        """
        a, b = self.graph.number(source), self.graph.number(target)
        if a == b:
            return Path((), 0.0)
        links = self.graph.topology.links
        best: tuple[float, int, tuple[str, ...]] | None = None
        chosen: Path | None = None
        for candidate in self._candidates(a, self.graph.regions[b]).get(b, ()):
            path = tuple(links[i] for i in candidate)
            seconds = transfer_seconds(path, payload_bytes, self.parameters, messages=messages)
            key = (seconds, len(path), tuple(link.id for link in path))
            if best is None or key < best:
                best, chosen = key, Path(path, seconds)
        return chosen if chosen is not None else self._unpredictable(a, b)

    def _candidates(self, source: int, region: int) -> dict[int, list[tuple[int, ...]]]:
        """For every vertex of a region the paths (link numbers) that are the best for some payload."""
        key = (source, region)
        if key not in self._found:
            self._found[key] = self._search(source, region, guess=False)
        return self._found[key]

    def _search(self, source: int, region: int, *, guess: bool) -> dict[int, list[tuple[int, ...]]]:
        """Paths to every vertex of a region, none worse than another in both latency and bottleneck.

        Args:
            guess: take unknown latencies for zero, and all links for equally wide.
        """
        found: dict[int, list[tuple[int, ...]]] = {}
        widest: dict[tuple[int, int], float] = {}
        start = _OUTSIDE if self.graph.regions[source] == OUTSIDE else _INSIDE_FIRST
        heap = [_Label(0.0, 0, (), 0.0, source, start, ())]
        while heap:
            label = heapq.heappop(heap)
            here = (label.vertex, label.phase)
            if here in widest and label.seconds_per_byte >= widest[here]:
                continue
            widest[here] = label.seconds_per_byte
            if self.graph.regions[label.vertex] == region:
                found.setdefault(label.vertex, []).append(label.path)
            for neighbour, index in self.graph.neighbours[label.vertex]:
                phase = self._next_phase(label, index, neighbour, source, region)
                cost = self._cost(index, guess)
                if phase is None or cost is None:
                    continue
                narrowest = max(label.seconds_per_byte, cost[1])
                if narrowest >= widest.get((neighbour, phase), float("inf")):
                    continue
                ids = (*label.ids, self.graph.topology.links[index].id)
                latency = label.latency + cost[0]
                step = _Label(latency, label.hops + 1, ids, narrowest, neighbour, phase, (*label.path, index))
                heapq.heappush(heap, step)
        return found

    def _next_phase(self, label: _Label, index: int, neighbour: int, source: int, region: int) -> int | None:
        """Where a path is after one more link; None: it may not go on there."""
        vertex = label.vertex
        here = self.graph.regions[vertex]
        stays = self.graph.regions[source] == region
        forwards = vertex == source or self.graph.forwards[vertex]
        crosses = forwards or (self.graph.cards[vertex] and not stays)
        if self._inner[index]:
            if label.phase == _OUTSIDE:
                return _INSIDE_LAST if here == region and crosses else None
            return label.phase if forwards else None
        if stays and (self.graph.cards[vertex] or self.graph.cards[neighbour]):
            return None
        if label.phase == _INSIDE_FIRST:
            return _OUTSIDE if crosses else None
        return _OUTSIDE if label.phase == _OUTSIDE and here == OUTSIDE else None

    def _cost(self, index: int, guess: bool) -> tuple[float, float] | None:
        """Latency and seconds per byte of a link, None where it is down or not known."""
        if not self._alive[index]:
            return None
        latency, seconds_per_byte = self._latency[index], self._seconds_per_byte[index]
        if guess:
            return latency or 0.0, 0.0
        return None if latency is None or seconds_per_byte is None else (latency, seconds_per_byte)

    def _unpredictable(self, source: int, target: int) -> Path:
        links = self.graph.topology.links
        path = next(iter(self._search(source, self.graph.regions[target], guess=True).get(target, ())), None)
        names = self.graph.names
        if path is None:
            return Path((), None, f"there is no path from {names[source]} to {names[target]}")
        unknown = next(links[i] for i in path if self._cost(i, guess=False) is None)
        lacks = "bandwidth" if unknown.bandwidth_bytes_per_second is None else "latency"
        return Path(tuple(links[i] for i in path), None, f"the {lacks} of {unknown.id} is unknown")
