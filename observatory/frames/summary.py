"""Slowest frames and statistics of a stream: a pass over all its records, in bulk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from observatory.frames.counters import StreamCounters
from observatory.frames.ingest import Records, stored_to_records
from observatory.frames.latency import Histogram
from observatory.frames.reader import Reader
from observatory.frames.store import FrameStore
from observatory.frames.targets import Target, resolve, targets
from observatory.frames.views import Frame, build_frame
from observatory.model.kinds import UNKNOWN_I64, UNKNOWN_U32, EventKind, RecordFlag

CHUNK = 100_000  # records at a time
EXACT_VALUES = 1_000_000
"""Up to so many values a quantile is exact; beyond, it is within 1 %."""

PHASES: dict[str, tuple[EventKind, EventKind]] = {
    "allocate": (EventKind.DMA_BUF_ALLOC, EventKind.PRODUCER_KERNEL_LAUNCH),
    "produce": (EventKind.PRODUCER_KERNEL_LAUNCH, EventKind.FENCE_SIGNAL),
    "link": (EventKind.LINK_START, EventKind.LINK_END),
    "hand_over": (EventKind.FENCE_SIGNAL, EventKind.CONSUMER_KERNEL_LAUNCH),
    "consume": (EventKind.CONSUMER_KERNEL_LAUNCH, EventKind.SLOT_RELEASE),
    "slot_turnaround": (EventKind.DMA_BUF_ALLOC, EventKind.SLOT_RELEASE),
}
"""What a hop's time is spent on: between which two events. `hand_over` is the wait from the fence to the consumer."""


class Quantiles:
    """Quantiles of durations (nanoseconds): exact for the first million values, a histogram within 1 % beyond."""

    def __init__(self) -> None:
        self._values: list[npt.NDArray[np.int64]] | None = []
        self._histogram = Histogram()

    def add(self, values_ns: npt.NDArray[np.int64]) -> None:
        """Count values."""
        self._histogram.add(values_ns)
        if self._values is not None:
            self._values.append(values_ns)
            if self.count > EXACT_VALUES:
                self._values = None

    @property
    def count(self) -> int:
        """How many values were counted."""
        return self._histogram.count

    def quantile(self, q: float) -> float | None:
        """Seconds at quantile `q` in 0..1; None when nothing was counted."""
        if self._values is None:
            return self._histogram.quantile(q)
        values = np.concatenate(self._values) if self._values else np.zeros(0, np.int64)
        return float(np.quantile(values, q)) / 1e9 if len(values) else None

    def as_dict(self) -> dict[str, Any]:
        """`{"count", "p50_seconds", "p99_seconds", "max_seconds"}`."""
        largest = self._histogram.largest_ns / 1e9 if self.count else None
        return {
            "count": self.count,
            "p50_seconds": self.quantile(0.5),
            "p99_seconds": self.quantile(0.99),
            "max_seconds": largest,
        }


