"""This machine from sysfs: sockets, NUMA nodes, caches, PCI buses, network cards, disks, accelerators, CXL memory.

Read below `$SYSFS_ROOT` (default `/sys`), so that a recorded tree works as well; each part by a module of
`observatory.topology.importers.sysfs`, which names its files. What sysfs does not tell (latencies, bandwidths between
NUMA nodes, a card's engines) is unknown; the firmware's relative NUMA distance is kept as `numa_distance` of the link.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from observatory.model.device import Device, DeviceKind, Engine, EngineKind
from observatory.model.hardware import NumaNode
from observatory.model.link import Link, LinkKind
from observatory.model.topology import Node, Topology, Vertex, VertexKind
from observatory.topology.errors import MachineUnreadable
from observatory.topology.importers.sysfs.buses import PciBuses
from observatory.topology.importers.sysfs.caches import read_caches
from observatory.topology.importers.sysfs.cpus import Cpu, cpu_name, read_cpus
from observatory.topology.importers.sysfs.cxl import CxlMemory, read_cxl_memory
from observatory.topology.importers.sysfs.endpoints import Endpoints
from observatory.topology.importers.sysfs.numa import read_numa_nodes
from observatory.topology.importers.sysfs.pci import Function, read_functions
from observatory.topology.importers.sysfs.pci_names import DATABASES
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
    tree = SysfsTree(root)
    warnings: list[str] = []
    cpus = read_cpus(tree, warnings)
    if not cpus:
        reasons = tree.warnings()
        raise MachineUnreadable(
            f"the machine's description cannot be read: {root}/devices/system/cpu shows no processors"
            + (f" ({'; '.join(reasons)})" if reasons else ""),
            mend="set SYSFS_ROOT to a sysfs tree, or give a topology file",
        )
    numa = read_numa_nodes(tree, NODE, tuple(cpus), warnings)
    processors = _Processors(cpus, numa, cpu_name(tree), warnings)
    functions = read_functions(tree)
    buses = PciBuses(functions, NODE)
    endpoints = Endpoints(tree, functions, buses, NODE, pci_databases)
    memories, memory_links = _memories(read_cxl_memory(tree), functions, buses, numa, processors.devices, warnings)
    buses.join_sockets(cpus, numa, warnings)
    return Topology(
        name="real",
        provenance="measurement",
        sources=(str(root),),
        nodes=(Node(id=NODE),),
        devices=(*processors.devices, *endpoints.devices, *memories),
        vertices=(*processors.vertices, *buses.vertices, *endpoints.vertices),
        links=(*processors.links, *buses.links, *endpoints.links, *memory_links),
        numa_nodes=numa,
        caches=read_caches(tree, NODE, cpus),
        pci_functions=endpoints.functions({d.pci_bus_id: d.id for d in memories if d.pci_bus_id}),
        warnings=(*warnings, *tree.warnings()),
    )


class _Processors:
    """Devices of kind cpu, one for every pair of socket and NUMA node that share processors; sockets, dies, links."""

    def __init__(
        self, cpus: Mapping[int, Cpu], numa: Sequence[NumaNode], name: str | None, warnings: list[str]
    ) -> None:
        self.devices: list[Device] = []
        self.links: list[Link] = []
        self.vertices: list[Vertex] = []
        self._sockets: dict[str, int] = {}
        sockets = sorted({c.socket for c in cpus.values()})
        self.vertices += [Vertex(id=f"{NODE}/socket{s}", kind=VertexKind.SOCKET, node=NODE) for s in sockets]
        dies = self._make_dies(cpus, sockets)
        for numa_node in numa:
            here = [s for s in sockets if any(cpus[c].socket == s for c in numa_node.cpus)]
            if len(here) > 1 and numa_node.memory_bytes is not None:
                listed = ", ".join(map(str, here))
                warnings.append(f"NUMA node {numa_node.number} spans sockets {listed}: its memory is given to neither")
            for socket in here:
                mine = [cpus[c] for c in numa_node.cpus if cpus[c].socket == socket]
                self._device(numa_node, socket, mine, name, whole=len(here) == 1)
                above = [dies[socket, c.die] for c in mine if (socket, c.die) in dies] or [f"{NODE}/socket{socket}"]
                device = self.devices[-1].id
                self.links += [Link(a=device, b=b, kind=LinkKind.MEMORY) for b in dict.fromkeys(above)]
        self._join_numa_nodes(numa)
        if len(self.devices) > 1:
            warnings.append("sysfs tells no bandwidth and no latency between NUMA nodes: only relative distances")

    def _make_dies(self, cpus: Mapping[int, Cpu], sockets: Sequence[int]) -> dict[tuple[int, int | None], str]:
        """A vertex for every die of the sockets that have several."""
        found: dict[tuple[int, int | None], str] = {}
        for socket in sockets:
            dies = {c.die for c in cpus.values() if c.socket == socket and c.die is not None}
            for die in sorted(dies) if len(dies) > 1 else ():
                vertex = Vertex(id=f"{NODE}/die{len(found)}", kind=VertexKind.DIE, node=NODE)
                found[socket, die] = vertex.id
                self.vertices.append(vertex)
                self.links.append(Link(a=vertex.id, b=f"{NODE}/socket{socket}", kind=LinkKind.MEMORY))
        return found

    def _device(self, numa: NumaNode, socket: int, cpus: Sequence[Cpu], name: str | None, *, whole: bool) -> None:
        device = Device(
            id=f"{NODE}/cpu{len(self.devices)}",
            kind=DeviceKind.CPU,
            node=NODE,
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
        links += _to_nearest(
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
        links += _to_nearest(device.id, nodes[number], processors, LinkKind.MEMORY)
        twice = " or which device on the CXL bus it is" if cxl else ""
        warnings.append(
            f"NUMA node {number} has memory and no processors: sysfs does not tell whether that is CXL, high-bandwidth"
            f" or a GPU's memory{twice}; shown as {device.id}"
        )
    return devices, links


def _to_nearest(memory: str, node: NumaNode | None, processors: Sequence[Device], kind: LinkKind) -> list[Link]:
    """Links to the CPU devices that are nearest by the firmware's distance; none when it tells no distances."""
    if node is None:
        return []
    told = {p.id: node.distances[p.numa_node] for p in processors if p.numa_node in node.distances}
    least = min(told.values(), default=None)
    return [Link(a=memory, b=p, kind=kind, numa_distance=d) for p, d in told.items() if d == least]
