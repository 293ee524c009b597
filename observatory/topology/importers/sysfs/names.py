"""What the operating system calls the things on its buses: entries of `class/*` that are no invention of software.

A disk, network interface or card is known by the path its entry leads to. That below `devices/virtual` (bridges, loop
devices, RAM disks) is no hardware. Some recorded trees have folders in place of the links, with a link `device` inside.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from observatory.topology.importers.sysfs.pci import bus_id_in
from observatory.topology.importers.sysfs.tree import SysfsTree

_SOFTWARE = ("devices/virtual/", "devices/faux/")


@dataclass(frozen=True, slots=True)
class OsName:
    """One entry: its name, its folder, and the PCI function it hangs on, if it hangs on one."""

    name: str
    folder: str
    bus_id: str | None

    @property
    def is_software(self) -> bool:
        """Whether the kernel made it up."""
        return self.folder.startswith(_SOFTWARE)


def entries(tree: SysfsTree, folder: str) -> Iterator[OsName]:
    """All entries of a class, software's too."""
    for name in tree.names(folder):
        real = tree.real(f"{folder}/{name}")
        if real is None:
            continue
        bus_id = bus_id_in(real)
        if bus_id is None:
            device = tree.real(f"{real}/device") or tree.link_name(f"{real}/device")
            bus_id = None if device is None else bus_id_in(device)
        yield OsName(name, real, bus_id)
