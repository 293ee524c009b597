"""Which device, link or vertex of a topology an address means, as receivers know the hardware.

What is not in the topology, or fits more than one thing in it, is None: an observation is never pinned on a guess.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple, TypeVar

from observatory.model.device import Device, DeviceKind
from observatory.model.link import Link, LinkKind, LinkState
from observatory.model.observation import Address, AddressKind
from observatory.model.topology import Topology, VertexKind

PEER = "link.peer"
"""Attribute of an observation: PCI bus id of what is at the other end of an NVLink."""

WIRES = frozenset({LinkKind.RDMA, LinkKind.ETHERNET, LinkKind.NETWORK})
_BUSES = frozenset({LinkKind.PCIE, LinkKind.CXL})
_ROOTS = frozenset({VertexKind.SOCKET, VertexKind.HOST_BRIDGE})
_BUS_ID = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-7]))?\Z", re.IGNORECASE)


class PlaceKind(StrEnum):
    """What an address was found to mean."""

    DEVICE = "device"
    VERTEX = "vertex"
    LINK = "link"
    NODE = "node"


class Place(NamedTuple):
    """A thing of the topology."""

    kind: PlaceKind
    id: str


BusId = tuple[int, int, int, int]
Key = TypeVar("Key")


def parse_bus_id(text: str) -> BusId | None:
    """Domain, bus, device and function in `0000:3b:00.0`, `00000000:3B:00.0`, `3b:00.0`, `10000:00:04.0`, `0000:3b:00`.

    Without a domain it is 0, without a function 0. None for what is no bus id.
    """
    match = _BUS_ID.match(text.strip())
    if match is None:
        return None
    domain, bus, device, function = match.groups(default="0")
    if int(device, 16) > 31:
        return None
    return int(domain, 16), int(bus, 16), int(device, 16), int(function)


class AddressBook:
    """Addresses of one topology. Looking one up costs a few dictionary accesses."""

    def __init__(self, topology: Topology) -> None:
        self._nodes: dict[str, str] = {}
        for node in topology.nodes:
            self._nodes.setdefault(node.id, node.id)
        for node in topology.nodes:
            if node.hostname is not None:
                self._nodes.setdefault(node.hostname, node.id)
        self._devices = {d.id: d for d in topology.devices}
        self._vertices = {v.id: v for v in topology.vertices}
        self._links = {link.id: link for link in topology.links}
        self._touching: dict[str, list[Link]] = {}
        for link in topology.links:
            self._touching.setdefault(link.a, []).append(link)
            self._touching.setdefault(link.b, []).append(link)
        self._by_bus: dict[tuple[str | None, BusId], str | None] = {}
        self._below: dict[tuple[str | None, BusId], str | None] = {}  # port of a switch that leads down -> the link
        self._by_name: dict[tuple[str, AddressKind, str], str | None] = {}
        self._uplinks = self._find_uplinks(topology)
        self._read_buses(topology)
        for device in topology.devices:
            self._read_names(device)
        self._read_processors(topology)

    # -- looking up ----------------------------------------------------------------------------------------------

    def place(self, address: Address, attributes: Mapping[str, str] | None = None) -> Place | None:
        """What the address names: an NVLink is a link, a port or a PCI function the device or switch it is part of."""
        node = self._nodes.get(address.node)
        match address.kind:
            case AddressKind.NODE:
                return None if node is None else Place(PlaceKind.NODE, node)
            case AddressKind.LINK:
                return Place(PlaceKind.LINK, address.key) if address.key in self._links else None
            case AddressKind.NVLINK:
                link = self.link(address, attributes)
                return None if link is None else Place(PlaceKind.LINK, link)
        name = self._name(address, node)
        if name is None:
            return None
        return Place(PlaceKind.DEVICE if name in self._devices else PlaceKind.VERTEX, name)

    def link(self, address: Address, attributes: Mapping[str, str] | None = None) -> str | None:
        """The link that a measurement of a link at this address is about.

        Of a PCI function (also named by the device or the GPU's UUID) it is the bus link that leads up from it, of a
        switch's port that leads down the link below it, of a port or an interface of a card the cable where it is known
        which port it is at, of `busid/7` the NVLink to the peer that `attributes[PEER]` names or, without one, the only
        one that this GPU has.
        """
        node = self._nodes.get(address.node)
        match address.kind:
            case AddressKind.LINK:
                return address.key if address.key in self._links else None
            case AddressKind.NVLINK:
                return self._nvlink(address, node, (attributes or {}).get(PEER))
            case AddressKind.PORT | AddressKind.INTERFACE:
                return self._cable(address, self._name(address, node))
            case AddressKind.PCI if (port := self._port(address, node)) is not None:
                return self._below[port]
            case AddressKind.PCI | AddressKind.GPU | AddressKind.DEVICE | AddressKind.MEMORY:
                return self._uplinks.get(self._name(address, node) or "")
        return None

    def leads_down(self, address: Address) -> bool:
        """Whether it is a port by which a PCI Express switch leads to what is below it."""
        return address.kind is AddressKind.PCI and self._port(address, self._nodes.get(address.node)) is not None

    def _port(self, address: Address, node: str | None) -> tuple[str | None, BusId] | None:
        bus_id = parse_bus_id(address.key)
        return None if bus_id is None or (node, bus_id) not in self._below else (node, bus_id)

    def learn(self, address: Address, name: str) -> None:
        """From here on the address means that device or vertex: a receiver found out the UUID of a GPU. A second,
        different one makes it ambiguous.
        """
        node = self._nodes.get(address.node)
        if node is not None and (name in self._devices or name in self._vertices):
            _put(self._by_name, (node, address.kind, address.key), name)

    def _name(self, address: Address, node: str | None) -> str | None:
        """The device or vertex."""
        if address.kind is AddressKind.DEVICE:
            return address.key if address.key in self._devices or address.key in self._vertices else None
        if node is None:
            return None
        if address.kind is AddressKind.PCI:
            bus_id = parse_bus_id(address.key)
            return None if bus_id is None else self._by_bus.get((node, bus_id))
        if (node, address.kind, address.key) in self._by_name:
            return self._by_name[node, address.kind, address.key]
        if address.kind is AddressKind.PORT:  # some sources name a card's only port without its number
            card = address.key.rpartition("/")[0]
            return self._by_name.get((node, AddressKind.PORT, card)) or self._by_name.get(
                (node, AddressKind.INTERFACE, card)
            )
        return None

    def _nvlink(self, address: Address, node: str | None, peer: str | None) -> str | None:
        bus_id = parse_bus_id(address.key.partition("/")[0])
        gpu = None if bus_id is None or node is None else self._by_bus.get((node, bus_id))
        if gpu is None:
            return None
        links = [link for link in self._touching.get(gpu, ()) if link.kind is LinkKind.NVLINK]
        if peer is None or len(links) == 1:
            return links[0].id if len(links) == 1 else None
        there = parse_bus_id(peer)
        other = None if there is None else self._by_bus.get((node, there))
        return next((link.id for link in links if other is not None and other in (link.a, link.b)), None)

    def _cable(self, address: Address, name: str | None) -> str | None:
        """The only cable of a card. One of several ports is at it only where no other port of the card is up."""
        links = [link for link in self._touching.get(name or "", ()) if link.kind in WIRES]
        if len(links) != 1:
            return None
        device = self._devices.get(name or "")
        if device is None or len(device.ports) < 2:
            return links[0].id
        cabled = {port.name for port in device.ports if port.state in (LinkState.UP, LinkState.DEGRADED)}
        return links[0].id if cabled == {address.key} else None

    # -- reading the topology ------------------------------------------------------------------------------------

    def _read_buses(self, topology: Topology) -> None:
        for device in topology.devices:
            for text in (device.pci_bus_id, *device.virtual_functions):
                self._bus(device.node, text, device.id)
        for vertex in topology.vertices:
            for text in (vertex.pci_bus_id, *vertex.ports):
                self._bus(vertex.node, text, vertex.id)
            ports = [parse_bus_id(text) for text in vertex.ports]
            self._below |= {(vertex.node, port): None for port in ports if port is not None}
        told = {(f.node, f.bus_id): f for f in topology.pci_functions}
        for function in topology.pci_functions:
            card = told.get((function.node, function.physical_function or ""), function)
            if card.shown_as is not None:
                self._bus(function.node, function.bus_id, card.shown_as)
            above = None if function.parent is None else parse_bus_id(function.parent)
            if above is not None and (function.node, above) in self._below and function.shown_as is not None:
                self._below[function.node, above] = self._uplinks.get(function.shown_as)

    def _bus(self, node: str | None, text: str | None, name: str) -> None:
        bus_id = None if text is None else parse_bus_id(text)
        if bus_id is not None:
            _put(self._by_bus, (node, bus_id), name)

    def _read_names(self, device: Device) -> None:
        for name in device.os_names:
            _put(self._by_name, (device.node, AddressKind.INTERFACE, name), device.id)
            if device.kind is DeviceKind.CXL_MEMORY:
                _put(self._by_name, (device.node, AddressKind.MEMORY, name), device.id)
        for port in device.ports:
            kind = AddressKind.PORT if "/" in port.name else AddressKind.INTERFACE
            _put(self._by_name, (device.node, kind, port.name), device.id)

    def _read_processors(self, topology: Topology) -> None:
        """NUMA nodes and sockets by number. A socket's number is that of its id; without sockets, that of the CPU."""
        with_sockets = {v.node for v in topology.vertices if v.kind is VertexKind.SOCKET}
        for vertex in topology.vertices:
            number = _number(vertex.id)
            if vertex.node is not None and number is not None and vertex.kind is VertexKind.SOCKET:
                _put(self._by_name, (vertex.node, AddressKind.CPU, number), vertex.id)
            if vertex.node is not None and number is not None and vertex.kind is VertexKind.NUMA:
                _put(self._by_name, (vertex.node, AddressKind.NUMA, number), vertex.id)
        for device in topology.devices:
            number = _number(device.id)
            if device.kind is DeviceKind.CPU and device.node not in with_sockets and number is not None:
                _put(self._by_name, (device.node, AddressKind.CPU, number), device.id)
            memory = device.kind in (DeviceKind.CPU, DeviceKind.CXL_MEMORY)
            if memory and device.numa_node is not None:
                _put(self._by_name, (device.node, AddressKind.NUMA, str(device.numa_node)), device.id)

    def _find_uplinks(self, topology: Topology) -> dict[str, str]:
        """Device or switch -> the one bus link that leads from it towards a processor, else the only one it has."""
        depth = {d.id: 0 for d in topology.devices if d.kind is DeviceKind.CPU}
        depth |= {v.id: 0 for v in topology.vertices if v.kind in _ROOTS}
        level = list(depth)
        while level:
            below: list[str] = []
            for name in level:
                for other in self._across(name):
                    if other not in depth:
                        depth[other] = depth[name] + 1
                        below.append(other)
            level = below
        found = {}
        for name in (*self._devices, *self._vertices):
            buses = [link for link in self._touching.get(name, ()) if link.kind in _BUSES]
            if depth.get(name) == 0 or not buses:
                continue
            if name in depth:
                buses = [link for link in buses if depth[link.b if link.a == name else link.a] < depth[name]]
            if len(buses) == 1:
                found[name] = buses[0].id
        return found

    def _across(self, name: str) -> list[str]:
        """What is at the other ends of its bus links."""
        links = [link for link in self._touching.get(name, ()) if link.kind in _BUSES]
        return [link.b if link.a == name else link.a for link in links]


def _put(table: dict[Key, str | None], key: Key, name: str) -> None:
    """Two things of one name: the name means neither."""
    table[key] = name if table.get(key, name) == name else None


def _number(name: str) -> str | None:
    """The digits at the end."""
    digits = name[len(name.rstrip("0123456789")) :]
    return digits or None


def pci_address(node: str, bus_id: str) -> Address:
    """The address of a PCI function in its one spelling: lower case, a domain of four digits unless it needs more."""
    parsed = parse_bus_id(bus_id)
    if parsed is None:
        return Address(node, AddressKind.PCI, bus_id.strip().lower())
    domain, bus, device, function = parsed
    width = 4 if domain <= 0xFFFF else 8
    return Address(node, AddressKind.PCI, f"{domain:0{width}x}:{bus:02x}:{device:02x}.{function}")
