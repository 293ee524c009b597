"""The collector from end to end: events through real event rings, records out of the store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dataplane._ring import EventRing
from observatory.frames import lookup
from observatory.frames.collector import Collector
from observatory.frames.errors import FrameStoreFull
from observatory.frames.store import FrameStore, StreamRun
from observatory.model.kinds import UNKNOWN_U32, EventKind
from observatory.model.manifest import RunManifest
from observatory.model.media import TimeBase
from observatory.model.record import Lineage, LostFrame
from tests.frames.support import MS, WHOLE_FRAME_SECONDS, begin, life, python

# Hops of the ladder by number, and the port (in the manifest's order of first use) that feeds each.
HOPS = {"hd->enc": 0, "decode->sd": 1, "decode->hd": 2, "enc->mux": 3}
PORTS = {"hd": 0, "decode": 1, "enc": 2}
PRODUCER = (EventKind.DMA_BUF_ALLOC, EventKind.PRODUCER_KERNEL_LAUNCH, EventKind.FENCE_SIGNAL)
CONSUMER = (EventKind.CONSUMER_WAIT_FENCE, EventKind.CONSUMER_KERNEL_LAUNCH, EventKind.SLOT_RELEASE)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FrameStore]:
    with FrameStore.open(tmp_path, write=True) as opened:
        yield opened


@pytest.fixture
def run(store: FrameStore) -> StreamRun:
    return begin(store)[0]


@pytest.fixture
def manifest(store: FrameStore, run: StreamRun) -> RunManifest:
    return store.manifest(run.id, run.epoch)


def emit(ring: EventRing, run: StreamRun, index: int, kind: EventKind, place: int, at: float) -> bool:
    size = 345_600 if kind in PRODUCER else UNKNOWN_U32
    return ring.emit(int(kind), round(at * MS), index, index, (1, 25), run.id, run.epoch, place, 65537, size, 0)


def emit_hop(
    producer: EventRing, consumer: EventRing, run: StreamRun, index: int, edge: str, times: dict[EventKind, float]
) -> None:
    """One hop: the producer's events into its ring, the consumer's into another."""
    for kind in PRODUCER:
        if kind in times:
            emit(producer, run, index, kind, PORTS[edge.split("->")[0]], times[kind])
    for kind in CONSUMER:
        if kind in times:
            emit(consumer, run, index, kind, HOPS[edge], times[kind])


def emit_frame(rings: dict[str, EventRing], run: StreamRun, index: int) -> None:
    """A whole frame, with the times of `support.whole_frame`."""
    start = 100.0 + 40 * index
    shared = life(start, 2, 1, 3)
    emit_hop(rings["decode"], rings["hd"], run, index, "decode->hd", shared)
    emit_hop(rings["decode"], rings["sd"], run, index, "decode->sd", {k: v for k, v in shared.items() if k in CONSUMER})
    emit_hop(rings["hd"], rings["enc"], run, index, "hd->enc", life(start + 3, 3, 4, 1))
    emit_hop(rings["enc"], rings["mux"], run, index, "enc->mux", life(start + 10, 1, 1, 1))


@pytest.fixture
def rings() -> Iterator[dict[str, EventRing]]:
    made = {name: EventRing.create(1024) for name in ("decode", "hd", "sd", "enc", "mux")}
    yield made
    for ring in made.values():
        ring.close()


def test_events_become_frames_in_the_store(
    store: FrameStore, run: StreamRun, manifest: RunManifest, rings: dict[str, EventRing]
) -> None:
    collector = Collector(manifest, [], store, poll_seconds=0.01, commit_seconds=0.05)
    for ring in rings.values():
        collector.add_ring(ring)
    collector.start()
    for index in range(200):
        emit_frame(rings, run, index)
        time.sleep(0.0005)
    deadline = time.monotonic() + 5
    while collector.snapshot().frames < 200 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert lookup.find(store, 199).state == "complete"  # while it runs
    assert collector.snapshot().records_per_second > 0
    seen = collector.stop()
    assert (seen.frames, seen.records, seen.events_lost, seen.unmatched_events) == (200, 800, 0, 0)
    assert (seen.records_pending, seen.incomplete_records, seen.error) == (0, 0, None)
    assert seen.latency_p50_seconds == pytest.approx(WHOLE_FRAME_SECONDS, rel=0.01)
    assert seen.latency_p99_seconds == pytest.approx(WHOLE_FRAME_SECONDS, rel=0.01)
    (stream,) = seen.streams
    assert (stream.name, stream.frames, stream.frames_seen) == ("ladder", 200, 200)
    assert stream.latency_max_seconds == WHOLE_FRAME_SECONDS

    frame = lookup.find(store, 123)
    assert frame.end_to_end_seconds == WHOLE_FRAME_SECONDS
    assert [hop.edge for hop in frame.hops] == ["decode->hd", "decode->sd", "hd->enc", "enc->mux"]
    hop = frame.hops[0]
    assert (hop.bytes, hop.slot, hop.pts, hop.time_base) == (345_600, 65537, 123, "1/25")
    assert (hop.producer_device, hop.producer_real_device) == ("n0/gpu0", "n0/cpu0")
    with store.read() as reader:
        counted = reader.counters(run.id, run.epoch)
    assert counted is not None
    assert (counted.records, counted.frames, counted.frames_seen, counted.finished) == (800, 200, 200, True)
    assert counted.latency_p50_seconds == seen.latency_p50_seconds
    assert sum(count for _, count in counted.latency_histogram) == 200


def test_what_never_completed_is_stored_as_incomplete(
    store: FrameStore, run: StreamRun, manifest: RunManifest, rings: dict[str, EventRing]
) -> None:
    collector = Collector(manifest, list(rings.values()), store)
    times = life(100, 2, 1, 3)
    del times[EventKind.SLOT_RELEASE]
    emit_hop(rings["decode"], rings["hd"], run, 1, "decode->hd", times)
    assert collector.poll() == 0
    seen = collector.finish()
    assert (seen.frames, seen.records, seen.incomplete_records) == (0, 2, 2)
    frame = lookup.find(store, 1)
    assert frame.state == "incomplete"
    assert [(hop.edge, hop.events["SLOT_RELEASE"]) for hop in frame.hops] == [
        ("decode->hd", None),
        ("decode->sd", None),
    ]


def test_dropped_lost_and_merged_frames_are_told(
    store: FrameStore, run: StreamRun, manifest: RunManifest, rings: dict[str, EventRing]
) -> None:
    collector = Collector(manifest, list(rings.values()), store)
    emit_hop(rings["decode"], rings["hd"], run, 1, "decode->hd", life(100, 2, 1, 3))
    collector.poll()
    collector.dropped("decode->sd", [1])
    collector.lineage(manifest.streams[0], [Lineage(hop="decode->hd", source_index=1, parents=(0, 1))])
    base = TimeBase(num=1, den=25)
    lost = LostFrame(source_index=2, pts=2, time_base=base, operator="decode", reason="corrupt packet")
    seen = collector.stop(lost=[(manifest.streams[0], lost)])
    assert seen.streams[0].frames_lost == 1
    frame = lookup.find(store, 1)
    assert frame.state == "dropped"
    assert [(hop.dropped, hop.parents) for hop in frame.hops] == [(False, (0, 1)), (True, (1,))]
    assert lookup.lost_frames(store) == [lost.model_dump(mode="json")]
    with pytest.raises(KeyError):
        collector.dropped("no->edge", [1])


def test_lost_and_strange_events_are_counted(
    store: FrameStore, run: StreamRun, manifest: RunManifest, rings: dict[str, EventRing]
) -> None:
    small = EventRing.create(8)
    collector = Collector(manifest, [], store)
    collector.add_ring(small, run.id)
    written = sum(emit(small, run, index, EventKind.DMA_BUF_ALLOC, 1, 1) for index in range(20))
    assert written < 20
    collector.poll()
    emit(small, run, 1, EventKind.DMA_BUF_ALLOC, 77, 1)  # no such port
    other = run._replace(epoch=9)
    emit_hop(small, small, other, 1, "hd->enc", {})
    for kind in (*PRODUCER, *CONSUMER):
        emit(small, other, 3, kind, PORTS["hd"] if kind in PRODUCER else HOPS["hd->enc"], 5)
    collector.poll()
    collector.remove_ring(small)
    small.close()
    seen = collector.finish()
    assert seen.events_lost == 20 - written
    assert seen.unmatched_events >= 2  # the place, and the record of another epoch
    with store.read() as reader:
        counted = reader.counters(run.id, run.epoch)
        assert reader.records(run.id, 9, 3) == []
    assert counted is not None
    assert counted.events_lost == 20 - written
    assert seen.error is None


def test_a_store_that_fails_does_not_stop_the_job(
    store: FrameStore,
    run: StreamRun,
    manifest: RunManifest,
    rings: dict[str, EventRing],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, failing = FrameStore.append, True

    def append(self: FrameStore, *arguments: object) -> int:
        if failing:
            raise FrameStoreFull("the disk is full", mend="free disk space")
        return real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(FrameStore, "append", append)
    monkeypatch.setattr("observatory.frames.collector.RETRY_SECONDS", 0.0)
    collector = Collector(manifest, list(rings.values()), store, commit_seconds=0.0, keep_records=100)
    for index in range(40):
        emit_frame(rings, run, index)
        collector.poll()
    seen = collector.snapshot()
    assert seen.error == "the disk is full"
    assert seen.records_dropped == 60  # 160 came, the latest 100 are kept
    assert seen.records_pending == 100
    assert seen.frames == 40  # latencies are measured all the same
    failing = False
    collector.poll()
    seen = collector.finish()
    assert (seen.error, seen.records, seen.records_dropped, seen.records_pending) == (None, 100, 60, 0)
    assert [f.source_index for f in lookup.list_frames(store)] == list(range(20, 40))


def test_records_of_other_processes_arrive_too(
    store: FrameStore, run: StreamRun, manifest: RunManifest, rings: dict[str, EventRing]
) -> None:
    script = (
        "import sys\n"
        "from dataplane._ring import EventRing\n"
        "ring = EventRing.attach(int(sys.argv[1]))\n"
        "for index in range(500):\n"
        "    for kind, place in ((0, 1), (1, 1), (2, 1), (5, 2), (6, 2), (7, 2)):\n"
        "        ring.emit(kind, 10**9 + kind, index, index, (1, 25), int(sys.argv[2]), 1, place, 0, 100, 0)\n"
    )
    ring = EventRing.create(4096)
    collector = Collector(manifest, [ring], store, poll_seconds=0.01)
    collector.start()
    with python(script, ring.fd, run.id, pass_fds=[ring.fd]) as process:
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    seen = collector.stop()
    ring.close()
    # Every frame of decode->hd is whole; decode->sd never saw its consumer.
    assert (seen.events_lost, seen.records, seen.incomplete_records) == (0, 1000, 500)
    assert lookup.find(store, 499).hops[0].events["SLOT_RELEASE"] == 10**9 + 7
