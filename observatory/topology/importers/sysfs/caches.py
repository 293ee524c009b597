"""Caches: level, kind, size, and the processors that share each.

    devices/system/cpu/cpu*/cache/index*/{level,type,size,shared_cpu_list,shared_cpu_map}

A cache is told once by each processor that has it: caches are the same that have one level, kind and set of processors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from observatory.model.hardware import Cache, CacheKind
from observatory.topology.importers.sysfs.cpus import BASE
from observatory.topology.importers.sysfs.tree import SysfsTree

_SIZE = re.compile(r"(\d{1,12})([KMG]?)\Z")
_UNIT = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_KINDS = {"Data": CacheKind.DATA, "Instruction": CacheKind.INSTRUCTION, "Unified": CacheKind.UNIFIED}
_ORDER = {CacheKind.UNIFIED: 0, CacheKind.DATA: 1, CacheKind.INSTRUCTION: 2}


def parse_cache_size(text: str) -> int:
    """Bytes in `32K` or `8M`.

    Raises:
        ValueError: the text has another form.
    """
    match = _SIZE.match(text)
    if match is None:
        raise ValueError(f"{text!r} is no size of a cache")
    return int(match[1]) * _UNIT[match[2]]


def parse_cache_kind(text: str) -> CacheKind:
    """What `Data`, `Instruction` or `Unified` stands for. Raises ValueError for any other text."""
    if text not in _KINDS:
        raise ValueError(f"{text!r} is no kind of a cache")
    return _KINDS[text]


def read_caches(tree: SysfsTree, node: str, online: Iterable[int]) -> tuple[Cache, ...]:
    """Every cache once: the largest level first, then by kind, then by the first processor that has it."""
    here = set(online)
    found: dict[tuple[int, CacheKind, tuple[int, ...]], Cache] = {}
    known: set[tuple[int, str]] = set()  # (processor, index): told by one that shares it, so not read again
    for number in sorted(here):
        for index in tree.names(f"{BASE}/cpu{number}/cache"):
            if not index.startswith("index") or (number, index) in known:
                continue
            cache = _cache(tree, node, number, index, here)
            if cache is not None:
                found.setdefault((cache.level, cache.kind, cache.cpus), cache)
                known.update((cpu, index) for cpu in cache.cpus)
    return tuple(sorted(found.values(), key=lambda c: (-c.level, _ORDER[c.kind], c.cpus)))


def _cache(tree: SysfsTree, node: str, number: int, index: str, online: set[int]) -> Cache | None:
    folder = f"{BASE}/cpu{number}/cache/{index}"
    level = tree.integer(f"{folder}/level")
    kind = tree.parsed(f"{folder}/type", parse_cache_kind)
    if level is None or level < 1 or kind is None:
        return None
    shared = tree.cpus(folder, "shared_cpu_list", "shared_cpu_map") or (number,)
    return Cache(
        node=node,
        level=level,
        kind=kind,
        size_bytes=tree.parsed(f"{folder}/size", parse_cache_size),
        cpus=tuple(c for c in shared if c in online) or (number,),
    )
