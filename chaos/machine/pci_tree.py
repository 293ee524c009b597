"""The PCI functions of one machine of a topology: those that its source tells of, or made up where it tells of none.

A topology that was read from a machine names every function. Another one has devices and switches at best: then each
switch is an upstream port with a downstream port for everything below it, on a root port of a host bridge of its own,
as on a server. Bus ids that are not told are made up, and stay the same for the same topology.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from chaos.errors import CannotEmulate
from chaos.machine.chips import chip_of
from observatory.model.device import Device, DeviceKind
from observatory.model.link import Link, LinkKind
from observatory.model.topology import Topology, Vertex, VertexKind

BRIDGE_CLASS = "060400"
NVSWITCH_CLASS = "068000"

_CLASSES = {
    DeviceKind.GPU: "030200",
    DeviceKind.VPU: "048000",
    DeviceKind.FPGA: "120000",
    DeviceKind.ASIC: "120000",
    DeviceKind.NIC: "020700",
    DeviceKind.STORAGE: "010802",
    DeviceKind.CXL_MEMORY: "050210",
}
_IDS = {
    DeviceKind.GPU: "10de:0000",
    DeviceKind.VPU: "1d82:0101",
    DeviceKind.FPGA: "10ee:5000",
    DeviceKind.ASIC: "1de5:0000",
    DeviceKind.NIC: "15b3:1021",
    DeviceKind.STORAGE: "144d:a80a",
    DeviceKind.CXL_MEMORY: "8086:0d93",
}
_ROOT_PORT_ID, _SWITCH_ID, _NVSWITCH_ID = "8086:352a", "1000:c030", "10de:22a3"
_ROOTS = frozenset({VertexKind.SOCKET, VertexKind.DIE, VertexKind.NUMA})
_DOWNWARDS = frozenset({LinkKind.PCIE, LinkKind.CXL})
_LAST_BUS = 0xFF


@dataclass(slots=True)
class Function:
    """One function. `stands_for`: the device or vertex that it is; `link_id`: the topology's link upwards from it."""

    bus_id: str
    parent: str | None
    host_bridge: str
    class_code: str
    pci_id: str
    numa_node: int | None = None
    stands_for: str | None = None
    link_id: str | None = None
    physical_function: str | None = None

    @property
    def is_bridge(self) -> bool:
        """Whether there is a bus behind it."""
        return self.class_code.startswith("0604")


class PciTree:
    """All functions of one machine by bus id, those above before those below."""

    def __init__(self) -> None:
        self.functions: dict[str, Function] = {}
        self._names: dict[str, str] = {}

    def bus_id_of(self, name: str) -> str | None:
        """Of a device or vertex: its own, or for a switch its upstream port's."""
        return self._names.get(name)

    def add(self, function: Function) -> None:
        """Enter a function."""
        self.functions[function.bus_id] = function
        if function.stands_for is not None:
            self._names.setdefault(function.stands_for, function.bus_id)

    def above(self, bus_id: str) -> Iterator[Function]:
        """The bridges above a function, the nearest first."""
        parent = self.functions[bus_id].parent
        while parent is not None:
            function = self.functions[parent]
            yield function
            parent = function.parent

    def path(self, function: Function) -> str:
        """Below /sys: `devices/pci0000:10/0000:10:00.0/0000:11:00.0`."""
        chain = [function, *self.above(function.bus_id)]
        return "/".join(["devices", chain[-1].host_bridge, *(f.bus_id for f in reversed(chain))])

    def with_addresses(self, topology: Topology) -> Topology:
        """The topology with every bus id that was made up for it."""
        return topology.model_copy(
            update={
                "devices": tuple(self._addressed_device(device) for device in topology.devices),
                "vertices": tuple(self._addressed_vertex(vertex) for vertex in topology.vertices),
            }
        )

    def _addressed_device(self, device: Device) -> Device:
        bus_id = self.bus_id_of(device.id)
        if bus_id is None or device.pci_bus_id is not None:
            return device
        return device.model_copy(update={"pci_bus_id": bus_id})

    def _addressed_vertex(self, vertex: Vertex) -> Vertex:
        bus_id = self.bus_id_of(vertex.id)
        if bus_id is None or vertex.pci_bus_id is not None:
            return vertex
        ports = tuple(f.bus_id for f in self.functions.values() if f.parent == bus_id and f.is_bridge)
        return vertex.model_copy(update={"pci_bus_id": bus_id, "ports": ports})


