"""The book over the lives of pipelines: what goes on, what goes, what the platform says of itself."""

from __future__ import annotations

import os
import threading

import pytest

from observatory.frames.collected import CollectorSnapshot
from observatory.frames.ingest import sort_records
from observatory.metrics.book import KEPT_PIPELINES, MetricsBook
from observatory.metrics.run import RunMetrics
from observatory.model.status import (
    EdgeStatus,
    PipelineState,
    PipelineStatus,
    PlatformStatus,
    PoolStatus,
    Snapshot,
    StoreStatus,
    StreamStatus,
    WorkerStatus,
)
from tests.frames.support import whole_frame
from tests.metrics.support import RUN, manifest, scrape

STREAM = {"pipeline": "ladder", "stream": "ladder"}
DECODE_HD = {**STREAM, "edge": "decode->hd"}


def status(*pipelines: PipelineStatus, store: StoreStatus | None = None, web_restarts: int = 0) -> Snapshot:
    platform = PlatformStatus(
        version="1.2.3",
        host="here",
        pid=1,
        state="/state",
        url=None,
        topology="t",
        started_unix_seconds=1.0,
        web_restarts=web_restarts,
    )
    return Snapshot(unix_seconds=9.0, platform=platform, pipelines=pipelines, store=store or StoreStatus())


def pipeline(
    run_id: str | None = "run-1",
    *,
    name: str = "ladder",
    state: PipelineState = "running",
    submitted: float = 1.0,
    frames_in: int = 0,
    restarts: int = 0,
    cpu_seconds: float | None = None,
    pid: int = 5,
    pools: tuple[PoolStatus, ...] = (),
) -> PipelineStatus:
    stream = StreamStatus(
        stream=name, epoch=2, input="in", frames_in=frames_in, frames_done=0, frames_lost=0, frames_dropped=0
    )
    worker = WorkerStatus(
        pid=pid,
        operator="hd",
        op="scale",
        device="n0/gpu0",
        real_device="n0/cpu0",
        state="running",
        restarts=restarts,
        frames=None,
        cpu_seconds=cpu_seconds,
        memory_bytes=1 << 20,
    )
    edge = EdgeStatus(edge="decode->hd", producer="decode", consumer="hd", queued=3, held=1, depth=8)
    return PipelineStatus(
        name=name,
        state=state,
        run_id=run_id,
        submitted_unix_seconds=submitted,
        pool_bytes=1 << 24,
        streams=(stream,),
        workers=(worker,),
        edges=(edge,),
        pools=pools,
    )


def pool(hits: int = 30, fallbacks: int = 10, ring: int = 0) -> PoolStatus:
    return PoolStatus(
        operator="hd",
        port="video",
        ring=ring,
        slots=8,
        slots_in_use=3,
        slots_high_water=5,
        resident_bytes=1 << 22,
        internal_fragmentation_bytes=1000,
        external_fragmentation_bytes=1 << 20,
        hit_rate=hits / (hits + fallbacks),
        allocations={"hit": hits, "fallback": fallbacks, "reclaim": 0, "wait_for_slot": 0, "wait_for_descriptor": 0},
    )


def collected(records: int = 0, events_lost: int = 0, records_dropped: int = 0, pending: int = 0) -> CollectorSnapshot:
    return CollectorSnapshot(
        streams=(),
        frames=0,
        latency_p50_seconds=None,
        latency_p99_seconds=None,
        records=records,
        records_per_second=0.0,
        records_pending=pending,
        records_dropped=records_dropped,
        incomplete_records=0,
        events_lost=events_lost,
        unmatched_events=0,
        error=None,
    )


def play(run: RunMetrics, frames: int) -> None:
    run.observe(sort_records(whole_frame(RUN, 1).repeat(frames)))


def test_a_pipeline_that_comes_again_counts_on_and_no_series_comes_twice() -> None:
    book = MetricsBook()
    first = book.begin(manifest())
    play(first, 3)
    first.lost("ladder", "decode", 2)
    first.dropped("decode->hd", 4)
    first.collected(collected(records=100, events_lost=7))
    first.collected(collected(records=120, events_lost=7))
    book.update(status(pipeline(frames_in=30, restarts=1, cpu_seconds=2.5)))
    book.end("run-1")
    book.update(status(pipeline(state="ended", frames_in=30, restarts=1, cpu_seconds=2.5)))  # says the same again

    second = book.begin(manifest(run_id="run-2"))
    book.update(status(pipeline(frames_in=30, restarts=1, cpu_seconds=2.5)))  # a word of the first run, overtaken
    play(second, 2)
    second.lost("ladder", "decode")
    second.dropped("decode->hd", 1)
    second.collected(collected(records=130, events_lost=1))  # more than the first run, from 0
    book.update(status(pipeline("run-2", frames_in=40, restarts=0, cpu_seconds=0.5, pid=6)))
    first.collected(collected(records=999))  # of the run before: not any more
    seen = scrape(book)  # which fails on a series that comes twice
    assert seen("observatory_slot_turnaround_seconds_count", **DECODE_HD) == 5
    assert seen("observatory_hop_records_total", **DECODE_HD) == 5
    assert seen("observatory_frames_lost_total", **STREAM, operator="decode") == 3
    assert seen("observatory_frames_dropped_total", **DECODE_HD) == 5
    assert seen("observatory_frame_records_stored_total", pipeline="ladder") == 250
    assert seen("observatory_events_lost_total", pipeline="ladder") == 8
    assert seen("observatory_source_frames_total", **STREAM) == 70
    assert seen("observatory_worker_restarts_total", pipeline="ladder", operator="hd") == 1
    assert seen("observatory_worker_cpu_seconds_total", pipeline="ladder", operator="hd") == 3.0


