"""The documents of the HTTP API that are not shared models, as the OpenAPI document describes them.

Routes answer with the documents that the command line's `--json` prints; a test holds them against these models.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from observatory.model.incident import Incident
from observatory.model.media import TimeBase
from observatory.model.record import HopLink, HopView
from observatory.model.status import PipelineStatus


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Error(_Answer):
    """What is wrong, where, and how to mend it."""

    model_config = ConfigDict(frozen=True, extra="allow")

    kind: str = Field(description="The kind of error, for programs", examples=["NoSuchFrame"])
    message: str = Field(description="What is wrong, for people")
    file: str | None = Field(default=None, description="The file that it is about")
    line: int | None = Field(default=None, description="The line in that file, from 1")
    mend: str | None = Field(default=None, description="What to do about it")


class Problem(_Answer):
    """The body of every answer that is no success."""

    error: Error


class NearestFrame(_Answer):
    """A frame that exists, before or after the one that was looked for."""

    pts: int | None
    time_base: str | None
    source_index: int
    epoch: int | None = None


class LostEntry(_Answer):
    """A frame that did not come through, and why."""

    source_index: int | None = Field(description="Its number at the source; null when that is not known")
    pts: int | None
    time_base: TimeBase | None
    operator: str
    reason: str


class FrameNotFound(Error):
    """No such frame: the nearest that there are, and why it was lost if it was."""

    nearest: list[NearestFrame] = []
    lost: LostEntry | None = None


class FrameProblem(_Answer):
    """The body when there is no such frame."""

    error: FrameNotFound


class PlatformHealth(_Answer):
    """What the platform says of itself."""

    version: str
    pid: int
    started_unix_seconds: float


class Health(_Answer):
    """Whether the web process and the platform behind it answer."""

    status: Literal["ok", "platform gone"]
    version: str = Field(description="Version of this web process")
    pid: int = Field(description="Process id of this web process")
    live_clients: int = Field(description="WebSockets that get snapshots now")
    pages: str = Field(description="`ok`, `none` when there are none, or why they could not be loaded")
    platform: PlatformHealth | None = Field(description="null when it does not answer")


class Pipelines(_Answer):
    """All pipelines of the platform."""

    pipelines: tuple[PipelineStatus, ...]


class SubmitRequest(BaseModel):
    """A pipeline to start."""

    model_config = ConfigDict(extra="forbid")

    spec: str = Field(min_length=1, description="The pipeline file's text (YAML)")
    file: str | None = Field(default=None, description="What errors call the file", examples=["ladder.yaml"])
    inputs: dict[str, str] | list[str] = Field(
        default_factory=dict,
        description='Where sources read from: {operator: URL}, `""` for the only source; or `[OPERATOR=]URL` as a list',
        examples=[{"decode": "film.mp4"}],
    )
    name: str | None = Field(default=None, description="In place of the name in the file")
    frames: int | None = Field(default=None, ge=1, description="Stop after so many frames of each source")
    realtime: bool | None = Field(default=None, description="Whether files are read at their own pace")
    share: bool | None = Field(
        default=None, description="Whether it shares what it has in common with others; null: as the platform does"
    )
    folder: str | None = Field(
        default=None,
        pattern=r"^/[^\x00]*$",
        description="The absolute folder that relative paths are taken from; null: there may be none",
    )

    def as_submission(self) -> dict[str, Any]:
        """As the platform takes it: inputs as a list, nothing that was not given."""
        given = self.model_dump(exclude_none=True)
        if isinstance(self.inputs, dict):
            given["inputs"] = [f"{name}={url}" if name else url for name, url in self.inputs.items()]
        return given


class EpochEntry(_Answer):
    """One epoch of a stream: a run begins one, and within a run every discontinuity of a live source."""

    epoch: int
    run_id: str | None
    pipeline: str | None
    input: str | None
    time_base: str | None = Field(description="Seconds per tick of the source's PTS", examples=["1/30"])
    reason: str | None = Field(description="What it began for; null: a run began")
    began_unix_seconds: float | None
    pts_offset: int | None = Field(description="Ticks by which the job's PTS are later than the source's own")
    first_source_index: int | None
    frames: int | None = Field(description="Frames seen on at least one hop; null when the run never said")
    finished: bool = Field(description="Whether the run said that it ended; false while it goes on, or was killed")


class StreamEntry(_Answer):
    """One stream that the frame store knows."""

    stream: str
    newest_epoch: int | None = Field(description="What look-ups answer from; null when no frame was recorded yet")
    epochs: list[EpochEntry] = Field(description="Newest first, at most 100")


class Streams(_Answer):
    """All streams that the frame store knows, by name."""

    streams: list[StreamEntry]


class _Frame(_Answer):
    stream: str
    epoch: int
    epoch_reason: str | None = Field(description="Why its epoch began; null: with the run")
    source_index: int = Field(description="Number of the frame at its source; the same on every hop")
    pts: int | None = Field(description="Presentation time in ticks of `time_base`, as the source gave it")
    pts_offset: int = Field(description="Ticks that the job's PTS are later than the source's own")
    time_base: str | None = Field(description="Seconds per tick", examples=["1/30"])
    end_to_end_seconds: float | None = Field(description="First launch to last release; null while one is not known")
    began_unix_seconds: float | None = Field(description="Its first event on the wall clock")
    state: Literal["complete", "partial", "incomplete", "dropped", "lost"]
    lost: list[LostEntry]
    missing: list[str] = Field(description="Edges on which it left no record")


class FrameRow(_Frame):
    """One frame in a list."""

    hop_count: int = Field(description="Edges on which it left a record")


class HopEntry(HopView):
    """One frame on one edge. `events` are CLOCK_MONOTONIC nanoseconds; `slot` and `bytes` null when not known."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    parents: list[int] = Field(description="Source indices of the frames that this one was made of")