def build_pci_tree(topology: Topology, node: str) -> PciTree:
    """The functions of one machine of the topology.

    Raises:
        CannotEmulate: more functions than PCI has buses.
    """
    told = [f for f in topology.pci_functions if f.node == node]
    return _told(topology, node) if told else _Synthesis(topology, node).tree


def _told(topology: Topology, node: str) -> PciTree:
    tree = PciTree()
    links = _links_upwards(topology)
    for function in topology.pci_functions:
        if function.node == node:
            tree.add(
                Function(
                    bus_id=function.bus_id,
                    parent=function.parent,
                    host_bridge=function.host_bridge or f"pci{function.bus_id[:-5]}",
                    class_code=function.class_code or "ff0000",
                    pci_id=function.pci_id or "ffff:ffff",
                    numa_node=function.numa_node,
                    stands_for=function.shown_as,
                    link_id=links.get(function.bus_id),
                    physical_function=function.physical_function,
                )
            )
    return tree


def _links_upwards(topology: Topology) -> Mapping[str, str]:
    """Bus id -> the link from that device or switch to what is above it: the one in which it is the first end."""
    bus_ids = {d.id: d.pci_bus_id for d in topology.devices} | {v.id: v.pci_bus_id for v in topology.vertices}
    found: dict[str, str] = {}
    for link in topology.links:
        bus_id = bus_ids.get(link.a)
        if bus_id is not None and link.kind in _DOWNWARDS:
            found.setdefault(bus_id, link.id)
    return found


