"""How many slots each port needs, and whether the machine has the memory for them.

A slot is free again when its slowest consumer has acknowledged it, so a port needs

    the operator's own slots + the most that any one consumer holds (look-ahead, threads) + the queue between them

of its shared size class, and the operator's own number of every other class. Below that a pipeline deadlocks.
"""

from __future__ import annotations

import mmap
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dataplane import _ring
from dataplane.assignment import PortSize
from dataplane.errors import NotEnoughMemory
from dataplane.operators.base import OutputPort

DEFAULT_QUEUE_FRAMES = 8
HUGE_PAGE_BYTES = 2 << 20
SLABS = 4  # of a large class: a slab is the least that can be given back
LARGE_CLASS_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class PortPool:
    """The pool of one port: sizes, ring capacity, and the arithmetic in words."""

    operator: str
    port: str
    sizes: tuple[PortSize, ...]
    why: str
    huge_pages: bool = False

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
    operator: str,
    port: OutputPort,
    held_by_consumers: Sequence[int],
    queue_frames: int = DEFAULT_QUEUE_FRAMES,
    huge_pages: bool = False,
) -> PortPool:
    """Pool of one port whose consumers keep that many frames each."""
    held = max(held_by_consumers, default=0)
    sizes = []
    why = port.why
    for slot_class in port.slots:
        count = least = slot_class.slot_count
        if slot_class.shared_by_consumers:
            least += held
            count = least + queue_frames
            why = f"{port.why} + {held} held by the slowest consumer + {queue_frames} queued"
        rounded = -(-slot_class.slot_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        slab_slots = -(-count // SLABS) if rounded * count >= LARGE_CLASS_BYTES else 0
        sizes.append(PortSize(slot_bytes=rounded, slot_count=count, least_slots=least, slab_slots=slab_slots))
    return PortPool(operator, port.name, tuple(sizes), why, huge_pages)


def available_bytes(root: Path = Path("/")) -> tuple[int, str]:
    """Memory that pools may take, and where that number comes from; `root` is where /proc and /sys are.

    The smallest of the kernel's MemAvailable and what is left under the limit of each control group that this process
    is in: `memory.max` (v2) or `memory.limit_in_bytes` (v1), of its own group and of those above. Pages of files that
    the kernel would give up first (`inactive_file`) count as left, as they do in MemAvailable.
    """
    return _ring.available_memory(_prefix(root))


def check_memory(pools: Sequence[PortPool], limit_bytes: int | None = None, root: Path = Path("/")) -> int:
    """Total bytes of all pools; nothing is made here.

    What 2 MB pages are free for takes no other memory. Of the rest each NUMA node has to have what is to lie on it,
    and the machine (or `limit_bytes`, if given) all of it.

    Raises:
        NotEnoughMemory: they need more, with the arithmetic.
    """
    ordinary = sum(_ordinary_bytes(pools, root).values())
    for node, need in _ordinary_bytes([_on_nodes(pool) for pool in pools], root).items():
        has = None if node is None else _ring.node_memory(node, _prefix(root))
        if has is not None and need > has[0]:
            _refuse([p for p in pools if _on_nodes(p).sizes], need, f"node{node} ({has[1]}) has", has[0])
    limit, origin = (limit_bytes, "the limit given") if limit_bytes is not None else available_bytes(root)
    if ordinary > limit:
        _refuse(pools, ordinary, f"{origin} allows", limit)
    return sum(pool.total_bytes for pool in pools)


def _refuse(pools: Sequence[PortPool], need: int, whose: str, limit: int) -> None:
    rows = "\n  ".join(pool.arithmetic() for pool in sorted(pools, key=lambda p: -p.total_bytes))
    raise NotEnoughMemory(
        f"the frame pools need {need / 1e6:.1f} MB, {whose} {limit / 1e6:.1f} MB:\n  {rows}",
        mend="use smaller frames, a preset with less look-ahead, a shorter queue, or a machine with more memory",
    )


def _prefix(root: Path) -> str:
    """As the native core puts it in front of /proc and /sys."""
    return "" if root == Path("/") else str(root)


def _on_nodes(pool: PortPool) -> PortPool:
    """Only what has to lie on some node."""
    sizes = tuple(size for size in pool.sizes if size.node is not None)
    return PortPool(pool.operator, pool.port, sizes, pool.why, pool.huge_pages)


def _ordinary_bytes(pools: Sequence[PortPool], root: Path) -> dict[int | None, int]:
    """Bytes that no free 2 MB page covers, by node."""
    needs: dict[int | None, int] = defaultdict(int)
    huge: dict[int | None, int] = {}
    for pool in pools:
        for size in pool.sizes:
            for slab_bytes in _slabs(size):
                left = huge.setdefault(size.node, _ring.free_hugetlb_bytes(size.node, _prefix(root)))
                rounded = -(-slab_bytes // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
                if pool.huge_pages and rounded <= min(left, 2 * slab_bytes):
                    huge[size.node] = left - rounded
                else:
                    needs[size.node] += slab_bytes
    return needs


def _slabs(size: PortSize) -> Iterator[int]:
    """Bytes of each slab of a class."""
    left, most = size.slot_count, size.slab_slots or size.slot_count
    while left > 0:
        yield min(most, left) * size.slot_bytes
        left -= most
