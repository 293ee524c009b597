"""What a machine's own description tells beside devices and links: NUMA nodes, caches, every function on its PCI buses.

Unknown values are None, never 0.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field


class CacheKind(StrEnum):
    """What a cache holds."""

    DATA = "data"
    INSTRUCTION = "instruction"
    UNIFIED = "unified"


class _Hardware(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Cache(_Hardware):
    """One cache, and the logical processors that share it."""

    node: str
    level: int = Field(ge=1)
    kind: CacheKind
    size_bytes: int | None = Field(default=None, ge=0)
    cpus: tuple[int, ...]

    @property
    def label(self) -> str:
        """`L1d`, `L1i`, `L2`, `L3`."""
        return f"L{self.level}{'' if self.kind is CacheKind.UNIFIED else self.kind.value[0]}"


class NumaNode(_Hardware):
    """A NUMA node of the kernel.

    `distances` maps other nodes' numbers to the firmware's relative figure (ACPI SLIT: 10 is local); no latencies.
    """

    node: str
    number: int = Field(ge=0)
    cpus: tuple[int, ...] = ()
    memory_bytes: int | None = Field(default=None, ge=0)
    distances: dict[int, int] = Field(default_factory=dict)


class PciFunction(_Hardware):
    """One function on a PCI bus.

    `parent` is the bus id of the bridge above it (None right below a host bridge), `physical_function` that of the card
    an SR-IOV virtual function belongs to, `shown_as` the device or vertex that stands for it, if any does.
    `class_code` has six hexadecimal digits: class, subclass, programming interface.
    """

    node: str
    bus_id: str
    parent: str | None = None
    host_bridge: str | None = None
    class_code: str | None = Field(default=None, pattern=r"^[0-9a-f]{6}$")
    class_name: str | None = None
    pci_id: str | None = Field(default=None, pattern=r"^[0-9a-f]{4}:[0-9a-f]{4}$")
    name: str | None = None
    numa_node: int | None = Field(default=None, ge=0)
    os_names: tuple[str, ...] = ()
    physical_function: str | None = None
    shown_as: str | None = None
