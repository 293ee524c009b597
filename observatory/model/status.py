"""What a running platform says of itself: one snapshot, as `observatory ps`, the HTTP API and the pages show it.

All times are seconds; unknown values are None, never 0.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from observatory.model.incident import Incident

PipelineState = Literal["starting", "running", "draining", "ended", "failed", "removed"]


class _Status(BaseModel):
    model_config = ConfigDict(frozen=True)


class StreamStatus(_Status):
    """One source. Frame counts and latencies are of this run, but for the recent ones.

    Latencies are end to end: first launch to last release.
    """

    stream: str
    epoch: int = Field(description="The newest epoch; every discontinuity of the source begins another one")
    input: str
    live: bool = False
    state: str = Field(default="running", description="running, waiting (for the source), ended")
    frames_expected: int | None = Field(default=None, description="When the input says")
    frames_in: int = Field(description="Frames that the source operator published")
    frames_done: int = Field(description="Frames that came through every hop")
    frames_lost: int = Field(description="Frames listed as lost, with a reason")
    frames_dropped: int = Field(description="Frames that the policy drop_oldest took away")
    frames_per_second: float | None = None
    latency_p50_seconds: float | None = None
    latency_p99_seconds: float | None = None
    latency_max_seconds: float | None = None
    recent_p50_seconds: float | None = Field(default=None, description="Latency of the last ten seconds")
    recent_p99_seconds: float | None = None


class WorkerStatus(_Status):
    """One worker process."""

    pid: int
    operator: str
    op: str
    device: str = Field(description="Where the placement put it")
    real_device: str = Field(description="Where it really runs")
    state: str
    restarts: int
    frames: int | None
    cpu_seconds: float | None = None
    memory_bytes: int | None = Field(default=None, description="Resident set size")
    shared_by: tuple[str, ...] = Field(
        default=(), description="The pipelines that read what this process makes, where they are several: all list it"
    )


class EdgeStatus(_Status):
    """One edge, right now."""

    edge: str
    producer: str
    consumer: str
    queued: int = Field(description="Frames published and not yet taken")
    held: int = Field(description="Frames taken and not yet acknowledged")
    depth: int | None = Field(default=None, description="Slots that the port of this edge has")
    bytes_per_second: float | None = None


class PoolStatus(_Status):
    """The frame pool of one output port, as its worker last said (every few seconds)."""

    operator: str
    port: str
    ring: int = Field(default=0, description="Which of the port's rings: counts begin anew with each")
    slots: int
    slots_in_use: int
    slots_high_water: int = Field(description="Most in use at a time since the report before, class by class")
    resident_bytes: int | None = Field(default=None, description="What its slabs take in memory; null once it is gone")
    internal_fragmentation_bytes: int | None = Field(
        default=None, description="Unused bytes of the slots in use: slot sizes less payloads"
    )
    external_fragmentation_bytes: int | None = Field(
        default=None, description="Resident idle bytes that cannot be given back: a slot of their slab is in use"
    )
    hit_rate: float | None = Field(
        default=None, description="Share of the allocations that got a slot of the right size at once"
    )
    allocations: dict[str, int] = Field(
        default={}, description="By outcome: hit, fallback, reclaim, wait_for_slot, wait_for_descriptor"
    )


class PipelineStatus(_Status):
    """One pipeline of the platform."""

    name: str
    state: PipelineState
    run_id: str | None = None
    reason: str | None = Field(default=None, description="Why it failed, in words")
    submitted_unix_seconds: float
    started_unix_seconds: float | None = None
    ended_unix_seconds: float | None = None
    decision_id: str | None = None
    deadline_seconds: float | None = Field(default=None, description="End to end, as its file asks for")
    pool_bytes: int | None = None
    pool_resident_bytes: int | None = Field(default=None, description="What the slabs of all ports take in memory")
    pool_hit_rate: float | None = Field(
        default=None, description="Share of all allocations that got a slot of the right size at once"
    )
    pools: tuple[PoolStatus, ...] = ()
    streams: tuple[StreamStatus, ...] = ()
    workers: tuple[WorkerStatus, ...] = ()
    edges: tuple[EdgeStatus, ...] = ()
    outputs: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class StoreStatus(_Status):
    """The frame store of the platform."""

    records: int | None = None
    records_per_second: float | None = None
    records_pending: int = 0
    records_dropped: int = 0
    events_lost: int = 0
    disk_bytes: int | None = None
    budget_bytes: int | None = None
    keep_all_seconds: float | None = None
    error: str | None = None


class ReceiverBrief(_Status):
    """A receiver of hardware telemetry. Counts are since the platform began."""

    name: str
    state: str = Field(description="starting, working, failing, unavailable, hanging or stopped")
    reason: str | None = Field(default=None, description="Why it does not work, in words")
    mend: str | None = None
    stale: bool = Field(description="What it last saw is too old to rely on, or it has seen nothing yet")
    age_seconds: float | None = Field(default=None, description="Since it last saw something")
    period_seconds: float | None = Field(default=None, description="Between two polls; null: the source tells itself")
    polls: int
    failures: int
    observations: int
    events: int
    dropped: int = Field(description="What came faster than it could be taken")
    cpu_seconds: float


class TelemetryStatus(_Status):
    """What receivers see of the hardware, and what is wrong with it."""

    emulated: bool = Field(description="The receivers look at the emulated machine")
    receivers: tuple[ReceiverBrief, ...] = ()
    topology_version: int = Field(description="Grows with every change of a link or device")
    incidents_open: int
    incidents: tuple[Incident, ...] = Field(default=(), description="Those that are open, the worst first")


class PlatformStatus(_Status):
    """The platform itself."""

    version: str
    host: str
    pid: int
    state: str = Field(description="The state directory")
    url: str | None
    topology: str
    config_file: str | None = None
    started_unix_seconds: float
    web_restarts: int = 0
    warnings: tuple[str, ...] = ()


class Snapshot(_Status):
    """Everything at one moment."""

    unix_seconds: float
    platform: PlatformStatus
    pipelines: tuple[PipelineStatus, ...]
    store: StoreStatus
    telemetry: TelemetryStatus | None = Field(default=None, description="null where no receivers run")
