"""Every metric there is: name, kind, labels, meaning. The exposition and docs/reference/metrics.md are made from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram", "info"]

NS_PER_SECOND = 1_000_000_000

HOP_BOUNDS_NS: tuple[int, ...] = (
    *(mantissa * 10**power for power in range(3, 10) for mantissa in (1, 2, 5)),
    10**10,
)
"""1 us to 10 s, three bounds a decade (1, 2, 5): a futex wake and a stalled consumer are seen on one scale."""

FRAME_BOUNDS_NS: tuple[int, ...] = (
    *(mantissa * 10**power // 10 for power in range(6, 10) for mantissa in (10, 15, 20, 30, 50, 70)),
    10**10,
)
"""1 ms to 10 s, six bounds a decade: a whole frame is never quicker, and deadlines need a finer answer."""

MAP_BOUNDS_NS: tuple[int, ...] = tuple(10**power for power in range(3, 11))
"""1 us to 10 s, one bound a decade: a worker maps once, so its sum is the very figure."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric family.

    Args:
        name: as samples carry it in both formats (a counter's with `_total`, an info's with `_info`).
        bounds_ns: upper bounds of a histogram's buckets, inclusive, nanoseconds; +Inf comes on top.
        note: more for the reference than fits into the HELP line.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    bounds_ns: tuple[int, ...] = ()
    note: str = ""

    @property
    def base(self) -> str:
        """The name of the family in OpenMetrics."""
        return self.name.removesuffix("_total").removesuffix("_info")

    @property
    def unit(self) -> str | None:
        """The unit in the name; None when it counts things."""
        return next((unit for unit in ("seconds", "bytes") if self.base.endswith(f"_{unit}")), None)


_HOP = ("pipeline", "stream", "edge")
_STREAM = ("pipeline", "stream")
_WORKER = ("pipeline", "operator")
_PORT = ("pipeline", "operator", "port")

