"""Logical processors: which are online, their core, die and socket. What they are called is in `/proc/cpuinfo` only.

    devices/system/cpu/online, cpu*/topology/{physical_package_id,die_id,core_id,core_cpus_list,thread_siblings_list}

`core_id` is unique in its die or socket only, and on some machines not even there: the set of siblings tells a core.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from observatory.topology.cpulist import format_cpulist
from observatory.topology.importers.sysfs.tree import SysfsTree

BASE = "devices/system/cpu"
_NAME = re.compile(r"^(?:model name|cpu model|cpu)\s*:\s*(\S.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Cpu:
    """A logical processor. `core` tells its core from all others; `die` is None where the kernel does not say."""

    number: int
    socket: int
    die: int | None
    core: tuple[int, ...]


def read_cpus(tree: SysfsTree, warnings: list[str]) -> dict[int, Cpu]:
    """The processors that are online, by number; empty when sysfs shows none at all."""
    unknown: list[int] = []
    found = {number: _cpu(tree, number, unknown) for number in tree.online(BASE, "cpu")}
    if unknown:
        warnings.append(f"sysfs does not tell the socket of processors {format_cpulist(tuple(unknown))}: taken as 0")
    return found


def cpu_name(tree: SysfsTree) -> str | None:
    """The processor's name, from the `/proc/cpuinfo` that belongs to the tree; None for a tree without one."""
    match = _NAME.search(tree.process_text("cpuinfo") or "")
    return match[1].strip() if match else None


def _cpu(tree: SysfsTree, number: int, unknown: list[int]) -> Cpu:
    folder = f"{BASE}/cpu{number}/topology"
    socket = tree.integer(f"{folder}/physical_package_id")
    if socket is None or socket < 0:  # -1 where the architecture or the hypervisor does not tell
        unknown.append(number)
        socket = 0
    die = tree.integer(f"{folder}/die_id")
    if die is not None and die < 0:
        die = None
    siblings = tree.cpus(folder, "core_cpus_list", "core_cpus")
    if siblings is None:
        siblings = tree.cpus(folder, "thread_siblings_list", "thread_siblings")
    core = tree.integer(f"{folder}/core_id")
    if siblings is not None:
        identity: tuple[int, ...] = (min(siblings, default=number),)
    elif core is not None:
        identity = (socket, die or 0, core)
    else:
        identity = (number,)
    return Cpu(number, socket, die, identity)
