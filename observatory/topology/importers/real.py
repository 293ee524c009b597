"""This machine from sysfs: sockets, NUMA nodes, caches, PCI buses, network cards, disks, accelerators, CXL memory.

Read below `$SYSFS_ROOT` (default `/sys`), so that a recorded tree works as well; each part by a module of
`observatory.topology.importers.sysfs`, which names its files. What sysfs does not tell (latencies, bandwidths between
NUMA nodes, a card's engines) is unknown; the firmware's relative NUMA distance is kept as `numa_distance` of the link.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from observatory.model.device import Device, DeviceKind
from observatory.model.hardware import NumaNode
from observatory.model.link import Link, LinkKind
from observatory.model.topology import Node, Topology
from observatory.topology.errors import MachineUnreadable
from observatory.topology.importers.sysfs.buses import PciBuses
from observatory.topology.importers.sysfs.caches import read_caches
from observatory.topology.importers.sysfs.cpus import cpu_name, read_cpus
from observatory.topology.importers.sysfs.cxl import CxlMemory, read_cxl_memory
from observatory.topology.importers.sysfs.endpoints import Endpoints
from observatory.topology.importers.sysfs.numa import read_numa_nodes
from observatory.topology.importers.sysfs.pci import Function, read_functions
from observatory.topology.importers.sysfs.pci_names import DATABASES
from observatory.topology.importers.sysfs.processors import Processors, to_nearest
from observatory.topology.importers.sysfs.tree import SysfsTree

NODE = "n0"


def sysfs_root() -> Path:
    """`$SYSFS_ROOT`, or `/sys`."""
    return Path(os.environ.get("SYSFS_ROOT") or "/sys")


def read_machine(root: Path | None = None, *, pci_databases: Sequence[Path] = DATABASES) -> Topology:
    """The machine described below `root` (default `$SYSFS_ROOT`, `/sys`) as a topology with the one node `n0`.

    Files that cannot be read or make no sense are warnings. PCI functions are named from the first of `pci_databases`
    that there is, else by their numbers.

    Raises:
        MachineUnreadable: not even processors are shown there.
    """
    root = sysfs_root() if root is None else root
    return read_tree(SysfsTree(root), str(root), pci_databases=pci_databases)


def read_tree(
    tree: SysfsTree,
    root: str,
    *,
    name: str = "real",
    whole: bool = True,
    pci_databases: Sequence[Path] = DATABASES,
) -> Topology:
    """The machine that a tree describes; `root` says in messages where it is from.

    Args:
        whole: refuse a tree without processors. Otherwise what it has of cards is read alone: some record only those.

    Raises:
        MachineUnreadable: not even processors are shown there.
    """
    warnings: list[str] = []
    cpus = read_cpus(tree, warnings)
    if not cpus and whole:
        reasons = tree.warnings()
        raise MachineUnreadable(
            f"the machine's description cannot be read: {root}/devices/system/cpu shows no processors"
            + (f" ({'; '.join(reasons)})" if reasons else ""),
            mend="set SYSFS_ROOT to a sysfs tree, or give a topology file",
        )
    if not cpus:
        warnings.append("the tree shows no processors")
    numa = read_numa_nodes(tree, NODE, tuple(cpus), warnings) if cpus else ()
    processors = Processors(NODE, cpus, numa, cpu_name(tree), warnings)
    if len(processors.devices) > 1:
        warnings.append("sysfs tells no bandwidth and no latency between NUMA nodes: only relative distances")
    functions = read_functions(tree)
    buses = PciBuses(functions, NODE)
    endpoints = Endpoints(tree, functions, buses, NODE, pci_databases)
    memories, memory_links = _memories(read_cxl_memory(tree), functions, buses, numa, processors.devices, warnings)
    buses.join_sockets(cpus, numa, warnings)
    return Topology(
        name=name,
        provenance="measurement",
        sources=(root,),
        nodes=(Node(id=NODE),),
        devices=(*processors.devices, *endpoints.devices, *memories),
        vertices=(*processors.vertices, *buses.vertices, *endpoints.vertices),
        links=(*processors.links, *buses.links, *endpoints.links, *memory_links),
        numa_nodes=numa,
        caches=read_caches(tree, NODE, cpus),
        pci_functions=endpoints.functions({d.pci_bus_id: d.id for d in memories if d.pci_bus_id}),
        warnings=(*warnings, *tree.warnings()),
    )


def _memories(
    cxl: Sequence[CxlMemory],
    functions: Mapping[str, Function],
    buses: PciBuses,
    numa: Sequence[NumaNode],
    processors: Sequence[Device],
    warnings: list[str],
) -> tuple[list[Device], list[Link]]:
    """Devices of kind cxl_memory: those on the CXL bus, then NUMA nodes with memory and no processors."""
    devices: list[Device] = []
    links: list[Link] = []
    nodes = {n.number: n for n in numa}
    loose = {n.number for n in numa if not n.cpus and n.memory_bytes}
    for memory in cxl:
        function = functions.get(memory.bus_id or "")
        device = Device(
            id=f"{NODE}/cxl_memory{len(devices)}",
            kind=DeviceKind.CXL_MEMORY,
            node=NODE,
            name="CXL memory",
            numa_node=memory.numa_node,
            pci_bus_id=memory.bus_id,
            pci_id=None if function is None else function.pci_id,
            memory_bytes=memory.memory_bytes,
            os_names=(memory.name,),
        )
        devices.append(device)
        loose.discard(-1 if memory.numa_node is None else memory.numa_node)
        if function is not None:
            buses.hang(device.id, function, LinkKind.CXL)
        links += to_nearest(
            device.id, nodes.get(-1 if memory.numa_node is None else memory.numa_node), processors, LinkKind.CXL
        )
    for number in sorted(loose):
        device = Device(
            id=f"{NODE}/cxl_memory{len(devices)}",
            kind=DeviceKind.CXL_MEMORY,
            node=NODE,
            name="memory without processors",
            numa_node=number,
            memory_bytes=nodes[number].memory_bytes,
        )
        devices.append(device)
        links += to_nearest(device.id, nodes[number], processors, LinkKind.MEMORY)
        twice = " or which device on the CXL bus it is" if cxl else ""
        warnings.append(
            f"NUMA node {number} has memory and no processors: sysfs does not tell whether that is CXL, high-bandwidth"
            f" or a GPU's memory{twice}; shown as {device.id}"
        )
    return devices, links
