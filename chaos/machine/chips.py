"""What chips tell of themselves through NVML: the quirks by which real ones differ, and where each is from.

Numbers of a chip that nobody uses (clocks, heat, power) are those of one idle card, as published: captures of
`nvidia-smi -q` of an H100, an H200 and an L40S (nvidia_gpu_exporter, internal/captures, drivers 590 and 595), and the
configuration of an A100 in NVIDIA's k8s-test-infra (mock NVML). Others have only what data sheets tell; the rest of
their numbers is a plain idle card's, assumed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from chaos.machine.layout import ChipFlag
from observatory.model.data_sheets import GpuSheet, gpu_sheet
from observatory.model.device import Device, DeviceKind, EngineKind

MIB = 1 << 20
NVIDIA = "10de"

# NVML's numbers of architectures and of NVLink's versions.
PASCAL, VOLTA, TURING, AMPERE, ADA, HOPPER, BLACKWELL, UNKNOWN_ARCHITECTURE = 4, 5, 6, 7, 8, 9, 10, 0xFFFF_FFFF
NVLINK_VERSIONS = {"1": 1, "2": 2, "3": 4, "3-GA102": 5, "4": 6, "5": 7}
NVLINK_SPEEDS_MBPS = {"1": 20000, "2": 25781, "3": 25000, "3-GA102": 14062, "4": 26562, "5": 53125}
"""What NVML tells as the speed of one link: of `nvidia-smi nvlink -s` on V100, A100, H100 and GB200; 1 and GA102 from
their whitepapers."""


@dataclass(frozen=True, slots=True)
class Chip:
    """One product. Clocks are graphics, SM, memory, video; None where the chip does not tell."""

    name: str
    pci_id: int
    architecture: int
    compute: tuple[int, int]
    flags: ChipFlag
    nvlink: str | None = None
    subsystem_id: int = 0
    part_number: str = "N/A"
    vbios_version: str = "N/A"
    memory_bytes: int = 16384 * MIB
    memory_reserved_bytes: int = 512 * MIB
    pcie_generation: int = 4
    clocks_mhz: tuple[int, int, int, int] = (1500, 1500, 5000, 1200)
    idle_clocks_mhz: tuple[int, int, int, int] = (300, 300, 405, 540)
    power_limit_milliwatts: int = 300_000
    idle_milliwatts: int = 30_000
    idle_celsius: int = 35
    memory_celsius: int | None = None
    slowdown_celsius: int = 87
    shutdown_celsius: int = 92
    decoders: int = 0
    encoders: int = 0
    jpeg_decoders: int = 0


_MODERN = ChipFlag.ROW_REMAPPING | ChipFlag.ECC
_HOPPER_FLAGS = _MODERN | ChipFlag.PCIE_BYTE_FIELDS

_H100 = Chip(
    name="NVIDIA H100 80GB HBM3",
    pci_id=0x233010DE,
    subsystem_id=0x16C110DE,
    architecture=HOPPER,
    compute=(9, 0),
    flags=_HOPPER_FLAGS,
    nvlink="4",
    part_number="692-2G520-0200-000",
    vbios_version="96.00.A5.00.01",
    memory_bytes=81559 * MIB,
    memory_reserved_bytes=479 * MIB,
    pcie_generation=5,
    clocks_mhz=(1980, 1980, 2619, 1545),
    idle_clocks_mhz=(345, 345, 2619, 765),
    power_limit_milliwatts=700_000,
    idle_milliwatts=69_850,
    idle_celsius=41,
    memory_celsius=48,
    slowdown_celsius=89,
    shutdown_celsius=95,
)

_BY_SHEET: dict[str, Chip] = {
    "H100": _H100,
    "H200": replace(
        _H100,
        name="NVIDIA H200",
        pci_id=0x233510DE,
        subsystem_id=0x18BE10DE,
        part_number="695-2G520-0280-001",
        vbios_version="96.00.A5.00.03",
        memory_bytes=143771 * MIB,
        memory_reserved_bytes=614 * MIB,
        clocks_mhz=(1980, 1980, 3201, 1545),
        idle_clocks_mhz=(345, 345, 3201, 765),
        idle_milliwatts=77_670,
        idle_celsius=28,
        memory_celsius=32,
    ),
    "A100": Chip(
        name="NVIDIA A100-SXM4-40GB",
        pci_id=0x20B010DE,
        subsystem_id=0x134710DE,
        architecture=AMPERE,
        compute=(8, 0),
        flags=_MODERN | ChipFlag.LEGACY_NVLINK_ERRORS,
        nvlink="3",
        part_number="692-2G506-0200-002",
        vbios_version="92.00.45.00.03",
        memory_bytes=40960 * MIB,
        memory_reserved_bytes=583 * MIB,
        clocks_mhz=(1410, 1410, 1215, 1290),
        idle_clocks_mhz=(210, 210, 1215, 585),
        power_limit_milliwatts=400_000,
        idle_milliwatts=72_000,
        idle_celsius=33,
        memory_celsius=31,
    ),
    "V100": Chip(
        name="Tesla V100-SXM2-32GB",
        pci_id=0x1DB510DE,
        architecture=VOLTA,
        compute=(7, 0),
        flags=ChipFlag.PAGE_RETIREMENT | ChipFlag.ECC | ChipFlag.LEGACY_NVLINK_ERRORS,
        nvlink="2",
        memory_bytes=32768 * MIB,
        pcie_generation=3,
    ),
    "P100": Chip(
        name="Tesla P100-SXM2-16GB",
        pci_id=0x15F910DE,
        architecture=PASCAL,
        compute=(6, 0),
        flags=ChipFlag.PAGE_RETIREMENT | ChipFlag.ECC | ChipFlag.LEGACY_NVLINK_ERRORS,
        nvlink="1",
        pcie_generation=3,
    ),
    "T4": Chip(
        name="Tesla T4",
        pci_id=0x1EB810DE,
        architecture=TURING,
        compute=(7, 5),
        flags=ChipFlag.PAGE_RETIREMENT | ChipFlag.ECC,
        pcie_generation=3,
        power_limit_milliwatts=70_000,
        idle_milliwatts=10_000,
    ),
    "L40S": Chip(
        name="NVIDIA L40S",
        pci_id=0x26B910DE,
        subsystem_id=0x185110DE,
        architecture=ADA,
        compute=(8, 9),
        flags=_MODERN,
        part_number="900-2G133-0080-000",
        vbios_version="95.02.66.00.02",
        memory_bytes=46068 * MIB,
        memory_reserved_bytes=609 * MIB,
        clocks_mhz=(2520, 2520, 9001, 1965),
        power_limit_milliwatts=350_000,
    ),
    "B200": Chip(
        name="NVIDIA B200",
        pci_id=0x290110DE,
        architecture=BLACKWELL,
        compute=(10, 0),
        flags=_HOPPER_FLAGS,
        nvlink="5",
        memory_bytes=183359 * MIB,
        pcie_generation=5,
        power_limit_milliwatts=1_000_000,
    ),
}

_GENERATION_CHIPS = {"1": "P100", "2": "V100", "3": "A100", "4": "H100", "5": "B200"}


def chip_of(device: Device) -> Chip | None:
    """The chip of a GPU of the topology; None for one that NVML does not see, another vendor's.

    A product that is not in the table is a chip of its NVLink generation under its own name, or a plain one.
    """
    if device.kind is not DeviceKind.GPU:
        return None
    vendor = (device.pci_id or NVIDIA).partition(":")[0].lower()
    sheet = gpu_sheet(pci_id=device.pci_id, name=device.name)
    if vendor != NVIDIA or (sheet is not None and not _is_nvidia(sheet)):
        return None
    found = _known(sheet)
    name = device.name if device.name and _is_full_name(device.name) else found.name
    return replace(
        found,
        name=name,
        memory_bytes=device.memory_bytes or found.memory_bytes,
        pci_id=_pci_number(device.pci_id) or found.pci_id,
        decoders=_engines(device, sheet, EngineKind.DECODE),
        encoders=_engines(device, sheet, EngineKind.ENCODE),
        jpeg_decoders=_engines(device, sheet, EngineKind.JPEG),
    )


def _known(sheet: GpuSheet | None) -> Chip:
    if sheet is not None and sheet.name in _BY_SHEET:
        return _BY_SHEET[sheet.name]
    if sheet is not None and sheet.nvlink in _GENERATION_CHIPS:
        return replace(_BY_SHEET[_GENERATION_CHIPS[sheet.nvlink]], name=f"NVIDIA {sheet.name}")
    name = "NVIDIA GPU" if sheet is None else f"NVIDIA {sheet.name}"
    return Chip(name=name, pci_id=0x10DE, architecture=UNKNOWN_ARCHITECTURE, compute=(0, 0), flags=_MODERN, nvlink="4")


def _is_nvidia(sheet: GpuSheet) -> bool:
    return not sheet.pci_ids or any(pci_id.startswith(NVIDIA) for pci_id in sheet.pci_ids)


def _is_full_name(name: str) -> bool:
    return re.match(r"(NVIDIA|Tesla|Quadro|GeForce)\b", name) is not None and "orporation" not in name


def _pci_number(pci_id: str | None) -> int | None:
    """`10de:2330` as NVML writes it: the device id in the upper half."""
    if pci_id is None:
        return None
    vendor, _, device = pci_id.partition(":")
    return int(device, 16) << 16 | int(vendor, 16)


def _engines(device: Device, sheet: GpuSheet | None, kind: EngineKind) -> int:
    own = next((engine.count for engine in device.engines if engine.kind is kind), None)
    if own is not None or device.engines:
        return own or 0
    return dict(sheet.engines).get(kind, 0) if sheet is not None else 0
