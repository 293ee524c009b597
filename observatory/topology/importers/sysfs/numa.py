"""NUMA nodes: processors, memory, and the firmware's relative distances.

    devices/system/node/online, node*/{cpulist,cpumap,meminfo,distance}

A kernel without NUMA shows none; the memory of such a machine is in its `/proc/meminfo`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from observatory.model.hardware import NumaNode
from observatory.topology.cpulist import format_cpulist
from observatory.topology.importers.sysfs.tree import SysfsTree, parse_integer

BASE = "devices/system/node"
_MEMORY = re.compile(r"MemTotal:\s+(\d{1,18}) kB")


def read_numa_nodes(tree: SysfsTree, node: str, online: Sequence[int], warnings: list[str]) -> tuple[NumaNode, ...]:
    """The kernel's NUMA nodes in order; one that holds everything where the kernel shows none."""
    numbers = tree.online(BASE, "node")
    if not numbers:
        whole = _memory_bytes(tree.process_text("meminfo"))
        warnings.append("the kernel shows no NUMA nodes: one is assumed" + ("" if whole else ", its memory is unknown"))
        return (NumaNode(node=node, number=0, cpus=tuple(online), memory_bytes=whole),)
    here = set(online)
    found = [_numa_node(tree, node, number, numbers, here) for number in numbers]
    found = _each_in_one(found, warnings)
    homeless = here - {c for n in found for c in n.cpus}
    if homeless:
        listed = format_cpulist(tuple(sorted(homeless)))
        warnings.append(f"processors {listed} are in no NUMA node: counted to the first")
        found[0] = found[0].model_copy(update={"cpus": tuple(sorted({*found[0].cpus, *homeless}))})
    return tuple(found)


def _each_in_one(nodes: Sequence[NumaNode], warnings: list[str]) -> list[NumaNode]:
    """The nodes with every processor in the first that claims it: a thread cannot be counted twice."""
    taken: set[int] = set()
    twice: set[int] = set()
    found = []
    for node in nodes:
        twice |= taken & set(node.cpus)
        found.append(node.model_copy(update={"cpus": tuple(c for c in node.cpus if c not in taken)}))
        taken |= set(node.cpus)
    if twice:
        listed = format_cpulist(tuple(sorted(twice)))
        warnings.append(f"processors {listed} are in several NUMA nodes: counted to the first")
    return found


def _numa_node(tree: SysfsTree, node: str, number: int, numbers: Sequence[int], online: set[int]) -> NumaNode:
    folder = f"{BASE}/node{number}"
    cpus = tree.cpus(folder, "cpulist", "cpumap") or ()
    return NumaNode(
        node=node,
        number=number,
        cpus=tuple(c for c in cpus if c in online),
        memory_bytes=_memory_bytes(tree.text(f"{folder}/meminfo")),
        distances=tree.parsed(f"{folder}/distance", partial(parse_distances, numbers=numbers)) or {},
    )


def _memory_bytes(meminfo: str | None) -> int | None:
    match = _MEMORY.search(meminfo or "")
    return int(match[1]) * 1024 if match else None


def parse_distances(text: str, numbers: Sequence[int]) -> dict[int, int]:
    """By number of the other node: the kernel writes one figure for every node that is online, in their order.

    Raises:
        ValueError: there are more or fewer figures, or it is something else.
    """
    figures = [parse_integer(figure) for figure in text.split()]
    if min(figures, default=0) < 0:
        raise ValueError(f"{text!r} has a distance below 0")
    return dict(zip(numbers, figures, strict=True))
