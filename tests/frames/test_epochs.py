"""Several epochs of one stream in one run: allotted, stored, found again by the source's own PTS; and old stores."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from observatory.frames import lookup, summary
from observatory.frames.environment import ADDED_TABLES, TABLES
from observatory.frames.errors import NoSuchFrame
from observatory.frames.stamps import later, shifted
from observatory.frames.store import FrameStore, StreamRun
from observatory.model.manifest import ClockAnchor, EpochEntry
from observatory.model.media import TimeBase
from observatory.model.record import LostFrame
from tests.frames.support import WHOLE_FRAME_SECONDS, begin, python, whole_frame


def further(
    store: FrameStore, run: StreamRun, source_index: int, *, run_id: str = "run-1", offset: int = 0, reason: str = "gap"
) -> StreamRun:
    """The next epoch of that stream, in that run; it begins 7 s (by both clocks) after the run for every index."""
    at = 7_000_000_000 * source_index
    entry = EpochEntry(
        stream=run.id,
        epoch=1,
        reason=reason,
        pts_offset=offset,
        began=ClockAnchor(monotonic_ns=1_000 + at, realtime_ns=2_000_000_001_000 + at + 5),
        source_index=source_index,
    )
    return run._replace(epoch=store.begin_epoch(run_id, run.name, entry).epoch)


def frames_of(run: StreamRun, indices: range, pts: int) -> Any:
    """Whole frames, the first with that PTS (in the job)."""
    return np.concatenate([whole_frame(run, index, pts=pts + index - indices.start) for index in indices])


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with FrameStore.open(tmp_path, write=True) as opened:
        yield opened


@pytest.fixture
def jumps(store: FrameStore) -> list[StreamRun]:
    """Source indices 0-9 at PTS 0-9; 10-14 at PTS 3-7, in the job 10-14; 15-19 at PTS 1000-1004, in the job 15-19."""
    (first,) = begin(store)
    second = further(store, first, 10, offset=7, reason="the source came back")
    third = further(store, first, 15, offset=-985, reason="jump")
    for run, indices in ((first, range(10)), (second, range(10, 15)), (third, range(15, 20))):
        store.append(frames_of(run, indices, indices.start))
    return [first, second, third]


def test_a_pts_is_looked_up_in_the_newest_epoch_that_has_it(store: FrameStore, jumps: list[StreamRun]) -> None:
    def at(pts: int, **more: Any) -> tuple[int, int, int | None]:
        frame = lookup.find(store, pts, **more)
        return frame.epoch, frame.source_index, frame.pts

    assert at(1002) == (3, 17, 1002)
    assert at(4) == (2, 11, 4)
    assert at(4, epoch=1) == (1, 4, 4)
    assert at(9) == (1, 9, 9)
    assert at(2004, time_base=(1, 50)) == (3, 17, 1002)  # the same time in another time base
    assert at(80, time_base=(1, 500)) == (2, 11, 4)
    frame = lookup.find(store, 1002)
    assert (frame.pts_offset, frame.epoch_reason) == (-985, "jump")
    assert {hop.pts for hop in frame.hops} == {17}
    assert frame.view().pts == 1002
    with pytest.raises(NoSuchFrame, match="epoch 3: no frame has PTS 4 ") as caught:
        lookup.find(store, 4, epoch=3)
    assert "epoch 2 has it: --epoch 2" in (caught.value.mend or "")


def test_source_indices_and_lists_go_through_all_epochs(store: FrameStore, jumps: list[StreamRun]) -> None:
    assert [lookup.find_source_index(store, i).epoch for i in (9, 10, 14, 15)] == [1, 2, 2, 3]
    with pytest.raises(NoSuchFrame, match="epoch 1: no frame has source index 12"):
        lookup.find_source_index(store, 12, epoch=1)
    with pytest.raises(NoSuchFrame, match="epochs 1 to 3: no frame has source index 20") as caught:
        lookup.find_source_index(store, 20)
    assert [n["source_index"] for n in caught.value.nearest] == [19]
    assert [f.source_index for f in lookup.list_frames(store, limit=7)] == list(range(13, 20))
    assert [f.source_index for f in lookup.list_frames(store, first=8, last=16)] == list(range(8, 17))
    assert [f.pts for f in lookup.list_frames(store, epoch=2)] == [3, 4, 5, 6, 7]
    (whole,) = summary.stats(store)
    assert (whole.epoch, whole.epochs, whole.frames, whole.records) == (3, 3, 20, 80)
    (second,) = summary.stats(store, stream="ladder", epoch=2)
    assert (second.epoch, second.epochs, second.frames) == (2, 1, 5)
    slowest = summary.slowest(store, 30)
    assert [f.source_index for f in slowest] == list(range(20))  # all alike: by source index
    assert {f.end_to_end_seconds for f in slowest} == {WHOLE_FRAME_SECONDS}


def test_the_nearest_are_of_any_epoch_and_say_which(store: FrameStore, jumps: list[StreamRun]) -> None:
    with pytest.raises(NoSuchFrame, match="epochs 1 to 3: no frame has PTS 500 ") as caught:
        lookup.find(store, 500)
    assert caught.value.nearest == (
        {"pts": 9, "time_base": "1/25", "source_index": 9, "epoch": 1},
        {"pts": 1000, "time_base": "1/25", "source_index": 15, "epoch": 3},
    )
    assert caught.value.mend == "the nearest: PTS 9 in epoch 1 and PTS 1000 in epoch 3"
    with pytest.raises(NoSuchFrame) as caught:
        lookup.find(store, 9, epoch=2)
    assert [n["pts"] for n in caught.value.nearest] == [7]


def test_lost_frames_are_told_with_the_sources_own_pts(store: FrameStore, jumps: list[StreamRun]) -> None:
    base = TimeBase(num=1, den=25)
    gone = LostFrame(source_index=40, pts=20, time_base=base, operator="decode", reason="damaged")
    unknown = LostFrame(source_index=41, pts=None, time_base=None, operator="decode", reason="late")
    store.add_lost(jumps[2].id, jumps[2].epoch, [gone, unknown])
    assert [(e["source_index"], e["pts"]) for e in lookup.lost_frames(store)] == [(40, 1005), (41, None)]
    with pytest.raises(NoSuchFrame, match=r"PTS 1005 .* was lost in decode: damaged"):
        lookup.find(store, 1005)
    with pytest.raises(NoSuchFrame, match="source index 40 was lost in decode"):
        lookup.find_source_index(store, 40)


def test_epochs_are_listed_with_why_and_when(store: FrameStore, jumps: list[StreamRun]) -> None:
    begin(store, run_id="run-2")
    began = 2000.000001
    assert [(e["epoch"], e["run_id"], e["reason"], e["pts_offset"]) for e in lookup.list_epochs(store)] == [
        (1, "run-1", None, 0),
        (2, "run-1", "the source came back", 7),
        (3, "run-1", "jump", -985),
        (4, "run-2", None, 0),
    ]
    assert [e["began_unix_seconds"] for e in lookup.list_epochs(store)] == pytest.approx(
        [began, began + 70, began + 105, began]
    )
    assert [e["epoch"] for e in lookup.list_epochs(store, limit=2)] == [3, 4]
    # Of two readings of the clocks, the epoch's own is used: its wall clock had gained 5 ns.
    first, second = lookup.find(store, 0, epoch=1), lookup.find(store, 3, epoch=2)
    assert first.began_unix_seconds == pytest.approx(2000 + 0.099, abs=1e-9)
    assert second.began_unix_seconds == pytest.approx(2000 + 0.099 + 0.4 + 5e-9, abs=1e-9)


def test_a_clock_of_33_bits_that_wraps_gives_the_same_pts_twice(store: FrameStore) -> None:
    (first,) = begin(store, time_base=(1, 90_000))
    wrap = 2**33
    ninety = {"time_base_den": 90_000}
    near = [wrap - 7200, wrap - 3600]
    for index, pts in enumerate(near):
        store.append(whole_frame(first, index, pts=pts, **ninety))
    second = further(store, first, 2, offset=wrap, reason="the clock of the input wrapped")
    for index in range(2, 5):
        store.append(whole_frame(second, index, pts=wrap + (index - 2) * 3600, **ninety))
    third = further(store, first, 5, offset=2 * wrap, reason="the clock of the input wrapped")
    store.append(whole_frame(third, 5, pts=2 * wrap + 3600, **ninety))
    assert lookup.find(store, near[1]).source_index == 1
    assert (lookup.find(store, 0).source_index, lookup.find(store, 0).pts) == (2, 0)
    assert [lookup.find(store, 3600, epoch=e).source_index for e in (2, 3)] == [3, 5]
    assert lookup.find(store, 3600).source_index == 5
    assert lookup.find(store, 1, time_base=(2, 25)).source_index == 4  # 80 ms


def test_an_epoch_without_a_frame_hides_nothing(store: FrameStore, jumps: list[StreamRun]) -> None:
    further(store, jumps[0], 20)
    assert lookup.find(store, 1002).epoch == 3
    assert [f.source_index for f in lookup.list_frames(store, limit=2)] == [18, 19]
    assert [e["epoch"] for e in lookup.list_epochs(store)] == [1, 2, 3, 4]
    with pytest.raises(NoSuchFrame):
        lookup.find(store, 1002, epoch=4)


def test_runs_at_the_same_time_get_different_epochs_and_are_kept_apart(store: FrameStore) -> None:
    (one,) = begin(store, run_id="run-1")
    (other,) = begin(store, run_id="run-2")
    epochs = {"run-1": [one.epoch], "run-2": [other.epoch]}

    def jump(run_id: str, run: StreamRun) -> None:
        for _ in range(20):
            epochs[run_id].append(further(store, run, 0, run_id=run_id).epoch)

    threads = [threading.Thread(target=jump, args=a) for a in (("run-1", one), ("run-2", other))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(epochs["run-1"] + epochs["run-2"]) == list(range(1, 43))
    for run_id, own in epochs.items():
        assert own == sorted(own)
        for at, epoch in enumerate(own):
            store.append(whole_frame(one._replace(epoch=epoch), at, pts=100 * at))
        with store.read() as reader:
            assert list(reader.epochs_of_run(one.id, own[-1])) == own[::-1]
            assert {reader.run_id(one.id, epoch) for epoch in own} == {run_id}
    newest = "run-1" if epochs["run-1"][-1] == 42 else "run-2"
    assert [f.epoch for f in lookup.list_frames(store, limit=100)] == epochs[newest]


ALLOT = """
import sys
from pathlib import Path
from observatory.frames.store import FrameStore
from observatory.model.manifest import ClockAnchor, EpochEntry
with FrameStore.open(Path(sys.argv[1]), write=True) as store:
    began = ClockAnchor(monotonic_ns=0, realtime_ns=0)
    for number in range(25):
        entry = EpochEntry(stream=1, epoch=1, reason="r", began=began, source_index=number)
        print(store.begin_epoch(sys.argv[2], "ladder", entry).epoch, flush=True)
