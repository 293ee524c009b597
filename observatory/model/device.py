"""Devices: what runs operators or holds memory."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

from observatory.model.link import LinkState


class DeviceKind(StrEnum):
    """What a device is."""

    CPU = "cpu"
    GPU = "gpu"
    VPU = "vpu"
    FPGA = "fpga"
    ASIC = "asic"
    NIC = "nic"
    CXL_MEMORY = "cxl_memory"
    STORAGE = "storage"


class EngineKind(StrEnum):
    """A fixed-function or programmable unit inside a device, with a capacity of its own."""

    COMPUTE = "compute"
    DECODE = "decode"
    ENCODE = "encode"
    JPEG = "jpeg"
    COPY = "copy"


class Engine(BaseModel):
    """One kind of unit inside a device.

    `sessions` is the number of concurrent sessions the vendor allows; None when it is not limited or not known.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: EngineKind
    count: int = Field(ge=0)
    sessions: int | None = Field(default=None, ge=0)


class Port(BaseModel):
    """Where a cable goes into a network card.

    `name` is the operating system's (`eth0`, `mlx5_0/1`), `link_layer` `ethernet`, `infiniband` or the system's word.
    The rate is that of payload bits on the wire, one direction, as negotiated; None when nothing is plugged in. `guid`
    is InfiniBand's: 16 hexadecimal digits, of the port or, where that is all that is told, of its card.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    link_layer: str | None = None
    bytes_per_second: float | None = Field(default=None, gt=0)
    guid: str | None = Field(default=None, pattern=r"^[0-9a-f]{16}$")
    state: LinkState = LinkState.UNKNOWN


class Device(BaseModel):
    """A device. `id` is `node/kind+index`, for example `n0/gpu3`. Unknown values are None.

    `os_names` are what the operating system calls it (`nvme0n1`, `eth0`, `card1`). `memory_bytes` is memory that
    operators' frames may live in; what a disk holds is its `capacity_bytes`. `virtual_functions` are the PCI bus ids
    of SR-IOV functions of this card, which are no devices of their own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(pattern=r"^[^/\s]+/[a-z_]+[0-9]+$")
    kind: DeviceKind
    node: str
    name: str | None = None
    numa_node: int | None = Field(default=None, ge=0)
    pci_bus_id: str | None = None
    memory_bytes: int | None = Field(default=None, ge=0)
    engines: tuple[Engine, ...] = ()
    cpus: tuple[int, ...] | None = None  # logical processors, for kind cpu
    pci_id: str | None = None  # vendor:device, hexadecimal
    os_names: tuple[str, ...] = ()
    ports: tuple[Port, ...] = ()  # for kind nic
    capacity_bytes: int | None = Field(default=None, ge=0)  # for kind storage
    rotational: bool | None = None
    virtual_functions: tuple[str, ...] = ()

    def engine(self, kind: EngineKind) -> Engine | None:
        """The device's engine of that kind, or None when it has none (A100, H100 and H200 have no ENCODE)."""
        return next((e for e in self.engines if e.kind is kind and e.count > 0), None)
