"""What one worker is told to run: plain data, sent over the control channel when the worker starts."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from dataplane import _ring
from dataplane.links.emulated import EmulatedPath
from dataplane.operators.base import SourceRequest
from observatory.model.media import PortFormat
from observatory.model.pipeline import OnFull


class PortSize(BaseModel):
    """Slots of one size class of a port, as decided by `dataplane.sizing`.

    Below `least_slots` the pipeline deadlocks (None: not known); `slab_slots`, `domain`, `reserve`: see
    `_ring.SizeClass`.
    """

    model_config = ConfigDict(frozen=True)

    slot_bytes: int
    slot_count: int
    least_slots: int | None = None
    slab_slots: int = 0
    domain: str | None = None
    reserve: bool = False

    @property
    def node(self) -> int | None:
        """The NUMA node that the domain names, if it names one."""
        number = (self.domain or "").removeprefix("node")
        return int(number) if self.domain != number and number.isdecimal() else None

    def wish(self, huge_pages: bool) -> _ring.SizeClass:
        """As a producer takes it."""
        return _ring.SizeClass(
            self.slot_bytes,
            self.slot_count,
            huge_pages,
            reserve=self.reserve,
            slab_slots=self.slab_slots,
            domain=self.domain,
        )


class OutputAssignment(BaseModel):
    """One output port that has consumers. `place` is its port id in the run manifest; None: not traced."""

    model_config = ConfigDict(frozen=True)

    port: str
    format: PortFormat
    ring_capacity: int
    sizes: tuple[PortSize, ...]
    huge_pages: bool = False
    place: int | None = None


class InputAssignment(BaseModel):
    """One input edge. `place` is its hop id in the run manifest; None: not traced. `link` None: `shm`, one memory."""

    model_config = ConfigDict(frozen=True)

    edge: str
    producer: str
    port: str
    format: PortFormat
    policy: OnFull = OnFull.BLOCK
    place: int | None = None
    link: EmulatedPath | None = None

    @property
    def key(self) -> str:
        """How the operator knows the edge: `a->b`, and `a->b:audio` for its audio."""
        return self.edge if self.port == "video" else f"{self.edge}:{self.port}"


class Assignment(BaseModel):
    """One operator instance in one worker process."""

    model_config = ConfigDict(frozen=True)

    operator: str
    op: str
    params: dict[str, Any]
    device: str  # planned
    real_device: int  # index into the manifest's devices
    stream: int
    epoch: int
    inputs: tuple[InputAssignment, ...]
    outputs: tuple[OutputAssignment, ...]
    source: SourceRequest = SourceRequest()  # of no meaning to operators that are no sources
    start_seconds: float = 0.0
