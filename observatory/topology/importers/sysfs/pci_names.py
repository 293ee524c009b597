"""What PCI functions are called: their class from the standard's table, vendor and device from the machine's database.

Class codes: PCI Code and ID Assignment Specification, PCI-SIG. Databases: `pci.ids` of the PCI ID project, where the
distribution keeps it; we ship none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

DATABASES = (Path("/usr/share/misc/pci.ids"), Path("/usr/share/hwdata/pci.ids"))

_SUBCLASSES = {
    "0100": "SCSI controller",
    "0101": "IDE controller",
    "0104": "RAID controller",
    "0106": "SATA controller",
    "0107": "SAS controller",
    "0108": "NVMe controller",
    "0200": "Ethernet controller",
    "0207": "InfiniBand controller",
    "0300": "VGA controller",
    "0302": "3D controller",
    "0380": "display controller",
    "0401": "audio device",
    "0403": "audio device",
    "0480": "multimedia controller",
    "0502": "CXL memory",
    "0600": "host bridge",
    "0601": "ISA bridge",
    "0604": "PCI bridge",
    "0800": "interrupt controller",
    "0801": "DMA controller",
    "0806": "IOMMU",
    "0880": "system peripheral",
    "0b40": "co-processor",
    "0c03": "USB controller",
    "0c05": "SMBus",
    "0c06": "InfiniBand controller",
    "1101": "performance counters",
    "1200": "processing accelerator",
}
_CLASSES = {
    "00": "unclassified device",
    "01": "storage controller",
    "02": "network controller",
    "03": "display controller",
    "04": "multimedia controller",
    "05": "memory controller",
    "06": "bridge",
    "07": "communication controller",
    "08": "system peripheral",
    "09": "input device",
    "0a": "docking station",
    "0b": "processor",
    "0c": "serial bus controller",
    "0d": "wireless controller",
    "0e": "intelligent controller",
    "0f": "satellite controller",
    "10": "encryption controller",
    "11": "signal processing controller",
    "12": "processing accelerator",
    "13": "instrumentation",
    "ff": "function of no class",
}


def class_name(code: str | None) -> str | None:
    """The name of a class code of six digits; None for one that the table does not have, or for no code."""
    if code is None:
        return None
    return _SUBCLASSES.get(code[:4], _CLASSES.get(code[:2]))


def pci_names(wanted: Iterable[str], databases: Sequence[Path] = DATABASES) -> dict[str, str]:
    """Names of the `vendor:device` ids asked for, from the first database there is; those not in it are left out."""
    ids = set(wanted)
    for path in databases:
        try:
            with path.open(encoding="utf-8", errors="replace") as lines:
                return _names(lines, ids)
        except OSError:
            continue
    return {}


def _names(lines: Iterable[str], wanted: set[str]) -> dict[str, str]:
    """`VVVV  vendor`, below it `<tab>DDDD  device`; subsystems have two tabs, device classes begin with `C `."""
    vendors = {pci_id[:4] for pci_id in wanted}
    found: dict[str, str] = {}
    vendor: tuple[str, str] | None = None
    for line in lines:
        if not line.startswith("\t"):
            code, _, name = line.rstrip().partition("  ")
            vendor = (code.lower(), name) if code.lower() in vendors else None
        elif vendor is not None and not line.startswith("\t\t"):
            code, _, name = line.strip().partition("  ")
            pci_id = f"{vendor[0]}:{code.lower()}"
            if pci_id in wanted:
                found[pci_id] = f"{vendor[1]} {name}"
    return found