class _Synthesis:
    """A tree for a topology that names no functions."""

    def __init__(self, topology: Topology, node: str) -> None:
        self.tree = PciTree()
        self._things: dict[str, Device | Vertex] = {d.id: d for d in topology.devices if d.node == node}
        self._things |= {v.id: v for v in topology.vertices if v.node in (node, None)}
        self._taken = {t.pci_bus_id for t in self._things.values() if t.pci_bus_id is not None}
        self._taken |= {p for v in topology.vertices for p in v.ports}
        self._taken_buses = {bus_id[:-5] for bus_id in self._taken}
        self._domain = 0
        self._bus = 0x0F
        self._neighbours: dict[str, list[tuple[str, Link]]] = {name: [] for name in self._things}
        for link in topology.links:
            if link.kind in _DOWNWARDS and link.a in self._things and link.b in self._things:
                self._neighbours[link.a].append((link.b, link))
                self._neighbours[link.b].append((link.a, link))
        self._numa = self._numa_nodes(topology)
        self._seen: set[str] = set()
        for name, thing in self._things.items():
            if self._is_root(thing):
                self._seen.add(name)
        for name in [n for n, thing in self._things.items() if self._is_root(thing)]:
            self._below_root(name)
        for name, thing in self._things.items():  # what is linked to no processor
            if name not in self._seen and self._is_on_pci(thing):
                self._place(name, None, self._host_bridge(), None, self._own_numa(thing))

    @staticmethod
    def _is_root(thing: Device | Vertex) -> bool:
        return thing.kind is DeviceKind.CPU if isinstance(thing, Device) else thing.kind in _ROOTS

    @staticmethod
    def _is_on_pci(thing: Device | Vertex) -> bool:
        if isinstance(thing, Device):
            return thing.kind in _CLASSES
        return thing.kind in (VertexKind.PCIE_SWITCH, VertexKind.NVSWITCH, VertexKind.ROOT_PORT, VertexKind.PCI_BRIDGE)

    @staticmethod
    def _own_numa(thing: Device | Vertex) -> int | None:
        return thing.numa_node if isinstance(thing, Device) else None

    def _numa_nodes(self, topology: Topology) -> dict[str, int | None]:
        """Of processors, and of the sockets that have one."""
        found = {d.id: d.numa_node for d in topology.devices if d.kind is DeviceKind.CPU}
        for link in topology.links:
            for cpu, other in ((link.a, link.b), (link.b, link.a)):
                if cpu in found and other in self._things and link.kind is LinkKind.MEMORY:
                    found.setdefault(other, found[cpu])
        return found

    # -- from the top ----------------------------------------------------------------------------------------------

    def _below_root(self, root: str) -> None:
        for name, link in self._neighbours[root]:
            if name in self._seen:
                continue
            thing = self._things[name]
            if isinstance(thing, Vertex) and thing.kind is VertexKind.HOST_BRIDGE:
                self._seen.add(name)
                host = thing.name if thing.name and thing.name.startswith("pci") else self._host_bridge()
                for below, to_below in self._neighbours[name]:
                    if below not in self._seen:
                        self._place(below, None, host, to_below, self._numa.get(root))
            else:
                self._place(name, None, self._host_bridge(), link, self._numa.get(root))

    def _place(self, name: str, parent: str | None, host: str, link: Link | None, numa: int | None) -> None:
        """A device or switch below `parent`, which is a port with room for one; on a root port where there is none."""
        thing = self._things[name]
        self._seen.add(name)
        if isinstance(thing, Device) and thing.numa_node is not None:
            numa = thing.numa_node
        is_root_port = isinstance(thing, Vertex) and thing.kind is VertexKind.ROOT_PORT
        if parent is None and not is_root_port:
            parent = self._bridge(None, host, _ROOT_PORT_ID, numa if numa is not None else self._numa_below(name))
        function = Function(
            bus_id=thing.pci_bus_id or self._bus_id(),
            parent=parent,
            host_bridge=host,
            class_code=_class_of(thing),
            pci_id=_id_of(thing),
            numa_node=numa if numa is not None else self._numa_below(name),
            stands_for=name,
            link_id=None if link is None else link.id,
        )
        self.tree.add(function)
        ports = list(thing.ports) if isinstance(thing, Vertex) else []
        for below, to_below in self._neighbours[name]:
            if below in self._seen:
                continue
            port: str | None = function.bus_id
            if isinstance(thing, Vertex) and thing.kind is VertexKind.PCIE_SWITCH:
                port = self._bridge(
                    function.bus_id, host, _SWITCH_ID, function.numa_node, ports.pop(0) if ports else None
                )
            self._place(below, port, host, to_below, function.numa_node)

    def _numa_below(self, name: str) -> int | None:
        """The NUMA node of the first device that is told to have one, of those further from the processors."""
        todo, seen = [name], set(self._seen)
        while todo:
            here = todo.pop(0)
            thing = self._things[here]
            if isinstance(thing, Device) and thing.numa_node is not None:
                return thing.numa_node
            seen.add(here)
            todo += [n for n, _ in self._neighbours[here] if n not in seen and not self._is_root(self._things[n])]
        return None

    # -- names -----------------------------------------------------------------------------------------------------

    def _bridge(self, parent: str | None, host: str, pci_id: str, numa: int | None, bus_id: str | None = None) -> str:
        """A port, as the only one on a bus of its own."""
        made = Function(bus_id or self._bus_id(), parent, host, BRIDGE_CLASS, pci_id, numa_node=numa)
        self.tree.add(made)
        return made.bus_id

    def _host_bridge(self) -> str:
        return f"pci{self._next_bus()}"

    def _bus_id(self) -> str:
        return f"{self._next_bus()}:00.0"

    def _next_bus(self) -> str:
        while True:
            self._bus += 1
            if self._bus > _LAST_BUS:
                self._domain, self._bus = self._domain + 1, 0
            if self._domain > 0xFFFF:
                raise CannotEmulate("the topology has more functions than PCI has buses")
            bus = f"{self._domain:04x}:{self._bus:02x}"
            if bus not in self._taken_buses:
                return bus


def _class_of(thing: Device | Vertex) -> str:
    if isinstance(thing, Device):
        layers = {port.link_layer for port in thing.ports}
        return "020000" if layers == {"ethernet"} else _CLASSES[thing.kind]
    return NVSWITCH_CLASS if thing.kind is VertexKind.NVSWITCH else BRIDGE_CLASS


def _id_of(thing: Device | Vertex) -> str:
    if isinstance(thing, Device):
        chip = chip_of(thing)
        if thing.pci_id is None and chip is not None:
            return f"{chip.pci_id & 0xFFFF:04x}:{chip.pci_id >> 16:04x}"
        return thing.pci_id or _IDS[thing.kind]
    if thing.kind is VertexKind.NVSWITCH:
        return _NVSWITCH_ID
    return _ROOT_PORT_ID if thing.kind is VertexKind.ROOT_PORT else _SWITCH_ID
