"""Processors of one machine as devices: one for every pair of socket and NUMA node that share threads.

What sysfs and hwloc tell of them is of one form: `Cpu` and `NumaNode`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from observatory.model.device import Device, DeviceKind, Engine, EngineKind
from observatory.model.hardware import NumaNode
from observatory.model.link import Link, LinkKind
from observatory.model.topology import Vertex, VertexKind
from observatory.topology.importers.sysfs.cpus import Cpu


class Processors:
    """Devices of kind cpu, one for every pair of socket and NUMA node that share processors; sockets, dies, links."""

    def __init__(
        self, node: str, cpus: Mapping[int, Cpu], numa: Sequence[NumaNode], name: str | None, warnings: list[str]
    ) -> None:
        self._node = node
        self.devices: list[Device] = []
        self.links: list[Link] = []
        self.vertices: list[Vertex] = []
        self._sockets: dict[str, int] = {}
        sockets = sorted({c.socket for c in cpus.values()})
        self.vertices += [Vertex(id=f"{node}/socket{s}", kind=VertexKind.SOCKET, node=node) for s in sockets]
        dies = self._make_dies(cpus, sockets)
        for numa_node in numa:
            here = [s for s in sockets if any(cpus[c].socket == s for c in numa_node.cpus)]
            if len(here) > 1 and numa_node.memory_bytes is not None:
                listed = ", ".join(map(str, here))
                warnings.append(f"NUMA node {numa_node.number} spans sockets {listed}: its memory is given to neither")
            for socket in here:
                mine = [cpus[c] for c in numa_node.cpus if cpus[c].socket == socket]
                self._device(numa_node, socket, mine, name, whole=len(here) == 1)
                above = [dies[socket, c.die] for c in mine if (socket, c.die) in dies] or [f"{node}/socket{socket}"]
                device = self.devices[-1].id
                self.links += [Link(a=device, b=b, kind=LinkKind.MEMORY) for b in dict.fromkeys(above)]
        self._join_numa_nodes(numa)

    def _make_dies(self, cpus: Mapping[int, Cpu], sockets: Sequence[int]) -> dict[tuple[int, int | None], str]:
        """A vertex for every die of the sockets that have several."""
        found: dict[tuple[int, int | None], str] = {}
        for socket in sockets:
            dies = {c.die for c in cpus.values() if c.socket == socket and c.die is not None}
            for die in sorted(dies) if len(dies) > 1 else ():
                vertex = Vertex(id=f"{self._node}/die{len(found)}", kind=VertexKind.DIE, node=self._node)
                found[socket, die] = vertex.id
                self.vertices.append(vertex)
                self.links.append(Link(a=vertex.id, b=f"{self._node}/socket{socket}", kind=LinkKind.MEMORY))
        return found

    def _device(self, numa: NumaNode, socket: int, cpus: Sequence[Cpu], name: str | None, *, whole: bool) -> None:
        device = Device(
            id=f"{self._node}/cpu{len(self.devices)}",
            kind=DeviceKind.CPU,
            node=self._node,
            name=name,
            numa_node=numa.number,
            memory_bytes=numa.memory_bytes if whole else None,
            engines=(Engine(kind=EngineKind.COMPUTE, count=len({c.core for c in cpus})),),
            cpus=tuple(c.number for c in cpus),
        )
        self.devices.append(device)
        self._sockets[device.id] = socket

    def _join_numa_nodes(self, numa: Sequence[NumaNode]) -> None:
        """A link of unknown speed between every two CPU devices: `upi` across sockets, `memory` inside one."""
        distances = {n.number: n.distances for n in numa}
        for index, a in enumerate(self.devices):
            for b in self.devices[index + 1 :]:
                same = self._sockets[a.id] == self._sockets[b.id]
                distance = distances[a.numa_node or 0].get(b.numa_node or 0)
                kind = LinkKind.MEMORY if same else LinkKind.UPI
                self.links.append(Link(a=a.id, b=b.id, kind=kind, numa_distance=distance))


def to_nearest(memory: str, node: NumaNode | None, processors: Sequence[Device], kind: LinkKind) -> list[Link]:
    """Links to the CPU devices that are nearest by the firmware's distance; none when it tells no distances."""
    if node is None:
        return []
    told = {p.id: node.distances[p.numa_node] for p in processors if p.numa_node in node.distances}
    least = min(told.values(), default=None)
    return [Link(a=memory, b=p, kind=kind, numa_distance=d) for p, d in told.items() if d == least]
