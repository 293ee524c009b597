"""What data sheets say of chips and links, where a machine tells only which chip or link generation it has.

Every row names its source. What is not in a row is unknown: nothing is worked out from a similar product. Rates are
those of one direction after line coding, before packet headers; they are advertised values, not measurements.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from observatory.model.device import Engine, EngineKind
from observatory.model.link import LinkKind

GIGA = 1e9


@dataclass(frozen=True, slots=True)
class LinkSheet:
    """One link of a generation: bytes per second in one direction, and how many of them a chip has at most."""

    name: str
    bytes_per_second: float
    most: int | None
    source: str


NVLINK: dict[str, LinkSheet] = {
    "1": LinkSheet("NVLink 1", 20 * GIGA, 4, "NVIDIA Tesla P100 whitepaper WP-08019: 4 links, 160 GB/s both ways"),
    "2": LinkSheet("NVLink 2", 25 * GIGA, 6, "NVIDIA Tesla V100 whitepaper WP-08608: 6 links, 300 GB/s both ways"),
    "3": LinkSheet("NVLink 3", 25 * GIGA, 12, "NVIDIA A100 whitepaper, Third-Generation NVLink: 12 links, 600 GB/s"),
    "3-GA102": LinkSheet(
        "NVLink 3, GA102", 14.0625 * GIGA, 4, "NVIDIA GA102 whitepaper: 4 links of 14.0625 GB/s each way"
    ),
    "4": LinkSheet("NVLink 4", 25 * GIGA, 18, "NVIDIA H100 whitepaper, Fourth-Generation NVLink: 18 links, 900 GB/s"),
    "5": LinkSheet("NVLink 5", 50 * GIGA, 18, "NVIDIA Blackwell architecture brief: 18 links of 100 GB/s both ways"),
}
"""By generation. The most links of any chip so far is 18."""

NVLINK_LINE_RATES: dict[float, float] = {
    25.78125 * GIGA: 25 * GIGA,
    26.5625 * GIGA: 25 * GIGA,
    53.125 * GIGA: 50 * GIGA,
}
"""Speed of a link as NVML tells it -> bytes of data per second, as the sheets above have it. What is told beyond
has just the share of Ethernet's codings (IEEE 802.3): 66/64, and 257/256 with RS(544, 514), together 17/16."""

MOST_NVLINKS = 18

NVSWITCHES = frozenset({"10de:1ac2", "10de:1af1", "10de:22a3"})
"""PCI ids of the switches beside V100, A100 and H100: PCI ID Repository."""

NVLINK_OF_COMPUTE_CAPABILITY = {60: "1", 70: "2", 80: "3", 86: "3-GA102", 90: "4", 100: "5", 103: "5"}
"""`sm` of an NCCL file -> generation. CUDA C++ Programming Guide, compute capabilities; the whitepapers above."""

XGMI: dict[str, LinkSheet] = {
    "gfx908": LinkSheet(
        "xGMI of MI100", 46 * GIGA, 3, "ROCm documentation, MI100 microarchitecture: 23 GT/s, 16 lanes"
    ),
    "gfx90a": LinkSheet("xGMI of MI200", 50 * GIGA, 8, "ROCm documentation, MI250 microarchitecture: 25 GT/s, 16 wide"),
    "gfx942": LinkSheet("xGMI of MI300", 64 * GIGA, 7, "AMD Instinct MI300X data sheet: 7 links of 128 GB/s both ways"),
}
"""By LLVM target. Infinity Fabric between GPUs; the one to the processor is another."""

XGMI_OF_GCN = {908: "gfx908", 910: "gfx90a", 940: "gfx942", 941: "gfx942", 942: "gfx942"}
"""`gcn` of an RCCL file -> target (RCCL writes 90a as 910; 940 and 941 are early steppings of 942)."""

INFINIBAND_LANE_BITS_PER_SECOND: dict[str, float] = {
    "SDR": 2.5e9 * 8 / 10,
    "DDR": 5e9 * 8 / 10,
    "QDR": 10e9 * 8 / 10,
    "FDR10": 10.3125e9 * 64 / 66,
    "FDR": 14.0625e9 * 64 / 66,
    "EDR": 25.78125e9 * 64 / 66,
    "HDR": 50e9,
    "NDR": 100e9,
    "XDR": 200e9,
}
"""Data rate of one lane. InfiniBand Architecture Specification vol. 2, rel. 1.4 and later, table of link speeds: 8b/10b
up to QDR, 64b/66b up to EDR; from HDR on the name is the data rate."""