SLOT_TURNAROUND = Family(
    "observatory_slot_turnaround_seconds",
    "histogram",
    _HOP,
    "From the allocation of a slot to its release by this edge's consumer.",
    HOP_BOUNDS_NS,
    "DMA_BUF_ALLOC to SLOT_RELEASE. With several consumers on a port each edge has its own.",
)
FENCE_WAIT = Family(
    "observatory_fence_wait_seconds",
    "histogram",
    _HOP,
    "How long a consumer that was ready for a frame waited for its fence.",
    HOP_BOUNDS_NS,
    "CONSUMER_WAIT_FENCE to FENCE_SIGNAL; 0 when the frame was there already. Much of it: an idle consumer.",
)
HOP_LATENCY = Family(
    "observatory_hop_latency_seconds",
    "histogram",
    _HOP,
    "From the publishing of a frame to its acknowledgement by this edge's consumer.",
    HOP_BOUNDS_NS,
    "FENCE_SIGNAL to SLOT_RELEASE: queueing and the consumer's work. An encoder acknowledges when its packet is out.",
)
FRAME_LATENCY = Family(
    "observatory_frame_latency_seconds",
    "histogram",
    _STREAM,
    "End-to-end latency of whole frames: first launch to last release over all hops.",
    FRAME_BOUNDS_NS,
    "A frame is whole when every hop of its stream was recorded; lost and dropped ones are not in it.",
)
DMA_MAP = Family(
    "observatory_dma_map_seconds",
    "histogram",
    ("pipeline", "operator", "mapping"),
    "How long a worker took to map the ring and slabs of a port or an edge.",
    MAP_BOUNDS_NS,
    "`mapping` is the port (`video`) where the worker made and sealed them, the edge (`a->b`) where it attached. "
    "Once per worker and mapping: slabs stay mapped.",
)
FRAMES = Family("observatory_frames_total", "counter", _STREAM, "Frames that came through every hop.")
SOURCE_FRAMES = Family("observatory_source_frames_total", "counter", _STREAM, "Frames that the source published.")
FRAMES_LOST = Family(
    "observatory_frames_lost_total",
    "counter",
    ("pipeline", "stream", "operator"),
    "Frames that an operator listed as lost (damaged input).",
)
FRAMES_DROPPED = Family(
    "observatory_frames_dropped_total",
    "counter",
    _HOP,
    "Frames that the policy drop_oldest took away from this edge's consumer.",
)
HOP_RECORDS = Family("observatory_hop_records_total", "counter", _HOP, "Frame records of this edge.")
HOP_INCOMPLETE = Family(
    "observatory_hop_records_incomplete_total",
    "counter",
    _HOP,
    "Frame records of this edge that lack an expected event.",
)
HOP_BYTES = Family("observatory_hop_bytes_total", "counter", _HOP, "Payload bytes that crossed this edge.")
RECORDS_STORED = Family(
    "observatory_frame_records_stored_total", "counter", ("pipeline",), "Frame records that are in the store."
)
RECORDS_DROPPED = Family(
    "observatory_frame_records_dropped_total",
    "counter",
    ("pipeline",),
    "Frame records that could not be stored and no longer be kept (disk full).",
)
EVENTS_LOST = Family(
    "observatory_events_lost_total", "counter", ("pipeline",), "Frame events that a full event ring refused."
)
EVENTS_UNMATCHED = Family(
    "observatory_events_unmatched_total",
    "counter",
    ("pipeline",),
    "Frame events that name a place that the run does not have.",
)
SHARED = " (of one that pipelines share: in the first of them)."
WORKER_RESTARTS = Family(
    "observatory_worker_restarts_total",
    "counter",
    _WORKER,
    "How often the worker of an operator was started again" + SHARED,
)
WORKER_CPU = Family(
    "observatory_worker_cpu_seconds_total",
    "counter",
    _WORKER,
    "CPU time of an operator's workers, user and system" + SHARED,
)
RECORDS_PENDING = Family(
    "observatory_frame_records_pending", "gauge", ("pipeline",), "Frame records in memory, not stored yet."
)
EDGE_QUEUED = Family(
    "observatory_edge_queued_frames", "gauge", ("pipeline", "edge"), "Frames published and not yet taken, now."
)
EDGE_HELD = Family(
    "observatory_edge_held_frames", "gauge", ("pipeline", "edge"), "Frames taken and not yet acknowledged, now."
)
EDGE_SLOTS = Family(
    "observatory_edge_slots", "gauge", ("pipeline", "edge"), "Slots that the output port of this edge has."
)
DMA_MAPPED = Family(
    "observatory_dma_mapped_bytes",
    "gauge",
    ("pipeline", "operator", "mapping"),
    "Bytes of the ring and slabs that a worker has mapped for a port or an edge.",
)
POOL_BYTES = Family("observatory_pool_bytes", "gauge", ("pipeline",), "Bytes of all frame pools of a pipeline.")
POOL_RESIDENT = Family(
    "observatory_pool_resident_bytes", "gauge", _PORT, "Bytes that the slabs of a port take in memory or swap."
)
POOL_FRAGMENTATION = Family(
    "observatory_pool_fragmentation_bytes",
    "gauge",
    (*_PORT, "kind"),
    "Bytes of a port's pool that are taken and of no use.",
    note="internal: slot sizes less payloads, over the slots in use. external: resident bytes of idle slots that "
    "cannot be given back, because another slot of their slab is in use.",
)
POOL_HIT_RATIO = Family(
    "observatory_pool_hit_ratio",
    "gauge",
    _PORT,
    "Share of the allocations of a port that got a slot of the right size at once, since its ring was made.",
)
POOL_ALLOCATIONS = Family(
    "observatory_pool_allocations_total",
    "counter",
    (*_PORT, "outcome"),
    "Slots that a port's operator asked for, by how that went.",
    note="hit: one of the right size, at once. fallback: a bigger one, at once. reclaim: drop_oldest took older frames "
    "away for it. wait_for_slot, wait_for_descriptor: there was none at first.",
)
WORKER_MEMORY = Family(
    "observatory_worker_resident_memory_bytes",
    "gauge",
    _WORKER,
    "Resident memory of an operator's worker" + SHARED,
)
PIPELINE_STATE = Family(
    "observatory_pipeline_state",
    "gauge",
    ("pipeline", "state"),
    "1 for the state that a pipeline is in, 0 for the others.",
    note="starting, running, draining, ended, failed, removed.",
)
STORE_DISK = Family("observatory_store_disk_bytes", "gauge", (), "Bytes of the frame store on disk.")
STORE_BUDGET = Family("observatory_store_budget_bytes", "gauge", (), "Bytes that the frame store may take on disk.")
STORE_FAILING = Family("observatory_store_failing", "gauge", (), "1 while frame records cannot be stored, else 0.")
WEB_RESTARTS = Family("observatory_web_restarts_total", "counter", (), "How often the web process was started again.")
BUILD = Family("observatory_build_info", "info", ("version", "host"), "The software that runs. Always 1.")

FAMILIES: tuple[Family, ...] = (
    FRAME_LATENCY,
    SLOT_TURNAROUND,
    FENCE_WAIT,
    HOP_LATENCY,
    DMA_MAP,
    FRAMES,
    SOURCE_FRAMES,
    FRAMES_LOST,
    FRAMES_DROPPED,
    HOP_RECORDS,
    HOP_INCOMPLETE,
    HOP_BYTES,
    RECORDS_STORED,
    RECORDS_DROPPED,
    EVENTS_LOST,
    EVENTS_UNMATCHED,
    WORKER_RESTARTS,
    WORKER_CPU,
    POOL_ALLOCATIONS,
    RECORDS_PENDING,
    EDGE_QUEUED,
    EDGE_HELD,
    EDGE_SLOTS,
    DMA_MAPPED,
    POOL_BYTES,
    POOL_RESIDENT,
    POOL_FRAGMENTATION,
    POOL_HIT_RATIO,
    WORKER_MEMORY,
    PIPELINE_STATE,
    STORE_DISK,
    STORE_BUDGET,
    STORE_FAILING,
    WEB_RESTARTS,
    BUILD,
)
"""In the order of the exposition; `process_*` of prometheus-client's own collector follow."""
