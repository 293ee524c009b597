"""hwloc's XML, versions 1 to 3: what `lstopo FILE.xml` writes.

Objects as in hwloc's hwloc2.dtd and, for version 1, hwloc.dtd. What changed between versions is told apart here:
packages are called Socket and caches Cache in version 1, distances are inside objects there, and OS devices are
counted by kind up to version 2 and marked by bits from version 3 on. `pci_link_speed` is in GB/s, of one direction, as
the link runs; 0 means that it is not known. Distances called NVLinkBandwidth and XGMIBandwidth are in MB/s.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from observatory.model.hardware import Cache, CacheKind, NumaNode
from observatory.model.topology import Topology, Vertex, VertexKind
from observatory.topology.importers.building import TopologyBuilder
from observatory.topology.importers.hwloc_devices import HwlocDevices
from observatory.topology.importers.hwloc_objects import HwlocObject, bits, number, walk
from observatory.topology.importers.source import Format, Source
from observatory.topology.importers.sysfs.cpus import Cpu
from observatory.topology.importers.sysfs.processors import Processors
from observatory.topology.importers.xml_tree import Element, read_xml, root_name

_PACKAGES = ("Package", "Socket")
_CACHE = re.compile(r"L([1-5])(i?)Cache\Z")
_CACHE_KINDS = {"0": CacheKind.UNIFIED, "1": CacheKind.DATA, "2": CacheKind.INSTRUCTION}


def _read(source: Source) -> Topology:
    root = read_xml(source)
    machines = [e for e in root.children if e.tag == "object"]
    if not machines:
        source.fail("has no <object>", root.line, "lstopo FILE.xml writes whole files")
    version = root.get("version") or "1"
    found = _Found()
    objects = list(walk(machines[0], version))
    for thing in objects:
        found.see(thing)
    build = TopologyBuilder(source, name="hwloc")
    if len(machines) > 1:
        build.warn("several machines in one file: only the first is read")
    hostname = next((i.get("value") for i in _infos(root, machines[0]) if i.get("name") == "HostName"), None)
    node = build.node(hostname)
    _processors(build, node, found, _distances(root, machines[0], found))
    HwlocDevices(build, node, objects, found.sockets).add(root)
    return build.build()


def _infos(root: Element, machine: Element) -> list[Element]:
    return [*root.of("info"), *machine.of("info")]


@dataclass
class _Found:
    """What the objects say of processors and memory."""

    cpus: dict[int, Cpu] = field(default_factory=dict)
    sockets: dict[int, tuple[int, ...]] = field(default_factory=dict)
    numa: dict[int, tuple[Element, tuple[int, ...]]] = field(default_factory=dict)
    caches: list[tuple[int, CacheKind, int | None, tuple[int, ...]]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    memory: int | None = None

    def see(self, thing: HwlocObject) -> None:
        """Take in one object."""
        element, place = thing.element, thing.place
        if thing.kind == "PU":
            index = thing.index
            if index is not None and index not in self.cpus:
                self.cpus[index] = Cpu(index, place.package or 0, place.die, place.core or (-1 - index,))
        elif thing.kind in _PACKAGES:
            self.sockets[place.package or 0] = bits(element.get("cpuset"))
            self.names += thing.infos("CPUModel")
        elif thing.kind in ("NUMANode", "Node") and thing.index is not None:
            self.numa.setdefault(thing.index, (element, bits(element.get("cpuset"))))
        elif thing.kind in ("Machine", "System"):
            self.memory = number(element, "local_memory")
            self.names += thing.infos("CPUModel")
        elif match := _CACHE.match(thing.kind):
            kind = _CACHE_KINDS.get(element.get("cache_type") or "")
            kind = kind or (CacheKind.INSTRUCTION if match[2] else CacheKind.UNIFIED)
            self.caches.append((int(match[1]), kind, number(element, "cache_size"), bits(element.get("cpuset"))))
        elif thing.kind == "Cache" and (level := number(element, "depth")):
            kind = _CACHE_KINDS.get(element.get("cache_type") or "", CacheKind.UNIFIED)
            self.caches.append((min(level, 5), kind, number(element, "cache_size"), bits(element.get("cpuset"))))


def _distances(root: Element, machine: Element, found: _Found) -> dict[int, dict[int, int]]:
    """NUMA node -> node -> the firmware's relative distance."""
    for matrix in root.of("distances2"):
        if matrix.get("name") == "NUMALatency" and matrix.get("type") == "NUMANode":
            indexes = [int(i) for e in matrix.of("indexes") for i in e.text.split() if i.isdigit()]
            if matrix.get("indexing") != "os":
                by_gp = {number(e, "gp_index"): index for index, (e, _) in found.numa.items()}
                indexes = [by_gp.get(i, -1) or 0 for i in indexes]
            return _square(indexes, [v for e in matrix.of("u64values") for v in e.text.split()])
    for matrix in machine.of("distances"):  # version 1: by logical index, as fractions of the base
        base = float(matrix.get("latency_base") or 1) if _is_number(matrix.get("latency_base") or "1") else 1.0
        values = [e.get("value") or "" for e in matrix.of("latency")]
        whole = [str(round(float(v) * base)) if _is_number(v) else "x" for v in values]
        return _square(list(found.numa), whole)
    return {}


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text) is not None


