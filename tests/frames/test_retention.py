"""Retention: what stays, what goes, that it goes whole, and that the disk budget holds."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import numpy.typing as npt
import pytest

from observatory.frames import lookup
from observatory.frames.compaction import compact, shrink
from observatory.frames.counters import StreamCounters
from observatory.frames.errors import FrameStoreError, NoSuchFrame, NoSuchStream
from observatory.frames.latency import Histogram
from observatory.frames.marks import KeepRange
from observatory.frames.retention import Retention, RetentionPolicy, SweepResult
from observatory.frames.retention_thread import RetentionThread
from observatory.frames.store import FrameStore, StreamRun
from observatory.model.kinds import EventKind
from observatory.model.manifest import ClockAnchor, EpochEntry
from observatory.model.media import TimeBase
from observatory.model.record import Lineage, LostFrame
from tests.frames.support import begin, life, python, record, whole_frame

# The wall clock of the manifests in `support` is 2000 s ahead; frame i lives from 100 + 40 i ms on, for 13 ms.
OFFSET_NS = 2_000_000_000_000
SECOND = 10**9


def at(seconds: float) -> ClockAnchor:
    """Both clocks at so many seconds of the records' clock."""
    return ClockAnchor(monotonic_ns=round(seconds * SECOND), realtime_ns=round(seconds * SECOND) + OFFSET_NS)


def frames(run: StreamRun, indices: Sequence[int], **fields: Any) -> npt.NDArray[np.void]:
    return np.concatenate([whole_frame(run, index, **fields) for index in indices])


def counted(latencies_ms: Sequence[float], *, finished: bool = False) -> StreamCounters:
    """Counters of a run whose whole frames had these latencies."""
    histogram = Histogram()
    histogram.add(np.array([round(ms * 1e6) for ms in latencies_ms], np.int64))
    return StreamCounters(latency_histogram=histogram.sparse(), finished=finished)


def kept(store: FrameStore, run: StreamRun) -> list[int]:
    with store.read() as reader:
        return [frame[0].source_index for frame in reader.frames(run.id, run.epoch)]


def assert_consistent(store: FrameStore, run: StreamRun, hops: int = 4) -> None:
    """Every frame has all of its hops, one index entry leads to each, and none to anything else."""
    with store.read() as reader:
        stored = {frame[0].source_index: len(frame) for frame in reader.frames(run.id, run.epoch)}
        targets = [int.from_bytes(value, "little") for _, value in reader.cursor("index")]
        lineage = {int.from_bytes(key[8:16], "big") for key, _ in reader.cursor("lineage")}
    assert set(stored.values()) <= {hops}, "half a frame"
    assert sorted(targets) == sorted(stored)
    assert lineage <= set(stored)


@pytest.fixture
def store(tmp_path: Path) -> FrameStore:
    return FrameStore.open(tmp_path, write=True)


def test_after_a_while_one_in_n_is_left(store: FrameStore) -> None:
    (run,) = begin(store)
    store.append(frames(run, range(1000)))
    store.add_lineage(run.id, run.epoch, [Lineage(hop="enc->mux", source_index=i, parents=(i, i + 1)) for i in (3, 50)])
    retention = Retention(store, RetentionPolicy(keep_all_seconds=10, keep_one_in=50))
    # At 30.1 s, frames that ended by 20.1 s are old enough: 0.113 + 0.04 i <= 20.1, so i <= 499.
    result = retention.sweep(at(30.1))
    assert kept(store, run) == [*range(0, 500, 50), *range(500, 1000)]
    assert (result.kept, result.deleted, result.trimmed) == (10, 490, 0)
    assert result.records_examined == 2000
    assert result.oldest_kept_unix_seconds == pytest.approx(
        2000.111, abs=1e-6
    )  # of its first hop in the manifest, hd->enc
    assert result.bytes_after < result.bytes_before
    assert_consistent(store, run)
    assert retention.sweep(at(30.1)).records_examined == 0  # nothing is looked at twice
    assert retention.sweep(at(1000)).records_examined == 2000
    assert kept(store, run) == list(range(0, 1000, 50))
    assert {hop.edge: hop.parents for hop in lookup.find(store, 50).hops}["enc->mux"] == (50, 51)


