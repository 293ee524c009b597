"""The store itself: runs and epochs, round trips, versions, damage, growth."""

from __future__ import annotations

import os
from pathlib import Path

import lmdb
import numpy as np
import pytest

from observatory.frames.counters import StreamCounters
from observatory.frames.errors import (
    FrameStoreDamaged,
    FrameStoreError,
    FrameStoreVersion,
    NoFrameStore,
    NoSuchStream,
)
from observatory.frames.ingest import WINDOW
from observatory.frames.keys import ORIGIN_HOP, ORIGIN_SOURCE
from observatory.frames.store import FrameStore
from observatory.model.kinds import EventKind
from observatory.model.media import TimeBase
from observatory.model.record import Lineage, LostFrame
from tests.frames.support import begin, life, manifest, python, record, whole_frame


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    with FrameStore.open(tmp_path, write=True) as store:
        (run,) = begin(store)
        batch = np.concatenate([whole_frame(run, 5), whole_frame(run, 4)])
        assert store.append(batch[::-1]) == 8
        with store.read() as reader:
            read = reader.records(run.id, run.epoch, 5)
    assert [r.hop for r in read] == [0, 1, 2, 3]
    first = read[2]  # decode->hd
    assert (first.pts, first.time_base_num, first.time_base_den, first.bytes, first.slot) == (5, 1, 25, 345_600, 3)
    assert first.time(EventKind.PRODUCER_KERNEL_LAUNCH) == 300_000_000
    assert first.time(EventKind.SLOT_RELEASE) == 306_000_000
    assert first.time(EventKind.LINK_START) is None


def test_a_record_that_comes_again_replaces_the_first(tmp_path: Path) -> None:
    with FrameStore.open(tmp_path, write=True) as store:
        (run,) = begin(store)
        store.append(record(run, 1, 2, bytes=1))
        store.append(record(run, 1, 2, bytes=2))
        with store.read() as reader:
            assert [r.bytes for r in reader.records(run.id, run.epoch, 1)] == [2]
            assert reader.entries("records") == 1


def test_streams_keep_their_number_and_runs_count_epochs(tmp_path: Path) -> None:
    with FrameStore.open(tmp_path, write=True) as store:
        assert [r[:] for r in store.begin_run(["a", "b/in"])] == [("a", 1, 1), ("b/in", 2, 1)]
        assert [r[:] for r in store.begin_run(["c", "a"])] == [("c", 3, 1), ("a", 1, 2)]
    with FrameStore.open(tmp_path, write=True) as store:
        assert [r[:] for r in store.begin_run(["a"])] == [("a", 1, 3)]
        with store.read() as reader:
            assert [s[:] for s in reader.streams()] == [("a", 1, 3), ("b/in", 2, 1), ("c", 3, 1)]


@pytest.mark.parametrize("names", [[], ["a", "a"], [""]])
def test_a_run_needs_streams_with_names(tmp_path: Path, names: list[str]) -> None:
    with FrameStore.open(tmp_path, write=True) as store, pytest.raises(ValueError, match="each once"):
        store.begin_run(names)


def test_the_manifest_comes_back(tmp_path: Path) -> None:
    with FrameStore.open(tmp_path, write=True) as store:
        runs = store.begin_run(["a", "b"])
        saved = manifest(runs)
        store.save_manifest(saved)
        assert store.manifest(runs[1].id, runs[1].epoch) == saved
        with pytest.raises(NoSuchStream):
            store.manifest(1, 9)


def test_records_without_a_manifest_are_refused(tmp_path: Path) -> None:
    with FrameStore.open(tmp_path, write=True) as store:
        (run,) = store.begin_run(["a"])
        with pytest.raises(NoSuchStream, match="manifest"):
            store.append(record(run, 1, 0))


def test_hops_that_the_manifest_does_not_have_are_left_out(tmp_path: Path) -> None:
    with FrameStore.open(tmp_path, write=True) as store:
        (run,) = begin(store)
        assert store.append(np.concatenate([record(run, 1, 3), record(run, 1, 4)])) == 1


def test_one_batch_may_hold_records_of_several_runs(tmp_path: Path) -> None:
    with FrameStore.open(tmp_path, write=True) as store:
        one, other = begin(store, "a", "b", run_id="one")
        (second,) = begin(store, "a", run_id="two")
        batch = np.concatenate([record(r, 1, 2) for r in (other, second, one)])
        assert store.append(batch) == 3
        with store.read() as reader:
            assert reader.epochs(one.id) == [1, 2]
            assert reader.newest_epoch(one.id) == 2
            assert reader.newest_epoch(other.id) == 1