def test_the_cpu_time_of_a_restarted_worker_goes_on_top() -> None:
    book = MetricsBook()
    book.begin(manifest())
    # What the kernel says in ticks may be a little more than what the worker says in the end.
    for pid, seconds in ((5, 1.0), (5, 4.0), (5, 3.99), (6, 0.5), (6, 0.75), (6, 0.749)):
        book.update(status(pipeline(cpu_seconds=seconds, pid=pid)))
    assert scrape(book)("observatory_worker_cpu_seconds_total", pipeline="ladder", operator="hd") == 4.75


def test_what_is_of_the_moment_goes_with_the_run() -> None:
    book = MetricsBook()
    run = book.begin(manifest())
    run.queue_depths({"decode->hd": (5, 2)})
    run.mapped("hd", "decode->hd", 0.0003, 4096)
    run.collected(collected(pending=11))
    edge = {"pipeline": "ladder", "edge": "decode->hd"}
    mapping = {"pipeline": "ladder", "operator": "hd", "mapping": "decode->hd"}
    seen = scrape(book)
    assert seen("observatory_edge_queued_frames", **edge) == 5
    assert seen("observatory_edge_held_frames", **edge) == 2
    assert seen("observatory_frame_records_pending", pipeline="ladder") == 11
    assert seen("observatory_dma_mapped_bytes", **mapping) == 4096
    assert seen.buckets("observatory_dma_map_seconds", **mapping) == {"0.001": 1}
    assert seen("observatory_dma_map_seconds_sum", **mapping) == 0.0003

    book.update(status(pipeline()))
    seen = scrape(book)
    assert seen("observatory_edge_queued_frames", **edge) == 3
    assert seen("observatory_edge_slots", **edge) == 8
    assert seen("observatory_pool_bytes", pipeline="ladder") == 1 << 24
    assert seen("observatory_worker_resident_memory_bytes", pipeline="ladder", operator="hd") == 1 << 20

    book.end("run-1")
    book.end("run-1")
    book.update(status(pipeline(state="ended")))
    run.queue_depths({"decode->hd": (5, 2)})  # a last word that came late
    seen = scrape(book)
    gauges = {name for name, kind in seen.kinds.items() if kind == "gauge" and name.startswith("observatory_")}
    assert gauges == {"observatory_pipeline_state", "observatory_store_failing"}
    assert seen("observatory_dma_map_seconds_count", **mapping) == 1


def test_the_pool_of_a_port() -> None:
    book = MetricsBook()
    book.begin(manifest())
    port = {"pipeline": "ladder", "operator": "hd", "port": "video"}
    book.update(status(pipeline(pools=(pool(),))))
    seen = scrape(book)
    assert seen("observatory_pool_resident_bytes", **port) == 1 << 22
    assert seen("observatory_pool_hit_ratio", **port) == 0.75
    assert seen("observatory_pool_fragmentation_bytes", **port, kind="internal") == 1000
    assert seen("observatory_pool_fragmentation_bytes", **port, kind="external") == 1 << 20
    assert seen("observatory_pool_allocations_total", **port, outcome="fallback") == 10
    # A new ring counts from 0, and the metric goes on.
    book.update(status(pipeline(pools=(pool(hits=5, fallbacks=1, ring=1),))))
    seen = scrape(book)
    assert seen("observatory_pool_allocations_total", **port, outcome="hit") == 35
    assert seen("observatory_pool_allocations_total", **port, outcome="fallback") == 11
    unknown = pool().model_copy(update={"resident_bytes": None, "hit_rate": None, "internal_fragmentation_bytes": None})
    book.update(status(pipeline(pools=(unknown,))))
    seen = scrape(book)
    assert seen.named("observatory_pool_resident_bytes") == {}
    assert seen.named("observatory_pool_hit_ratio") == {}


