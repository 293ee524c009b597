"""Which thing of the topology an address means, what it belongs to, and what is joined to it.

Without a topology every address stands for itself, in words; NVLinks still belong to their GPU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Protocol

from observatory.model.link import LinkKind
from observatory.model.observation import Address, AddressKind
from observatory.model.topology import Topology, VertexKind

Resolver = Callable[[Address], str | None]

_SWITCHES = frozenset({VertexKind.SWITCH, VertexKind.PCIE_SWITCH, VertexKind.NVSWITCH})
_BELOW = frozenset({LinkKind.PCIE, LinkKind.RDMA, LinkKind.ETHERNET, LinkKind.NVLINK, LinkKind.NETWORK})


class Subjects(Protocol):
    """What the incident watch asks about addresses."""

    def name(self, address: Address) -> str:
        """The id in the topology, else the address in words."""

    def owner(self, subject: str) -> str | None:
        """What it is a part of (the GPU of an NVLink, the port of an interface); None where that is not known."""

    def parents(self, subject: str) -> tuple[str, ...]:
        """What that subject hangs on: the switches at the end of its links, the devices that a link joins."""

    def children(self, parent: str) -> frozenset[str]:
        """Everything that names `parent` as one of its parents."""


class PlainSubjects:
    """Subjects without a topology. `owners` are given where a recording tells them."""

    def __init__(self, owners: Mapping[str, str] | None = None) -> None:
        self._owners = dict(owners or {})

    def name(self, address: Address) -> str:
        """As `Subjects.name`."""
        return str(address)

    def owner(self, subject: str) -> str | None:
        """As `Subjects.owner`."""
        found = self._owners.get(subject)
        return found if found is not None else _owner_in_words(subject)

    def parents(self, subject: str) -> tuple[str, ...]:
        """As `Subjects.parents`."""
        return ()

    def children(self, parent: str) -> frozenset[str]:
        """As `Subjects.children`."""
        return frozenset()


class TopologySubjects:
    """Subjects of a topology; `resolve` finds the id of an address, as `observatory.topology.addresses` does."""

    def __init__(self, topology: Topology, resolve: Resolver | None = None) -> None:
        self._resolve = resolve or resolver_of(topology)
        self._ids = {d.id for d in topology.devices} | {link.id for link in topology.links}
        self._parents: dict[str, tuple[str, ...]] = {}
        self._children: dict[str, set[str]] = defaultdict(set)
        self._join(topology)

    def name(self, address: Address) -> str:
        """As `Subjects.name`."""
        found = self._resolve(address)
        return str(address) if found is None else found

    def owner(self, subject: str) -> str | None:
        """As `Subjects.owner`."""
        return None if subject in self._ids else _owner_in_words(subject)

    def parents(self, subject: str) -> tuple[str, ...]:
        """As `Subjects.parents`."""
        return self._parents.get(subject, ())

    def children(self, parent: str) -> frozenset[str]:
        """As `Subjects.children`."""
        return frozenset(self._children.get(parent, ()))

    def _join(self, topology: Topology) -> None:
        switches = {v.id for v in topology.vertices if v.kind in _SWITCHES}
        devices = {d.id for d in topology.devices}
        above: dict[str, set[str]] = defaultdict(set)
        for link in topology.links:
            if link.kind not in _BELOW:
                continue
            for end, other in ((link.a, link.b), (link.b, link.a)):
                if end in switches or (end in devices and link.kind is LinkKind.NVLINK):
                    above[link.id].add(end)
                if end in switches and other in devices:
                    above[other].add(end)
        for child, parents in above.items():
            self._parents[child] = tuple(sorted(parents))
            for parent in parents:
                self._children[parent].add(child)


def resolver_of(topology: Topology) -> Resolver:
    """Finds devices by id, bus id, RDMA port and network interface, and links by id."""
    ids = {d.id for d in topology.devices} | {link.id for link in topology.links} | {n.id for n in topology.nodes}
    ids |= {v.id for v in topology.vertices}
    by_bus = {(d.node, d.pci_bus_id): d.id for d in topology.devices if d.pci_bus_id}
    by_name = {(d.node, name): d.id for d in topology.devices for name in d.os_names}

    def resolve(address: Address) -> str | None:
        if address.kind is AddressKind.NODE:
            return address.node
        if address.kind in (AddressKind.DEVICE, AddressKind.LINK):
            return address.key if address.key in ids else None
        if address.kind is AddressKind.PCI:
            return by_bus.get((address.node, address.key))
        if address.kind is AddressKind.PORT:
            return by_name.get((address.node, address.key.partition("/")[0]))
        if address.kind is AddressKind.INTERFACE:
            return by_name.get((address.node, address.key))
        return None

    return resolve


def _owner_in_words(subject: str) -> str | None:
    """Of `n0:nvlink:0000:3b:00.0/7` it is `n0:pci:0000:3b:00.0`, of `n0:nvlink:GPU-8c0d/7` it is `n0:gpu:GPU-8c0d`."""
    node, mark, rest = subject.partition(":nvlink:")
    if not mark:
        return None
    gpu = rest.rpartition("/")[0]
    return f"{node}:{'gpu' if gpu.startswith('GPU-') else 'pci'}:{gpu}"