@dataclass(frozen=True, slots=True)
class HopStats:
    """One hop of a stream. `bytes` is the sum over all frames; `link` is as a frame's hop has it (RunHop)."""

    edge: str
    records: int
    incomplete: int
    dropped: int
    bytes: int
    phases: dict[str, dict[str, Any]]
    link: dict[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        """As it appears in `--json` output."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class StreamStats:
    """One stream in one epoch, or in all of a run. `counters` is None when the run never said what it counted."""

    stream: str
    epoch: int  # the newest of them
    epochs: int  # how many there are
    records: int
    frames: int
    lost: int
    end_to_end: dict[str, Any]
    counters: StreamCounters | None
    hops: tuple[HopStats, ...]

    def as_dict(self) -> dict[str, Any]:
        """As it appears in `--json` output."""
        counts = self.counters
        return {
            "stream": self.stream,
            "epoch": self.epoch,
            "epochs": self.epochs,
            "records": self.records,
            "frames": self.frames,
            "lost": self.lost,
            "events_lost": counts.events_lost if counts else None,
            "unmatched_events": counts.unmatched if counts else None,
            "records_dropped": counts.records_dropped if counts else None,
            "finished": bool(counts and counts.finished),
            "end_to_end": self.end_to_end,
            "hops": [hop.as_dict() for hop in self.hops],
        }


def stats(store: FrameStore, *, stream: str | None = None, epoch: int | None = None) -> list[StreamStats]:
    """Statistics of one stream, or (None) of all that have frames; without an epoch, of all that the newest run began.

    Raises:
        NoSuchStream: no stream of that name, or no such epoch of it.
        NoFrameStore: nothing was recorded yet.
    """
    with store.read() as reader:
        if stream is not None or epoch is not None:
            names: list[str | None] = [stream]
        else:
            names = [s.name for s in reader.streams() if reader.newest_epoch(s.id) is not None] or [None]
        return [_stream_stats(reader, list(targets(reader, resolve(reader, n, epoch), epoch))) for n in names]


def slowest(store: FrameStore, count: int = 10, *, stream: str | None = None, epoch: int | None = None) -> list[Frame]:
    """The complete frames that took longest from first launch to last release, slowest first.

    Raises:
        NoSuchStream: no such stream or epoch, or several streams and none named.
    """
    with store.read() as reader:
        found: list[tuple[int, int, Target]] = []  # minus the latency, source index
        for target in targets(reader, resolve(reader, stream, epoch), epoch):
            for records in _chunks(reader, target):
                index, latency = end_to_end_ns(records)
                order = np.lexsort((index, -latency))[:count]
                found += zip((-latency[order]).tolist(), index[order].tolist(), repeat(target))
            found = sorted(found, key=lambda entry: entry[:2])[:count]
        return [build_frame(t.tables, t.began, reader.records(t.stream, t.epoch, index)) for _, index, t in found]


def end_to_end_ns(records: Records) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Source indices and latencies (ns, first launch to last release) of the whole frames among sorted records."""
    records = records[records["flags"] & RecordFlag.DROPPED == 0]
    if not len(records):
        return np.zeros(0, np.uint64), np.zeros(0, np.int64)
    index = records["source_index"]
    starts = np.flatnonzero(np.r_[True, index[1:] != index[:-1]])
    launch = records["times_ns"][:, EventKind.PRODUCER_KERNEL_LAUNCH]
    release = records["times_ns"][:, EventKind.SLOT_RELEASE]
    broken = (launch == UNKNOWN_I64) | (release == UNKNOWN_I64)
    whole = ~np.logical_or.reduceat(broken, starts)
    latency = np.maximum.reduceat(release, starts)[whole] - np.minimum.reduceat(launch, starts)[whole]
    return index[starts][whole], latency


def _stream_stats(reader: Reader, among: Sequence[Target]) -> StreamStats:
    """Over these epochs of one run, newest first."""
    target = among[0]
    hops = target.tables.hops_of(target.stream)
    phases = {hop.index: {name: Quantiles() for name in PHASES} for hop in hops}
    totals = {hop.index: [0, 0, 0, 0] for hop in hops}  # records, incomplete, dropped, bytes
    latencies = Quantiles()
    records_count = frames = 0
    for records in chain.from_iterable(_chunks(reader, one) for one in among):
        records_count += len(records)
        frames += int(np.count_nonzero(np.diff(records["source_index"]))) + 1
        latencies.add(end_to_end_ns(records)[1])
        for hop in hops:
            own = records[records["hop"] == hop.index]
            size = own["bytes"][own["bytes"] != UNKNOWN_U32]
            for at, value in enumerate(
                (
                    len(own),
                    np.count_nonzero(own["flags"] & RecordFlag.INCOMPLETE),
                    np.count_nonzero(own["flags"] & RecordFlag.DROPPED),
                    size.sum(dtype=np.int64),
                )
            ):
                totals[hop.index][at] += int(value)
            for name, (first, last) in PHASES.items():
                begin, end = own["times_ns"][:, first], own["times_ns"][:, last]
                seen = (begin != UNKNOWN_I64) & (end != UNKNOWN_I64)
                phases[hop.index][name].add(end[seen] - begin[seen])
    return StreamStats(
        stream=target.name,
        epoch=target.epoch,
        epochs=len(among),
        records=records_count,
        frames=frames,
        lost=sum(1 for one in among for _ in reader.lost(one.stream, one.epoch)),
        end_to_end=latencies.as_dict(),
        counters=_counters(reader, among),
        hops=tuple(
            HopStats(
                edge=hop.edge,
                records=totals[hop.index][0],
                incomplete=totals[hop.index][1],
                dropped=totals[hop.index][2],
                bytes=totals[hop.index][3],
                phases={name: values.as_dict() for name, values in phases[hop.index].items()},
                link=hop.link,
            )
            for hop in hops
        ),
    )


def _counters(reader: Reader, among: Sequence[Target]) -> StreamCounters | None:
    """What the run said last, of its newest epoch; what could not be stored is the sum over all of them."""
    found = [counters for one in among if (counters := reader.counters(one.stream, one.epoch)) is not None]
    if not found:
        return None
    return replace(found[0], records_dropped=sum(counters.records_dropped for counters in found))


def _chunks(reader: Reader, target: Target) -> Iterator[Records]:
    """All records of the target in order, in chunks that end between two frames."""
    keys: list[bytes] = []
    values: list[bytes] = []
    for key, value in reader.raw_records(target.stream, target.epoch):
        if len(keys) >= CHUNK and key[:16] != keys[-1][:16]:
            yield stored_to_records(keys, values)
            keys, values = [], []
        keys.append(key)
        values.append(value)
    if keys:
        yield stored_to_records(keys, values)
