"""How many slots each port needs, and whether the machine has the memory for them.

A slot is free again when its slowest consumer has acknowledged it, so a port needs

    the operator's own slots + the most that any one consumer holds (look-ahead, threads) + the queue between them

of its shared size class, and the operator's own number of every other class. Below that a pipeline deadlocks.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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


def available_bytes() -> tuple[int, str]:
    """Memory that pools may take, and where that number comes from.

    The smaller of the kernel's MemAvailable and what is left under the cgroup v2 `memory.max` of this process.
    """
    available, origin = int(psutil.virtual_memory().available), "MemAvailable"
    group = _cgroup_folder()
    if group is not None:
        try:
            limit = (group / "memory.max").read_text().strip()
            used = int((group / "memory.current").read_text())
        except (OSError, ValueError):
            return available, origin
        if limit != "max" and int(limit) - used < available:
            return max(0, int(limit) - used), f"{group}/memory.max"
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


def _cgroup_folder() -> Path | None:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        hierarchy, _, path = line.split(":", 2)
        if hierarchy == "0":
            folder = Path("/sys/fs/cgroup") / path.lstrip("/")
            return folder if (folder / "memory.max").exists() else None
    return None
