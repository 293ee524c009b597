"""C of a whole cluster, kept up to date: dense inside each node, node by node between them, never dense over all.

The graph's shape is read once; then only latencies, bandwidths and states of links change. An update compares them with
those before and marks what depends on the changed ones: the matrix of the node that a link is in, and the rows between
nodes if what a node sends out would go another way or at another price. The work is done by the native module
`_cost`: between the forwarding vertices of a node by search, for all pairs of devices by putting the links at both ends
before and after. The answers are those of `PathFinder`, by the same formula.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from observatory.documents import did_you_mean
from observatory.model.cost import CostParameters
from observatory.model.device import DeviceKind
from observatory.model.topology import Topology
from observatory.topology._cost import Costs
from observatory.topology.errors import NoSuchVertex
from observatory.topology.graph import LinkArrays, TopologyGraph

Seconds = npt.NDArray[np.float64]


class ClusterCosts:
    """Seconds for one message between devices. In arrays, NaN where they cannot be predicted."""

    def __init__(self, topology: Topology | TopologyGraph, parameters: CostParameters, *, message_bytes: float) -> None:
        self.graph = topology if isinstance(topology, TopologyGraph) else TopologyGraph(topology)
        self.message_bytes = message_bytes
        shape = self.graph.topology
        self._nodes = {node.id: number for number, node in enumerate(shape.nodes)}
        self._members: list[list[str]] = [[] for _ in shape.nodes]
        for device in shape.devices:
            self._members[self._nodes[device.node]].append(device.id)
        of_kind = {kind: parameters.of(kind) for kind in {link.kind for link in shape.links}}
        self._alpha = np.array([of_kind[link.kind].alpha for link in shape.links], dtype=np.float64)
        self._beta = np.array([of_kind[link.kind].beta for link in shape.links], dtype=np.float64)
        arrays = self.graph.arrays()
        self._costs = Costs(
            regions=len(shape.nodes),
            devices=len(shape.devices),
            region=np.array(self.graph.regions, dtype=np.int32),
            forwards=np.array(self.graph.forwards, dtype=np.uint8),
            card=np.array(self.graph.cards, dtype=np.uint8),
            a=arrays.a,
            b=arrays.b,
            representative=self._representatives(),
            message_bytes=message_bytes,
            software_seconds=parameters.software_seconds_per_message,
        )
        self.update(arrays.bandwidth_bytes_per_second, arrays.latency_seconds, arrays.up)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Rows and columns between nodes."""
        return tuple(self._nodes)

    def devices_of(self, node: str) -> tuple[str, ...]:
        """Rows and columns of a node's own matrix. Raises NoSuchVertex."""
        return tuple(self._members[self._node(node)])

    def update(
        self,
        bandwidth_bytes_per_second: npt.NDArray[np.float64],
        latency_seconds: npt.NDArray[np.float64],
        up: npt.NDArray[np.bool_],
    ) -> int:
        """Take the present values of all links, in the topology's order; how many cost something else than before."""
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = self._beta / bandwidth_bytes_per_second
        latency = self._alpha * latency_seconds
        usable = up & np.isfinite(rate) & np.isfinite(latency)
        return self._costs.update(np.where(usable, latency, np.inf), np.where(usable, rate, np.inf))

    def take(self, arrays: LinkArrays) -> int:
        """`update` with the columns of a graph of the same shape."""
        return self.update(arrays.bandwidth_bytes_per_second, arrays.latency_seconds, arrays.up)

    def refresh(self) -> int:
        """Work out the matrices of nodes that are stale; how many these are. Reading does it by itself."""
        return self._costs.refresh()

    def refresh_between(self) -> int:
        """Work out all that is stale, rows between nodes too; how many rows that were. Reading does it by itself."""
        self._costs.refresh()
        return self._costs.refresh_between()

    def within(self, node: str) -> Seconds:
        """Shape (devices, devices) of one node, in the order of `devices_of`. Raises NoSuchVertex."""
        self._costs.refresh()
        return _nan(self._costs.within(self._node(node)))

    def between_nodes(self) -> Seconds:
        """Shape (nodes, nodes): from the first CPU of one (else its first device) to that of the other."""
        self.refresh_between()
        return _nan(self._costs.between())

    def between(self, node: str) -> Seconds:
        """One row of `between_nodes`, without working out the others. Raises NoSuchVertex."""
        number = self._node(node)
        self._costs.refresh()
        return _nan(self._costs.between_row(number))

    def row(self, source: str, targets: Sequence[str]) -> Seconds:
        """Seconds from one device to others. Raises NoSuchVertex."""
        self._costs.refresh()
        numbers = np.array([self._device(target) for target in targets], dtype=np.int32)
        return _nan(self._costs.row(self._device(source), numbers))

    def _device(self, name: str) -> int:
        number = self.graph.number(name)
        if number >= len(self.graph.topology.devices):
            raise NoSuchVertex(f"{name} is no device", mend="costs are between devices")
        return number

    def _node(self, name: str) -> int:
        if name not in self._nodes:
            raise NoSuchVertex(f"the topology has no node {name!r}", mend=did_you_mean(name, self._nodes))
        return self._nodes[name]

    def _representatives(self) -> npt.NDArray[np.int32]:
        stand_for = representatives(self.graph.topology)
        numbers = [self.graph.numbers[stand_for[node]] if node in stand_for else -1 for node in self._nodes]
        return np.array(numbers, dtype=np.int32)


def representatives(topology: Topology) -> dict[str, str]:
    """The device that stands for each node: its first CPU, else its first. Nodes without devices are left out."""
    found: dict[str, str] = {}
    for device in sorted(topology.devices, key=lambda d: d.kind is not DeviceKind.CPU):
        found.setdefault(device.node, device.id)
    return found


def _nan(seconds: Seconds) -> Seconds:
    seconds[~np.isfinite(seconds)] = np.nan
    return seconds
