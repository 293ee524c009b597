"""Disks: whole block devices of hardware, and what they hang on.

    class/block/*/{partition,size,hidden,queue/rotational,device/{vendor,model}}, or block/* of a tree without

`size` counts sectors of 512 bytes whatever the disk's own are. An NVMe disk with several paths is entered as software
(`devices/virtual/nvme-subsystem`), its controllers are beside it; the paths themselves are hidden disks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from observatory.topology.importers.sysfs.names import OsName, entries
from observatory.topology.importers.sysfs.tree import SysfsTree

_SECTOR_BYTES = 512
_SUBSYSTEM = "devices/virtual/nvme-subsystem/"
_CONTROLLER = re.compile(r"nvme\d+\Z")
_SCSI_HOST = re.compile(r"host\d+\Z")
_NO_VENDORS = frozenset({"ATA"})  # what libata writes for every disk


@dataclass(frozen=True, slots=True)
class Disk:
    """One block device. `capacity_bytes` None: there is no medium in it, or it is not told.

    `has_own_bus`: it hangs on a SATA, SAS or SCSI bus behind the PCI function, which is not the disk itself.
    """

    name: str
    bus_id: str | None
    has_own_bus: bool
    model: str | None
    capacity_bytes: int | None
    rotational: bool | None


def read_disks(tree: SysfsTree) -> list[Disk]:
    """Block devices of hardware, by name; partitions, loop devices, RAM disks and mappings are none."""
    found: list[Disk] = []
    known = {entry.name: entry for folder in ("block", "class/block") for entry in entries(tree, folder)}
    for entry in sorted(known.values(), key=lambda e: e.name):
        if tree.integer(f"{entry.folder}/partition") is not None:
            continue
        bus_id = _bus_id_of_subsystem(tree, entry) if entry.folder.startswith(_SUBSYSTEM) else entry.bus_id
        software = entry.is_software and bus_id is None
        if software or not entry.folder.startswith("devices/") or tree.integer(f"{entry.folder}/hidden") == 1:
            continue
        found.append(_disk(tree, entry, bus_id))
    return found


def _disk(tree: SysfsTree, entry: OsName, bus_id: str | None) -> Disk:
    sectors = tree.integer(f"{entry.folder}/size")
    rotational = tree.integer(f"{entry.folder}/queue/rotational")
    return Disk(
        name=entry.name,
        bus_id=bus_id,
        has_own_bus=any(_SCSI_HOST.match(part) for part in entry.folder.split("/")),
        model=_model(tree, entry.folder),
        capacity_bytes=sectors * _SECTOR_BYTES if sectors is not None and sectors > 0 else None,
        rotational=None if rotational is None else rotational == 1,
    )


def _model(tree: SysfsTree, folder: str) -> str | None:
    device = tree.real(f"{folder}/device")
    if device is None:
        return None
    vendor, model = (tree.text(f"{device}/{name}") for name in ("vendor", "model"))
    if model is None:
        return None
    # A virtio disk's `vendor` is a PCI number.
    worth_it = vendor and vendor not in _NO_VENDORS and not vendor.startswith("0x") and not model.startswith(vendor)
    return f"{vendor} {model}" if worth_it else model


def _bus_id_of_subsystem(tree: SysfsTree, entry: OsName) -> str | None:
    """The PCI function of the first controller of the subsystem that the disk belongs to."""
    subsystem = entry.folder.rpartition("/")[0]
    for controller in entries(tree, subsystem):
        if _CONTROLLER.match(controller.name) and controller.bus_id is not None:
            return controller.bus_id
    return None
