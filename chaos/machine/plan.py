"""What one machine of a topology consists of, as its telemetry tells it: GPUs with their NVLinks, and PCI functions."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from chaos.errors import CannotEmulate
from chaos.machine.chips import NVLINK_SPEEDS_MBPS, Chip, chip_of
from chaos.machine.layout import MOST_GPUS, MOST_NVLINKS
from chaos.machine.pci_tree import PciTree, build_pci_tree
from chaos.machine.ports import with_ports
from observatory.model.device import Device
from observatory.model.link import Link, LinkKind, LinkState
from observatory.model.topology import Topology, Vertex, VertexKind

REMOTE_GPU, REMOTE_SWITCH, REMOTE_UNKNOWN = 0, 2, 255
SINGLE, MULTIPLE, HOST_BRIDGE, SAME_NODE, SYSTEM = 10, 20, 30, 40, 50
"""NVML's levels of a common ancestor."""

_SPEEDS_GT = (2.5, 5.0, 8.0, 16.0, 32.0, 64.0)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class NvlinkPlan:
    """One of a GPU's NVLinks: which link of the topology it is a part of, and where it leads."""

    link_id: str
    toward_b: bool
    peer: str
    remote_type: int
    remote_bus_id: str
    active: bool


@dataclass(frozen=True, slots=True)
class PcieLinkPlan:
    """A device's link upwards. Generations 1 to 6; None where the topology does not tell. Both as now and at best."""

    link_id: str | None
    toward_b: bool
    generation: int | None
    width: int | None
    best_generation: int | None
    best_width: int | None


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """One GPU that NVML sees, in the order in which NVML counts them."""

    device: Device
    bus_id: str
    chip: Chip
    uuid: str
    serial: str
    pcie: PcieLinkPlan
    nvlinks: tuple[NvlinkPlan, ...]


@dataclass(frozen=True, slots=True)
class MachinePlan:
    """One machine. `topology` is the one given, with the addresses that were made up."""

    node: str
    topology: Topology
    tree: PciTree
    gpus: tuple[GpuPlan, ...]
    ancestors: tuple[tuple[int, ...], ...]  # of every two GPUs
    nvlink_peers: tuple[tuple[bool, ...], ...]
    links: Mapping[str, Link]


def plan_machine(topology: Topology, node: str | None = None) -> MachinePlan:
    """One machine of a topology, the first where none is named.

    Raises:
        CannotEmulate: there is no such machine, or it has more of something than any machine.
    """
    if not topology.nodes:
        raise CannotEmulate("the topology has no machine")
    names = [n.id for n in topology.nodes]
    node = names[0] if node is None else node
    if node not in names:
        raise CannotEmulate(f"the topology has no machine {node!r}", mend=f"it has: {', '.join(names[:8])}")
    topology = with_ports(topology)
    tree = build_pci_tree(topology, node)
    addressed = tree.with_addresses(topology)
    gpus = _gpus(addressed, node, tree)
    return MachinePlan(
        node=node,
        topology=addressed,
        tree=tree,
        gpus=gpus,
        ancestors=tuple(tuple(_ancestor(tree, a, b) for b in gpus) for a in gpus),
        nvlink_peers=tuple(tuple(_joined(a, b) for b in gpus) for a in gpus),
        links={link.id: link for link in topology.links},
    )


def _gpus(topology: Topology, node: str, tree: PciTree) -> tuple[GpuPlan, ...]:
    ends = _links_by_end(topology)
    found = []
    for device in topology.devices:
        links = ends.get(device.id, [])
        chip = chip_of(device) if device.node == node else None
        if chip is None or device.pci_bus_id is None or any(link.kind is LinkKind.XGMI for link in links):
            continue
        found.append((device, device.pci_bus_id, chip, links))
    if len(found) > MOST_GPUS:
        raise CannotEmulate(f"machine {node} has {len(found)} GPUs", mend=f"emulate at most {MOST_GPUS} in one machine")
    found.sort(key=lambda item: item[1])  # NVML counts in the order of bus ids
    return tuple(
        GpuPlan(
            device=device,
            bus_id=bus_id,
            chip=chip,
            uuid=f"GPU-{uuid.uuid5(uuid.NAMESPACE_URL, f'media-observatory:{device.id}:{bus_id}')}",
            serial=str(1_300_000_000_000 + int(hashlib.sha256(device.id.encode()).hexdigest()[:9], 16)),
            pcie=pcie_link(topology, tree, bus_id),
            nvlinks=_nvlinks(topology, device, links),
        )
        for device, bus_id, chip, links in found
    )