"""


def test_processes_that_begin_epochs_of_one_stream_get_different_ones(tmp_path: Path) -> None:
    with FrameStore.open(tmp_path, write=True) as store:
        for run_id in ("run-1", "run-2"):
            begin(store, run_id=run_id)
    processes = [python(ALLOT, tmp_path, run_id) for run_id in ("run-1", "run-2")]
    said = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    numbers = [[int(word) for word in out.split()] for out, _ in said]
    assert sorted(numbers[0] + numbers[1]) == list(range(3, 53))


def test_a_wanted_number_is_given_only_while_it_is_free(store: FrameStore) -> None:
    (run,) = begin(store)
    anchor = ClockAnchor(monotonic_ns=0, realtime_ns=0)
    wanted = EpochEntry(stream=run.id, epoch=5, reason="later", began=anchor, source_index=3)
    assert store.begin_epoch("run-1", "ladder", wanted).epoch == 5
    assert store.begin_epoch("run-1", "ladder", wanted).epoch == 6


def test_an_old_store_is_read_and_then_written(tmp_path: Path) -> None:
    """A store as it was before runs had several epochs: without the table, with a manifest of that time."""
    with FrameStore.open(tmp_path, write=True) as store:
        (run,) = begin(store)
        store.append(frames_of(run, range(5), 0))
        manifest = json.loads(store.manifest(run.id, run.epoch).model_dump_json())
    del manifest["link_emulation"]
    assert set(manifest) == {
        *("version", "run_id", "host", "software_version", "started", "pipeline", "decision_id"),
        *("topology_name", "streams", "devices", "ports", "hops", "tracers"),
    }
    assert manifest["version"] == 1
    env = lmdb.open(str(tmp_path / "frames"), max_dbs=16)
    with env.begin(write=True) as transaction:
        manifests = env.open_db(b"manifests", txn=transaction)
        transaction.put(manifest["run_id"].encode(), json.dumps(manifest).encode(), db=manifests)
        for name in ADDED_TABLES:
            transaction.drop(env.open_db(name.encode(), txn=transaction), delete=True)
    env.close()

    with FrameStore.open(tmp_path) as store:
        frame = lookup.find(store, 3)
        assert (frame.epoch, frame.pts, frame.pts_offset, frame.epoch_reason) == (1, 3, 0, None)
        assert [(e["epoch"], e["reason"]) for e in lookup.list_epochs(store)] == [(1, None)]
        with FrameStore.open(tmp_path, write=True) as writer:  # and who had it open sees what comes
            second = further(writer, run, 5, offset=100)
            writer.append(frames_of(second, range(5, 8), 105))
        assert (lookup.find(store, 6).epoch, lookup.find(store, 6).source_index) == (2, 6)


def test_a_reader_in_another_process_adopts_the_new_table(tmp_path: Path) -> None:
    with FrameStore.open(tmp_path, write=True) as store:
        (run,) = begin(store)
        store.append(frames_of(run, range(5), 0))
    env = lmdb.open(str(tmp_path / "frames"), max_dbs=16)
    with env.begin(write=True) as transaction:
        transaction.drop(env.open_db(b"epochs", txn=transaction), delete=True)
    assert len(TABLES) == env.stat()["entries"]
    env.close()
    reader = python(
        "import sys\n"
        "from pathlib import Path\n"
        "from observatory.frames import lookup\n"
        "from observatory.frames.store import FrameStore\n"
        "with FrameStore.open(Path(sys.argv[1])) as store:\n"
        "    print(lookup.find(store, 3).epoch, flush=True)\n"
        "    sys.stdin.readline()\n"
        "    print(lookup.find(store, 3).pts_offset, flush=True)\n",
        tmp_path,
        stdin=-1,
    )
    assert reader.stdout is not None
    assert reader.stdout.readline() == "1\n"
    with FrameStore.open(tmp_path, write=True) as store:
        second = further(store, run, 5, offset=100)
        store.append(frames_of(second, range(5, 8), 103))
    out, err = reader.communicate("\n")
    assert (out, reader.returncode) == ("100\n", 0), err


bases = st.tuples(st.integers(1, 2**31), st.integers(1, 2**31))


@given(st.integers(-(2**62), 2**62), bases, st.integers(-(2**62), 2**62), bases)
def test_shifting_is_exact_and_can_be_undone(
    pts: int, base: tuple[int, int], offset: int, other: tuple[int, int]
) -> None:
    from fractions import Fraction

    there, finer = shifted(pts, base, offset, other)
    assert there * Fraction(*finer) == pts * Fraction(*base) + offset * Fraction(*other)
    back, base_again = shifted(there, finer, -offset, other)
    assert back * Fraction(*base_again) == pts * Fraction(*base)
    assert later(there, finer, pts, base) == (offset > 0)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2**33), st.integers(0, 6), st.integers(1, 3600)),  # own first PTS, frames, step
        min_size=1,
        max_size=6,
    )
)
def test_every_frame_is_found_in_its_epoch_whatever_the_jumps(
    tmp_path_factory: pytest.TempPathFactory, shape: list[tuple[int, int, int]]
) -> None:
    """Against a dictionary: published times rise, own ones jump anywhere, epochs may be empty."""
    known: dict[tuple[int, int], int] = {}  # epoch, own PTS -> source index
    with FrameStore.open(tmp_path_factory.mktemp("model"), write=True) as store:
        (run,) = begin(store, time_base=(1, 90_000))
        index, clock = 0, shape[0][0]
        for number, (first, count, step) in enumerate(shape):
            own_run = run if number == 0 else further(store, run, index, offset=clock - first)
            for at in range(count):
                store.append(whole_frame(own_run, index, pts=clock, time_base_den=90_000))
                known[own_run.epoch, first + at * step] = index
                index, clock = index + 1, clock + step
        for (epoch, pts), expected in known.items():
            assert lookup.find(store, pts, epoch=epoch).source_index == expected
            newest = max(e for e, p in known if p == pts)
            found = lookup.find(store, pts)
            assert (found.epoch, found.pts, found.source_index) == (newest, pts, known[newest, pts])
        assert [f.source_index for f in lookup.list_frames(store, limit=100)] == list(range(index)) if index else True
