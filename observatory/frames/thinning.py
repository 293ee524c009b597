"""Some frames of one run: read, judged by a policy, and deleted. What retention and the disk budget have in common."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from observatory.frames.ingest import Records, stored_to_records
from observatory.frames.judging import RunFacts, Verdict, judge
from observatory.frames.keys import LOST_KEY, ORIGIN_HOP, StoredRecord, frame_key
from observatory.frames.latency import Histogram
from observatory.frames.policy import RetentionPolicy
from observatory.frames.pruning import Advance, carry_out, plan
from observatory.frames.reader import Reader
from observatory.frames.runs import RunTables
from observatory.frames.store import FrameStore
from observatory.model.kinds import UNKNOWN_I64
from observatory.model.manifest import ClockAnchor


@dataclass(slots=True)
class Tally:
    """What a sweep has done so far."""

    kept: int = 0
    deleted: int = 0
    trimmed: int = 0
    lost_trimmed: int = 0
    runs_removed: int = 0
    records: int = 0


@dataclass(frozen=True, slots=True)
class Judged:
    """Some frames of one run, from a mark on, with what to do about them."""

    records: Records
    verdict: Verdict
    tables: RunTables
    hop_bases: list[tuple[int, int]]


def judged_from(
    reader: Reader, stream: int, epoch: int, start: int, policy: RetentionPolicy, now: ClockAnchor, most: int
) -> Judged | None:
    """The frames of one run from the source index `start` on, about `most` records, judged; None when there is none."""
    keys, values = reader.stored(stream, epoch, start, most)
    tables = reader.run(stream, epoch)
    if not keys or tables is None:
        return None
    records = stored_to_records(keys, values)
    first, last = int(records["source_index"][0]), int(records["source_index"][-1])
    lost = np.fromiter(_lost(reader, stream, epoch, first, last), np.uint64)
    verdict = judge(records, _facts(reader, tables, stream, epoch, policy), now, lost)
    return Judged(records, verdict, tables, reader.time_bases(stream, epoch, ORIGIN_HOP))


def remove(
    store: FrameStore, judged: Judged, count: int, doomed: npt.NDArray[np.bool_], advance: Advance, now: ClockAnchor
) -> None:
    """Delete the `doomed` of the first `count` judged frames. Raises Changed."""
    verdict, records = judged.verdict, judged.records
    stream, epoch = int(records["stream"][0]), int(records["epoch"][0])
    rows = records[: int(verdict.counts[:count].sum())]
    steps = plan(rows, verdict.starts[:count], doomed, judged.tables, judged.hop_bases)
    carry_out(store, stream, epoch, steps, advance, now.realtime_ns)


def last_event_seconds(reader: Reader, record: StoredRecord) -> float | None:
    """The last event of a record on the wall clock (seconds), or None when it has none."""
    newest = max(record.times_ns)
    began = reader.epoch(record.stream, record.epoch)
    return None if newest == UNKNOWN_I64 or began is None else (newest + began.realtime_offset_ns) / 1e9


def _facts(reader: Reader, tables: RunTables, stream: int, epoch: int, policy: RetentionPolicy) -> RunFacts:
    began = reader.epoch(stream, epoch)
    counters = reader.counters(stream, epoch)
    latencies = Histogram.from_sparse(counters.latency_histogram) if counters else Histogram()
    return RunFacts(
        hops=len(tables.hops_of(stream)),
        last_index=_last_index(reader, tables, stream, epoch),
        finished=bool(counters and counters.finished),
        offset_ns=0 if began is None else began.realtime_offset_ns,
        slow_seconds=policy.slow_seconds,
        latencies=latencies,
        keep_one_in=policy.keep_one_in,
        keep_all_seconds=policy.keep_all_seconds,
        ranges=[entry for entry in reader.keep_ranges() if entry.stream in (None, stream)],
    )


def _last_index(reader: Reader, tables: RunTables, stream: int, epoch: int) -> int:
    """The newest source index of this run that has records: source indices go on through its epochs."""
    for later in reversed(reader.epochs(stream)):
        if later == epoch or reader.run_id(stream, later) == tables.run_id:
            ends = reader.ends(stream, later)
            return 0 if ends is None else ends[1]
    return 0


def _lost(reader: Reader, stream: int, epoch: int, first: int, last: int) -> Iterator[int]:
    cursor: Any = reader.cursor("lost")
    found = cursor.set_range(frame_key(stream, epoch, first))
    while found:
        number, run, index, _ = LOST_KEY.unpack(cursor.key())
        if (number, run) != (stream, epoch) or index > last:
            return
        yield index
        found = cursor.next()