def _links_by_end(topology: Topology) -> dict[str, list[Link]]:
    found: dict[str, list[Link]] = {}
    for link in topology.links:
        for end in (link.a, link.b):
            found.setdefault(end, []).append(link)
    return found


# -- NVLinks ---------------------------------------------------------------------------------------------------------


def nvlink_count(link: Link) -> int:
    """How many NVLinks a link of the topology is at its best; one where it does not tell."""
    return link.best_width or link.count or link.width or 1


def _nvlinks(topology: Topology, device: Device, links: list[Link]) -> tuple[NvlinkPlan, ...]:
    things: dict[str, Device | Vertex] = {d.id: d for d in topology.devices} | {v.id: v for v in topology.vertices}
    found: list[NvlinkPlan] = []
    for link in links:
        if link.kind is not LinkKind.NVLINK:
            continue
        peer = link.b if link.a == device.id else link.a
        count = nvlink_count(link)
        active = count if link.width is None else link.width
        for number in range(count):
            found.append(
                NvlinkPlan(
                    link_id=link.id,
                    toward_b=link.a == device.id,
                    peer=peer,
                    remote_type=_remote_type(things[peer]),
                    remote_bus_id=things[peer].pci_bus_id or "",
                    active=number < active and link.state is not LinkState.DOWN,
                )
            )
    if len(found) > MOST_NVLINKS:
        raise CannotEmulate(f"{device.id} has {len(found)} NVLinks", mend=f"no chip has more than {MOST_NVLINKS}")
    return tuple(found)


def _remote_type(thing: Device | Vertex) -> int:
    if isinstance(thing, Device):
        return REMOTE_GPU
    return REMOTE_SWITCH if thing.kind is VertexKind.NVSWITCH else REMOTE_UNKNOWN


def nvlink_speed_mbps(chip: Chip) -> int:
    """What NVML tells as the speed of one link of that chip."""
    return NVLINK_SPEEDS_MBPS[chip.nvlink or "4"]


def _joined(a: GpuPlan, b: GpuPlan) -> bool:
    peers = {link.peer for link in a.nvlinks}
    if a is b:
        return False
    return b.device.id in peers or bool(peers & {link.peer for link in b.nvlinks if link.remote_type == REMOTE_SWITCH})


# -- PCI Express -------------------------------------------------------------------------------------------------------


def pcie_link(topology: Topology, tree: PciTree, bus_id: str) -> PcieLinkPlan:
    """The link upwards from a function, as the topology has it."""
    function = tree.functions[bus_id]
    link = next((link for link in topology.links if link.id == function.link_id), None)
    if link is None:
        return PcieLinkPlan(None, True, None, None, None, None)
    return PcieLinkPlan(
        link_id=link.id,
        toward_b=link.a == function.stands_for,
        generation=generation_of(link.speed),
        width=link.width,
        best_generation=generation_of(link.best_speed or link.speed),
        best_width=link.best_width or link.width,
    )


def generation_of(speed: str | None) -> int | None:
    """5 of `32.0 GT/s`; None for a speed that PCI Express does not have."""
    match = _NUMBER.search(speed or "")
    return None if match is None or float(match[0]) not in _SPEEDS_GT else _SPEEDS_GT.index(float(match[0])) + 1


def speed_of(generation: int) -> float:
    """32.0 (GT/s) of 5."""
    return _SPEEDS_GT[generation - 1]


def _ancestor(tree: PciTree, a: GpuPlan, b: GpuPlan) -> int:
    if a is b:
        return 0
    above = [f.bus_id for f in tree.above(a.bus_id)], [f.bus_id for f in tree.above(b.bus_id)]
    common = next((bus_id for bus_id in above[0] if bus_id in above[1]), None)
    if common is not None:
        # One switch is two bridges deep: the downstream port, then the upstream port that both share.
        return SINGLE if max(chain.index(common) for chain in above) <= 1 else MULTIPLE
    first, second = tree.functions[a.bus_id], tree.functions[b.bus_id]
    if first.host_bridge == second.host_bridge:
        return HOST_BRIDGE
    return SAME_NODE if first.numa_node is not None and first.numa_node == second.numa_node else SYSTEM