def test_a_pipeline_is_in_one_state() -> None:
    book = MetricsBook()
    book.update(
        status(
            pipeline("run-1", state="failed", submitted=1.0),
            pipeline("run-3", state="draining", submitted=3.0),
            pipeline("run-2", state="ended", submitted=2.0),
            pipeline(None, name="other", state="failed"),
        )
    )
    seen = scrape(book)
    states = seen.named("observatory_pipeline_state")
    assert len(states) == 12
    assert {labels for labels, value in states.items() if value} == {
        frozenset({("pipeline", "ladder"), ("state", "draining")}),
        frozenset({("pipeline", "other"), ("state", "failed")}),
    }
    assert seen("observatory_build_info", version="1.2.3", host="here") == 1
    book.update(status())
    assert scrape(book).named("observatory_pipeline_state") == {}


def test_the_store_and_the_process() -> None:
    book = MetricsBook()
    book.update(status(store=StoreStatus(disk_bytes=1 << 30, budget_bytes=1 << 31), web_restarts=2))
    seen = scrape(book)
    assert seen("observatory_store_disk_bytes") == 1 << 30
    assert seen("observatory_store_budget_bytes") == 1 << 31
    assert seen("observatory_store_failing") == 0
    assert seen("observatory_web_restarts_total") == 2
    book.update(status(store=StoreStatus(error="the disk is full")))
    seen = scrape(book)
    assert seen("observatory_store_failing") == 1
    assert seen.named("observatory_store_disk_bytes") == {}  # unknown is no 0
    cpu = sum(os.times()[:2])
    assert 0 < seen("process_cpu_seconds_total") <= cpu + 0.02
    assert seen("process_resident_memory_bytes") > 1 << 20


def test_pipelines_that_ended_long_ago_are_forgotten_running_ones_never() -> None:
    book = MetricsBook()
    book.begin(manifest(run_id="stays", pipeline="stays"))
    for number in range(KEPT_PIPELINES + 3):
        book.begin(manifest(run_id=f"run-{number}", pipeline=f"p{number}"))
        book.end(f"run-{number}")
    again = "p3"
    book.begin(manifest(run_id="again", pipeline=again))
    book.end("again")  # now the one that ended last
    book.begin(manifest(run_id="last", pipeline="last"))
    book.end("last")
    names = {dict(labels)["pipeline"] for labels in scrape(book).named("observatory_frames_total")}
    assert len(names) == KEPT_PIPELINES + 1
    assert {"stays", "last", again} <= names
    assert names.isdisjoint({"p0", "p1", "p2", "p4"})


def test_a_drop_on_no_edge_is_an_error() -> None:
    with pytest.raises(KeyError):
        MetricsBook().begin(manifest()).dropped("no->edge", 1)


def test_threads_lose_no_count_and_every_scrape_is_whole() -> None:
    book = MetricsBook()
    runs = [book.begin(manifest(run_id=f"r{n}", pipeline=f"p{n % 2}")) for n in range(4)]
    wrong: list[str] = []

    def observe(run: RunMetrics) -> None:
        for _ in range(100):
            play(run, 5)
            run.dropped("decode->hd", 1)

    def look() -> None:
        for _ in range(20):
            seen = scrape(book)
            for labels, count in seen.named("observatory_slot_turnaround_seconds_count").items():
                of = dict(labels)
                infinite = seen("observatory_slot_turnaround_seconds_bucket", le="+Inf", **of)
                total = seen("observatory_hop_latency_seconds_count", **of)
                if not count == infinite == total == seen("observatory_hop_records_total", **of):
                    wrong.append(f"{of}: {count}, {infinite}, {total}")

    threads = [threading.Thread(target=observe, args=(run,)) for run in runs] + [threading.Thread(target=look)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    seen = scrape(book)
    for name in ("p0", "p1"):
        labels = {"pipeline": name, "stream": "ladder", "edge": "decode->hd"}
        assert seen("observatory_slot_turnaround_seconds_count", **labels) == 2 * 100 * 5
        assert seen("observatory_frames_dropped_total", **labels) == 2 * 100


def test_a_worker_that_pipelines_share_counts_once() -> None:
    book = MetricsBook()
    sharers = ("ladder", "other")
    book.begin(manifest())
    book.begin(manifest(run_id="run-2", pipeline="other"))
    said = [pipeline(restarts=1, cpu_seconds=2.5), pipeline("run-2", name="other", restarts=1, cpu_seconds=2.5)]
    shared = [
        one.model_copy(update={"workers": tuple(w.model_copy(update={"shared_by": sharers}) for w in one.workers)})
        for one in said
    ]
    book.update(status(*shared))
    found = scrape(book)
    for name in ("observatory_worker_resident_memory_bytes", "observatory_worker_cpu_seconds_total"):
        assert [dict(labels)["pipeline"] for series, labels in found.values if series == name] == ["ladder"]
