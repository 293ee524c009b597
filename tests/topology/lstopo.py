"""`lstopo` as a judge: what hwloc makes of the same machine, live or recorded."""

from __future__ import annotations

import subprocess
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path

from tests.peers import peer

_CACHES = {
    "L1Cache": "L1d",
    "L2Cache": "L2",
    "L3Cache": "L3",
    "L4Cache": "L4",
    "L1iCache": "L1i",
}
_BLOCK, _NET, _OPENFABRICS = "0", "2", "3"


@dataclass
class Lstopo:
    """What lstopo shows. Functions are (class, vendor:device); disks' sizes in bytes; speeds in GB/s."""

    packages: dict[int, set[int]] = field(default_factory=dict)
    numa_memory: dict[int, int] = field(default_factory=dict)
    cores: int = 0
    cpus: set[int] = field(default_factory=set)
    caches: list[tuple[str, int, tuple[int, ...]]] = field(default_factory=list)
    functions: dict[str, tuple[str, str]] = field(default_factory=dict)
    parents: dict[str, str | None] = field(default_factory=dict)
    speeds: dict[str, float] = field(default_factory=dict)
    sockets_of_functions: dict[str, int | None] = field(default_factory=dict)
    disks: dict[str, tuple[str | None, int]] = field(default_factory=dict)
    interfaces: dict[str, str | None] = field(default_factory=dict)
    fabrics: dict[str, str | None] = field(default_factory=dict)
    distances: list[int] = field(default_factory=list)


def lstopo(fsroot: Path | None) -> Lstopo:
    """What lstopo says of the live machine (None), or of the file system root of a recorded one."""
    where = [] if fsroot is None else ["--input", str(fsroot)]
    # Without the x86 back end it reads what is recorded, not the CPU that it runs on.
    command = [peer("lstopo-no-graphics"), *where, "--whole-io", "--disallowed", "--of", "xml"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={"PATH": "/usr/bin:/bin", "HWLOC_COMPONENTS": "-x86", "LC_ALL": "C"},
    )
    root = ET.fromstring(done.stdout)
    found = Lstopo()
    for machine in root.findall("object"):
        _walk(machine, found, None, None)
    for distances in root.findall("distances2"):
        if distances.get("name") == "NUMALatency":
            values = " ".join(v.text or "" for v in distances.findall("u64values"))
            found.distances = [int(v) for v in values.split()]
    return found


def _walk(thing: ET.Element, found: Lstopo, bus_id: str | None, package: int | None) -> None:
    kind = thing.get("type", "")
    number = int(thing.get("os_index", -1))
    if kind == "Package":
        found.packages[number] = _bits(thing)
        package = number
    elif kind == "NUMANode":
        found.numa_memory[number] = int(thing.get("local_memory", 0))
    elif kind == "Core":
        found.cores += 1
    elif kind == "PU":
        found.cpus.add(number)
    elif kind in _CACHES:
        found.caches.append((_CACHES[kind], int(thing.get("cache_size", 0)), tuple(sorted(_bits(thing)))))
    elif kind in ("PCIDev", "Bridge") and thing.get("pci_busid"):
        above, bus_id = bus_id, thing.get("pci_busid", "")
        words = thing.get("pci_type", "").split()
        found.functions[bus_id] = (words[0], words[1].strip("[]"))
        found.parents[bus_id] = above
        found.speeds[bus_id] = float(thing.get("pci_link_speed", 0))
        found.sockets_of_functions[bus_id] = package
    elif kind == "OSDev":
        _os_device(thing, found, bus_id)
    for below in thing.findall("object"):
        _walk(below, found, bus_id, package)


def _os_device(thing: ET.Element, found: Lstopo, bus_id: str | None) -> None:
    name, kind = thing.get("name", ""), thing.get("osdev_type")
    infos = {info.get("name"): info.get("value", "") for info in thing.findall("info")}
    if kind == _BLOCK and "DAXType" not in infos:
        found.disks[name] = (bus_id, int(infos.get("Size", 0)) * 1024)
    elif kind == _NET:
        found.interfaces[name] = bus_id
    elif kind == _OPENFABRICS:
        found.fabrics[name] = bus_id


def _bits(thing: ET.Element) -> set[int]:
    """`0x000000ff,0xffffffff`: words of 32 bits, the highest first."""
    words = thing.get("cpuset", "0x0").split(",")
    bits = int("".join(f"{int(word or '0', 16):08x}" for word in words), 16)
    return {n for n in range(bits.bit_length()) if bits >> n & 1}
