"""Links: edges of the physical graph."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field


class LinkKind(StrEnum):
    """The technology of a link."""

    PCIE = "pcie"
    NVLINK = "nvlink"
    XGMI = "xgmi"
    C2C = "c2c"
    CXL = "cxl"
    UPI = "upi"
    RDMA = "rdma"
    ETHERNET = "ethernet"
    MEMORY = "memory"
    STORAGE = "storage"
    NETWORK = "network"  # between machines, of a technology that the source does not tell


class LinkState(StrEnum):
    """Whether a link carries traffic."""

    UP = "up"
    DEGRADED = "degraded"
    DOWN = "down"
    UNKNOWN = "unknown"


class BandwidthSource(StrEnum):
    """Where a link's bandwidth is from."""

    STATED = "stated"  # the machine's own tool or file gives the rate
    NEGOTIATED = "negotiated"  # speed and width are told, the encoding is the standard's
    DATA_SHEET = "data_sheet"  # only the kind of chip is told: `observatory.model.data_sheets`


class Link(BaseModel):
    """An undirected edge between two vertices (devices, switches, sockets), named by id.

    `bandwidth_bytes_per_second` is the effective rate of one direction, all `count` parallel links together;
    `latency_seconds` one way. `width` is in lanes (or active links for NVLink), `speed` the vendor's own word
    (`16.0 GT/s`), both as they are now; `best_width` and `best_speed` are what both ends can do. A link that runs below
    that is `degraded`. `numa_distance` is the firmware's relative figure for a link between NUMA nodes (ACPI SLIT: 10
    is local); it is no latency. `bandwidth_source` says whose word the bandwidth is; None in descriptions. Unknown
    values are None.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    a: str
    b: str
    kind: LinkKind
    count: int | None = Field(default=None, ge=1)
    width: int | None = Field(default=None, ge=0)
    speed: str | None = None
    best_width: int | None = Field(default=None, ge=0)
    best_speed: str | None = None
    bandwidth_bytes_per_second: float | None = Field(default=None, gt=0)
    bandwidth_source: BandwidthSource | None = None
    latency_seconds: float | None = Field(default=None, ge=0)
    state: LinkState = LinkState.UNKNOWN
    utilisation: float | None = Field(default=None, ge=0, le=1)
    numa_distance: int | None = Field(default=None, ge=0)

    @property
    def id(self) -> str:
        """Stable name of the link: both ends in order, and its kind."""
        first, second = sorted((self.a, self.b))
        return f"{first}--{second}:{self.kind}"
