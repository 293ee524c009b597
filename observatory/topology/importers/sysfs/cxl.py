"""CXL memory: the devices on `bus/cxl`, and the NUMA node that the kernel made of each.

    bus/cxl/devices/mem*/{ram/size,pmem/size}, region*/target*, decoder*; bus/dax/devices/*/target_node

A region of memory comes from the devices whose decoders are its targets; as a `dax` device it says which NUMA node it
became (`target_node`). `mem*/numa_node` is the node the card is plugged in at, not that of its memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from observatory.topology.importers.sysfs.pci import bus_id_in
from observatory.topology.importers.sysfs.tree import SysfsTree

BASE = "bus/cxl/devices"
_MEMORY = re.compile(r"mem\d+\Z")
_REGION = re.compile(r"region\d+\Z")
_ENDPOINT = re.compile(r"endpoint\d+\Z")


@dataclass(frozen=True, slots=True)
class CxlMemory:
    """One CXL memory device. `numa_node` is what its memory became; None when it became none, or several."""

    name: str
    bus_id: str | None
    memory_bytes: int | None
    numa_node: int | None


def read_cxl_memory(tree: SysfsTree) -> list[CxlMemory]:
    """The CXL memory devices, by name; empty where the kernel has no CXL bus."""
    names = [name for name in tree.names(BASE) if _MEMORY.match(name)]
    nodes = _numa_nodes(tree) if names else {}
    found = []
    for name in names:
        real = tree.real(f"{BASE}/{name}")
        became = nodes.get(name, set())
        found.append(
            CxlMemory(
                name=name,
                bus_id=None if real is None else bus_id_in(real),
                memory_bytes=_size(tree, name),
                numa_node=next(iter(became)) if len(became) == 1 else None,
            )
        )
    return found


def _size(tree: SysfsTree, name: str) -> int | None:
    parts = [tree.text(f"{BASE}/{name}/{kind}/size") for kind in ("ram", "pmem")]
    sizes = [tree.hexadecimal(f"{BASE}/{name}/{kind}/size") for kind in ("ram", "pmem")]
    return None if all(p is None for p in parts) else sum(s or 0 for s in sizes) or None


def _numa_nodes(tree: SysfsTree) -> dict[str, set[int]]:
    """Memory device -> NUMA nodes that regions with memory of it became."""
    found: dict[str, set[int]] = {}
    for dax in tree.names("bus/dax/devices"):
        real = tree.real(f"bus/dax/devices/{dax}") or ""
        region = next((part for part in real.split("/") if _REGION.match(part)), None)
        home = tree.real(f"{BASE}/{region}") if region else None
        if region is None or home is None or not real.startswith(f"{home}/"):
            continue  # memory of another kind: persistent memory has regions of the same name
        target = tree.integer(f"{real}/target_node")
        if target is None or target < 0:
            continue
        for memory in _memories_of(tree, region):
            found.setdefault(memory, set()).add(target)
    return found


def _memories_of(tree: SysfsTree, region: str) -> set[str]:
    """The memory devices behind a region: target -> its decoder -> the endpoint with that decoder -> `uport`."""
    found = set()
    for name in tree.names(f"{BASE}/{region}"):
        decoder = tree.text(f"{BASE}/{region}/{name}") if name.startswith("target") else None
        path = tree.real(f"{BASE}/{decoder}") if decoder and "/" not in decoder else None
        if path is None:
            continue
        endpoint = next((part for part in reversed(path.split("/")) if _ENDPOINT.match(part)), None)
        memory = tree.real(f"{BASE}/{endpoint}/uport") if endpoint else None
        if memory is not None:
            found.add(memory.rpartition("/")[2])
    return found
