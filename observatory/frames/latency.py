"""Latency of frames: from the first launch to the last release over all hops of a frame, as a mergeable histogram.

Buckets are logarithmic (as DDSketch has them): any quantile is within 1 % of a value that was really there, between
100 ns and 28 hours, however many values there were. Histograms of the same layout are merged by adding their counts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from observatory.frames.ingest import Records, RunKeys, by_run
from observatory.frames.runs import RunTables
from observatory.model.kinds import UNKNOWN_I64, UNKNOWN_U64, EventKind, RecordFlag

RELATIVE_ERROR = 0.01
SMALLEST_NS = 100.0
LARGEST_NS = 1e14

_GAMMA = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_LOG_GAMMA = math.log(_GAMMA)
_FIRST = math.ceil(math.log(SMALLEST_NS) / _LOG_GAMMA)
BUCKETS = math.ceil(math.log(LARGEST_NS) / _LOG_GAMMA) - _FIRST + 1
"""Bucket i holds values in (gamma^(first+i-1), gamma^(first+i)]; the first and the last also what is beyond them."""

WINDOW = 4096
"""Frames per stream that can be open at once (power of two); older ones are given up as partial."""

_NEVER = np.int64(2**63 - 1)


def buckets_of(values_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The bucket of each value (nanoseconds)."""
    positive = np.maximum(values_ns.astype(np.float64), SMALLEST_NS)
    raw = np.ceil(np.log(positive) / _LOG_GAMMA).astype(np.int64) - _FIRST
    result: npt.NDArray[np.int64] = np.clip(raw, 0, BUCKETS - 1)
    return result


def value_of(bucket: int) -> float:
    """The value (nanoseconds) that stands for a bucket: at most 1 % from everything in it."""
    return float(2 * _GAMMA ** (bucket + _FIRST) / (_GAMMA + 1))


class Histogram:
    """Counts per bucket of any number of values. Not thread-safe."""

    def __init__(self) -> None:
        self.counts = np.zeros(BUCKETS, np.int64)
        self.largest_ns = 0

    def add(self, values_ns: npt.NDArray[np.int64]) -> None:
        """Count values (nanoseconds)."""
        if len(values_ns):
            self.counts += np.bincount(buckets_of(values_ns), minlength=BUCKETS)
            self.largest_ns = max(self.largest_ns, int(values_ns.max()))

    def merge(self, other: Histogram) -> None:
        """Add another histogram's counts."""
        self.counts += other.counts
        self.largest_ns = max(self.largest_ns, other.largest_ns)

    @property
    def count(self) -> int:
        """How many values were counted."""
        return int(self.counts.sum())

    def quantile(self, q: float) -> float | None:
        """The value (seconds) at quantile `q` in 0..1 (the smallest value with at least that share at or below it).

        Within 1 %; None when nothing was counted.
        """
        total = self.count
        if not total:
            return None
        rank = max(1, math.ceil(q * total))
        bucket = int(np.searchsorted(np.cumsum(self.counts), rank))
        return min(value_of(bucket), float(self.largest_ns)) / 1e9

    def sparse(self) -> list[tuple[int, int]]:
        """(bucket, count) of all buckets that are not empty."""
        filled = np.flatnonzero(self.counts)
        return list(zip(filled.tolist(), self.counts[filled].tolist(), strict=True))

    @classmethod
    def from_sparse(cls, pairs: Sequence[Sequence[int]], largest_seconds: float | None = None) -> Histogram:
        """Inverse of `sparse`."""
        histogram = cls()
        for bucket, count in pairs:
            histogram.counts[bucket] += count
        if pairs:
            top = value_of(max(bucket for bucket, _ in pairs))
            histogram.largest_ns = int(top if largest_seconds is None else largest_seconds * 1e9)
        return histogram


class WholeFrames(NamedTuple):
    """Frames that became complete: one element per frame in each array. Latencies are in nanoseconds."""

    stream: npt.NDArray[np.uint32]
    epoch: npt.NDArray[np.uint32]
    source_index: npt.NDArray[np.uint64]
    latency_ns: npt.NDArray[np.int64]
    released_ns: npt.NDArray[np.int64]
    """The last release, CLOCK_MONOTONIC."""

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """All of them, in order; at least one."""
        return parts[0] if len(parts) == 1 else cls(*map(np.concatenate, zip(*parts, strict=True)))


