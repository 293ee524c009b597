"""What an operator is: parameters, formats, a commit contract, and what it does with frames.

Operators are plug-ins: entry point group `media_observatory.operators`, the value a subclass of `Operator`. The worker
owns the loop; an operator only sees `Context`. One instance lives in one process and is called by one thread:

    open -> (step ... | process ...) -> flush -> close

Class methods run in the supervising process, before anything starts; instance methods in the worker.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol

from pydantic import BaseModel, ConfigDict, JsonValue

from observatory.model.contract import CommitContract
from observatory.model.media import PortFormat

if TYPE_CHECKING:
    from dataplane._ring import ReadLease, WriteLease


LUMA_SAMPLES: dict[str, JsonValue] = {"unit": "luma samples"}
"""For `Field(json_schema_extra=...)`: the unit that the reference shows for a parameter."""


class Parameters(BaseModel):
    """Base of every operator's parameters: unknown names are refused, values are not coerced silently."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, slots=True)
class SlotClass:
    """Slots of one size that a port needs for itself, before what its consumers hold is added."""

    slot_bytes: int
    slot_count: int
    shared_by_consumers: bool = False  # whether frames held by consumers add to this class


@dataclass(frozen=True, slots=True)
class OutputPort:
    """One output of an operator: "video" (frames or packets) or "audio"."""

    name: str
    format: PortFormat
    slots: tuple[SlotClass, ...]
    why: str  # the arithmetic in words: "2 decoder threads + 1 being written"


@dataclass(frozen=True, slots=True)
class Probe:
    """What opening the input told, for source operators: shown, checked and stored before anything runs."""

    input: str
    outputs: tuple[OutputPort, ...]
    start_seconds: float = 0.0  # the container's own start, subtracted by muxers
    duration_seconds: float | None = None
    frames: int | None = None  # when the container says
    live: bool = False  # whether it comes when it comes, and may stay away for a while
    warnings: tuple[str, ...] = ()
    extra: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """What `run` and `up` add to a source's parameters. None: the operator's own default; `frames` 0: without end.

    `realtime`: whether frames come at their own pace rather than as fast as they can be made; of no meaning to live
    sources. `address`: where `input` is really read, for sources that come through a gateway of this machine
    (`dataplane.srt_gateway`); people are shown `input`.
    """

    input: str | None = None
    frames: int | None = None
    realtime: bool | None = None
    address: str | None = None


class Context(Protocol):
    """What an operator may ask of its worker. Waiting calls raise `dataplane.errors.Stopped` when told to stop."""

    name: str
    inputs: Mapping[str, PortFormat]  # by edge name "producer->consumer"; audio edges as "producer->consumer:audio"
    outputs: Mapping[str, OutputPort]
    source: SourceRequest
    start_seconds: float  # of the source this operator descends from
    stopping: threading.Event  # set when the operator shall end: those who wait for something else look at it often

    def acquire(self, payload_bytes: int, port: str = "video") -> WriteLease:
        """A slot of the port that holds that many bytes; sleeps until there is one."""

    def lost(self, source_index: int | None, pts: int | None, reason: str) -> None:
        """Report one frame that will not come; `pts` as it would have been published."""

    def warn(self, message: str) -> None:
        """Say something once, on standard error and in the summary."""

    def scratch(self, path: str) -> None:
        """Report a temporary file, to be removed if this process dies without doing so."""

    def finished_output(self, path: str, frames: int, by_edge: Mapping[str, int]) -> None:
        """Report one finished output file."""

    def count_frame(self) -> None:
        """Count one frame as done by this operator (sources: decoded; muxers: written)."""

    def source_waits(self, waiting: bool) -> None:
        """Sources only: whether their input has gone away, and is waited for."""

    def begin_epoch(self, reason: str, pts_offset: int) -> int:
        """Sources only, at a discontinuity of their input: the number of the epoch that begins with the next frame.

        `pts_offset` ticks of the stream's time base are what the source adds from now on to the input's own time
        stamps, so that times within the job go on rising; look-ups by PTS take it off again. Source indices go on.
        """


class Operator:
    """Base of all operators."""

    op: ClassVar[str]
    Params: ClassVar[type[Parameters]]
    summary: ClassVar[str]
    source: ClassVar[bool] = False
    sink: ClassVar[bool] = False
    max_inputs: ClassVar[int | None] = 1  # None: any number
    takes_audio: ClassVar[bool] = False
    engines: ClassVar[Mapping[str, str]]  # device kind -> engine kind it needs there, e.g. {"cpu": "compute"}

    def __init__(self, params: Parameters) -> None:
        self.params = params

    # -- before anything runs ------------------------------------------------------------------------------------

    @classmethod
    def contract(cls, params: Parameters) -> CommitContract:
        """The commit contract under these parameters."""
        raise NotImplementedError

    @classmethod
    def probe(cls, params: Parameters, request: SourceRequest) -> Probe:
        """Sources only: open the input and say what comes out. Raises BadMedia, BadParameters."""
        raise NotImplementedError

    @classmethod
    def output(cls, params: Parameters, inputs: Sequence[PortFormat]) -> tuple[OutputPort, ...]:
        """Non-sources: the ports made from inputs of these formats (empty for sinks). Raises BadParameters."""
        raise NotImplementedError

    # -- in the worker ------------------------------------------------------------------------------------------

    def open(self, context: Context) -> None:
        """Prepare; the first frames may already be waiting."""

    def step(self, context: Context) -> bool:
        """Sources only: make progress; False at the end of the input. Called until then or until told to stop."""
        raise NotImplementedError

    def process(self, frame: ReadLease, edge: str, context: Context) -> None:
        """Take one payload of one edge. The operator releases `frame` itself, then or later, per its contract."""
        raise NotImplementedError

    def ended(self, edge: str, context: Context) -> None:
        """One input edge has ended."""

    def flush(self, context: Context) -> None:
        """All inputs have ended (or a source was told to stop): publish what is still inside, release what is held."""

    def abort(self) -> None:
        """The job failed: throw away unfinished outputs. Must not raise."""

    def close(self) -> None:
        """Free everything; called once, after flush or abort."""
