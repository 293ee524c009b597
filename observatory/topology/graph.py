"""The physical graph, indexed: vertices and links by number, adjacency, arrays, and a networkx view."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from observatory.documents import did_you_mean
from observatory.model.device import DeviceKind
from observatory.model.link import LinkState
from observatory.model.topology import Topology
from observatory.topology.errors import NoSuchVertex

if TYPE_CHECKING:
    import networkx as nx

FORWARDING_DEVICES = frozenset({DeviceKind.CPU})
"""Devices through which a path may lead. Vertices (sockets, switches) always forward; GPUs and VPUs never do, network
cards only between their machine and the network."""

OUTSIDE = -1
"""Region of what is in no machine: the switches of a network, of an NVLink domain that spans a rack."""


@dataclass(frozen=True, slots=True)
class LinkArrays:
    """Columns of the links, in the topology's order. Unknown numbers are NaN."""

    a: npt.NDArray[np.int32]  # number of the vertex at each end
    b: npt.NDArray[np.int32]
    bandwidth_bytes_per_second: npt.NDArray[np.float64]
    latency_seconds: npt.NDArray[np.float64]
    up: npt.NDArray[np.bool_]  # False only for a link known to be down


class TopologyGraph:
    """A topology with its vertices numbered: devices first, then switches and sockets, both in the topology's order.

    `regions` has for each the number of its node in the topology's order, OUTSIDE for what is in none. A link inside
    one node is an inner one, every other an outer one.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.names: tuple[str, ...] = (*(d.id for d in topology.devices), *(v.id for v in topology.vertices))
        self.numbers: dict[str, int] = {name: number for number, name in enumerate(self.names)}
        devices = [d.kind in FORWARDING_DEVICES for d in topology.devices]
        self.forwards: tuple[bool, ...] = (*devices, *(True for _ in topology.vertices))
        self.cards: tuple[bool, ...] = (
            *(d.kind is DeviceKind.NIC for d in topology.devices),
            *(False for _ in topology.vertices),
        )
        nodes = {node.id: number for number, node in enumerate(topology.nodes)}
        self.regions: tuple[int, ...] = (
            *(nodes[d.node] for d in topology.devices),
            *(nodes.get(v.node or "", OUTSIDE) for v in topology.vertices),
        )
        neighbours: list[list[tuple[int, int]]] = [[] for _ in self.names]
        for index, link in enumerate(topology.links):
            a, b = self.numbers[link.a], self.numbers[link.b]
            neighbours[a].append((b, index))
            neighbours[b].append((a, index))
        self.neighbours: tuple[tuple[tuple[int, int], ...], ...] = tuple(tuple(n) for n in neighbours)

    def number(self, name: str) -> int:
        """The number of a device or vertex. Raises NoSuchVertex."""
        try:
            return self.numbers[name]
        except KeyError:
            raise NoSuchVertex(
                f"the topology has no device or vertex {name!r}", mend=did_you_mean(name, self.names)
            ) from None

    def is_inner(self, index: int) -> bool:
        """Whether both ends of a link (by number) are in one node."""
        link = self.topology.links[index]
        region = self.regions[self.numbers[link.a]]
        return region != OUTSIDE and region == self.regions[self.numbers[link.b]]

    def arrays(self) -> LinkArrays:
        """The links as columns."""
        links = self.topology.links

        def column(values: list[float | None]) -> npt.NDArray[np.float64]:
            return np.array([np.nan if v is None else v for v in values], dtype=np.float64)

        return LinkArrays(
            a=np.array([self.numbers[link.a] for link in links], dtype=np.int32),
            b=np.array([self.numbers[link.b] for link in links], dtype=np.int32),
            bandwidth_bytes_per_second=column([link.bandwidth_bytes_per_second for link in links]),
            latency_seconds=column([link.latency_seconds for link in links]),
            up=np.array([link.state is not LinkState.DOWN for link in links], dtype=np.bool_),
        )

    def to_networkx(self) -> nx.MultiGraph[Any]:
        """A networkx view: nodes carry `device` or `vertex`, edges (keyed by link kind) carry `link`."""
        import networkx as nx  # slow to import, and of no use to most commands

        graph: nx.MultiGraph[Any] = nx.MultiGraph(name=self.topology.name)
        for device in self.topology.devices:
            graph.add_node(device.id, device=device)
        for vertex in self.topology.vertices:
            graph.add_node(vertex.id, vertex=vertex)
        for link in self.topology.links:
            graph.add_edge(link.a, link.b, key=link.kind.value, link=link)
        return graph