NO_FRAMES = WholeFrames(
    np.zeros(0, np.uint32), np.zeros(0, np.uint32), np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.int64)
)


class FrameTracker:
    """Puts the hops of frames together as their records come, in bounded memory, for all streams of a run at once.

    A frame is complete when the records of all hops of its stream are there, each with its launch and release. Frames
    that never complete (a filter left them out, an edge dropped them) are forgotten after `WINDOW` further frames.
    """

    def __init__(self, tables: RunTables) -> None:
        ids = np.array([s.id for s in tables.streams], np.uint32)
        order = np.argsort(ids)
        self._ids = ids[order]
        self._runs = RunKeys((s.id, s.epoch) for s in tables.streams)
        hops = {s.id: 0 for s in tables.streams}
        for hop in tables.hops:
            hops[hop.stream] = hops.get(hop.stream, 0) + 1
        count = len(ids)
        self._expected = np.array([hops[int(i)] for i in self._ids], np.int64)
        self._index = np.full(count * WINDOW, UNKNOWN_U64, np.uint64)
        self._hops = np.zeros(count * WINDOW, np.int64)
        self._first = np.full(count * WINDOW, _NEVER, np.int64)
        self._last = np.full(count * WINDOW, UNKNOWN_I64, np.int64)
        self._fresh: Counter[tuple[int, int]] = Counter()  # frames first seen, by stream and epoch

    def own(self, records: Records) -> npt.NDArray[np.bool_]:
        """Which records carry a stream and an epoch of this run."""
        return self._runs.of(records)

    def add_epoch(self, stream: int, epoch: int) -> None:
        """A stream of this run begins a further epoch; its source indices go on."""
        self._runs.add(stream, epoch)

    def take_seen(self) -> list[tuple[tuple[int, int], int]]:
        """How many frames were seen on a hop for the first time since the last call, by stream and epoch."""
        fresh, self._fresh = self._fresh, Counter()
        return list(fresh.items())

    def add(self, records: Records) -> WholeFrames:
        """Take records that are this run's `own`, sorted by key; returns the frames that these made complete."""
        if not len(records):
            return NO_FRAMES
        index = records["source_index"]
        if int(index.max()) - int(index.min()) < WINDOW:
            return self._add(records)
        lap = index // np.uint64(WINDOW)  # two frames of one batch could want the same cell
        return WholeFrames.join([self._add(records[lap == turn]) for turn in np.unique(lap)])

    def _add(self, records: Records) -> WholeFrames:
        index, stream = records["source_index"], records["stream"]
        starts = np.flatnonzero(np.r_[True, (index[1:] != index[:-1]) | (stream[1:] != stream[:-1])])
        position = np.searchsorted(self._ids, stream[starts]).astype(np.int64)
        own = index[starts]
        cells = position * WINDOW + (own & np.uint64(WINDOW - 1)).astype(np.int64)
        times = records["times_ns"]
        launch = times[:, EventKind.PRODUCER_KERNEL_LAUNCH]
        launch = np.where(launch == UNKNOWN_I64, _NEVER, launch)
        release = times[:, EventKind.SLOT_RELEASE]
        taken = records["flags"] & RecordFlag.DROPPED == 0
        whole = (taken & (launch != _NEVER) & (release != UNKNOWN_I64)).astype(np.int64)

        fresh = self._index[cells] != own
        new = cells[fresh]
        self._index[new], self._hops[new] = own[fresh], 0
        self._first[new], self._last[new] = _NEVER, UNKNOWN_I64
        self._hops[cells] += np.add.reduceat(whole, starts)
        self._first[cells] = np.minimum(self._first[cells], np.minimum.reduceat(launch, starts))
        self._last[cells] = np.maximum(self._last[cells], np.maximum.reduceat(release, starts))
        done = self._hops[cells] == self._expected[position]
        released = self._last[cells[done]]
        latency = released - self._first[cells[done]]
        self._hops[cells[done]] = -(2**31)  # a record that comes twice does not complete its frame twice

        first = starts[fresh]
        self._fresh.update({run: int(rows.sum()) for run, rows in by_run(stream[first], records["epoch"][first])})
        rows = starts[done]
        return WholeFrames(stream[rows], records["epoch"][rows], own[done], latency, released)
