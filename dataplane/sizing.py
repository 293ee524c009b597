"""How many slots each port needs, and whether the machine has the memory for them.

A slot is free again when its slowest consumer has acknowledged it, so a port needs

    the operator's own slots + the most that any one consumer holds (look-ahead, threads) + the queue between them

of its shared size class, and the operator's own number of every other class. Below that a pipeline deadlocks.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil

from dataplane.assignment import PortSize
from dataplane.errors import NotEnoughMemory
from dataplane.operators.base import OutputPort

DEFAULT_QUEUE_FRAMES = 8


@dataclass(frozen=True, slots=True)
class PortPool:
    """The pool of one port: sizes, ring capacity, and the arithmetic in words."""

    operator: str
    port: str
    sizes: tuple[PortSize, ...]
    why: str

    @property
    def ring_capacity(self) -> int:
        """Descriptors: as many as there are slots, so that the ring is never the tighter bound; a power of two."""
        slots = sum(size.slot_count for size in self.sizes)
        return 1 << max(3, (slots - 1).bit_length())

    @property
    def total_bytes(self) -> int:
        """Bytes of all slots, page-rounded."""
        return sum(size.slot_bytes * size.slot_count for size in self.sizes)

    def arithmetic(self) -> str:
        """One line for people: `decode.video: 12 x 1.4 MB = 16.6 MB (1 written + 7 held + 4 queued)`."""
        parts = " + ".join(f"{s.slot_count} x {s.slot_bytes / 1e6:.1f} MB" for s in self.sizes)
        return f"{self.operator}.{self.port}: {parts} = {self.total_bytes / 1e6:.1f} MB ({self.why})"


def size_port(
    operator: str, port: OutputPort, held_by_consumers: Sequence[int], queue_frames: int = DEFAULT_QUEUE_FRAMES
) -> PortPool:
    """Pool of one port whose consumers keep that many frames each."""
    held = max(held_by_consumers, default=0)
    sizes = []
    why = port.why
    for slot_class in port.slots:
        count = slot_class.slot_count
        if slot_class.shared_by_consumers:
            count += held + queue_frames
            why = f"{port.why} + {held} held by the slowest consumer + {queue_frames} queued"
        rounded = -(-slot_class.slot_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        sizes.append(PortSize(slot_bytes=rounded, slot_count=count))
    return PortPool(operator, port.name, tuple(sizes), why)


def available_bytes(root: Path = Path("/")) -> tuple[int, str]:
    """Memory that pools may take, and where that number comes from; `root` is where /proc and /sys are.

    The smallest of the kernel's MemAvailable and what is left under the limit of each control group that this process
    is in: `memory.max` (v2) or `memory.limit_in_bytes` (v1), of its own group and of those above. Pages of files that
    the kernel would give up first (`inactive_file`) count as left, as they do in MemAvailable.
    """
    available, origin = int(psutil.virtual_memory().available), "MemAvailable"
    for group, names in _memory_groups(root):
        left = _left_in(group, names)
        if left is not None and left < available:
            available, origin = left, f"{group / names.limit}"
    return available, origin


def check_memory(pools: Sequence[PortPool], limit_bytes: int | None = None) -> int:
    """Total bytes of all pools.

    Raises:
        NotEnoughMemory: they need more than `limit_bytes` (default: what is available now); with the arithmetic.
    """
    total = sum(pool.total_bytes for pool in pools)
    limit, origin = (limit_bytes, "the limit given") if limit_bytes is not None else available_bytes()
    if total > limit:
        rows = "\n  ".join(pool.arithmetic() for pool in sorted(pools, key=lambda p: -p.total_bytes))
        raise NotEnoughMemory(
            f"the frame pools need {total / 1e6:.1f} MB, {origin} allows {limit / 1e6:.1f} MB:\n  {rows}",
            mend="use smaller frames, a preset with less look-ahead, a shorter queue, or a machine with more memory",
        )
    return total


@dataclass(frozen=True, slots=True)
class _GroupFiles:
    """What a version of control groups calls its files."""

    limit: str
    used: str
    reclaimable: str  # a line of memory.stat, with what is in the groups below


_V1 = _GroupFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _GroupFiles("memory.max", "memory.current", "inactive_file")


def _memory_groups(root: Path) -> Iterator[tuple[Path, _GroupFiles]]:
    """The control groups that bound this process: its own first, and all above it."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0":
            mount, names = root / "sys/fs/cgroup", _V2
        elif "memory" in controllers.split(","):
            mount, names = root / "sys/fs/cgroup/memory", _V1
        else:
            continue
        # In a container the path may be that of the host, of which only the last part is mounted, as the root.
        group = PurePosixPath(path.lstrip("/"))
        for folder in (group, *group.parents):
            yield mount / folder, names


def _left_in(group: Path, names: _GroupFiles) -> int | None:
    """Bytes under the limit of one group; None where there is none."""
    try:
        limit = (group / names.limit).read_text().strip()
        if limit == "max":
            return None
        used = int((group / names.used).read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return max(0, int(limit) - used + int(stat.get(names.reclaimable, 0)))
    except (OSError, ValueError):
        return None