@dataclass(frozen=True, slots=True)
class PcieSheet:
    """One generation: transfers (bits on a lane) per second, and the share of them that carries transaction packets."""

    generation: int
    gigatransfers_per_second: float
    efficiency: float
    coding: str
    source: str


PCIE: tuple[PcieSheet, ...] = (
    PcieSheet(1, 2.5, 8 / 10, "8b/10b", "PCI Express Base Specification, rev. 2.1, 4.2.1"),
    PcieSheet(2, 5.0, 8 / 10, "8b/10b", "PCI Express Base Specification, rev. 2.1, 4.2.1"),
    PcieSheet(3, 8.0, 128 / 130, "128b/130b", "PCI Express Base Specification, rev. 5.0, 4.2.2"),
    PcieSheet(4, 16.0, 128 / 130, "128b/130b", "PCI Express Base Specification, rev. 5.0, 4.2.2"),
    PcieSheet(5, 32.0, 128 / 130, "128b/130b", "PCI Express Base Specification, rev. 5.0, 4.2.2"),
    PcieSheet(6, 64.0, 236 / 256, "flits, 236 of 256 bytes", "PCI Express Base Specification, rev. 6.0, 4.2.3"),
    PcieSheet(7, 128.0, 236 / 256, "flits, 236 of 256 bytes", "the same flits: PCI-SIG, PCIe 7.0 overview"),
)
"""From generation 6 on, the other bytes of a flit are link packets, CRC and error correction."""


def pcie_bytes_per_second(gigatransfers_per_second: float, width: int) -> float:
    """Bytes per second and direction of `width` lanes, after the encoding and before packet headers.

    A speed between two generations has the encoding of the faster one, one beyond the last that of the last.
    """
    sheet = next((row for row in PCIE if gigatransfers_per_second <= row.gigatransfers_per_second), PCIE[-1])
    return gigatransfers_per_second * 1e9 * width * sheet.efficiency / 8


CXL: tuple[PcieSheet, ...] = (
    PcieSheet(5, 32.0, 128 / 130 * 64 / 68, "128b/130b, flits, 64 of 68 bytes", "CXL Specification, rev. 3.0, 6.2.2"),
    PcieSheet(6, 64.0, 236 / 256, "flits, 236 of 256 bytes", "CXL Specification, rev. 3.0, 6.2.3"),
)
"""CXL 1.1 and 2.0 on the physical layer of PCI Express 5, CXL 3 on that of 6. By the generation of PCI Express."""

C2C = LinkSheet(
    "NVLink-C2C", 45 * GIGA, 10, "NVIDIA Grace Hopper whitepaper: 900 GB/s both ways together; Hot Chips 34: 10 links"
)

ETHERNET_SOURCE = "IEEE 802.3: the name is the data rate of the MAC; RoCE has the same"


@dataclass(frozen=True, slots=True)
class LatencySheet:
    """One way over one link. `assumed`: what in `source` was not measured or published as such, None where all was."""

    kind: LinkKind
    where: str
    seconds: float
    source: str
    assumed: str | None = None


LATENCIES: tuple[LatencySheet, ...] = (
    LatencySheet(
        LinkKind.PCIE,
        "through a switch",
        115e-9,
        "Broadcom PEX89144 product page, as quoted by Probsee",
        "that every switch is like this one",
    ),
    LatencySheet(
        LinkKind.PCIE,
        "through a root complex",
        275e-9,
        "Neugebauer et al., Understanding PCIe performance for end host networking, SIGCOMM 2018",
        "550 ns there and back for 64 B, from memory, and half of it one way",
    ),
    LatencySheet(
        LinkKind.MEMORY,
        "to the socket's own memory",
        117.4e-9,
        "Intel Memory Latency Checker 3.9a on two Xeon Silver 4410Y, from a public set of notes on CXL memory",
        "that every processor is like this one",
    ),
    LatencySheet(
        LinkKind.UPI,
        "to the other socket",
        66.9e-9,
        "Intel Memory Latency Checker 3.9a on two Xeon Silver 4410Y: 184.3 ns to the other socket, 117.4 ns to the own",
        "that every processor is like this one",
    ),
    LatencySheet(
        LinkKind.C2C,
        "from GPU to processor",
        386.29e-9,
        "nvbandwidth 0.6 on a GH200: 772.58 ns there and back (microsoft/superbenchmark, tests/data)",
        "half of it one way",
    ),
    LatencySheet(
        LinkKind.NVLINK,
        "from GPU to NVSwitch, or to a GPU",
        193e-9,
        "a quarter of what nvbandwidth 0.6 measured there and back over NVLink-C2C on a GH200",
        "NVIDIA publishes none: half of NVLink-C2C's from GPU to GPU, over two links",
    ),
)
"""Of every kind the first is that of a link of which no more is known. What is not here stays unknown: xGMI, CXL, and
networks, for whose switches the figures that are passed around contradict each other (150 and 330 ns for one)."""