def test_the_index_holds_one_entry_per_frame_and_what_was_rebased(tmp_path: Path) -> None:
    with FrameStore.open(tmp_path, write=True) as store:
        (run,) = begin(store)
        for index in range(3):
            store.append(whole_frame(run, index))
            # The encoder writes 1/12800 (the same time), the last hop starts at 1000 (another time).
            store.append(record(run, index, 0, pts=512 * index, time_base_den=12800))
            store.append(record(run, index, 3, pts=1000 + index, time_base_den=12800))
        with store.read() as reader:
            assert reader.entries("index") == 6
            assert reader.time_bases(run.id, run.epoch, ORIGIN_SOURCE) == [(1, 25)]
            assert reader.time_bases(run.id, run.epoch, ORIGIN_HOP) == [(1, 12800)]
            assert reader.source_index(run.id, run.epoch, ORIGIN_HOP, (1, 12800), 1002) == 2
            assert reader.around(run.id, run.epoch, ORIGIN_SOURCE, (1, 25), 1) == ((0, 0), (1, 1))
            assert reader.around(run.id, run.epoch, ORIGIN_SOURCE, (1, 25), 9) == ((2, 2), None)
            assert reader.around(run.id, run.epoch, ORIGIN_SOURCE, (1, 25), -3) == (None, (0, 0))


def test_the_index_is_right_beyond_its_window_and_for_huge_pts(tmp_path: Path) -> None:
    with FrameStore.open(tmp_path, write=True) as store:
        (run,) = begin(store)
        indices = [0, WINDOW, 2 * WINDOW, 7]
        for index in indices:  # the first three share a cell of the window
            store.append(np.concatenate([record(run, index, 2, pts=index), record(run, index, 0, pts=index)]))
        far = 2**62
        store.append(np.concatenate([record(run, 8, 2, pts=far), record(run, 8, 0, pts=far)]))
        with store.read() as reader:
            for index in indices:
                assert reader.source_index(run.id, run.epoch, ORIGIN_SOURCE, (1, 25), index) == index
            assert reader.source_index(run.id, run.epoch, ORIGIN_SOURCE, (1, 25), far) == 8
            assert reader.time_bases(run.id, run.epoch, ORIGIN_HOP) == []


def test_lost_frames_lineage_and_counters_come_back(tmp_path: Path) -> None:
    with FrameStore.open(tmp_path, write=True) as store:
        (run,) = begin(store)
        known = LostFrame(
            source_index=3, pts=3, time_base=TimeBase(num=1, den=25), operator="decode", reason="corrupt packet"
        )
        unknown = LostFrame(source_index=None, pts=None, time_base=None, operator="decode", reason="no key frame")
        store.add_lost(run.id, run.epoch, [unknown, known, known])
        store.add_lost(run.id, run.epoch, [unknown])
        store.add_lineage(run.id, run.epoch, [Lineage(hop="hd->enc", source_index=4, parents=(4, 5))])
        counted = StreamCounters(records=7, frames=2, events_lost=1, latency_p50_seconds=0.5, finished=True)
        store.put_counters({(run.id, run.epoch): counted})
        with store.read() as reader:
            lost = [LostFrame.model_validate(entry) for entry in reader.lost(run.id, run.epoch)]
            assert lost == [known, known, unknown, unknown]
            assert reader.parents(run.id, run.epoch, 4) == {"hd->enc": (4, 5)}
            assert reader.parents(run.id, run.epoch, 5) == {}
            assert reader.counters(run.id, run.epoch) == counted
            assert reader.newest_epoch(run.id) == run.epoch  # lost frames count as frames


def test_frames_walk_forwards_and_backwards(tmp_path: Path) -> None:
    with FrameStore.open(tmp_path, write=True) as store:
        begin(store, "before")
        _, run, _ = begin(store, "before", "ladder", "later", run_id="two")
        store.append(np.concatenate([whole_frame(run, index) for index in (3, 1, 2)]))
        with store.read() as reader:
            walk = [[(r.source_index, r.hop) for r in f] for f in reader.frames(run.id, run.epoch)]
            assert walk == [[(index, hop) for hop in range(4)] for index in (1, 2, 3)]
            back = list(reader.frames(run.id, run.epoch, newest_first=True))
            assert [[(r.source_index, r.hop) for r in f] for f in back] == walk[::-1]
            assert [f[0].source_index for f in reader.frames(run.id, run.epoch, 2, 2)] == [2]
            assert [f[0].source_index for f in reader.frames(run.id, run.epoch, 0, 2, newest_first=True)] == [2, 1]


