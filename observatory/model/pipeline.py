"""The pipeline as asked for: a DAG of operators with quality of service and placement constraints."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from observatory.model.media import PortFormat


class OnFull(StrEnum):
    """What an edge does when its consumer is slower than its producer."""

    BLOCK = "block"
    DROP_OLDEST = "drop_oldest"


class Priority(StrEnum):
    """Whose work gives way first."""

    REALTIME = "realtime"
    STANDARD = "standard"
    BEST_EFFORT = "best_effort"


class Qos(BaseModel):
    """Quality of service of one pipeline. None: not asked for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    deadline_seconds: float | None = Field(default=None, gt=0)
    frames_per_second: float | None = Field(default=None, gt=0)
    priority: Priority = Priority.STANDARD
    on_full: OnFull = OnFull.BLOCK


DomainKind = Literal[
    "Node",
    "Socket",
    "NUMA_Node",
    "PCIe_Switch",
    "NVLink_Domain",
    "xGMI_Domain",
    "CXL_Memory_Node",
    "Device_Kind",
]
"""Kinds of domains that operators can be asked to share."""


class TopologyConstraint(BaseModel):
    """Operators that belong together in one domain. Without a weight it is hard; with one it is a wish (0-100)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: DomainKind
    members: tuple[str, ...] = Field(min_length=1)
    weight: float | None = Field(default=None, gt=0, le=100)
    value: str | None = None  # the domain asked for by name, or the device kind


class LocalityHint(BaseModel):
    """A wish that operators share a place."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    operators: tuple[str, ...] = Field(min_length=2)
    prefer: Literal["same-device", "same-numa", "same-socket", "same-node"]


class SharedMemoryProfile(StrEnum):
    """Page size wanted for the pools; the fallback to 4 KiB is reported."""

    DEFAULT = "default"
    HUGEPAGE_2MB = "hugepage-2mb"


class OperatorNode(BaseModel):
    """One operator of the DAG. `params` are validated by the operator's own model; `line` is where it was written."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    op: str
    inputs: tuple[str, ...] = ()
    params: dict[str, Any] = Field(default_factory=dict)
    device: str | None = None  # pinned by the user
    line: int | None = Field(default=None, exclude=True)


class Pipeline(BaseModel):
    """A validated DAG: names are unique, inputs exist, there is no cycle; operators are in topological order."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    operators: tuple[OperatorNode, ...] = Field(min_length=1)
    qos: Qos = Qos()
    topology_constraints: tuple[TopologyConstraint, ...] = ()
    locality_hints: tuple[LocalityHint, ...] = ()
    shared_memory_profile: SharedMemoryProfile = SharedMemoryProfile.DEFAULT
    source_file: str | None = Field(default=None, exclude=True)

    def operator(self, name: str) -> OperatorNode:
        """The operator of that name. Raises KeyError."""
        for node in self.operators:
            if node.name == name:
                return node
        raise KeyError(name)

    def consumers_of(self, name: str) -> tuple[OperatorNode, ...]:
        """Operators that take that operator's output, in order."""
        return tuple(o for o in self.operators if name in o.inputs)


class Edge(BaseModel):
    """One hop of a typed pipeline: which output of which operator feeds whom, with what format.

    `traced` is False for audio, which travels without hop records.
    """

    model_config = ConfigDict(frozen=True)

    producer: str
    port: str  # "video" or "audio"
    consumer: str
    format: PortFormat
    policy: OnFull = OnFull.BLOCK
    traced: bool = True

    @property
    def name(self) -> str:
        """`producer->consumer`, the edge's name in records and pages."""
        return f"{self.producer}->{self.consumer}"

    @property
    def bytes_per_frame(self) -> int:
        """Bytes that cross per frame: exact for raw video, an estimate for coded, 0 is never assumed."""
        if self.format.kind == "video":
            return self.format.bytes_per_frame
        if self.format.kind == "packet":
            return self.format.bytes_per_packet
        return 1024  # coded audio of one frame's duration, order of magnitude
