"""What tracing costs per hop: emitting its events, assembling the record, storing it.

    .venv/bin/python -m benchmarks.tracing_cost

Emission is measured where it happens, in the native ring (a hop of a port and a consumer, with and without tracing);
`emit` called from Python is given beside it, since other tracers go that way.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.report import machine, spread
from benchmarks.synthetic import HOPS, TICKS, TIME_BASE, batch, events_of, manifest
from dataplane._ring import Assembler, Descriptor, EventRing, RingConsumer, RingProducer, SizeClass, Trace
from observatory.frames.collector import Collector
from observatory.frames.store import FrameStore
from observatory.model.event import EVENT_DTYPE
from observatory.model.media import PayloadKind

ROUNDS = 9
HOPS_PER_ROUND = 20_000
EVENTS_PER_HOP = 6
HOPS_PER_SECOND = 1000  # what the share of a core is given for


def cpu_ns(work: Callable[[], int]) -> float:
    """CPU nanoseconds of this thread per unit of `work`, which says how many units it did."""
    began = time.thread_time_ns()
    count = work()
    return (time.thread_time_ns() - began) / count


def ring_hop(traced: bool) -> list[float]:
    """CPU ns per hop through a real ring in one process: acquire, publish, take, release."""
    found = []
    events = EventRing.create(1 << 18)
    producer = RingProducer(capacity=64, size_classes=[SizeClass(4096, 64)])
    consumer = RingConsumer()
    producer.admit(consumer.page_fd, "block")
    consumer.attach(producer.ring_fd, producer.slab_fds, producer.slab_slot_bytes)
    if traced:
        producer.trace(Trace(events, 1, 1, 0, 0))
        consumer.trace(Trace(events, 1, 1, 0, 0))

    def work() -> int:
        for index in range(HOPS_PER_ROUND):
            lease = producer.acquire(4096, 1.0)
            assert lease is not None
            descriptor = Descriptor(
                payload_kind=int(PayloadKind.VIDEO_FRAME),
                source_index=index,
                pts=index,
                time_base=(TIME_BASE.num, TIME_BASE.den),
            )
            lease.publish(descriptor, 4096)
            taken = consumer.take(1.0)
            assert taken is not None
            taken.launch()
            taken.release()
        return HOPS_PER_ROUND

    for _ in range(ROUNDS):
        found.append(cpu_ns(work))
        while len(events.drain(1 << 18)):
            pass
    assert events.lost == 0
    consumer.close()
    producer.close()
    events.close()
    return found


def python_emit() -> list[float]:
    """CPU ns per event of `EventRing.emit` called from Python."""
    events = EventRing.create(1 << 18)
    found = []

    def work() -> int:
        emit, base = events.emit, (1, 12800)
        for index in range(HOPS_PER_ROUND):
            emit(0, 10**9, index, index * TICKS, base, 1, 1, 0, 3, 4096, 2)
        return HOPS_PER_ROUND

    for _ in range(ROUNDS):
        found.append(cpu_ns(work))
        events.drain(1 << 18)
    events.close()
    return found


def assemble(state: Path) -> dict[str, list[float]]:
    """CPU ns per hop of draining and assembling, of storing, and of the whole collector."""
    with FrameStore.open(state, write=True) as store:
        runs = store.begin_run(["stream"])
        run_manifest = manifest(runs)
        store.save_manifest(run_manifest)
        frames = HOPS_PER_ROUND // HOPS
        hops = frames * HOPS
        ring = EventRing.create(1 << 18)
        single = events_of(runs[0], frames, run_manifest)
        port_hops: list[list[int]] = [[] for _ in run_manifest.ports]
        for number, hop in enumerate(run_manifest.hops):
            port_hops[hop.port].append(number)
        result: dict[str, list[float]] = {"drain_and_assemble": [], "store": [], "collector": []}
        random = np.random.default_rng(3)
        for number in range(ROUNDS):
            assembler = Assembler(port_hops, [(0, 1, 2, 2)] * len(run_manifest.hops))
            _emit_all(ring, single)

            def drain(assembler: Assembler = assembler) -> int:
                count = 0
                while len(events := ring.drain(65536)):
                    count += len(assembler.feed(events))
                return count

            result["drain_and_assemble"].append(cpu_ns(drain))
            made = batch(runs, number * frames, frames, random)
            result["store"].append(cpu_ns(lambda made=made: store.append(made)))  # type: ignore[misc]
        for _ in range(ROUNDS):
            result["collector"].append(_collect(store, ring, single, hops))
        ring.close()
        return result


def _collect(store: FrameStore, ring: EventRing, single: list[dict[str, Any]], hops: int) -> float:
    """CPU ns per hop of the collector, in the small polls and commits that 1,000 hops/s give it."""
    runs = store.begin_run(["stream"])
    run_manifest = manifest(runs, run_id=f"run-{runs[0].epoch}")
    store.save_manifest(run_manifest)
    collector = Collector(run_manifest, [ring], store, commit_seconds=3600, commit_records=250)
    per_poll = HOPS_PER_SECOND // 20 * EVENTS_PER_HOP
    spent = 0
    for first in range(0, len(single), per_poll):
        _emit_all(ring, [{**event, "epoch": runs[0].epoch} for event in single[first : first + per_poll]])
        began = time.thread_time_ns()
        collector.poll()
        spent += time.thread_time_ns() - began
    collector.finish()
    return spent / hops


def _emit_all(ring: EventRing, events: list[dict[str, Any]]) -> None:
    for event in events:
        assert ring.emit(**event)


def main() -> dict[str, Any]:
    """Measure and return everything, as a JSON-able dictionary. CPU nanoseconds; shares of one core at 1,000 hops/s."""
    untraced, traced = ring_hop(False), ring_hop(True)
    emitted = python_emit()
    with tempfile.TemporaryDirectory(prefix="observatory-bench-") as folder:
        parts = assemble(Path(folder))
    emission = spread(traced)["median"] - spread(untraced)["median"]
    collector = spread(parts["collector"])["median"]
    return {
        "events_per_hop": EVENTS_PER_HOP,
        "event_bytes": EVENT_DTYPE.itemsize,
        "hop_untraced_ns": spread(untraced),
        "hop_traced_ns": spread(traced),
        "emission_ns_per_hop": emission,
        "python_emit_ns_per_event": spread(emitted),
        "drain_and_assemble_ns_per_hop": spread(parts["drain_and_assemble"]),
        "store_ns_per_hop": spread(parts["store"]),
        "collector_ns_per_hop": spread(parts["collector"]),
        "hops_per_second": HOPS_PER_SECOND,
        "share_of_a_core": (max(emission, 0.0) + collector) * HOPS_PER_SECOND / 1e9,
        "idle_poll_ns": _idle_poll(),
    }


def _idle_poll() -> dict[str, float]:
    """CPU ns of one poll of eight rings that have nothing."""
    with (
        tempfile.TemporaryDirectory(prefix="observatory-bench-") as folder,
        FrameStore.open(Path(folder), write=True) as store,
    ):
        runs = store.begin_run(["stream"])
        store.save_manifest(manifest(runs))
        rings = [EventRing.create(1024) for _ in range(8)]
        collector = Collector(manifest(runs), rings, store)

        def work() -> int:
            for _ in range(1000):
                collector.poll()
            return 1000

        found = spread([cpu_ns(work) for _ in range(ROUNDS)])
        collector.finish()
        for ring in rings:
            ring.close()
        return found


def show(results: dict[str, Any]) -> None:
    """Print the results for people."""
    table = Table("what", "CPU", "spread", title="Cost of tracing one hop (6 events, 1 record)")
    for key, label in (
        ("hop_untraced_ns", "a hop through the ring, untraced"),
        ("hop_traced_ns", "a hop through the ring, traced"),
        ("python_emit_ns_per_event", "one event emitted from Python"),
        ("drain_and_assemble_ns_per_hop", "drain and assemble, per hop"),
        ("store_ns_per_hop", "store, per hop (large batches)"),
        ("collector_ns_per_hop", "the whole collector, per hop (small batches)"),
        ("idle_poll_ns", "a poll of eight idle rings"),
    ):
        part = results[key]
        table.add_row(label, f"{part['median']:.0f} ns", f"{part['min']:.0f} to {part['max']:.0f}")
    table.add_row("emission, per hop (difference)", f"{results['emission_ns_per_hop']:.0f} ns", "")
    table.add_row(f"share of a core at {HOPS_PER_SECOND:,} hops/s", f"{results['share_of_a_core'] * 100:.2f} %", "")
    Console().print(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    arguments = parser.parse_args()
    measured = main()
    if arguments.json:
        print(json.dumps({"machine": machine(), "results": measured}, indent=2))
    else:
        show(measured)