def test_slow_frames_stay_by_a_fixed_time(store: FrameStore) -> None:
    (run,) = begin(store)
    slow = record(run, 7, 3, times=life(100 + 40 * 7 + 10, 1, 1, 90))  # its last release is 102 ms after its launch
    store.append(np.concatenate([frames(run, range(20))[:-4], frames(run, [19]), slow]))
    Retention(store, RetentionPolicy(keep_all_seconds=1, keep_one_in=10, slow_seconds=0.1)).sweep(at(100))
    assert kept(store, run) == [0, 7, 10]
    assert_consistent(store, run)


def test_slow_frames_are_those_above_the_streams_own_p99(store: FrameStore) -> None:
    (run,) = begin(store)
    # 990 frames of 13 ms and ten of 60 ms: the 99th percentile (rank 990 of 1000) is 13 ms.
    late = [record(run, i, 3, times=life(100 + 40 * i + 10, 1, 1, 48)) for i in range(5, 1000, 100)]
    store.append(frames(run, range(1000)), {(run.id, run.epoch): counted([13] * 990 + [60] * 10)})
    store.append(np.concatenate(late))
    Retention(store, RetentionPolicy(keep_all_seconds=1, keep_one_in=500)).sweep(at(1000))
    assert kept(store, run) == sorted([0, 500, *range(5, 1000, 100)])


def test_frames_that_all_take_as_long_are_not_slow(store: FrameStore) -> None:
    (run,) = begin(store)
    store.append(frames(run, range(300)), {(run.id, run.epoch): counted([13] * 300)})
    Retention(store, RetentionPolicy(keep_all_seconds=1)).sweep(at(1000))
    assert kept(store, run) == [0, 100, 200]


def test_lost_frames_stay_with_what_is_known_of_them(store: FrameStore) -> None:
    (run,) = begin(store)
    store.append(np.concatenate([frames(run, range(17)), record(run, 17, 2, times=life(780, 2, 1, 3))]))
    lost = LostFrame(source_index=17, pts=17, time_base=TimeBase(num=1, den=25), operator="enc", reason="it is damaged")
    store.add_lost(run.id, run.epoch, [lost])
    Retention(store, RetentionPolicy(keep_all_seconds=1)).sweep(at(1000))
    assert kept(store, run) == [0, 17]
    assert lookup.find(store, 17).lost[0]["reason"] == "it is damaged"
    with pytest.raises(NoSuchFrame, match="not kept"):
        lookup.find_source_index(store, 16)


def test_a_range_of_time_is_kept_whole(store: FrameStore) -> None:
    one, two = begin(store, "one", "two")
    other = frames(two, range(100))
    other["hop"] += 4  # the second pipeline's
    store.append(np.concatenate([frames(one, range(100)), other]))
    retention = Retention(store, RetentionPolicy(keep_all_seconds=1))
    # Frames 10 to 12 live from 0.5, 0.54 and 0.58 s on, for 13 ms; one event of the slot comes 1 ms sooner.
    start, end = OFFSET_NS + round(0.513 * SECOND), OFFSET_NS + round(0.579 * SECOND)
    retention.keep_range(KeepRange(start, end, one.id, "a link went down"))
    retention.sweep(at(1000))
    assert kept(store, one) == [0, 10, 11, 12]
    assert kept(store, two) == [0]
    with store.read() as reader:
        assert reader.keep_ranges() == [KeepRange(start, end, one.id, "a link went down")]
    with pytest.raises(ValueError, match="ends before"):
        retention.keep_range(KeepRange(2, 1))


def test_frames_in_flight_are_left_alone(store: FrameStore) -> None:
    (run,) = begin(store)
    half = frames(run, [30])[:2]  # the encoder still has it
    store.append(np.concatenate([frames(run, range(30)), half, frames(run, range(31, 60))]))
    retention = Retention(store, RetentionPolicy(keep_all_seconds=10))
    retention.sweep(at(600))
    assert kept(store, run) == [0, *range(30, 60)]
    store.append(frames(run, [30])[2:])
    retention.sweep(at(600))
    assert kept(store, run) == [0]


