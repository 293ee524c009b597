"""Which frames of a run may go: vectorised over some thousand records at a time. Decides, deletes nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from observatory.frames.ingest import Records
from observatory.frames.latency import BUCKETS, WINDOW, Histogram, buckets_of
from observatory.frames.marks import KeepRange
from observatory.frames.summary import end_to_end_ns
from observatory.model.kinds import UNKNOWN_I64
from observatory.model.manifest import ClockAnchor

IN_FLIGHT_SECONDS = 3600.0
"""A frame that lacks hops is left alone so long, unless its run has finished or has passed `WINDOW` later frames."""

SLOW_QUANTILE = 0.99

Mask = npt.NDArray[np.bool_]
Times = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What has to be known of one stream in one epoch to judge its frames.

    hops: how many hops a whole frame has. last_index: the newest source index that has records. finished: nothing more
    will come. offset_ns: what to add to the records' clock for the wall clock. slow_seconds: as configured, or None.
    latencies: end to end, of all whole frames so far; empty when they are not known.
    """

    hops: int
    last_index: int
    finished: bool
    offset_ns: int
    slow_seconds: float | None
    latencies: Histogram
    keep_one_in: int
    keep_all_seconds: float
    ranges: Sequence[KeepRange]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One entry per frame. `settled`: old enough, and not in flight; `special`: slow, lost, or of a range to keep."""

    index: npt.NDArray[np.uint64]
    starts: npt.NDArray[np.int64]  # row of its first record
    counts: npt.NDArray[np.int64]  # how many records it has
    complete: Mask  # nothing more will come of it
    settled: Mask
    sampled: Mask
    special: Mask


def judge(records: Records, facts: RunFacts, now: ClockAnchor, lost: npt.NDArray[np.uint64]) -> Verdict:
    """Judge whole frames: `records` are of one stream in one epoch, sorted; `lost` are source indices, sorted."""
    every = records["source_index"]
    starts = np.flatnonzero(np.r_[True, every[1:] != every[:-1]])
    counts = np.diff(np.r_[starts, len(every)])
    index = every[starts]
    times = records["times_ns"]
    newest = np.maximum.reduceat(times.max(axis=1), starts)
    known = np.where(times == UNKNOWN_I64, np.iinfo(np.int64).max, times)
    oldest = np.minimum.reduceat(known.min(axis=1), starts)
    is_lost = np.isin(index, lost, assume_unique=False) if len(lost) else np.zeros(len(index), bool)
    passed = np.uint64(facts.last_index) - index >= WINDOW
    complete = (counts >= facts.hops) | is_lost | passed | facts.finished
    complete |= older(newest, facts, now, max(IN_FLIGHT_SECONDS, facts.keep_all_seconds))
    special = is_lost | _slow(records, facts, index)
    if facts.ranges:
        special |= _in_ranges(oldest, newest, facts)
    return Verdict(
        index=index,
        starts=starts,
        counts=counts,
        complete=complete,
        settled=complete & older(newest, facts, now, facts.keep_all_seconds),
        sampled=index % np.uint64(facts.keep_one_in) == 0,
        special=special,
    )


def older(newest_ns: Times, facts: RunFacts, now: ClockAnchor, seconds: float) -> Mask:
    """Whether frames with these newest events are at least `seconds` old; in doubt they are not.

    Two clocks tell: the records' own, CLOCK_MONOTONIC, begins anew with each boot, and the wall clock may be set and
    goes on while the machine sleeps. Each that puts the event into the future is wrong and does not count.
    """
    known = newest_ns != UNKNOWN_I64
    least = round(seconds * 1e9)
    safe = np.where(known, newest_ns, 0)
    ages = (now.monotonic_ns - safe, now.realtime_ns - (safe + facts.offset_ns))
    young = np.zeros(len(safe), bool)
    old = ~known  # it cannot become older
    for age in ages:
        young |= (age >= 0) & (age < least) & known
        old |= age >= least
    result: Mask = old & ~young
    return result


def _slow(records: Records, facts: RunFacts, index: npt.NDArray[np.uint64]) -> Mask:
    whole, latency = end_to_end_ns(records)
    if facts.slow_seconds is not None:
        slow = latency > facts.slow_seconds * 1e9
    else:
        bucket = slow_bucket(facts.latencies if facts.latencies.count else _histogram(latency))
        slow = buckets_of(latency) > bucket
    result: Mask = np.isin(index, whole[slow])
    return result


def slow_bucket(latencies: Histogram) -> int:
    """The histogram bucket of the 99th percentile: what is in a higher one (they are 2 % wide) is slow."""
    total = latencies.count
    if not total:
        return BUCKETS
    return int(np.searchsorted(np.cumsum(latencies.counts), max(1, math.ceil(SLOW_QUANTILE * total))))


def _histogram(latency_ns: Times) -> Histogram:
    histogram = Histogram()
    histogram.add(latency_ns)
    return histogram


def _in_ranges(oldest_ns: Times, newest_ns: Times, facts: RunFacts) -> Mask:
    inside = np.zeros(len(oldest_ns), bool)
    known = newest_ns != UNKNOWN_I64
    first = np.where(known, oldest_ns, 0) + facts.offset_ns
    last = np.where(known, newest_ns, 0) + facts.offset_ns
    for entry in facts.ranges:
        inside |= known & (first <= entry.end_ns) & (last >= entry.start_ns)
    return inside