def _square(indexes: list[int], values: list[str]) -> dict[int, dict[int, int]]:
    count = len(indexes)
    if count * count != len(values) or not all(v.isdigit() and len(v) < 10 for v in values):
        return {}
    return {a: {b: int(values[i * count + j]) for j, b in enumerate(indexes)} for i, a in enumerate(indexes)}


def _processors(build: TopologyBuilder, node: str, found: _Found, distances: dict[int, dict[int, int]]) -> None:
    """Devices of kind cpu, sockets, dies; memory of NUMA nodes whose processors belong to another node stands alone."""
    homes: dict[int, int] = {}
    for index, (_, cpus) in found.numa.items():
        for cpu in cpus:
            homes.setdefault(cpu, index)
    numa = [
        NumaNode(
            node=node,
            number=index,
            cpus=tuple(c for c in found.cpus if homes.get(c) == index),
            memory_bytes=number(element, "local_memory"),
            distances=distances.get(index, {}),
        )
        for index, (element, _) in sorted(found.numa.items())
    ]
    homeless = tuple(sorted(c for c in found.cpus if c not in homes))
    if homeless and not numa:
        numa = [NumaNode(node=node, number=0, cpus=homeless, memory_bytes=found.memory or None)]
    elif homeless:
        build.warn(f"{len(homeless)} processors are in no NUMA node: counted to the first")
        numa[0] = numa[0].model_copy(update={"cpus": tuple(sorted({*numa[0].cpus, *homeless}))})
    warnings: list[str] = []
    name = found.names[0] if found.names else None
    processors = Processors(node, found.cpus, numa, name, warnings)
    build.adopt(processors.devices, processors.vertices, processors.links, warnings)
    for package in sorted(found.sockets):  # of some the processors are not told: offline, or kept from this process
        if f"{node}/socket{package}" not in build.vertices:
            build.adopt((), (Vertex(id=f"{node}/socket{package}", kind=VertexKind.SOCKET, node=node),), (), ())
    build.numa_nodes += numa
    build.caches += [
        Cache(node=node, level=level, kind=kind, size_bytes=size, cpus=cpus)
        for level, kind, size, cpus in found.caches
        if cpus
    ]
    if not found.cpus:
        build.warn("no processors are told of")
    HwlocDevices.add_memory(build, node, [(n, found.numa[n.number][0]) for n in numa if n.number in found.numa])


FORMAT = Format(
    name="hwloc",
    title="hwloc (XML of lstopo, versions 1 to 3)",
    recognise=lambda source: root_name(source) == "topology" and "<object" in source.head,
    read=_read,
)