@dataclass(frozen=True, slots=True)
class GpuSheet:
    """A GPU product. `engines` is empty where no source was found for them; a count of 0 says that there are none."""

    name: str
    pci_ids: tuple[str, ...]
    words: str  # a regular expression for the names that tools print
    nvlink: str | None = None
    xgmi: str | None = None
    engines: tuple[tuple[EngineKind, int], ...] = ()
    source: str = ""

    def device_engines(self) -> tuple[Engine, ...]:
        """The engines as a device has them."""
        return tuple(Engine(kind=kind, count=count) for kind, count in self.engines)


_MIG = "NVIDIA MIG User Guide, Supported MIG Profiles (the whole GPU's row)"
_MATRIX = "NVIDIA Video Encode and Decode GPU Support Matrix"


_VCN = "ROCm documentation, rocDecode: number of VCNs; rocJPEG: number of JPEG cores"


def _engines(decode: int, encode: int | None, jpeg: int | None = None) -> tuple[tuple[EngineKind, int], ...]:
    told = ((EngineKind.DECODE, decode), (EngineKind.ENCODE, encode), (EngineKind.JPEG, jpeg))
    return ((EngineKind.COMPUTE, 1), *((kind, count) for kind, count in told if count is not None))


GPUS: tuple[GpuSheet, ...] = (
    GpuSheet(
        "H200",
        ("10de:2335", "10de:233b"),
        r"\bH200\b",
        nvlink="4",
        engines=_engines(7, 0, 7),
        source=f"{_MIG}; {_MATRIX}: no NVENC",
    ),
    GpuSheet(
        "H100",
        ("10de:2330", "10de:2331", "10de:2321", "10de:2339"),
        r"\bH100\b",
        nvlink="4",
        engines=_engines(7, 0, 7),
        source=f"{_MIG}; {_MATRIX}: no NVENC",
    ),
    GpuSheet("H20", ("10de:2329",), r"\bH20\b", nvlink="4", source="chip GH100, PCI ID Repository"),
    GpuSheet("H800", ("10de:2324", "10de:2322"), r"\bH800\b", nvlink="4", source="chip GH100, PCI ID Repository"),
    GpuSheet("GH200", ("10de:2342", "10de:2348"), r"\bGH200\b", nvlink="4", source="chip GH100, PCI ID Repository"),
    GpuSheet(
        "A100",
        ("10de:20b0", "10de:20b2", "10de:20b3", "10de:20b5", "10de:20f1"),
        r"\bA100\b",
        nvlink="3",
        engines=_engines(5, 0, 1),
        source=f"{_MIG}; {_MATRIX}: no NVENC",
    ),
    GpuSheet("A800", ("10de:20bd", "10de:20f3", "10de:20f5"), r"\bA800\b", nvlink="3", source="PCI ID Repository"),
    GpuSheet(
        "A30", ("10de:20b7",), r"\bA30\b", nvlink="3", engines=_engines(4, 0, 1), source=f"{_MIG}; {_MATRIX}: no NVENC"
    ),
    GpuSheet(
        "V100",
        ("10de:1db1", "10de:1db4", "10de:1db5", "10de:1db6", "10de:1db8"),
        r"\bV100\b",
        nvlink="2",
        source="PCI ID Repository; whitepaper WP-08608",
    ),
    GpuSheet("P100", ("10de:15f9",), r"P100-SXM2", nvlink="1", source="PCI ID Repository; whitepaper WP-08019"),
    GpuSheet("B200", ("10de:2901",), r"\bB200\b", nvlink="5", source="NVIDIA Blackwell architecture brief"),
    GpuSheet("GB200", ("10de:2941",), r"\bGB200\b", nvlink="5", source="NVIDIA Blackwell architecture brief"),
    GpuSheet("T4", ("10de:1eb8",), r"(Tesla[ -]|NVIDIA )T4\b", engines=_engines(2, 1), source=_MATRIX),
    GpuSheet(
        "L4", ("10de:27b8",), r"NVIDIA[ -]L4\b", engines=_engines(4, 2, 4), source=f"{_MATRIX}; NVIDIA L4 data sheet"
    ),
    GpuSheet("L40S", ("10de:26b9",), r"\bL40S\b", engines=_engines(3, 3), source=f"{_MATRIX}; NVIDIA L40S data sheet"),
    GpuSheet("A10", ("10de:2236",), r"NVIDIA[ -]A10\b", engines=_engines(2, 1), source=_MATRIX),
    GpuSheet(
        "MI100",
        ("1002:738c",),
        r"\bMI100\b",
        xgmi="gfx908",
        engines=_engines(2, None, 2),
        source=f"ROCm documentation, GPU specifications; {_VCN}",
    ),
    GpuSheet(
        "MI210",
        ("1002:740f",),
        r"\bMI210\b",
        xgmi="gfx90a",
        engines=_engines(2, None, 4),
        source=f"ROCm documentation, GPU specifications; {_VCN}",
    ),
    GpuSheet(
        "MI250X",
        ("1002:7408", "1002:740c"),
        r"\bMI250X?\b",
        xgmi="gfx90a",
        source="ROCm documentation, GPU specifications",
    ),
    GpuSheet(
        "MI300A",
        ("1002:74a0",),
        r"\bMI300A\b",
        xgmi="gfx942",
        engines=_engines(3, None, 24),
        source=f"ROCm documentation, GPU specifications; {_VCN}",
    ),
    GpuSheet(
        "MI300X",
        ("1002:74a1",),
        r"\bMI300X\b",
        xgmi="gfx942",
        engines=_engines(4, None, 32),
        source=f"ROCm documentation, GPU specifications; {_VCN}",
    ),
)