@pytest.mark.parametrize("over", ["finished", "an hour", "4096 frames"])
def test_frames_that_never_come_whole_do_not_stay_for_ever(store: FrameStore, over: str) -> None:
    (run,) = begin(store)
    store.append(np.concatenate([frames(run, [1])[:2], frames(run, [2])]))
    seconds = 100.0
    if over == "finished":
        store.put_counters({(run.id, run.epoch): StreamCounters(finished=True)})
    elif over == "an hour":
        seconds = 3700
    else:
        store.append(record(run, 2 + 4096, 2, times=life(99_999, 1, 1, 1)))
    Retention(store, RetentionPolicy(keep_all_seconds=10)).sweep(at(seconds))
    assert kept(store, run) in ([], [4098])


def test_what_comes_after_its_frame_went_is_not_stored(store: FrameStore) -> None:
    (run,) = begin(store)
    store.append(np.concatenate([frames(run, [1])[:2], frames(run, [2, 3])]))
    Retention(store, RetentionPolicy(keep_all_seconds=10, keep_one_in=3)).sweep(at(5000))
    rebased = record(run, 1, 0, pts=900, times=life(150, 1, 1, 1))
    late, more = frames(run, [1])[2:], record(run, 3, 0, times=life(150, 1, 1, 1))
    assert store.append(np.concatenate([late, rebased, more, frames(run, [4])])) == 5
    assert kept(store, run) == [3, 4]
    assert_consistent(store, run)


