"""Which domain of each kind a device is in: node, socket, NUMA node, PCIe switch, NVLink or xGMI domain, CXL memory.

Domains are named by a vertex or device where one stands for them (`n0/socket0`, `n0/nvswitch0`), NUMA nodes as
`n0/numa1`. A device outside every domain of a kind, or in one that the topology does not tell, has None.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import get_args

from observatory.model.device import DeviceKind
from observatory.model.link import LinkKind
from observatory.model.pipeline import DomainKind
from observatory.model.topology import Topology, VertexKind
from observatory.topology.graph import TopologyGraph

KINDS: tuple[str, ...] = get_args(DomainKind)

_INSIDE_A_SOCKET = frozenset({LinkKind.MEMORY, LinkKind.PCIE, LinkKind.CXL, LinkKind.C2C, LinkKind.STORAGE})


class Domains:
    """Domains of every device of one topology, found once."""

    def __init__(self, topology: Topology | TopologyGraph) -> None:
        self.graph = topology if isinstance(topology, TopologyGraph) else TopologyGraph(topology)
        self._vertices = {v.id: v for v in self.graph.topology.vertices}
        by_kind: dict[str, Callable[[], dict[str, str]]] = {
            "Node": lambda: {d.id: d.node for d in self.graph.topology.devices},
            "Socket": self._sockets,
            "NUMA_Node": lambda: {
                d.id: f"{d.node}/numa{d.numa_node}" for d in self.graph.topology.devices if d.numa_node is not None
            },
            "PCIe_Switch": self._pcie_switches,
            "NVLink_Domain": lambda: self._components(LinkKind.NVLINK),
            "xGMI_Domain": lambda: self._components(LinkKind.XGMI),
            "CXL_Memory_Node": self._cxl,
            "Device_Kind": lambda: {d.id: d.kind.value for d in self.graph.topology.devices},
        }
        self._of = {kind: find() for kind, find in by_kind.items()}

    def of(self, device: str, kind: str) -> str | None:
        """The domain of that kind that the device is in, or None. Raises KeyError for an unknown kind."""
        return self._of[kind].get(device)

    def names(self, kind: str) -> tuple[str, ...]:
        """The domains of that kind, in the order of their first device."""
        return tuple(dict.fromkeys(self._of[kind].values()))

    # -- how each kind is found ----------------------------------------------------------------------------------

    def _sockets(self) -> dict[str, str]:
        """The one socket that is reached without leaving it; else that of the CPU of the same NUMA node."""
        found: dict[str, str] = {}
        reached: dict[str, set[str]] = {}
        for vertex in self.graph.topology.vertices:
            if vertex.kind is VertexKind.SOCKET:
                for name in self._reach(vertex.id, _INSIDE_A_SOCKET, stop=VertexKind.SOCKET):
                    reached.setdefault(name, set()).add(vertex.id)
        numa: dict[tuple[str, int], str] = {}
        for device in self.graph.topology.devices:
            sockets = reached.get(device.id, set())
            if len(sockets) == 1:
                found[device.id] = next(iter(sockets))
                if device.kind is DeviceKind.CPU and device.numa_node is not None:
                    numa.setdefault((device.node, device.numa_node), found[device.id])
        for device in self.graph.topology.devices:
            if device.id not in found and device.numa_node is not None:
                socket = numa.get((device.node, device.numa_node))
                if socket is not None:
                    found[device.id] = socket
        return found

    def _pcie_switches(self) -> dict[str, str]:
        """The switch that a device hangs on directly; the first in the order of links when there are several."""
        found: dict[str, str] = {}
        switches = {v.id for v in self.graph.topology.vertices if v.kind is VertexKind.PCIE_SWITCH}
        for link in self.graph.topology.links:
            for device, other in ((link.a, link.b), (link.b, link.a)):
                if link.kind is LinkKind.PCIE and other in switches and device not in self._vertices:
                    found.setdefault(device, other)
        return found

    def _components(self, kind: LinkKind) -> dict[str, str]:
        """Devices joined by links of one kind; named by the first switch in the component, else by its first device."""
        found: dict[str, str] = {}
        seen: set[str] = set()
        for device in self.graph.topology.devices:
            if device.id in seen or not self._touches(device.id, kind):
                continue
            members = self._reach(device.id, {kind})
            seen |= members
            switches = [v.id for v in self.graph.topology.vertices if v.id in members]
            name = switches[0] if switches else device.id
            found.update({d.id: name for d in self.graph.topology.devices if d.id in members})
        return found

    def _cxl(self) -> dict[str, str]:
        """CXL memory, what CXL links join to it, and the other devices of the NUMA nodes of those CPUs."""
        found: dict[str, str] = {}
        numa: dict[tuple[str, int], str] = {}
        for device in self.graph.topology.devices_of(DeviceKind.CXL_MEMORY):
            members = self._reach(device.id, {LinkKind.CXL})
            for member in self.graph.topology.devices:
                if member.id in members:
                    found.setdefault(member.id, device.id)
                    if member.numa_node is not None:
                        numa.setdefault((member.node, member.numa_node), device.id)
        for member in self.graph.topology.devices:
            if member.id not in found and member.numa_node is not None and (member.node, member.numa_node) in numa:
                found[member.id] = numa[member.node, member.numa_node]
        return found

    def _touches(self, name: str, kind: LinkKind) -> bool:
        links = self.graph.topology.links
        return any(links[i].kind is kind for _, i in self.graph.neighbours[self.graph.numbers[name]])

    def _reach(self, start: str, kinds: Collection[LinkKind], *, stop: VertexKind | None = None) -> set[str]:
        """Everything joined to `start` by links of these kinds.

        With `stop` not going through vertices of that kind, nor through devices that pass nothing on: memory that is
        as near to two sockets makes them no single one.
        """
        links = self.graph.topology.links
        seen = {start}
        todo = [start]
        while todo:
            here = self.graph.numbers[todo.pop()]
            if stop is not None and not self.graph.forwards[here]:
                continue
            for neighbour, index in self.graph.neighbours[here]:
                name = self.graph.names[neighbour]
                vertex = self._vertices.get(name)
                if name in seen or links[index].kind not in kinds:
                    continue
                if vertex is not None and vertex.kind is stop:
                    continue
                seen.add(name)
                todo.append(name)
        return seen
