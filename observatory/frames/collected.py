"""What a collector says of its run: totals, and every stream."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StreamSnapshot:
    """How one stream is doing, in all its epochs of this run; `epoch` is the newest of them.

    `frames` are complete: every hop was recorded, with launch and release; of `frames_seen`, at least one hop was.
    Latencies are end to end (first launch to last release), within 1 %; None before the first complete frame. The
    `recent` ones are of the last ten seconds, None when no frame came through in them.
    """

    name: str
    id: int
    epoch: int
    frames: int
    frames_seen: int
    frames_lost: int
    latency_p50_seconds: float | None
    latency_p99_seconds: float | None
    latency_max_seconds: float | None
    recent_p50_seconds: float | None
    recent_p99_seconds: float | None


@dataclass(frozen=True, slots=True)
class CollectorSnapshot:
    """How a run is doing: totals and every stream.

    `events_lost` were refused by a full ring; `unmatched_events` name a place that the run does not have;
    `records_dropped` could not be stored and no longer be kept. `error` is the last failure to store, in words, None
    when storing works.
    """

    streams: tuple[StreamSnapshot, ...]
    frames: int
    latency_p50_seconds: float | None
    latency_p99_seconds: float | None
    records: int
    records_per_second: float
    records_pending: int
    records_dropped: int
    incomplete_records: int
    events_lost: int
    unmatched_events: int
    error: str | None
