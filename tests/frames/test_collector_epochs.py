"""A run that begins epochs while it goes on: whose the records, losses and counts are, also while the store fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataplane._ring import EventRing
from observatory.app.epochs import Epochs
from observatory.errors import ObservatoryError
from observatory.frames import collector as collector_module
from observatory.frames import lookup, tallies
from observatory.frames.collector import Collector
from observatory.frames.counters import StreamCounters
from observatory.frames.errors import FrameStoreFull
from observatory.frames.keys import run_key
from observatory.frames.latency import NO_FRAMES
from observatory.frames.store import FrameStore, StreamRun
from observatory.frames.tallies import Tallies
from observatory.model.manifest import ClockAnchor, EpochEntry, RunManifest, StreamEntry
from observatory.model.media import TimeBase
from observatory.model.record import Lineage, LostFrame
from tests.frames.support import begin, record
from tests.frames.test_collector import emit_frame

JUMP = {"type": "epoch", "reason": "jump", "pts_offset": 0, "source_index": 0}


class FickleStore(FrameStore):
    """A store whose disk is full while `full` says so."""

    full = False

    def _write(self, work: Any) -> Any:
        if self.full:
            raise FrameStoreFull("the disk is full")
        return super()._write(work)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FickleStore]:
    monkeypatch.setattr(collector_module, "RETRY_SECONDS", 0.0)
    with FickleStore.open(tmp_path, write=True) as opened:
        assert isinstance(opened, FickleStore)
        yield opened


@pytest.fixture
def rings() -> Iterator[dict[str, EventRing]]:
    made = {name: EventRing.create(4096) for name in ("decode", "hd", "sd", "enc", "mux")}
    yield made
    for ring in made.values():
        ring.close()


class Running:
    """A run of the ladder with its collector; `answers` is what its source was told."""

    def __init__(self, store: FrameStore, rings: dict[str, EventRing], run_id: str = "run-1", **options: Any) -> None:
        (self.run,) = begin(store, run_id=run_id)
        self.manifest: RunManifest = store.manifest(self.run.id, self.run.epoch)
        self.collector = Collector(self.manifest, list(rings.values()), store, commit_seconds=0.0, **options)
        self.answers: list[tuple[str, int]] = []
        self.epochs = Epochs(
            store, self.manifest, self.collector, lambda name, epoch: self.answers.append((name, epoch))
        )

    def jump(self, source_index: int, **more: Any) -> tuple[StreamRun, str | None]:
        entry, warning = self.epochs.begin("decode", {**JUMP, "source_index": source_index, **more})
        assert self.answers[-1] == ("decode", entry.epoch)
        return self.run._replace(epoch=entry.epoch), warning


def counters(store: FrameStore, run: StreamRun) -> StreamCounters:
    with store.read() as reader:
        found = reader.counters(run.id, run.epoch)
    assert found is not None
    return found


def test_records_of_an_epoch_that_began_in_the_run_are_its_own(store: FickleStore, rings: dict[str, EventRing]) -> None:
    batches: list[Any] = []
    job = Running(store, rings, observers=[batches.append])
    for index in range(4):
        emit_frame(rings, job.run, index)
    job.collector.poll()
    second, warning = job.jump(4, reason="the source came back", pts_offset=5)
    assert (second.epoch, warning) == (2, None)
    for index in range(4, 10):
        emit_frame(rings, second, index)
    emit_frame(rings, job.run._replace(epoch=9), 11)  # of an epoch that nobody began
    job.collector.poll()
    seen = job.collector.finish()
    assert (seen.frames, seen.records, seen.unmatched_events) == (10, 40, 4)
    (stream,) = seen.streams
    assert (stream.epoch, stream.frames, stream.frames_seen) == (2, 10, 10)
    assert {int(epoch) for batch in batches for epoch in np.unique(batch["epoch"])} == {1, 2}
    assert [(f.epoch, f.source_index) for f in lookup.list_frames(store, limit=20)] == [
        *((1, index) for index in range(4)),
        *((2, index) for index in range(4, 10)),
    ]
    first, later = counters(store, job.run), counters(store, second)
    assert (first.records, first.frames, first.frames_seen, first.finished) == (16, 4, 4, True)
    assert (later.records, later.frames, later.frames_seen, later.finished) == (24, 6, 6, True)
    assert first.latency_max_seconds == later.latency_max_seconds == pytest.approx(0.013)
    listed = lookup.list_epochs(store)
    assert [(e["reason"], e["frames"], e["first_source_index"]) for e in listed] == [
        (None, 4, 0),
        ("the source came back", 6, 4),
    ]
    assert abs(listed[1]["began_unix_seconds"] - time.time()) < 60


def test_losses_and_lineage_lie_in_the_epoch_of_their_source_index(
    store: FickleStore, rings: dict[str, EventRing]
) -> None:
    job = Running(store, rings)
    second, _ = job.jump(10)
    third, _ = job.jump(10)  # not one frame came of the second
    (stream,) = job.manifest.streams

    def loss(index: int | None) -> tuple[StreamEntry, LostFrame]:
        base = TimeBase(num=1, den=25)
        return stream, LostFrame(source_index=index, pts=index, time_base=base, operator="decode", reason="damaged")

    job.collector.lost([loss(index) for index in (9, 10, 30, None)])
    job.collector.lineage(stream, [Lineage(hop="hd->enc", source_index=i, parents=(i, i + 1)) for i in (9, 10)])
    assert job.collector.finish().streams[0].frames_lost == 4
    with store.read() as reader:
        found = {
            epoch: [entry["source_index"] for entry in reader.lost(stream.id, epoch)]
            for epoch in (job.run.epoch, second.epoch, third.epoch)
        }
        assert found == {1: [9], 2: [], 3: [10, 30, None]}
        assert reader.parents(stream.id, 1, 9) == {"hd->enc": (9, 10)}
        assert reader.parents(stream.id, 3, 10) == {"hd->enc": (10, 11)}
    assert [counters(store, run).frames_lost for run in (job.run, second, third)] == [1, 0, 3]


def test_who_is_no_source_gets_no_epoch(store: FickleStore, rings: dict[str, EventRing]) -> None:
    job = Running(store, rings)
    with pytest.raises(ObservatoryError, match="hd asks for an epoch, but is no source of ladder"):
        job.epochs.begin("hd", JUMP)
    assert (job.answers, job.collector.finish().streams[0].epoch) == ([], 1)


def test_frames_go_on_while_the_store_cannot_take_an_epoch(store: FickleStore, rings: dict[str, EventRing]) -> None:
    job = Running(store, rings)
    emit_frame(rings, job.run, 0)
    job.collector.poll()
    store.full = True
    second, warning = job.jump(1, reason="jump 1")
    third, _ = job.jump(3, reason="jump 2")
    assert (second.epoch, third.epoch) == (2, 3)
    assert warning is not None
    assert "epoch 2 of stream ladder is not stored yet" in warning
    assert "the disk is full" in warning
    for index in (1, 2):
        emit_frame(rings, second, index)
    emit_frame(rings, third, 3)
    job.collector.poll()
    seen = job.collector.snapshot()
    assert (seen.records, seen.records_pending, seen.error) == (4, 12, "the disk is full")
    assert (seen.streams[0].epoch, seen.streams[0].frames) == (3, 4)
    assert [e["epoch"] for e in lookup.list_epochs(store)] == [1]

    store.full = False
    (stream,) = job.manifest.streams
    gone = LostFrame(source_index=4, pts=None, time_base=None, operator="decode", reason="damaged")
    job.collector.lost([(stream, gone)])  # stores the epochs first
    assert [(e["epoch"], e["reason"]) for e in lookup.list_epochs(store)] == [(1, None), (2, "jump 1"), (3, "jump 2")]
    job.collector.poll()
    seen = job.collector.finish()
    assert (seen.records, seen.records_pending, seen.records_dropped, seen.error) == (16, 0, 0, None)
    assert [f.epoch for f in lookup.list_frames(store)] == [1, 2, 2, 3]
    assert counters(store, third).frames_lost == 1


def test_an_epoch_whose_number_another_run_took_is_stored_under_another(
    store: FickleStore, rings: dict[str, EventRing]
) -> None:
    job = Running(store, rings)
    store.full = True
    mine, _ = job.jump(0, reason="mine")
    emit_frame(rings, mine, 0)
    job.collector.poll()
    with FrameStore.open(store.folder.parent, write=True) as other:  # in another process, where there was room
        (theirs,) = begin(other, run_id="run-2")
        assert theirs.epoch == mine.epoch == 2
        other.append(record(theirs, 0, 2, pts=77))
    store.full = False
    emit_frame(rings, mine, 1)  # the source goes on with the number it was given
    job.collector.poll()
    emit_frame(rings, mine, 2)
    seen = job.collector.finish()
    assert (seen.records, seen.unmatched_events, seen.streams[0].epoch) == (12, 0, 3)
    assert [(f.epoch, f.source_index) for f in lookup.list_frames(store, epoch=3)] == [(3, 0), (3, 1), (3, 2)]
    assert [f.pts for f in lookup.list_frames(store, epoch=2)] == [77]
    with store.read() as reader:
        assert [reader.run_id(mine.id, epoch) for epoch in (1, 2, 3)] == ["run-1", "run-2", "run-1"]
    assert counters(store, mine._replace(epoch=3)).frames == 3


def test_epochs_may_begin_from_another_thread_while_records_are_collected(
    store: FickleStore, rings: dict[str, EventRing]
) -> None:
    job = Running(store, rings, poll_seconds=0.002)
    job.collector.start()
    written = {"index": 0}

    def source() -> None:
        run = job.run
        for index in range(300):
            if index and index % 20 == 0:
                run, warning = job.jump(index)
                assert warning is None
            emit_frame(rings, run, index)
            written["index"] = index
            time.sleep(0.0005)

    thread = threading.Thread(target=source)
    thread.start()
    thread.join()
    seen = job.collector.stop()
    assert (seen.frames, seen.records, seen.unmatched_events, seen.events_lost) == (300, 1200, 0, 0)
    assert seen.streams[0].epoch == 15
    frames = lookup.list_frames(store, limit=400)
    assert [(f.source_index, f.epoch) for f in frames] == [(index, 1 + index // 20) for index in range(300)]
    assert [e["frames"] for e in lookup.list_epochs(store)] == [20] * 15


def test_what_is_kept_of_past_epochs_is_bounded_and_the_totals_stay() -> None:
    base = TimeBase(num=1, den=25)
    stream = StreamEntry(name="s", id=4, epoch=1, source_operator="d", input="i", time_base=base)
    counts = Tallies([stream])
    run = StreamRun("s", 4, 1)
    stored: dict[tuple[int, int], StreamCounters] = {}
    epochs = 3 * tallies.MOST_EPOCHS
    for number in range(1, epochs + 1):
        if number > 1:
            counts.begin(4, number, number * 10, now=float(number))
        batch = record(run._replace(epoch=number), number * 10, 0)
        counts.batch(batch, NO_FRAMES, [((4, number), 1)])
        counts.records(batch)
        if number % 5 == 0:
            due = counts.due(float(number), finished=False, events_lost=lambda _: 0, unmatched=0)
            stored |= due
            counts.stored(due, float(number))
    due = counts.due(epochs + 100.0, finished=True, events_lost=lambda _: 3, unmatched=0)
    assert len(due) <= tallies.KEPT_EPOCHS + 5
    stored |= due
    assert len(stored) == epochs
    assert {(entry.records, entry.frames_seen) for entry in stored.values()} == {(1, 1)}
    assert all(entry.finished for entry in stored.values())
    assert (counts.totals[4].records, counts.totals[4].seen) == (epochs, epochs)
    assert counts.epoch_of(4, 10 * epochs - 5) == epochs - 1
    assert counts.epoch_of(4, None) == epochs
    late = record(run._replace(epoch=3), 30, 0)  # long forgotten: it counts for the run
    counts.records(late)
    assert counts.totals[4].records == epochs + 1
    assert (4, 3) not in counts.due(epochs + 200.0, finished=True, events_lost=lambda _: 0, unmatched=0)


def test_while_the_store_fails_no_more_than_so_many_epochs_are_kept() -> None:
    base = TimeBase(num=1, den=25)
    counts = Tallies([StreamEntry(name="s", id=4, epoch=1, source_operator="d", input="i", time_base=base)])
    for number in range(2, 5 * tallies.MOST_EPOCHS):
        counts.begin(4, number, number, now=0.0)
    due = counts.due(1.0, finished=True, events_lost=lambda _: 0, unmatched=0)
    assert len(due) == tallies.MOST_EPOCHS
    assert max(due) == (4, 5 * tallies.MOST_EPOCHS - 1)


def test_the_store_takes_the_first_epoch_of_a_run_again_as_its_own(store: FickleStore) -> None:
    """Who asks with no wish gets the next number, and a manifest that is saved again takes nothing away."""
    (run,) = begin(store)
    anchor = ClockAnchor(monotonic_ns=0, realtime_ns=0)
    entry = EpochEntry(stream=run.id, epoch=1, reason="r", began=anchor, source_index=5)
    second = run._replace(epoch=store.begin_epoch("run-1", "ladder", entry).epoch)
    store.append(record(run, 0, 2))
    store.save_manifest(store.manifest(run.id, run.epoch))
    assert store.append(np.concatenate([record(run, 1, 2), record(second, 5, 2), record(second, 6, 2)])) == 3
    assert [(f.epoch, f.source_index) for f in lookup.list_frames(store)] == [(1, 0), (1, 1), (2, 5), (2, 6)]


def test_what_comes_of_a_forgotten_epoch_costs_nothing_else(store: FickleStore, rings: dict[str, EventRing]) -> None:
    """Retention removed an epoch that had no frame left; events that were lost let one of its records end very late."""
    job = Running(store, rings)
    second, _ = job.jump(5)
    emit_frame(rings, second, 5)
    job.collector.poll()
    rings["decode"].emit(
        0, 1, 3, 3, (1, 25), job.run.id, job.run.epoch, 1, 65537, 100, 0
    )  # of frame 3: all else is lost

    def forget(transaction: Any, tables: Any) -> None:
        for name in ("runs", "counters"):
            transaction.delete(run_key(job.run.id, job.run.epoch), db=tables[name])

    store.change(forget)
    emit_frame(rings, second, 6)
    seen = job.collector.finish()
    assert (seen.error, seen.records_pending, seen.records_dropped) == (None, 0, 0)
    assert [(f.epoch, f.source_index) for f in lookup.list_frames(store)] == [(2, 5), (2, 6)]
    with store.read() as reader:
        assert (reader.epochs(job.run.id), reader.counters(job.run.id, 1)) == ([2], None)
    # Also when the store has to look up whose records they are.
    store.save_manifest(job.manifest.model_copy(update={"run_id": "another", "streams": ()}))
    assert store.append(np.concatenate([record(job.run, 4, 2), record(second, 7, 2)])) == 1
