"""Merge topologies that tell of the same machines, and say where they contradict each other.

Machines are the same by host name, by the GUID of a network port, by PCI bus ids; a source without any of these tells
of the one machine that the others tell of. The first source's word stands; what it does not know is taken from the
others. Within one machine, PCI buses and links between GPUs are drawn as the source draws them that tells most of
them: two pictures of one tree, with and without root ports, cannot be laid over each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from observatory.model.hardware import Cache, NumaNode, PciFunction
from observatory.model.topology import Node, Topology
from observatory.topology.merge.contradictions import Contradictions
from observatory.topology.merge.devices import DeviceMerge
from observatory.topology.merge.links import LinkMerge
from observatory.topology.merge.machines import Machines
from observatory.topology.merge.vertices import VertexMerge

_Told = TypeVar("_Told", NumaNode, Cache, PciFunction)


def merge_topologies(topologies: Sequence[Topology]) -> Topology:
    """One topology out of several; a single one is returned as it is.

    Contradictions are warnings that name both sources, with the value that was kept first.
    """
    if len(topologies) == 1:
        return topologies[0]
    said = Contradictions()
    machines = Machines(topologies, said)
    parts = [machines.renamed(index) for index in range(len(topologies))]
    devices = DeviceMerge(said)
    names = [devices.add(part) for part in parts]
    vertices = VertexMerge()
    for part, found in zip(parts, names, strict=True):
        found |= vertices.add(part)
    links = LinkMerge(said, devices.devices, vertices.vertices)
    links.add(parts, names)
    kept = links.used_vertices()
    told: tuple[PciFunction, ...] = _first(parts, "pci_functions")
    functions = [f.model_copy(update={"shown_as": _shown(f, parts, names)}) for f in told]
    provenances = {t.provenance for t in topologies}
    return Topology(
        name="merged",
        provenance=provenances.pop() if len(provenances) == 1 else None,
        sources=tuple(source for t in topologies for source in t.sources),
        nodes=tuple(Node(id=name, hostname=hostname) for name, hostname in machines.nodes.items()),
        devices=tuple(devices.devices.values()),
        vertices=tuple(v for v in vertices.vertices.values() if v.id in kept),
        links=links.links(),
        numa_nodes=_first(parts, "numa_nodes"),
        caches=_first(parts, "caches"),
        pci_functions=tuple(functions),
        warnings=(
            *said.warnings(),
            *(f"{', '.join(t.sources)}: {warning}" for t in topologies for warning in t.warnings),
        ),
    )


def _first(parts: Sequence[Topology], what: str) -> tuple[_Told, ...]:
    """Of every machine, what the first source that has such things has."""
    found: list[_Told] = []
    done: set[str] = set()
    for part in parts:
        mine = [thing for thing in getattr(part, what) if thing.node not in done]
        found += mine
        done |= {thing.node for thing in mine}
    return tuple(found)


def _shown(function: PciFunction, parts: Sequence[Topology], names: Sequence[dict[str, str]]) -> str | None:
    for part, found in zip(parts, names, strict=True):
        if function in part.pci_functions:
            return found.get(function.shown_as or "")
    return None
