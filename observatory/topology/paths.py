"""The best path between two devices for a payload, by `observatory.model.cost.transfer_seconds`.

A path's time is its latencies plus bytes over its narrowest link, so no single edge weight finds it. For every
bandwidth that occurs, the path of least latency among the links at least that fast is a candidate, and one of the
candidates is the best for any payload: the best path's own narrowest link is one of those bandwidths. (With calibrated
beta that falls as links get slower the answer is the best of the same candidates, not always of all paths.)

Candidates depend on the graph and alpha only, so they are found once per source device and serve every payload.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from observatory.model.cost import CostParameters, transfer_seconds
from observatory.model.link import Link, LinkState
from observatory.model.topology import Topology
from observatory.topology.graph import TopologyGraph


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


class PathFinder:
    """Paths on one graph under one set of parameters. Links that are down are never used."""

    def __init__(self, topology: Topology | TopologyGraph, parameters: CostParameters) -> None:
        self.graph = topology if isinstance(topology, TopologyGraph) else TopologyGraph(topology)
        self.parameters = parameters
        links = self.graph.topology.links
        self._alive = [link.state is not LinkState.DOWN for link in links]
        self._known = [
            link.bandwidth_bytes_per_second is not None and link.latency_seconds is not None for link in links
        ]
        self._weight = [
            parameters.of(link.kind).alpha * link.latency_seconds if link.latency_seconds is not None else 0.0
            for link in links
        ]
        self._bandwidth = [link.bandwidth_bytes_per_second or 0.0 for link in links]
        usable = zip(self._bandwidth, self._alive, self._known, strict=True)
        self._thresholds = sorted({b for b, alive, known in usable if alive and known})
        self._from: dict[int, list[tuple[tuple[int, ...], ...]]] = {}

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
        for candidate in self._candidates(a)[b]:
            path = tuple(links[i] for i in candidate)
            seconds = transfer_seconds(path, payload_bytes, self.parameters, messages=messages)
            key = (seconds, len(path), tuple(link.id for link in path))
            if best is None or key < best:
                best, chosen = key, Path(path, seconds)
        return chosen if chosen is not None else self._unpredictable(a, b)

    def _candidates(self, source: int) -> list[tuple[tuple[int, ...], ...]]:
        """For every vertex the distinct paths (link numbers) of least latency, one per bandwidth threshold."""
        if source not in self._from:
            found: list[dict[tuple[int, ...], None]] = [{} for _ in self.graph.names]
            for threshold in self._thresholds:
                usable = [
                    alive and known and bandwidth >= threshold
                    for alive, known, bandwidth in zip(self._alive, self._known, self._bandwidth, strict=True)
                ]
                for vertex, path in self._shortest(source, usable).items():
                    found[vertex][path] = None
            self._from[source] = [tuple(paths) for paths in found]
        return self._from[source]

    def _shortest(self, source: int, usable: list[bool]) -> dict[int, tuple[int, ...]]:
        """Dijkstra by alpha-weighted latency, then number of links, then their ids, passing through forwarders only."""
        links = self.graph.topology.links
        done: dict[int, tuple[int, ...]] = {}
        heap: list[tuple[float, int, tuple[str, ...], int, tuple[int, ...]]] = [(0.0, 0, (), source, ())]
        while heap:
            latency, hops, ids, vertex, path = heapq.heappop(heap)
            if vertex in done:
                continue
            done[vertex] = path
            if vertex != source and not self.graph.forwards[vertex]:
                continue
            for neighbour, index in self.graph.neighbours[vertex]:
                if usable[index] and neighbour not in done:
                    step = (*ids, links[index].id)
                    heapq.heappush(heap, (latency + self._weight[index], hops + 1, step, neighbour, (*path, index)))
        return done

    def _unpredictable(self, source: int, target: int) -> Path:
        links = self.graph.topology.links
        path = self._shortest(source, self._alive).get(target)
        names = self.graph.names
        if path is None:
            return Path((), None, f"there is no path from {names[source]} to {names[target]}")
        unknown = next(links[i] for i in path if not self._known[i])
        lacks = "bandwidth" if unknown.bandwidth_bytes_per_second is None else "latency"
        return Path(tuple(links[i] for i in path), None, f"the {lacks} of {unknown.id} is unknown")