class FrameDetail(_Frame):
    """One frame over all its hops, in the order of the DAG: as `observatory frames find --json`."""

    hops: list[HopEntry]


class Frames(_Answer):
    """A page of frames, newest first."""

    stream: str | None
    epoch: int | None = Field(description="The epoch asked for, else the newest that has frames")
    frames: list[FrameRow]
    lost: list[LostEntry] = Field(description="Lost frames of the same epochs, at most `limit`")
    next_before: int | None = Field(description="`before` of the next page; null when there is none")


class SlowestFrames(_Answer):
    """The frames that took longest, slowest first."""

    frames: list[FrameRow]


class Quantiles(_Answer):
    """Durations: exact for the first million, within 1 % beyond."""

    count: int
    p50_seconds: float | None
    p99_seconds: float | None
    max_seconds: float | None


class HopStatistics(_Answer):
    """Where the time goes on one edge. `bytes` is the sum over all frames."""

    edge: str
    records: int
    incomplete: int
    dropped: int
    bytes: int
    phases: dict[str, Quantiles] = Field(
        description="allocate, produce, link, hand_over, consume, slot_turnaround: between two events each"
    )
    link: HopLink | None = Field(default=None, description="Null where the hop crossed no link")


class StreamStatistics(_Answer):
    """One run of one stream, or one epoch of it. Counts of events are null when the run never said."""

    stream: str
    epoch: int
    epochs: int = Field(description="How many epochs these figures are of")
    records: int
    frames: int
    lost: int
    events_lost: int | None
    unmatched_events: int | None
    records_dropped: int | None
    finished: bool
    end_to_end: Quantiles
    hops: list[HopStatistics]


class Statistics(_Answer):
    """Statistics by stream: as `observatory frames stats --json`."""

    streams: list[StreamStatistics]


class DecisionEntry(_Answer):
    """One decision in the list."""

    id: str
    created_unix_seconds: float
    pipeline: str
    trigger: str
    predicted_cost: float = Field(description="Seconds of transfer per frame, summed over edges")


class Decisions(_Answer):
    """Decisions of the scheduler, newest first."""

    decisions: list[DecisionEntry]


class Incidents(_Answer):
    """Incidents of the hardware, newest first."""

    incidents: tuple[Incident, ...]


class TopologyDocument(BaseModel):
    """The platform's topology: as `observatory topology show --json`. Unknown values are null."""

    name: str | None
    provenance: str | None = Field(description="`description`, `measurement` or `emulated`: what the numbers are")
    sources: list[str]
    nodes: list[dict[str, Any]] = Field(description="{id}")
    devices: list[dict[str, Any]] = Field(description="{id, kind, node, name, numa_node, memory_bytes, ...}")
    vertices: list[dict[str, Any]] = Field(description="Switches and sockets: {id, kind, node}")
    links: list[dict[str, Any]] = Field(
        description="{a, b, kind, count, width, speed, bandwidth_bytes_per_second, latency_seconds, state, ...}"
    )
    warnings: list[str]


class Cost(_Answer):
    """The cost matrix C_ij: predicted seconds to move one message from row i to column j."""

    level: Literal["nodes", "devices"]
    node: str | None = Field(description="The node whose devices these are; null: of all nodes")
    message_bytes: int
    unit: Literal["seconds"]
    labels: list[str] = Field(description="Nodes or devices, in the order of rows and columns")
    seconds: list[list[float | None]] = Field(description="0 on the diagonal; null where it cannot be predicted")
    truncated: bool = Field(description="Whether there are more than the 512 shown")
