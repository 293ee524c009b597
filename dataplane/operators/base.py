"""What an operator is: parameters, formats, a commit contract, and what it does with frames.

Operators are plug-ins: entry point group `media_observatory.operators`, the value a subclass of `Operator`. The worker
owns the loop; an operator only sees `Context`. One instance lives in one process and is called by one thread:

    open -> [continue_from] -> (step ... | process ...) -> flush -> close

Class methods run in the supervising process, before anything starts; instance methods in the worker.

The process may be killed at any instruction. A new instance then continues: it gets its inputs again from the first
payload that the dead one had not acknowledged (redelivery: in order, the same descriptors), output rings that go on
where the old ones ended, and a `Resume`. Every frame comes out once, or is reported as lost, if an operator

- acknowledges (releases) an input only after what depends on it is published, or can be told from a checkpoint;
- publishes what belongs together with `Context.publish_together`: all of it, or nothing;
- does again whatever is redelivered, except for what `Resume.was_published`.

The same cut is made on purpose when an operator moves elsewhere (a migration): the new instance is opened beside the
old one, the old one stops at a payload and is ended, and `continue_from` is called.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, JsonValue

from observatory.model.contract import CommitContract
from observatory.model.event import UNKNOWN_I64, UNKNOWN_U64
from observatory.model.media import PayloadKind, PortFormat

if TYPE_CHECKING:
    from dataplane._ring import Descriptor, ReadLease, WriteLease


MOST_CHECKPOINT_BYTES = 32 * 1024
MOST_LOSSES_KEPT = 1000
MOST_RECENT_KEPT = 4096

VIDEO = frozenset({PayloadKind.VIDEO_FRAME, PayloadKind.VIDEO_PACKET, PayloadKind.FRAME_LOST})
PACKETS = frozenset({PayloadKind.VIDEO_PACKET, PayloadKind.AUDIO_PACKET})

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


NO_WISHES = SourceRequest()


class Write(NamedTuple):
    """One payload of several that are published together: `size` bytes of a slot, under a descriptor."""

    lease: WriteLease
    descriptor: Descriptor
    size: int


class Loss(NamedTuple):
    """One frame that was reported to `Context.lost`."""

    source_index: int | None
    pts: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Published:
    """What the earlier instances of an operator published on one of its ports.

    Frames, packets of video and marks of lost frames count (`VIDEO`); `last_dts` knows the sound too. Times are ticks
    of the port's time base.
    """

    next_source_index: int = 0  # one past the largest
    last_epoch: int = 0  # of the payload published last; 0: the one that the run began with
    last_pts: int | None = None  # the largest
    last_dts: Mapping[int, int] = field(default_factory=dict)
    """By stream index (of sound its place on the port; the picture is 0): the decoding time of the coded packet that
    was published last, its presentation time where it has none."""
    recent: frozenset[tuple[int, int]] = frozenset()
    """(epoch, source index) of what is still in the old ring: at least all that was published for inputs that were not
    acknowledged."""

    def followed_by(self, descriptors: Iterable[Descriptor]) -> Published:
        """The same with what a later ring has: its descriptors in the order of their sequences, all that it still has.

        Redelivery may go back behind the beginning of that ring, so what is recent stays so.
        """
        index, epoch, pts = self.next_source_index, self.last_epoch, self.last_pts
        dts, recent = dict(self.last_dts), set(self.recent)
        for said in descriptors:
            decoded = said.pts if said.dts == UNKNOWN_I64 else said.dts
            if said.payload_kind in PACKETS and decoded != UNKNOWN_I64:
                dts[said.stream_index] = decoded
            if said.payload_kind in VIDEO and said.source_index != UNKNOWN_U64:
                recent.add((said.epoch, said.source_index))
                index, epoch = max(index, said.source_index + 1), said.epoch
                if said.pts != UNKNOWN_I64:
                    pts = said.pts if pts is None else max(pts, said.pts)
        kept = sorted(recent, key=itemgetter(1))[-MOST_RECENT_KEPT:]
        return Published(index, epoch, pts, dts, frozenset(kept))

    def covers(self, epoch: int, source_index: int) -> bool:
        """Whether it was published, now or long ago; of ports where nothing is published behind a gap."""
        if source_index >= self.next_source_index:
            return False
        oldest = min((index for _, index in self.recent), default=self.next_source_index)
        return source_index < oldest or (epoch, source_index) in self.recent


NOTHING = Published()


@dataclass(frozen=True, slots=True)
class Resume:
    """Where an instance begins that continues the work of others.

    `incarnation` is 2 for the second instance. `state` is what was given to `Context.checkpoint` last, by whichever
    instance; None: nothing was. `published` is by port. `lost` is what was reported to `Context.lost`, the oldest
    first: all of it, or the latest MOST_LOSSES_KEPT.
    """

    incarnation: int
    reason: Literal["died", "migrated"]
    state: Mapping[str, JsonValue] | None = None
    published: Mapping[str, Published] = field(default_factory=dict)
    lost: tuple[Loss, ...] = ()

    def on(self, port: str) -> Published:
        """What was published on that port."""
        return self.published.get(port, NOTHING)

    def was_published(self, port: str, epoch: int, source_index: int) -> bool:
        """Whether the frame, packet or lost mark of that source index (and that very epoch) is in the old rings."""
        return (epoch, source_index) in self.on(port).recent


@dataclass(frozen=True, slots=True)
class Restart:
    """Whether an operator can go on in another process, and what that needs.

    `after_death`: a new instance can continue after the old one died. `migration`: it can be opened beside the old one
    and take over from it. `cut`: where the inputs may be cut for that; "key_frame": only before a packet that is one.
    `why` says for people how it continues, and why not where it cannot.
    """

    after_death: bool
    migration: bool
    why: str
    cut: Literal["any", "key_frame"] = "any"

    @property
    def possible(self) -> bool:
        """Whether there is any way."""
        return self.after_death or self.migration


class Context(Protocol):
    """What an operator may ask of its worker. Waiting calls raise `dataplane.errors.Stopped` when told to stop."""

    name: str
    inputs: Mapping[str, PortFormat]  # by edge name "producer->consumer"; audio edges as "producer->consumer:audio"
    outputs: Mapping[str, OutputPort]
    source: SourceRequest
    start_seconds: float  # of the source this operator descends from
    stopping: threading.Event  # set when the operator shall end: those who wait for something else look at it often
    resume: Resume | None  # None in the first instance, and until `continue_from` is called

    def acquire(self, payload_bytes: int, port: str = "video") -> WriteLease:
        """A slot of the port that holds that many bytes; sleeps until there is one."""

    def publish_together(self, writes: Sequence[Write]) -> int:
        """Publish several payloads of one port in that order by one commit: all of them, or (death) none.

        Returns the sequence of the first. There is at least one.
        """

    def checkpoint(self, state: Mapping[str, JsonValue]) -> None:
        """Replace what `Resume.state` will say. It survives the death of this process once the call has returned.

        Small (at most MOST_CHECKPOINT_BYTES as JSON) and not for every frame: it is a message to the supervisor.
        Call it before the input that it stands for is acknowledged.
        """

    def lost(self, source_index: int | None, pts: int | None, reason: str) -> None:
        """Report one frame that will not come; `pts` as it would have been published.

        It survives the death of this process once the call has returned. Who comes after it finds it in `Resume.lost`,
        and does not report it again.
        """

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
        `Published.last_epoch` tells who continues this work of it once a frame of it is out; before that it may be
        begun once more, or be told by a checkpoint.
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

    @classmethod
    def restart(cls, params: Parameters, request: SourceRequest = NO_WISHES) -> Restart:
        """Whether and how another instance can continue; `request` is of meaning for sources only."""
        return Restart(after_death=False, migration=False, why=f"{cls.op} does not say how to go on")

    # -- in the worker ------------------------------------------------------------------------------------------

    def open(self, context: Context) -> None:
        """Prepare; the first frames may already be waiting.

        Everything that takes time and does not depend on where the work begins: of a migration this is done while the
        old instance still works, so nothing may be taken that it has (a port, a lock on a folder).
        """

    def continue_from(self, resume: Resume, context: Context) -> None:
        """Go on where other instances left off; called once, after `open` and before anything else, if there were any.

        `context.resume` is the same. Publishing and reporting losses is allowed from here on.
        """

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