def test_age_goes_by_the_clock_that_can_be_right(store: FrameStore) -> None:
    """Another boot: CLOCK_MONOTONIC began anew. A sleeping machine: the wall clock went on. A clock set forward."""
    (run,) = begin(store)
    store.append(frames(run, range(1, 10)))  # they end by 0.5 s
    retention = Retention(store, RetentionPolicy(keep_all_seconds=600))
    day = 86_400 * SECOND
    for young in (
        ClockAnchor(monotonic_ns=3 * SECOND, realtime_ns=OFFSET_NS + day),  # it slept, or its clock was set
        ClockAnchor(monotonic_ns=day, realtime_ns=OFFSET_NS + 3 * SECOND),  # as it could be after a boot
    ):
        retention.sweep(young)
        assert len(kept(store, run)) == 9
    retention.sweep(ClockAnchor(monotonic_ns=SECOND // 10, realtime_ns=OFFSET_NS + day))  # booted just now
    assert kept(store, run) == []


def test_a_frame_that_went_is_said_to_have_gone(store: FrameStore) -> None:
    (run,) = begin(store)
    store.append(frames(run, range(0, 1000, 2)))
    Retention(store, RetentionPolicy(keep_all_seconds=600)).sweep(at(630))  # to (30 - 0.113) / 0.04: 746
    with pytest.raises(NoSuchFrame) as gone:
        lookup.find_source_index(store, 250)
    assert gone.value.not_kept
    assert "source index 250 is not kept any more (of those older than 10 minutes, 1 in 100 is kept" in str(gone.value)
    assert [n["source_index"] for n in gone.value.nearest] == [200, 300]
    for pts in (250, 745):
        with pytest.raises(NoSuchFrame, match=r"no frame that is kept has PTS .* 1 in 100") as gone:
            lookup.find(store, pts)
        assert gone.value.not_kept
    for find, number in ((lookup.find, 751), (lookup.find_source_index, 751), (lookup.find, 5000), (lookup.find, -5)):
        with pytest.raises(NoSuchFrame, match="no frame has") as never:
            find(store, number)
        assert not never.value.not_kept


def test_a_pts_that_two_frames_had_leads_to_the_one_that_is_left(store: FrameStore) -> None:
    (run,) = begin(store)
    store.append(np.concatenate([frames(run, [99], pts=5), frames(run, [100], pts=5), frames(run, [101])]))
    Retention(store, RetentionPolicy(keep_all_seconds=1)).sweep(at(1000))
    assert lookup.find(store, 5).source_index == 100


def test_rebased_pts_go_with_their_frame(store: FrameStore) -> None:
    (run,) = begin(store)
    muxed = [
        record(run, i, 3, pts=12_000 + 512 * i, time_base_den=12_800, times=life(150 + 40 * i, 1, 1, 1))
        for i in range(150)
    ]
    store.append(np.concatenate([frames(run, range(150)), *muxed]))
    with store.read() as reader:
        assert reader.entries("index") == 300
    Retention(store, RetentionPolicy(keep_all_seconds=1)).sweep(at(1000))
    with store.read() as reader:
        assert reader.entries("index") == 4
    assert lookup.find(store, 12_000 + 51_200, time_base=(1, 12_800)).source_index == 100


def test_the_budget_takes_samples_first_then_slow_frames_then_young_ones(store: FrameStore) -> None:
    (run,) = begin(store)
    for first in range(0, 40_000, 4000):
        block = load([run], first, 4000)
        slow = (block["source_index"] % 40 == 1) & (block["hop"] == 3)
        block["times_ns"][slow, EventKind.SLOT_RELEASE] += SECOND // 2
        store.append(block)
    retention = Retention(store, RetentionPolicy(keep_all_seconds=400, keep_one_in=20, slow_seconds=0.1))
    retention.sweep(at(1600))  # frames before about 29 997 are old
    every = set(kept(store, run))
    young, samples, odd = ({i for i in every if i >= 30_000}, set(range(0, 29_000, 20)), set(range(1, 29_000, 40)))
    assert samples | odd <= every
    used = store.usage_bytes[0]

    def limit(share: float) -> tuple[set[int], SweepResult]:
        budget = round(used * share)
        retention.policy = RetentionPolicy(400, 20, 0.1, budget)
        result = retention.sweep(at(1600))
        assert result.bytes_after <= budget * 0.95
        assert result.warning is not None
        assert "disk budget" in result.warning
        assert_consistent(store, run)
        return set(kept(store, run)), result

    left, result = limit(0.99)
    assert odd | young <= left
    gone = samples - left
    assert gone
    assert gone == {i for i in samples if i <= max(gone)}, "not the oldest"
    assert result.trimmed >= len(gone)
    left, result = limit(0.85)
    assert not samples & left
    assert young <= left
    assert min(odd & left, default=0) > 1
    left, result = limit(0.5)
    assert not left & (samples | odd)
    assert "younger than keep_all_seconds" in (result.warning or "")
    assert left == {i for i in young if i >= min(left)}, "not the oldest"


def test_the_budget_takes_entries_of_lost_frames_too(store: FrameStore) -> None:
    (run,) = begin(store)
    lost = [
        LostFrame(source_index=i, pts=i, time_base=None, operator="decode", reason=f"damaged {i}: {'x' * 200}")
        for i in range(20_000)
    ]
    store.append(frames(run, [20_001]))
    store.add_lost(run.id, run.epoch, lost)
    budget = store.usage_bytes[0] // 2
    result = Retention(store, RetentionPolicy(keep_all_seconds=1, disk_budget_bytes=budget)).sweep(at(5000))
    assert result.bytes_after <= budget
    left = [entry["source_index"] for entry in lookup.lost_frames(store, limit=20_000)]
    assert len(left) + result.lost_trimmed == 20_000
    assert left == list(range(result.lost_trimmed, 20_000))


def test_runs_without_anything_left_disappear(store: FrameStore) -> None:
    (first,) = begin(store, "cam", run_id="run-1")
    store.append(frames(first, range(1, 50)), {(first.id, 1): StreamCounters(finished=True)})
    (second,) = begin(store, "cam", run_id="run-2")
    store.append(frames(second, range(101)), {(second.id, 2): StreamCounters(finished=True)})
    (third,) = begin(store, "cam", run_id="run-3")  # it goes on, waiting for its source
    retention = Retention(store, RetentionPolicy(keep_all_seconds=1))
    assert retention.sweep(at(10**6)).runs_removed == 1
    with store.read() as reader:
        assert reader.runs() == [(second.id, 2), (third.id, 3)]
        assert [key for key, _ in reader.cursor("manifests")] == [b"run-2", b"run-3"]
        assert reader.counters(first.id, 1) is None
    assert lookup.find(store, 100, stream="cam", epoch=2).source_index == 100
    with pytest.raises(NoSuchStream):
        lookup.find(store, 1, stream="cam", epoch=1)
    store.append(frames(third, [0]))  # nothing was taken from under it


def test_a_run_that_was_killed_disappears_after_a_day(tmp_path: Path) -> None:
    with FrameStore.open(tmp_path, write=True) as before:
        (run,) = begin(before)
        before.append(frames(run, range(1, 50)))
    with FrameStore.open(tmp_path, write=True) as store:
        retention = Retention(store, RetentionPolicy(keep_all_seconds=1))
        assert retention.sweep(at(5000)).runs_removed == 0
        assert retention.sweep(at(5000 + 80_000)).runs_removed == 0
        assert retention.sweep(at(5000 + 90_000)).runs_removed == 1


def test_an_older_store_can_be_thinned_out_and_still_read(tmp_path: Path) -> None:
    """Retention needs no other layout: all that it notes is in the table `meta`."""
    with FrameStore.open(tmp_path, write=True) as store:
        (run,) = begin(store)
        store.append(frames(run, range(200)))
        Retention(store, RetentionPolicy(keep_all_seconds=1)).sweep(at(1000))
    with FrameStore.open(tmp_path) as store:
        assert kept(store, run) == [0, 100]


def load(runs: Sequence[StreamRun], first: int, count: int) -> npt.NDArray[np.void]:
    """`count` frames of every stream from the source index `first` on, quickly: 13 ms each, every 40 ms one."""
    one = whole_frame(runs[0], 0)
    block = np.tile(one, len(runs) * count)
    hops = len(one)
    index = np.tile(np.repeat(np.arange(first, first + count), hops), len(runs))
    block["source_index"] = index
    block["pts"] = index
    block["stream"] = np.repeat([run.id for run in runs], count * hops)
    block["hop"] += np.repeat(np.arange(len(runs), dtype=np.uint32) * hops, count * hops).astype(np.uint32)
    known = block["times_ns"] > 0
    block["times_ns"] += np.where(known, (index * 40_000_000)[:, None], 0)
    return block


def fill(store: FrameStore, run: StreamRun, count: int) -> None:
    for first in range(0, count, 4000):
        store.append(load([run], first, min(4000, count - first)))


def test_the_file_stays_within_its_budget_for_days(store: FrameStore) -> None:
    runs = begin(store, "one", "two", "three")
    budget, batch = 9_000_000, 1500  # frames of a stream between two sweeps: a minute at 25 a second
    retention = Retention(store, RetentionPolicy(keep_all_seconds=120, keep_one_in=10, disk_budget_bytes=budget))
    largest, trimmed, grown = 0, 0, 0
    for minute in range(30):
        before = store.usage_bytes[0]
        store.append(load(runs, minute * batch, batch))
        grown = max(grown, store.usage_bytes[0] - before)
        result = retention.sweep(at(0.1 + (minute + 1) * 60))
        trimmed += result.trimmed
        largest = max(largest, result.file_bytes)
        assert result.bytes_after <= budget
    assert trimmed > 0, "the budget was never reached: this test shows nothing"
    assert largest <= budget + 2 * grown
    for run in runs:
        left = kept(store, run)
        assert left[-3000:] == list(range(30 * batch - 3000, 30 * batch)), "the last two minutes are whole"
        assert {i % 10 for i in left[:-3100]} == {0}


def test_what_is_said_to_be_in_use_is_what_a_compact_copy_takes(store: FrameStore, tmp_path: Path) -> None:
    (run,) = begin(store)
    fill(store, run, 20_000)
    Retention(store, RetentionPolicy(keep_all_seconds=1)).sweep(at(10_000))
    used, file_bytes = store.usage_bytes
    store.close()
    with lmdb.open(str(tmp_path / "frames"), readonly=True, max_dbs=32) as peer:
        (tmp_path / "copy").mkdir()
        peer.copy(str(tmp_path / "copy"), compact=True)
    assert used == (tmp_path / "copy" / "data.mdb").stat().st_size
    assert file_bytes > 5 * used


def test_a_file_larger_than_its_budget_is_compacted_when_nobody_has_it_open(tmp_path: Path) -> None:
    assert shrink(tmp_path, 1) is None  # there is none
    with FrameStore.open(tmp_path, write=True) as store:
        (run,) = begin(store)
        fill(store, run, 20_000)
        Retention(store, RetentionPolicy(keep_all_seconds=1)).sweep(at(10_000))
        left = kept(store, run)
        with pytest.raises(FrameStoreError, match="in use"):
            compact(tmp_path)
    other = python(
        "import sys; from pathlib import Path; from observatory.frames.store import FrameStore\n"
        "with FrameStore.open(Path(sys.argv[1])): print('open', flush=True); input()",
        tmp_path,
        stdin=-1,
    )
    with other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(FrameStoreError, match="in use"):
            shrink(tmp_path, 1_000_000)
        other.stdin.close()
    (tmp_path / "frames" / "compacted").mkdir()  # as a killed process leaves it
    done = shrink(tmp_path, 1_000_000)
    assert done is not None
    assert done.after_bytes < done.before_bytes / 5
    assert (tmp_path / "frames" / "data.mdb").stat().st_size == done.after_bytes
    assert not (tmp_path / "frames" / "compacted").exists()
    assert shrink(tmp_path, 1_000_000) is None
    with FrameStore.open(tmp_path, write=True) as store:
        assert kept(store, run) == left
        assert store.append(frames(run, [30_000])) == 4
        assert kept(store, run) == [*left, 30_000]


def test_a_sweep_can_be_broken_off_and_the_next_goes_on(store: FrameStore) -> None:
    (run,) = begin(store)
    fill(store, run, 8000)
    retention = Retention(store, RetentionPolicy(keep_all_seconds=1))
    asked: list[None] = []

    def stop() -> bool:
        asked.append(None)
        return len(asked) > 3

    part = retention.sweep(at(100_000), stop=stop)
    assert 0 < part.deleted < 7920
    assert_consistent(store, run)
    rest = retention.sweep(at(100_000))
    assert part.deleted + rest.deleted == 7920
    assert kept(store, run) == list(range(0, 8000, 100))
    retention.policy = RetentionPolicy(keep_all_seconds=1, disk_budget_bytes=1)
    assert retention.sweep(at(100_000), stop=lambda: True).trimmed == 0


def test_frames_may_be_stored_while_a_sweep_goes_on(store: FrameStore) -> None:
    (run,) = begin(store)
    fill(store, run, 8000)
    retention = Retention(store, RetentionPolicy(keep_all_seconds=1))
    stored: list[int] = []

    def write() -> None:
        for first in range(8000, 20_000, 200):
            stored.append(store.append(load([run], first, 200)))

    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        retention.sweep(at(100_000))
        assert_consistent(store, run)
    writer.join()
    assert sum(stored) == 12_000 * 4
    retention.sweep(at(100_000))
    assert kept(store, run) == list(range(0, 20_000, 100))
    assert_consistent(store, run)


def test_frames_in_flight_at_the_end_of_an_epoch_are_overtaken_by_the_next(store: FrameStore) -> None:
    """Source indices go on through the epochs of a run: 4096 frames later nobody waits for the rest any more."""
    (run,) = begin(store)
    anchor = ClockAnchor(monotonic_ns=SECOND, realtime_ns=OFFSET_NS + SECOND)
    store.append(np.concatenate([frames(run, [1]), frames(run, [2])[:2]]))
    entry = EpochEntry(stream=run.id, epoch=2, reason="the source broke off", began=anchor, source_index=3)
    store.begin_epoch("run-1", "ladder", entry)
    retention = Retention(store, RetentionPolicy(keep_all_seconds=1))
    for last, left in ((4097, [2]), (4098, [])):
        store.append(frames(run, [last], epoch=2))
        retention.sweep(at(500))
        assert kept(store, run) == left


SWEEPER = """
import sys
from pathlib import Path
from observatory.frames import pruning
from observatory.frames.retention import Retention, RetentionPolicy
from observatory.frames.store import FrameStore
from observatory.model.manifest import ClockAnchor
pruning.HOLD_SECONDS = 0.0  # many small transactions
pruning.STEP_RECORDS = 100
store = FrameStore.open(Path(sys.argv[1]), write=True)
print("go", flush=True)
now = int(float(sys.argv[2]) * 1e9)
result = Retention(store, RetentionPolicy(keep_all_seconds=1, keep_one_in=7)).sweep(
    ClockAnchor(monotonic_ns=now, realtime_ns=now + 2_000_000_000_000))
print(result.deleted, flush=True)
"""


def test_a_sweep_that_is_killed_leaves_whole_frames(tmp_path: Path) -> None:
    with FrameStore.open(tmp_path, write=True) as store:
        (run,) = begin(store)
        fill(store, run, 12_000)
        store.add_lineage(
            run.id, run.epoch, [Lineage(hop="enc->mux", source_index=i, parents=(i,)) for i in range(0, 12_000, 3)]
        )
    chance = random.Random(7)
    counts = [12_000]
    while len(counts) < 8:
        with python(SWEEPER, tmp_path, 1000) as sweeper:
            assert sweeper.stdout is not None
            assert sweeper.stdout.readline() == "go\n"
            time.sleep(chance.uniform(0, 0.08))
            sweeper.send_signal(signal.SIGKILL)
            sweeper.wait()
            finished = bool(sweeper.stdout.read())
        with FrameStore.open(tmp_path, write=True) as store:
            assert_consistent(store, run)
            counts.append(len(kept(store, run)))
            if finished:
                break
    assert len(set(counts[1:-1]) - {12_000}) > 1, "it was never killed in the middle"
    with FrameStore.open(tmp_path, write=True) as store:
        Retention(store, RetentionPolicy(keep_all_seconds=1, keep_one_in=7)).sweep(at(1000))
        assert kept(store, run) == list(range(0, 12_000, 7))
        assert_consistent(store, run)


def test_the_thread_sweeps_keeps_its_errors_and_takes_another_policy(tmp_path: Path) -> None:
    store = FrameStore.open(tmp_path, write=True)
    (run,) = begin(store)
    now = time.monotonic_ns() / 1e6
    store.append(frames(run, range(1, 50), at=now))
    store.append(record(run, 60, 0, times={EventKind.PRODUCER_KERNEL_LAUNCH: now}))
    thread = RetentionThread(Retention(store, RetentionPolicy()), check_seconds=3600)
    thread.start()
    assert thread.status().sweeps == 0
    thread.check_seconds = 0.01
    until(lambda: thread.status().sweeps > 1)
    assert len(kept(store, run)) == 50
    thread.policy = RetentionPolicy(keep_all_seconds=0)
    until(lambda: len(kept(store, run)) == 1)  # one may be in flight still
    assert thread.status().error is None
    store.close()
    until(lambda: thread.status().error is not None)
    assert "closed" in (thread.status().error or "")
    thread.stop()
    assert (thread.status().last or pytest.fail("there was no sweep")).duration_seconds > 0


def until(holds: object, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    assert callable(holds)
    while not holds():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


@pytest.mark.parametrize(
    "wrong",
    [{"keep_all_seconds": -1}, {"keep_one_in": 0}, {"disk_budget_bytes": 0}, {"keep_all_seconds": float("nan")}],
)
def test_nonsense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="no such retention"):
        RetentionPolicy(**wrong)  # type: ignore[arg-type]
