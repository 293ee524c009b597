"""Mirror of `dataplane/abi/machine.h`: what the emulated machine's telemetry reads, as NumPy dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntFlag
from typing import Any

import numpy as np

ABI = 1
MAGIC = 0x4D4F4D43
MOST_GPUS = 64
MOST_NVLINKS = 36
EVENTS = 256
NO_LINK = 0xFFFF_FFFF
UNKNOWN_U32 = 2**32 - 1
UNKNOWN_U64 = 2**64 - 1
LINE_BYTES = 128

XID_EVENT = 8


class ChipFlag(IntFlag):
    """Mirror of `enum mo_chip_flags`."""

    LEGACY_NVLINK_ERRORS = 1
    PCIE_BYTE_FIELDS = 2
    PAGE_RETIREMENT = 4
    ROW_REMAPPING = 8
    ECC = 16


_Field = tuple[Any, ...]  # name, type, and how many of it where there are several


def _struct(fields: Sequence[_Field], on_lines: Sequence[str] = ()) -> np.dtype[np.void]:
    """A struct as the C compiler lays it out. The fields `on_lines` begin a line of their own."""
    parts: dict[str, Any] = {"names": [field[0] for field in fields], "formats": [], "offsets": []}
    end, alignment = 0, 1
    for name, *about in fields:
        form: np.dtype[Any] = np.dtype(tuple(about) if len(about) > 1 else about[0])
        step = LINE_BYTES if name in on_lines else form.base.alignment
        alignment = max(alignment, step)
        end = _up(end, step)
        parts["offsets"].append(end)
        parts["formats"].append(form)
        end += form.itemsize
    whole: Any = {**parts, "itemsize": _up(end, alignment)}
    made: np.dtype[np.void] = np.dtype(whole, align=not on_lines)
    return made


def _up(offset: int, step: int) -> int:
    return -(-offset // step) * step


def _words(*names: str) -> list[_Field]:
    return [(name, "<u8") for name in names]


NVLINK_CONSTANTS = _struct(
    [
        ("remote_bus_id", "S32"),
        ("remote_type", "<u4"),
        ("fabric_link", "<u4"),
        ("toward_b", "<u4"),
        ("reserved", "<u4"),
    ]
)

GPU_CONSTANTS = _struct(
    [
        ("name", "S96"),
        ("uuid", "S96"),
        ("serial", "S32"),
        ("part_number", "S80"),
        ("vbios_version", "S32"),
        ("bus_id", "S32"),
        ("pci_domain", "<u4"),
        ("pci_bus", "<u4"),
        ("pci_device", "<u4"),
        ("pci_id", "<u4"),
        ("pci_subsystem_id", "<u4"),
        ("chip_flags", "<u4"),
        ("architecture", "<u4"),
        ("compute_major", "<u4"),
        ("compute_minor", "<u4"),
        ("nvlinks", "<u4"),
        ("nvlink_version", "<u4"),
        ("encoders", "<u4"),
        ("decoders", "<u4"),
        ("jpeg_decoders", "<u4"),
        ("pcie_generation", "<u4"),
        ("pcie_width", "<u4"),
        ("pcie_fabric_link", "<u4"),
        ("pcie_toward_b", "<u4"),
        ("numa_node", "<u4"),
        ("power_limit_milliwatts", "<u4"),
        ("clocks_mhz", "<u4", (4,)),
        ("slowdown_celsius", "<u4"),
        ("shutdown_celsius", "<u4"),
        ("memory_bytes", "<u8"),
        ("memory_reserved_bytes", "<u8"),
        ("ancestor", "u1", (MOST_GPUS,)),
        ("nvlink_peers", "u1", (MOST_GPUS,)),
        ("links", NVLINK_CONSTANTS, (MOST_NVLINKS,)),
    ]
)

NVLINK_STATE = _struct(
    _words(
        "active",
        "speed_mbps",
        "replay_errors",
        "recovery_errors",
        "crc_flit_errors",
        "crc_data_errors",
        "ecc_data_errors",
        "share_millionths",
        "sent_bytes",
        "received_bytes",
        "sent_mark",
        "received_mark",
    )
)

GPU_STATE = _struct(
    [
        *_words(
            "lost",
            "temperature_celsius",
            "memory_temperature_celsius",
            "power_milliwatts",
            "energy_millijoules",
            "energy_at_ns",
        ),
        ("clocks_mhz", "<u8", (4,)),
        *_words(
            "clocks_event_reasons",
            "utilisation_percent",
            "memory_utilisation_percent",
            "encoder_percent",
            "decoder_percent",
            "jpeg_percent",
            "memory_used_bytes",
            "ecc_corrected",
            "ecc_uncorrected",
            "remapped_correctable",
            "remapped_uncorrectable",
            "remapping_pending",
            "remapping_failed",
            "retired_single_bit",
            "retired_double_bit",
            "pcie_generation",
            "pcie_width",
            "pcie_replays",
            "pcie_correctable_errors",
            "pcie_nonfatal_errors",
            "pcie_fatal_errors",
        ),
        ("links", NVLINK_STATE, (MOST_NVLINKS,)),
    ]
)

GPU = _struct(
    [("constants", GPU_CONSTANTS), ("sequence", "<u8"), ("states", GPU_STATE, (2,))],
    on_lines=["sequence"],
)

MACHINE_EVENT = _struct(_words("time_ns", "gpu", "type", "data"))

MACHINE_HEADER = _struct(
    [
        ("magic", "<u4"),
        ("abi", "<u4"),
        ("gpus", "<u4"),
        ("gpu_bytes", "<u4"),
        ("owner_pid", "<u4"),
        ("cuda_version", "<u4"),
        ("machine_id", "<u8"),
        ("fabric_id", "<u8"),
        ("driver_version", "S80"),
        ("nvml_version", "S80"),
        ("fabric_path", "S128"),
        ("traffic_path", "S128"),
        ("closed", "<u8"),
        ("events_written", "<u8"),
        ("events", MACHINE_EVENT, (EVENTS,)),
    ],
    on_lines=["closed", "events_written", "events"],
)

STRUCTS: dict[str, np.dtype[np.void]] = {
    "mo_machine_header": MACHINE_HEADER,
    "mo_machine_event": MACHINE_EVENT,
    "mo_gpu": GPU,
    "mo_gpu_constants": GPU_CONSTANTS,
    "mo_nvlink_constants": NVLINK_CONSTANTS,
    "mo_nvlink_state": NVLINK_STATE,
    "mo_gpu_state": GPU_STATE,
}
"""By the name of the C struct, so that a test can compare them."""
