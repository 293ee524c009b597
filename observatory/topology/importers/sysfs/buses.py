"""The PCI tree as a graph: host bridges, root ports, switches and bridges as vertices, the links between them.

A switch is one vertex that stands for its upstream and downstream ports, so that what hangs on it is seen to share it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from observatory.model.hardware import NumaNode
from observatory.model.link import BandwidthSource, Link, LinkKind
from observatory.model.topology import Vertex, VertexKind
from observatory.topology.importers.sysfs.cpus import Cpu
from observatory.topology.importers.sysfs.pci import BUS_ID, Function, PortType
from observatory.topology.importers.sysfs.pcie_link import LinkEnd, join_ends, speed_text

_NAMES = {
    VertexKind.HOST_BRIDGE: "hostbridge",
    VertexKind.ROOT_PORT: "rootport",
    VertexKind.PCIE_SWITCH: "pcie",
    VertexKind.PCI_BRIDGE: "bridge",
}
_KINDS = {
    PortType.ROOT_PORT: VertexKind.ROOT_PORT,
    PortType.UPSTREAM_PORT: VertexKind.PCIE_SWITCH,
    PortType.BRIDGE: VertexKind.PCI_BRIDGE,
}


class PciBuses:
    """Vertices and links of all buses of one machine; functions that are no bridges are placed on them."""

    def __init__(self, functions: Mapping[str, Function], node: str) -> None:
        self.functions = functions
        self.node = node
        self.vertices: list[Vertex] = []
        self.links: list[Link] = []
        self._counts: dict[VertexKind, int] = {}
        self._hosts: dict[str, str] = {}
        self._bridges: dict[str, str] = {}  # a bridge -> the vertex that what is behind it hangs on
        for function in functions.values():
            if function.host_bridge is not None and function.host_bridge not in self._hosts:
                name = function.host_bridge
                self._hosts[name] = self._vertex(VertexKind.HOST_BRIDGE, name=name)
        bridges = [f for f in functions.values() if f.is_bridge]
        for bridge in sorted(bridges, key=lambda f: (f.folder.count("/"), f.number)):  # from the top
            self._bridge(bridge)
        self.vertices = [self._with_ports(v) for v in self.vertices]
        self._join_nested_hosts()

    def stands_for(self, bus_id: str) -> str | None:
        """The vertex of a bridge; of a switch's port, the switch."""
        return self._bridges.get(bus_id)

    def above(self, function: Function) -> str | None:
        """The vertex that a function hangs on; None when the tree does not tell."""
        if function.parent is not None:
            return self._bridges.get(function.parent)
        return None if function.host_bridge is None else self._hosts.get(function.host_bridge)

    def hang(self, name: str, function: Function, kind: LinkKind = LinkKind.PCIE) -> None:
        """Link the device or vertex `name`, which is this function, to what is above it.

        CXL shares the link with other protocols and packs its memory traffic differently, so that its bandwidth is
        not known from speed and width.
        """
        above = self.above(function)
        if above is None:
            return
        port = None if function.parent is None else self.functions[function.parent]
        link = join_ends(function.link, LinkEnd() if port is None else port.link)
        rate = link.bytes_per_second if kind is LinkKind.PCIE else None
        self.links.append(
            Link(
                a=name,
                b=above,
                kind=kind,
                width=link.width,
                speed=speed_text(link.speed),
                best_width=link.best_width,
                best_speed=speed_text(link.best_speed),
                bandwidth_bytes_per_second=rate,
                bandwidth_source=None if rate is None else BandwidthSource.NEGOTIATED,
                state=link.state,
            )
        )

    def join_sockets(self, cpus: Mapping[int, Cpu], numa: Sequence[NumaNode], warnings: list[str]) -> None:
        """Link every host bridge to the socket it is part of, where the kernel tells or there is only one."""
        nodes = {n.number: n for n in numa}
        homeless = []
        for name, vertex in self._hosts.items():
            if any(link.a == vertex for link in self.links):  # it is behind a function of another host bridge
                continue
            top = [f for f in self.functions.values() if f.host_bridge == name and f.parent is None]
            sockets = _sockets(top, cpus, nodes)
            if len(sockets) == 1:
                self.links.append(Link(a=vertex, b=f"{self.node}/socket{sockets.pop()}", kind=LinkKind.PCIE))
            else:
                homeless.append(name)
        if homeless:
            warnings.append(f"sysfs does not tell the socket of {', '.join(homeless)}: drawn beside the sockets")

    def _vertex(self, kind: VertexKind, *, name: str | None = None, bus_id: str | None = None) -> str:
        number = self._counts.get(kind, 0)
        self._counts[kind] = number + 1
        vertex = Vertex(
            id=f"{self.node}/{_NAMES[kind]}{number}", kind=kind, node=self.node, name=name, pci_bus_id=bus_id
        )
        self.vertices.append(vertex)
        return vertex.id

    def _bridge(self, bridge: Function) -> None:
        above = self.above(bridge)
        kind = _KINDS.get(bridge.port_type or PortType.BRIDGE)
        if kind is None and above is not None:  # a downstream port is part of its switch
            self._bridges[bridge.bus_id] = above
            return
        vertex = self._vertex(kind or VertexKind.PCI_BRIDGE, bus_id=bridge.bus_id)
        self._bridges[bridge.bus_id] = vertex
        if kind is VertexKind.ROOT_PORT and above is not None:
            self.links.append(Link(a=vertex, b=above, kind=LinkKind.PCIE))  # both are in the same chip
        else:
            self.hang(vertex, bridge)

    def _with_ports(self, vertex: Vertex) -> Vertex:
        ports = tuple(
            f.bus_id
            for f in self.functions.values()
            if f.port_type is PortType.DOWNSTREAM_PORT and self._bridges[f.bus_id] == vertex.id
        )
        return vertex.model_copy(update={"ports": ports}) if ports else vertex

    def _join_nested_hosts(self) -> None:
        """A host bridge behind a function (a VMD controller's) hangs where that function hangs."""
        for name, vertex in self._hosts.items():
            inside = next(f for f in self.functions.values() if f.host_bridge == name)
            before = inside.folder.split("/")
            before = before[: before.index(name)]
            controller = next((part for part in reversed(before) if BUS_ID.match(part)), None)
            function = self.functions.get(controller or "")
            above = None if function is None else self.above(function)
            if above is not None:
                self.links.append(Link(a=vertex, b=above, kind=LinkKind.PCIE))


def _sockets(top: Sequence[Function], cpus: Mapping[int, Cpu], numa: Mapping[int, NumaNode]) -> set[int]:
    """The sockets that functions right below a host bridge say they are near: by NUMA node, else by processors.

    What hangs deeper inherits from there; where it says something else, firmware or a driver made it up.
    """
    told = {f.numa_node for f in top if f.numa_node in numa}
    near = {cpus[c].socket for number in told if number is not None for c in numa[number].cpus}
    if not near:
        lists = [f.local_cpus for f in top if f.local_cpus]
        near = {cpus[c].socket for local in lists for c in local if c in cpus}
    return near or {c.socket for c in cpus.values()}
