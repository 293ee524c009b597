"""What one run tells: frame records in bulk, and what its workers and its collector say now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

from observatory.frames.collected import CollectorSnapshot
from observatory.frames.ingest import Records
from observatory.frames.latency import WholeFrames
from observatory.metrics import families as f
from observatory.metrics.families import NS_PER_SECOND, Family
from observatory.metrics.histograms import MARK_DTYPE, Histograms, Ints, Marks
from observatory.metrics.pts import SourcePts
from observatory.metrics.series import PipelineSeries
from observatory.model.kinds import UNKNOWN_I64, UNKNOWN_U32, EventKind, RecordFlag
from observatory.model.manifest import RunManifest

INTERVALS: tuple[tuple[Family, EventKind, EventKind], ...] = (
    (f.SLOT_TURNAROUND, EventKind.DMA_BUF_ALLOC, EventKind.SLOT_RELEASE),
    (f.HOP_LATENCY, EventKind.FENCE_SIGNAL, EventKind.SLOT_RELEASE),
    (f.FENCE_WAIT, EventKind.CONSUMER_WAIT_FENCE, EventKind.FENCE_SIGNAL),
)
"""Between which two events each per-hop histogram is. A fence that came before it was waited for: waited 0."""


class RunMetrics:
    """The feed of one run; any thread may call anything. Made by `MetricsBook.begin`.

    `observe` and `observe_frames` go to the collector: `Collector(..., observers=[run.observe],
    frame_observers=[run.observe_frames])`.
    """

    def __init__(self, manifest: RunManifest, series: PipelineSeries, clock: Callable[[], float] = time.time) -> None:
        self.run_id = manifest.run_id
        self.series = series
        self._clock = clock
        self._realtime_offset_ns = manifest.started.realtime_ns - manifest.started.monotonic_ns
        self._source_pts = SourcePts(manifest)
        names = {s.id: s.name for s in manifest.streams}
        self._hop_count = len(manifest.hops)
        self._stream_of_edge = {h.edge.name: names[manifest.ports[h.port].stream] for h in manifest.hops}
        now = clock()
        with series.lock:
            series.begin(manifest.run_id)
            rows = [series.hop_row(self._stream_of_edge[h.edge.name], h.edge.name, now) for h in manifest.hops]
            latency = series.histograms[f.FRAME_LATENCY.name]
            streams = {s.id: latency.row((series.name, s.name), s.name, now) for s in manifest.streams}
            self._begin_counters(manifest, now)
        self._hop_rows: Ints = np.array(rows, np.int64)
        self._stream_ids = np.array(sorted(streams), np.uint32)
        self._stream_rows: Ints = np.array([streams[i] for i in sorted(streams)], np.int64)

    def _begin_counters(self, manifest: RunManifest, now: float) -> None:
        """Series that exist from the start, at 0: a rate over a first increase would otherwise miss it."""
        for edge, stream in self._stream_of_edge.items():
            self.series.counter(f.FRAMES_DROPPED, (stream, edge), now)
        for stream_entry in manifest.streams:
            self.series.counter(f.SOURCE_FRAMES, (stream_entry.name,), now)
            self.series.counter(f.FRAMES_LOST, (stream_entry.name, stream_entry.source_operator), now)
        for family in (f.RECORDS_STORED, f.RECORDS_DROPPED, f.EVENTS_LOST, f.EVENTS_UNMATCHED):
            self.series.counter(family, (), now)

    # -- per frame, in bulk --------------------------------------------------------------------------------------

    def observe(self, records: Records) -> None:
        """Count a batch of this run's records (RECORD_DTYPE), as the collector hands them over.

        An interval of which one end is unknown is not observed, nor is one that would be negative.
        """
        if len(records) and int(records["hop"].max()) >= self._hop_count:
            records = records[records["hop"] < self._hop_count]
        if not len(records):
            return
        self._source_pts.observe(records)
        rows = self._hop_rows[records["hop"]]
        times = records["times_ns"]
        with self.series.lock:
            self._count_hops(records, rows)
            for family, first, last in INTERVALS:
                begin, end = times[:, first], times[:, last]
                seen = (begin != UNKNOWN_I64) & (end != UNKNOWN_I64)
                lengths = end - begin
                if family is f.FENCE_WAIT:
                    lengths = np.maximum(lengths, 0)
                else:
                    seen &= lengths >= 0
                kept = np.flatnonzero(seen)
                self._count_interval(self.series.histograms[family.name], rows, lengths, kept, records, end)

    def _count_hops(self, records: Records, rows: Ints) -> None:
        hops = self.series.hop_counts.shape[1]
        incomplete = records["flags"] & RecordFlag.INCOMPLETE != 0
        size = np.where(records["bytes"] == UNKNOWN_U32, 0, records["bytes"])
        for at, weights in enumerate((None, incomplete, size)):
            self.series.hop_counts[at] += np.bincount(rows, weights, minlength=hops).astype(np.int64)

    def _count_interval(
        self, histograms: Histograms, rows: Ints, lengths: Ints, kept: Ints, records: Records, end: Ints
    ) -> None:
        if not len(kept):
            return
        cells = histograms.count(rows[kept], lengths[kept])
        touched, last = histograms.newest(cells)
        chosen = kept[last]
        marks = np.zeros(len(chosen), MARK_DTYPE)
        marks["value_ns"] = lengths[chosen]
        marks["unix_ns"] = end[chosen] + self._realtime_offset_ns
        for name in ("pts", "source_index", "epoch", "time_base_num", "time_base_den"):
            marks[name] = records[name][chosen]
        histograms.mark(touched, marks)

    def observe_frames(self, frames: WholeFrames) -> None:
        """Count frames that became whole; exemplars carry the PTS that the source gave them."""
        known = (frames.latency_ns >= 0) & np.isin(frames.stream, self._stream_ids)
        kept = np.flatnonzero(known)
        if not len(kept):
            return
        rows = self._stream_rows[np.searchsorted(self._stream_ids, frames.stream[kept])]
        with self.series.lock:
            histograms = self.series.histograms[f.FRAME_LATENCY.name]
            cells = histograms.count(rows, frames.latency_ns[kept])
            touched, last = histograms.newest(cells)
            histograms.mark(touched, self._frame_marks(frames, kept[last]))

    def _frame_marks(self, frames: WholeFrames, chosen: Ints) -> Marks:
        marks = np.zeros(len(chosen), MARK_DTYPE)
        marks["value_ns"] = frames.latency_ns[chosen]
        marks["unix_ns"] = frames.released_ns[chosen] + self._realtime_offset_ns
        marks["source_index"] = frames.source_index[chosen]
        marks["epoch"] = frames.epoch[chosen]
        pts, num, den = self._source_pts.find(frames.stream[chosen], frames.epoch[chosen], frames.source_index[chosen])
        marks["pts"], marks["time_base_num"], marks["time_base_den"] = pts, num, den
        return marks

    # -- now and then --------------------------------------------------------------------------------------------

    def lost(self, stream: str, operator: str, count: int = 1) -> None:
        """Frames of a stream that an operator listed as lost."""
        self._add(f.FRAMES_LOST, (stream, operator), count)

    def dropped(self, edge: str, count: int) -> None:
        """Frames that drop_oldest took away from the consumer of that edge. KeyError: no such edge."""
        self._add(f.FRAMES_DROPPED, (self._stream_of_edge[edge], edge), count)

    def mapped(self, operator: str, mapping: str, seconds: float, mapped_bytes: int) -> None:
        """A worker mapped the ring and slabs of a port (`video`) or an edge (`a->b`), as its "mapped" notice says."""
        labels = (operator, mapping)
        with self.series.lock:
            histograms = self.series.histograms[f.DMA_MAP.name]
            row = histograms.row((self.series.name, *labels), None, self._clock())
            histograms.count(np.array([row]), np.array([round(seconds * NS_PER_SECOND)], np.int64))
            self.series.set_gauge(f.DMA_MAPPED, labels, mapped_bytes)

    def queue_depths(self, depths: Mapping[str, tuple[int, int]]) -> None:
        """Per edge: frames (queued, held), now. Ignored after the end of the run."""
        with self.series.lock:
            if self.series.running != self.run_id:
                return
            self.series.gauges(f.EDGE_QUEUED, {(edge,): queued for edge, (queued, _) in depths.items()})
            self.series.gauges(f.EDGE_HELD, {(edge,): held for edge, (_, held) in depths.items()})

    def collected(self, seen: CollectorSnapshot) -> None:
        """What the collector of this run has counted so far. Ignored once the pipeline has begun another run."""
        with self.series.lock:
            if self.series.run_id != self.run_id:
                return
            now = self._clock()
            for family, total in (
                (f.RECORDS_STORED, seen.records),
                (f.RECORDS_DROPPED, seen.records_dropped),
                (f.EVENTS_LOST, seen.events_lost),
                (f.EVENTS_UNMATCHED, seen.unmatched_events),
            ):
                self.series.counter(family, (), now).follow(total, self.run_id)
            if self.series.running == self.run_id:
                self.series.gauges(f.RECORDS_PENDING, {(): seen.records_pending})

    def _add(self, family: Family, labels: tuple[str, ...], count: int) -> None:
        with self.series.lock:
            self.series.counter(family, labels, self._clock()).add(count)
