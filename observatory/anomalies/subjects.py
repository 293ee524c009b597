"""Which thing of the topology an address means, what it belongs to, and what is joined to it.

Without a topology every address stands for itself, in words; NVLinks still belong to their GPU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Protocol

from observatory.model.link import LinkKind
from observatory.model.observation import Address, AddressKind
from observatory.model.topology import Topology, VertexKind

_SWITCHES = frozenset({VertexKind.SWITCH, VertexKind.PCIE_SWITCH, VertexKind.NVSWITCH})
_BELOW = frozenset({LinkKind.PCIE, LinkKind.RDMA, LinkKind.ETHERNET, LinkKind.NVLINK, LinkKind.NETWORK})
_BY_LINK = frozenset({AddressKind.PORT, AddressKind.INTERFACE, AddressKind.NVLINK, AddressKind.LINK})


class Place(Protocol):
    """A thing of the topology."""

    @property
    def id(self) -> str:
        """Its id."""


class Book(Protocol):
    """Finds things of a topology by address (`observatory.topology.addresses.AddressBook`)."""

    def place(self, address: Address, attributes: Mapping[str, str] | None = None) -> Place | None:
        """What the address names."""

    def link(self, address: Address, attributes: Mapping[str, str] | None = None) -> str | None:
        """The link that a measurement of a link at this address is about."""

    def leads_down(self, address: Address) -> bool:
        """Whether it is a port by which a PCI Express switch leads to what is below it."""


class Subjects(Protocol):
    """What the incident watch asks about addresses."""

    def name(self, address: Address, attributes: Mapping[str, str] | None = None) -> str:
        """The id in the topology, else the address in words."""

    def link(self, subject: str) -> str:
        """The link of a device that troubles of its bus are troubles of; the subject itself where none is known."""

    def owner(self, subject: str) -> str | None:
        """What it is a part of (the GPU of an NVLink, the port of an interface); None where that is not known."""

    def parents(self, subject: str) -> tuple[str, ...]:
        """What that subject hangs on: the switches at the end of its links, the devices that a link joins."""

    def children(self, parent: str) -> frozenset[str]:
        """Everything that names `parent` as one of its parents."""

    def is_device(self, name: str) -> bool:
        """Whether that is a device, and no switch or link."""


class PlainSubjects:
    """Subjects without a topology. `owners` are given where a recording tells them."""

    def __init__(self, owners: Mapping[str, str] | None = None) -> None:
        self._owners = dict(owners or {})

    def name(self, address: Address, attributes: Mapping[str, str] | None = None) -> str:
        """The address in words."""
        return str(address)

    def link(self, subject: str) -> str:
        """The subject itself."""
        return subject

    def owner(self, subject: str) -> str | None:
        """As `Subjects.owner`."""
        found = self._owners.get(subject)
        return found if found is not None else _owner_in_words(subject)

    def parents(self, subject: str) -> tuple[str, ...]:
        """None are known."""
        return ()

    def children(self, parent: str) -> frozenset[str]:
        """None are known."""
        return frozenset()

    def is_device(self, name: str) -> bool:
        """None is known."""
        return False


class TopologySubjects:
    """Subjects of a topology.

    Ports and NVLinks stand for the link at them where it is known, as one card may have several; else they have the
    name of the card and their own: `n0/nic0:mlx5_0/1`. All other addresses stand for the device, switch or node, so
    that everything told of a GPU comes together whatever it was called.
    """

    def __init__(self, topology: Topology, book: Book) -> None:
        self._book = book
        self._owners: dict[str, str] = {}
        self._links: dict[str, str] = {}
        self._parents: dict[str, tuple[str, ...]] = {}
        self._children: dict[str, set[str]] = defaultdict(set)
        self._devices = {d.id for d in topology.devices}
        self._join(topology)

    def name(self, address: Address, attributes: Mapping[str, str] | None = None) -> str:
        """As `Subjects.name`."""
        link = self._book.link(address, attributes)
        place = self._book.place(address, attributes)
        if address.kind in _BY_LINK or self._book.leads_down(address):
            if link is not None:
                return link
            if place is None:
                return str(address)
            name = f"{place.id}:{address.key}"
            self._owners[name] = place.id
            return name
        name = str(address) if place is None else place.id
        if link is not None:
            self._links[name] = link
        return name

    def link(self, subject: str) -> str:
        """As `Subjects.link`."""
        return self._links.get(subject, subject)

    def owner(self, subject: str) -> str | None:
        """As `Subjects.owner`."""
        found = self._owners.get(subject)
        return found if found is not None else _owner_in_words(subject)

    def parents(self, subject: str) -> tuple[str, ...]:
        """As `Subjects.parents`."""
        return self._parents.get(subject, ())

    def children(self, parent: str) -> frozenset[str]:
        """As `Subjects.children`."""
        return frozenset(self._children.get(parent, ()))

    def is_device(self, name: str) -> bool:
        """As `Subjects.is_device`."""
        return name in self._devices

    def _join(self, topology: Topology) -> None:
        switches = {v.id for v in topology.vertices if v.kind in _SWITCHES}
        devices = self._devices
        above: dict[str, set[str]] = defaultdict(set)
        for link in topology.links:
            if link.kind not in _BELOW:
                continue
            for end, other in ((link.a, link.b), (link.b, link.a)):
                if end in switches or end in devices:
                    above[link.id].add(end)
                if end in switches and other in devices:
                    above[other].add(end)
        for child, parents in above.items():
            self._parents[child] = tuple(sorted(parents))
            for parent in parents:
                self._children[parent].add(child)


def _owner_in_words(subject: str) -> str | None:
    """Of `n0:nvlink:0000:3b:00.0/7` it is `n0:pci:0000:3b:00.0`, of `n0:nvlink:GPU-8c0d/7` it is `n0:gpu:GPU-8c0d`."""
    node, mark, rest = subject.partition(":nvlink:")
    if not mark:
        return None
    gpu = rest.partition("/")[0]
    return f"{node}:{'gpu' if gpu.startswith('GPU-') else 'pci'}:{gpu}"
