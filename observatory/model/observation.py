"""What a receiver saw of the hardware: a measured value, or an event that a machine reported in words.

A receiver names what it looked at by the address that its source knows (a PCI bus id, a port of a card); which device
or link of the topology that is, is found out afterwards (`observatory.topology.addresses`), so that a receiver needs no
topology and what it saw of hardware that nobody described is still kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class AddressKind(StrEnum):
    """What kind of name an address has."""

    DEVICE = "device"  # id of a device of the topology: n0/gpu3
    LINK = "link"  # id of a link of the topology
    NODE = "node"  # the machine itself; the key is empty
    PCI = "pci"  # bus id with domain, lower case: 0000:3b:00.0 (a 32-bit domain keeps its eight digits)
    GPU = "gpu"  # the vendor's UUID: GPU-8c0d..., MIG-...
    # Bus id of the GPU, a slash, number of the link: 0000:3b:00.0/7. All links to one peer (a GPU, an NVSwitch)
    # together have the peer's bus id behind the slash: 0000:3b:00.0/0000:86:00.0
    NVLINK = "nvlink"
    PORT = "port"  # port of an RDMA card: mlx5_0/1
    INTERFACE = "interface"  # network interface: eth0
    NUMA = "numa"  # number of the NUMA node
    CPU = "cpu"  # number of the socket
    MEMORY = "memory"  # name of a memory device: mem0, mc0/csrow1


@dataclass(frozen=True, slots=True)
class Address:
    """A piece of hardware as its machine calls it. `node` is the topology's name of that machine."""

    node: str
    kind: AddressKind
    key: str = ""

    def __str__(self) -> str:
        return f"{self.node}:{self.kind}:{self.key}" if self.key else f"{self.node}:{self.kind}"


@dataclass(frozen=True, slots=True)
class Observation:
    """One value. `metric` is a name of `observatory.model.hardware_metrics`, and so is the value's unit.

    None says that the source was asked and does not know (`N/A`, a blank sentinel): never 0. Counters are given as
    read: whoever wants rates tells resets from wraps. `at_ns` is CLOCK_MONOTONIC when the value was read, `source` the
    receiver (`nvml`, `sysfs-pcie`).
    """

    subject: Address
    metric: str
    value: float | None
    at_ns: int
    source: str
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HardwareEvent:
    """Something that a machine reported in words: a line of the kernel's log, an event of NVML.

    `text` is the line without its prefix, `code` the number or word that the source gives it (`79` of an Xid), `at_ns`
    CLOCK_MONOTONIC when it happened where the source tells, else when it was read.
    """

    subject: Address
    kind: str  # what reported it: xid, aer, edac, mce, text
    text: str
    at_ns: int
    source: str
    code: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)


Seen = Observation | HardwareEvent
