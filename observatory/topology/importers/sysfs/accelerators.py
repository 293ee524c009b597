"""Cards that compute: which PCI functions are GPUs, FPGAs, video or other accelerators, and what is known of them.

    class/drm/renderD*, class/accel/*, and a function's class, vendor, driver, mem_info_vram_total, product_name

sysfs does not tell a card's engines, and its memory only where the driver does (amdgpu).
"""

from __future__ import annotations

from observatory.model.device import DeviceKind
from observatory.topology.importers.sysfs.names import OsName, entries
from observatory.topology.importers.sysfs.pci import Function
from observatory.topology.importers.sysfs.tree import SysfsTree

_DISPLAY = "03"
_PROCESSING_ACCELERATOR = "12"
_MEDIA = "04"

_GPU_VENDORS = frozenset({"10de", "1002", "8086"})  # NVIDIA, AMD, Intel
_FPGA_VENDORS = frozenset({"10ee", "1172"})  # Xilinx, Altera
_VIDEO_VENDORS = frozenset({"1d82", "bdbd", "f1d0", "1cd7"})  # NETINT, Blackmagic Design, AJA, Magewell
_FPGA_DRIVERS = frozenset({"dfl-pci", "intel-fpga-pci"})  # Intel's cards share its vendor id with its GPUs and NPUs
_FPGA_CLASSES = ("12", "0580", "ff")

_SOFTWARE_GPUS = ("/vgem", "/vkms")


def accelerator_kind(function: Function, driver: str | None) -> DeviceKind | None:
    """What kind of card a function is, or None when it is no card that computes.

    A screen's controller of another vendor (a server's management chip) is a GPU only if it can render, and a media
    controller a video card only if its vendor makes such cards: the others are sound.
    """
    code = function.class_code or ""
    vendor = (function.pci_id or "").partition(":")[0]
    if vendor == "1d82" or (code.startswith(_MEDIA) and vendor in _VIDEO_VENDORS):
        return DeviceKind.VPU
    if driver in _FPGA_DRIVERS or (vendor in _FPGA_VENDORS and code.startswith(_FPGA_CLASSES)):
        return DeviceKind.FPGA
    renders = any(name.startswith("renderD") for name in function.os_names)
    if code.startswith(_DISPLAY) and (vendor in _GPU_VENDORS or renders):
        return DeviceKind.GPU
    if code.startswith(_PROCESSING_ACCELERATOR):
        return DeviceKind.GPU if vendor == "1002" else DeviceKind.ASIC  # AMD's Instinct cards are of this class
    if any(name.startswith("accel") for name in function.os_names):
        return DeviceKind.ASIC
    return None


def read_cards(tree: SysfsTree) -> list[OsName]:
    """Names of the kernel's graphics and accelerator drivers for hardware: `card0`, `renderD128`, `accel0`."""
    found = [e for e in entries(tree, "class/drm") if "-" not in e.name and e.name.startswith(("card", "renderD"))]
    found += [e for e in entries(tree, "class/accel") if e.name.startswith("accel")]
    return [e for e in found if not e.is_software and not any(name in e.folder for name in _SOFTWARE_GPUS)]


def card_memory_bytes(tree: SysfsTree, function: Function) -> int | None:
    """The card's own memory, where the driver tells it."""
    size = tree.integer(f"{function.folder}/mem_info_vram_total")
    return size if size is not None and size > 0 else None


def card_name(tree: SysfsTree, function: Function) -> str | None:
    """The card's name, where the driver tells it."""
    return tree.text(f"{function.folder}/product_name")