_BY_PCI_ID = {pci_id: sheet for sheet in reversed(GPUS) for pci_id in sheet.pci_ids}
_BY_WORDS = tuple((re.compile(sheet.words), sheet) for sheet in GPUS)


def gpu_sheet(*, pci_id: str | None = None, name: str | None = None) -> GpuSheet | None:
    """The row of a GPU with that PCI id (`10de:2330`), else of one that a tool calls so; None for any other."""
    if pci_id in _BY_PCI_ID:
        return _BY_PCI_ID[pci_id]
    return next((sheet for pattern, sheet in _BY_WORDS if name and pattern.search(name)), None)


def nvlink_bytes_per_second(generation: str | None, count: int) -> float | None:
    """What `count` links of a generation carry in one direction; None for an unknown generation."""
    return None if generation is None else NVLINK[generation].bytes_per_second * count


def nvlink_data_bytes_per_second(told: float) -> float:
    """What one NVLink carries in one direction, of the speed that NVML and nvidia-smi tell of it (B/s).

    They tell the line rate where that is not the data rate: see `NVLINK_LINE_RATES`. Other speeds are data rates.
    """
    for line, data in NVLINK_LINE_RATES.items():
        if abs(told - line) < 1e-3 * line:
            return data
    return told


def xgmi_bytes_per_second(target: str | None, count: int) -> float | None:
    """What `count` xGMI links between GPUs of an LLVM target carry in one direction; None where no row says."""
    return None if target is None else XGMI[target].bytes_per_second * count


def default_latency_seconds(kind: LinkKind) -> float | None:
    """One way over a link of that kind of which no more is known; None where no row says."""
    return next((row.seconds for row in LATENCIES if row.kind is kind), None)


def infiniband_lanes_bytes_per_second(lanes: int, speed: str) -> float | None:
    """Data bytes per second and direction of a link such as 4x EDR (12.5e9); None for a word that is no speed."""
    bits = INFINIBAND_LANE_BITS_PER_SECOND.get(speed)
    return None if bits is None else bits * lanes / 8
