"""Objects of an hwloc file, each with where it is: package, die, core, PCI function above, host bridge."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from observatory.topology.importers.xml_tree import Element

_WORD = re.compile(r"0x([0-9a-fA-F]{1,8})\Z")
_MOST_WORDS = 4096
_BRIDGE_BUSES = re.compile(r"([0-9a-fA-F]{4,8}):\[([0-9a-fA-F]{2})-[0-9a-fA-F]{2}\]\Z")
_HOST = "0-"  # a bridge's type is upstream-downstream; 0 is the host


@dataclass(frozen=True, slots=True)
class Place:
    """Where an object is. Numbers of packages are the operating system's, where they are told and not used twice."""

    package: int | None = None
    die: int | None = None
    core: tuple[int, ...] | None = None
    cpus: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    host_bridge: str | None = None
    function: str | None = None  # the bus id of the PCI function above
    folder: str = ""  # of the functions above, as a path


@dataclass(frozen=True, slots=True)
class HwlocObject:
    """One object, its kind, and its place (that of the object itself, for packages, dies and cores)."""

    element: Element
    kind: str
    place: Place
    version: int

    @property
    def index(self) -> int | None:
        """The operating system's number."""
        return number(self.element, "os_index")

    @property
    def bus_id(self) -> str | None:
        """The PCI bus id, in lower case."""
        return (self.element.get("pci_busid") or "").lower() or None

    def infos(self, name: str) -> list[str]:
        """The values of the infos of that name."""
        return [i.get("value") or "" for i in self.element.of("info") if i.get("name") == name and i.get("value")]

    def info(self, *names: str) -> str | None:
        """The first value there is of one of the names."""
        return next((value for name in names for value in self.infos(name)), None)


def walk(machine: Element, version: str) -> Iterator[HwlocObject]:
    """All objects, from the top."""
    major = int(version.partition(".")[0]) if version[:1].isdigit() and len(version) < 9 else 1
    counts = {"package": 0, "core": 0, "die": 0}
    taken: set[int] = set()
    todo = [(machine, Place())]
    while todo:
        element, above = todo.pop()
        kind = element.get("type") or ""
        place = _place(element, kind, above, counts, taken)
        yield HwlocObject(element, kind, place, major)
        todo += [(child, place) for child in reversed(element.of("object"))]


def _place(element: Element, kind: str, above: Place, counts: dict[str, int], taken: set[int]) -> Place:
    place = above
    if kind in ("Package", "Socket"):
        own = number(element, "os_index")
        if own is None or own in taken:
            own = next(n for n in range(counts["package"], counts["package"] + len(taken) + 2) if n not in taken)
        taken.add(own)
        counts["package"] += 1
        place = replace(above, package=own)
    elif kind == "Die":
        place = replace(above, die=counts["die"])
        counts["die"] += 1
    elif kind == "Core":
        place = replace(above, core=(counts["core"],))
        counts["core"] += 1
    elif kind == "Bridge" and (element.get("bridge_type") or "").startswith(_HOST):
        match = _BRIDGE_BUSES.match(element.get("bridge_pci") or "")
        host = f"pci{match[1].lower()}:{match[2].lower()}" if match else f"pci@{element.line}"
        return replace(above, host_bridge=host, function=None, folder=f"devices/{host}")
    elif kind in ("Bridge", "PCIDev") and (bus_id := element.get("pci_busid")):
        return replace(above, function=bus_id.lower(), folder=f"{above.folder}/{bus_id.lower()}")
    if element.get("cpuset") is not None:
        place = replace(place, cpus=bits(element.get("cpuset")), nodes=bits(element.get("nodeset")))
    return place


@functools.lru_cache(maxsize=2048)  # a core, its caches and its threads are written with the same set
def bits(text: str | None) -> tuple[int, ...]:
    """The numbers in a set such as `0x00000001,0x0000010f` (words of 32 bits, highest first, empty ones for 0).

    Sets without an end (`0xf...f`) and what makes no sense are empty.
    """
    words = (text or "").split(",")
    if len(words) > _MOST_WORDS:
        return ()
    value = 0
    for word in words:
        match = _WORD.match(word.strip())
        if match is None and word.strip():
            return ()
        value = value << 32 | (int(match[1], 16) if match else 0)
    found = []
    while value:
        lowest = value & -value
        found.append(lowest.bit_length() - 1)
        value ^= lowest
    return tuple(found)


def number(element: Element, name: str) -> int | None:
    """A whole number that is not negative; None for any other text."""
    text = element.get(name) or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None
