"""Memory of NUMA nodes: how much there is and is free, and where pages were found.

    devices/system/node/node*/{meminfo,numastat}

numastat counts pages (Documentation/admin-guide/numastat.rst): `numa_miss` of a node are pages that a task got there
although it wanted them elsewhere, `numa_foreign` those that it wanted there and got elsewhere.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from observatory.model.observation import Address, AddressKind, Observation, Seen
from observatory.receivers.errors import ReceiverFailed, ReceiverUnavailable
from observatory.receivers.polled_files import FolderWatch, PolledFile, PolledFiles
from observatory.receivers.protocol import ReceiverContext
from observatory.topology.importers.sysfs.numa import BASE
from observatory.topology.importers.sysfs.tree import SysfsTree

_RESCAN_SECONDS = 5.0
_MEMORY = {
    "numa.memory.limit": re.compile(rb"\bMemTotal:\s+(\d{1,18}) kB"),
    "numa.memory.free": re.compile(rb"\bMemFree:\s+(\d{1,18}) kB"),
}
_PAGES = {
    "numa_hit": "hit",
    "numa_miss": "miss",
    "numa_foreign": "foreign",
    "interleave_hit": "interleave_hit",
    "local_node": "local",
    "other_node": "other",
}
_ALLOCATION = re.compile(rb"^(\w{1,32}) (\d{1,20})$", re.MULTILINE)


@dataclass(slots=True)
class _Node:
    subject: Address
    meminfo: PolledFile
    numastat: PolledFile


class Numa:
    """The NUMA nodes of one machine."""

    name: ClassVar[str] = "numa"
    period_seconds: ClassVar[float] = 1.0

    def __init__(self) -> None:
        self._files: PolledFiles | None = None
        self._nodes: list[_Node] = []

    async def open(self, context: ReceiverContext) -> None:
        """Find the nodes."""
        self._context = context
        self._folder = context.root / "sys" / BASE
        self._watch = FolderWatch([self._folder], _RESCAN_SECONDS)
        self._scan()
        if not self._nodes:
            raise ReceiverUnavailable(f"{self._folder} shows no NUMA node", mend="a kernel without NUMA shows none")

    async def poll(self) -> Sequence[Seen]:
        """Every node's memory and allocations."""
        if self._watch.has_changed():
            self._scan()
        if not self._nodes:
            raise ReceiverFailed(f"{self._folder} shows no NUMA node any more")
        seen: list[Seen] = []
        for node in self._nodes:
            meminfo = node.meminfo.read() or b""
            numastat = node.numastat.read() or b""
            now_ns = time.monotonic_ns()
            for metric, pattern in _MEMORY.items():
                found = pattern.search(meminfo)
                value = None if found is None else int(found[1]) * 1024.0
                seen.append(Observation(node.subject, metric, value, now_ns, self.name))
            seen += [
                Observation(node.subject, "numa.allocations", pages, now_ns, self.name, {"numa.kind": kind})
                for kind, pages in allocations(numastat).items()
            ]
        return seen

    async def close(self) -> None:
        """Close the files."""
        if self._files is not None:
            self._files.close()
            self._files = None
        self._nodes = []

    def _scan(self) -> None:
        if self._files is not None:
            self._files.close()
        files = self._files = PolledFiles(self._context.root)
        self._nodes = [
            _Node(
                Address(self._context.node, AddressKind.NUMA, str(number)),
                files.file(f"sys/{BASE}/node{number}/meminfo"),
                files.file(f"sys/{BASE}/node{number}/numastat"),
            )
            for number in SysfsTree(self._context.root / "sys").numbered(BASE, "node")
        ]


def allocations(numastat: bytes) -> dict[str, float]:
    """Pages by kind; what is no line of a numastat is passed over."""
    found = {match[1].decode(): float(match[2]) for match in _ALLOCATION.finditer(numastat)}
    return {kind: found[name] for name, kind in _PAGES.items() if name in found}
