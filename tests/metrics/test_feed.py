"""What really feeds the book: a collector that reads event rings, and workers that map rings."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dataplane._ring import EventRing
from dataplane.notices import Notice
from dataplane.process import NurseryProcess
from dataplane.supervisor import Supervisor
from observatory.app.assembly import StreamNumbers, build_assignments, build_manifest, size_pools
from observatory.app.placing import place_pipeline
from observatory.app.typed import source_requests, type_pipeline
from observatory.frames.collector import Collector
from observatory.frames.store import FrameStore
from observatory.metrics.book import MetricsBook
from scheduler.specs.read import read_spec
from tests.frames.support import begin
from tests.frames.test_collector import emit_frame
from tests.metrics.support import EDGES, scrape

FRAMES = 30
PIPELINE = """apiVersion: media.observatory/v1
kind: MediaPipeline
metadata: {{name: small}}
spec:
  operators:
    - {{name: decode, op: decode}}
    - {{name: sd, op: scale, inputs: [decode], params: {{width: 160, height: 90}}}}
    - {{name: enc, op: encode, inputs: [sd], params: {{codec: libx264, preset: ultrafast, bitrate: 200k}}}}
    - {{name: out, op: mux, inputs: [enc], params: {{path: {out}/sd.mp4}}}}
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FrameStore]:
    with FrameStore.open(tmp_path / "state", write=True) as opened:
        yield opened


def test_a_collector_feeds_the_book(store: FrameStore) -> None:
    """As tests.frames.test_collector emits them, frames take 13 ms."""
    (run,) = begin(store)
    manifest = store.manifest(run.id, run.epoch)
    book = MetricsBook()
    metrics = book.begin(manifest)
    rings = {name: EventRing.create(1024) for name in ("decode", "hd", "sd", "enc", "mux")}
    collector = Collector(
        manifest,
        list(rings.values()),
        store,
        poll_seconds=0.01,
        commit_seconds=0.02,
        observers=[metrics.observe],
        frame_observers=[metrics.observe_frames],
    )
    collector.start()
    for index in range(100):
        emit_frame(rings, run, index)
        time.sleep(0.0005)
    metrics.collected(collector.stop())
    for ring in rings.values():
        ring.close()
    seen = scrape(book)
    stream = {"pipeline": "ladder", "stream": "ladder"}
    assert seen.buckets("observatory_frame_latency_seconds", **stream) == {"0.015": 100}
    assert seen("observatory_frame_latency_seconds_sum", **stream) == pytest.approx(1.3, abs=1e-9)
    assert seen("observatory_frame_records_stored_total", pipeline="ladder") == 400
    assert seen("observatory_frame_records_pending", pipeline="ladder") == 0
    for edge in EDGES:
        assert seen("observatory_hop_latency_seconds_count", **stream, edge=edge) == 100
    exemplar = seen.exemplar("observatory_frame_latency_seconds_bucket", le="0.015", **stream)
    assert exemplar.labels["pts"] == "99"


def test_workers_say_how_long_mapping_took(store: FrameStore, tmp_path: Path) -> None:
    spec = tmp_path / "pipeline.yaml"
    spec.write_text(PIPELINE.format(out=tmp_path))
    with NurseryProcess() as nursery:
        graph, source = read_spec(spec)
        typed = type_pipeline(graph, source_requests(graph, (), FRAMES), source)
        placed = place_pipeline(typed, None, None)
        (numbers,) = store.begin_run(["small"])
        manifest = build_manifest(typed, placed, {"decode": StreamNumbers(numbers.id, numbers.epoch)})
        store.save_manifest(manifest)
        pools = size_pools(typed)
        book = MetricsBook()
        metrics = book.begin(manifest)
        notices: list[Notice] = []
        assignments = build_assignments(typed, manifest, pools, placed.placement)
        with Supervisor(assignments, tmp_path, nursery) as supervisor:
            supervisor.start()
            collector = Collector(
                manifest,
                list(supervisor.event_rings.values()),
                store,
                observers=[metrics.observe],
                frame_observers=[metrics.observe_frames],
            )
            collector.start()
            while not supervisor.finished:
                notices += supervisor.poll(0.1)
        snapshot = collector.stop()
        supervisor.close_event_rings()
    mapped = [notice for notice in notices if notice.kind == "mapped"]
    for notice in mapped:
        told = notice.message
        assert told["operator"] == notice.operator
        metrics.mapped(notice.operator, told.get("port") or told["edge"], told["seconds"], told["bytes"])

    seen = scrape(book)
    sizes = {
        (dict(labels)["operator"], dict(labels)["mapping"]): size
        for labels, size in seen.named("observatory_dma_mapped_bytes").items()
    }
    ports = {("decode", "video"): "decode->sd", ("sd", "video"): "sd->enc", ("enc", "video"): "enc->out"}
    consumers = {(edge.partition("->")[2], edge): port for port, edge in ports.items()}
    assert set(sizes) == {*ports, *consumers}
    for consumer, port in consumers.items():
        assert sizes[consumer] == sizes[port]  # the same ring and slabs
        descriptors = 256 * pools[port].ring_capacity
        assert descriptors < sizes[port] - pools[port].total_bytes < 2 * descriptors + (1 << 16)
    times = seen.named("observatory_dma_map_seconds_sum")
    assert len(times) == 6
    assert all(0 < seconds < 10 for seconds in times.values())
    assert set(seen.named("observatory_dma_map_seconds_count").values()) == {1}

    stream = {"pipeline": "small", "stream": "small"}
    assert seen("observatory_frames_total", **stream) == snapshot.frames == FRAMES
    for edge in ports.values():
        labels = {**stream, "edge": edge}
        assert seen("observatory_hop_records_total", **labels) == FRAMES
        for name in ("slot_turnaround", "fence_wait", "hop_latency"):
            assert seen(f"observatory_{name}_seconds_count", **labels) == FRAMES
        # A slot is allocated before, and released when its frame is acknowledged.
        turnaround = seen("observatory_slot_turnaround_seconds_sum", **labels)
        assert turnaround >= seen("observatory_hop_latency_seconds_sum", **labels) > 0
    raw = {**stream, "edge": "sd->enc"}
    assert seen("observatory_hop_bytes_total", **raw) == FRAMES * 160 * 90 * 3 / 2