def test_the_map_grows_while_writing_and_reading(tmp_path: Path) -> None:
    with FrameStore.open(tmp_path, write=True, map_bytes=1 << 20) as store:
        (run,) = begin(store)
        for start in range(0, 20_000, 1000):
            batch = np.repeat(record(run, 0, 2, times=life(1, 1, 1, 1)), 1000)
            batch["source_index"] = batch["pts"] = np.arange(start, start + 1000)
            store.append(batch)
        with store.read() as reader:
            assert reader.entries("records") == reader.entries("index") == 20_000
        assert store.size_bytes > 1 << 20


def test_little_address_space_is_enough(tmp_path: Path) -> None:
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from observatory.frames.store import FrameStore\n"
        "from observatory.frames.environment import MAP_BYTES\n"
        "resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"
        "assert MAP_BYTES > 4 << 30\n"
        "with FrameStore.open(Path(sys.argv[1]), write=True) as store:\n"
        "    print(store.begin_run(['a']))\n"
    )
    with python(script, tmp_path) as process:
        out, errors = process.communicate(timeout=60)
    assert (process.returncode, "epoch=1" in out) == (0, True), errors


def test_reading_what_was_never_written_says_so_and_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(NoFrameStore, match="no frames were recorded yet") as caught:
        FrameStore.open(tmp_path / "nowhere")
    assert "observatory run" in (caught.value.mend or "")
    assert list(tmp_path.iterdir()) == []


def test_another_layout_is_refused_with_the_mend(tmp_path: Path) -> None:
    FrameStore.open(tmp_path, write=True).close()
    with lmdb.open(str(tmp_path / "frames"), max_dbs=16) as raw:
        meta = raw.open_db(b"meta")
        with raw.begin(write=True) as transaction:
            transaction.put(b"schema", b"7", db=meta)
    for write in (False, True):
        with pytest.raises(FrameStoreVersion, match="layout 7") as caught:
            FrameStore.open(tmp_path, write=write)
        assert "move the folder away" in (caught.value.mend or "")


@pytest.mark.parametrize("content", [b"hello", b"\0" * 100_000, os.urandom(100_000)], ids=["short", "zeros", "noise"])
@pytest.mark.parametrize("write", [False, True])
def test_files_that_are_no_database_are_refused(tmp_path: Path, content: bytes, write: bool) -> None:
    (tmp_path / "frames").mkdir()
    (tmp_path / "frames" / "data.mdb").write_bytes(content)
    with pytest.raises(FrameStoreDamaged, match="not a readable frame store"):
        FrameStore.open(tmp_path, write=write)
    assert (tmp_path / "frames" / "data.mdb").read_bytes() == content


def test_an_empty_file_is_no_store_to_read(tmp_path: Path) -> None:
    (tmp_path / "frames").mkdir()
    (tmp_path / "frames" / "data.mdb").touch()
    with pytest.raises(NoFrameStore):
        FrameStore.open(tmp_path)


def test_another_program_s_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "frames").mkdir()
    with lmdb.open(str(tmp_path / "frames")) as raw, raw.begin(write=True) as transaction:
        transaction.put(b"some", b"thing")
    with pytest.raises(FrameStoreDamaged, match="not a frame store"):
        FrameStore.open(tmp_path, write=True)


def test_a_file_that_was_cut_off_is_refused_and_does_not_kill_the_reader(tmp_path: Path) -> None:
    with FrameStore.open(tmp_path, write=True) as store:
        (run,) = begin(store)
        batch = np.repeat(record(run, 0, 2), 50_000)
        batch["source_index"] = batch["pts"] = np.arange(50_000)
        store.append(batch)
    data = tmp_path / "frames" / "data.mdb"
    os.truncate(data, data.stat().st_size // 2)
    with pytest.raises(FrameStoreDamaged, match="is cut off"):
        FrameStore.open(tmp_path)


def test_one_process_may_open_it_several_times(tmp_path: Path) -> None:
    with FrameStore.open(tmp_path, write=True) as store:
        (run,) = begin(store)
        with FrameStore.open(tmp_path) as second:
            store.append(whole_frame(run, 1))
            with second.read() as reader:
                assert len(reader.records(run.id, run.epoch, 1)) == 4
        store.append(whole_frame(run, 2))
    store.close()  # a second time: nothing happens
    with pytest.raises(FrameStoreError, match="closed"):
        store.begin_run(["a"])


def test_a_snapshot_does_not_show_what_is_written_meanwhile(tmp_path: Path) -> None:
    with FrameStore.open(tmp_path, write=True) as store:
        (run,) = begin(store)
        with store.read() as reader:
            store.append(whole_frame(run, 1))
            assert reader.records(run.id, run.epoch, 1) == []
        with store.read() as reader:
            assert len(reader.records(run.id, run.epoch, 1)) == 4
