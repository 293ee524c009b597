"""Ten million frame records of 100 streams: how fast they are stored, how large they are, how fast one frame is found.

    .venv/bin/python -m benchmarks.frames_find [--records N]

Everything happens in a temporary folder ($TMPDIR), which is removed; it takes about 2.5 GB for 10 M records.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.report import ROOT, machine, spread
from benchmarks.synthetic import HOPS, TICKS, batch, manifest
from observatory.frames import lookup
from observatory.frames.store import FrameStore

STREAMS = 100
BATCH_FRAMES = 60  # per stream and commit: one second at 60 frames/s, 36,000 records
LOOK_UPS = 10_000
COMMAND_RUNS = 40

COLD = """
import json, os, sys, time
from pathlib import Path
began = time.perf_counter()
from observatory.frames import lookup
from observatory.frames.store import FrameStore
imported = time.perf_counter()
store = FrameStore.open(Path(sys.argv[1]))
opened = time.perf_counter()
lookup.find(store, int(sys.argv[3]), stream=sys.argv[2])
found = time.perf_counter()
lookup.find(store, int(sys.argv[3]), stream=sys.argv[2])
again = time.perf_counter()
print(json.dumps([imported - began, opened - imported, found - opened, again - found]))
"""


def fill(state: Path, records: int) -> dict[str, Any]:
    """Store `records` records; the time to make them up is not counted."""
    random = np.random.default_rng(7)
    frames = records // (STREAMS * HOPS)
    with FrameStore.open(state, write=True) as store:
        runs = store.begin_run([f"stream-{number:03}" for number in range(STREAMS)])
        store.save_manifest(manifest(runs))
        stored, wall, cpu, commits = 0, 0.0, 0.0, []
        for first in range(0, frames, BATCH_FRAMES):
            made = batch(runs, first, min(BATCH_FRAMES, frames - first), random)
            wall_before, cpu_before = time.perf_counter(), time.process_time()
            stored += store.append(made)
            commits.append(time.perf_counter() - wall_before)
            wall += commits[-1]
            cpu += time.process_time() - cpu_before
        with store.read() as reader:
            entries, indexed = reader.entries("records"), reader.entries("index")
        assert entries == stored == frames * STREAMS * HOPS
        return {
            "records": stored,
            "index_entries": indexed,
            "records_per_second": stored / wall,
            "records_per_cpu_second": stored / cpu,
            "cpu_ns_per_record": cpu / stored * 1e9,
            "commit_seconds": spread(commits),
            "disk_bytes_per_record": store.size_bytes / stored,
            "disk_bytes": store.size_bytes,
            "frames_per_stream": frames,
        }


def look_up(state: Path, frames: int) -> dict[str, Any]:
    """Random look-ups in one process, each a whole frame of six hops with all names; and the LMDB part of it alone."""
    random = np.random.default_rng(11)
    wanted = [
        (f"stream-{s:03}", int(f) * TICKS)
        for s, f in zip(random.integers(0, STREAMS, LOOK_UPS), random.integers(0, frames, LOOK_UPS), strict=True)
    ]
    with FrameStore.open(state) as store:
        began = time.perf_counter_ns()
        lookup.find(store, wanted[0][1], stream=wanted[0][0])
        first = time.perf_counter_ns() - began
        whole = []
        for name, pts in wanted:
            began = time.perf_counter_ns()
            frame = lookup.find(store, pts, stream=name)
            whole.append(time.perf_counter_ns() - began)
            assert len(frame.hops) == HOPS
            assert frame.pts == pts
        records = []
        with store.read() as reader:
            for name, pts in wanted:
                began = time.perf_counter_ns()
                info = reader.stream(name)
                assert info is not None
                index = reader.source_index(info.id, info.last_epoch, 0, (1, 12800), pts)
                assert index is not None
                found = reader.records(info.id, info.last_epoch, index)
                records.append(time.perf_counter_ns() - began)
                assert len(found) == HOPS
    return {
        "first_seconds": first / 1e9,
        "frame_seconds": {"p50": float(np.percentile(whole, 50)) / 1e9, "p99": float(np.percentile(whole, 99)) / 1e9},
        "records_seconds": {
            "p50": float(np.percentile(records, 50)) / 1e9,
            "p99": float(np.percentile(records, 99)) / 1e9,
        },
        "look_ups": LOOK_UPS,
    }


def evict(path: Path) -> None:
    """Ask the kernel to forget a file's pages (they are clean)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def cold(state: Path, frames: int) -> dict[str, Any]:
    """The first look-up of a new process, with nothing of the store in memory."""
    parts: list[list[float]] = []
    random = np.random.default_rng(13)
    for _ in range(10):
        evict(state / "frames" / "data.mdb")
        pts = str(int(random.integers(0, frames)) * TICKS)
        name = f"stream-{int(random.integers(0, STREAMS)):03}"
        done = subprocess.run(
            [sys.executable, "-c", COLD, str(state), name, pts], capture_output=True, text=True, check=True, cwd=ROOT
        )
        parts.append(json.loads(done.stdout))
    names = ("import_seconds", "open_seconds", "first_look_up_seconds", "second_look_up_seconds")
    return {name: spread([part[at] for part in parts]) for at, name in enumerate(names)}


def command(state: Path, frames: int, *extra: str, runs: int = COMMAND_RUNS) -> dict[str, Any]:
    """The whole command, from exec to exit: wall and CPU time (user and system) of the process."""
    random = np.random.default_rng(17)
    walls: list[float] = []
    cpus: list[float] = []
    program = str(Path(sys.executable).parent / "observatory")
    for _ in range(runs):
        name = f"stream-{int(random.integers(0, STREAMS)):03}"
        pts = str(int(random.integers(0, frames)) * TICKS)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.perf_counter()
        subprocess.run(
            [program, "frames", "find", "--stream", name, "--pts", pts, "--state", str(state), *extra],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        walls.append(time.perf_counter() - began)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpus.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return {"wall_seconds": {**spread(walls), "p99": float(np.percentile(walls, 99))}, "cpu_seconds": spread(cpus)}


def main(records: int = 10_000_000) -> dict[str, Any]:
    """Measure and return everything, as a JSON-able dictionary; times in seconds unless the name says otherwise."""
    with tempfile.TemporaryDirectory(prefix="observatory-bench-") as folder:
        state = Path(folder)
        ingest = fill(state, records)
        frames = ingest["frames_per_stream"]
        return {
            "ingest": ingest,
            "look_up": look_up(state, frames),
            "cold": cold(state, frames),
            "command": command(state, frames),
            "command_json": command(state, frames, "--json"),
        }


def show(results: dict[str, Any]) -> None:
    """Print the results for people."""
    ingest, found, frozen = results["ingest"], results["look_up"], results["cold"]
    table = Table("what", "value", "spread", title=f"{ingest['records']:,} frame records, {STREAMS} streams")
    commit = ingest["commit_seconds"]
    table.add_row("stored", f"{ingest['records_per_second'] / 1e6:.2f} M records/s", "every commit flushed to disk")
    table.add_row("stored", f"{ingest['records_per_cpu_second'] / 1e6:.2f} M records/CPU-s", "")
    table.add_row("CPU per record", f"{ingest['cpu_ns_per_record']:.0f} ns", "")
    table.add_row(
        "one commit", f"{commit['median'] * 1e3:.0f} ms", f"{commit['min'] * 1e3:.0f} to {commit['max'] * 1e3:.0f} ms"
    )
    table.add_row("on disk", f"{ingest['disk_bytes_per_record']:.0f} B/record", f"{ingest['disk_bytes'] / 1e9:.2f} GB")
    for label, key in (("records by PTS", "records_seconds"), ("whole frame, named", "frame_seconds")):
        part = found[key]
        table.add_row(f"look-up: {label}", f"p50 {part['p50'] * 1e6:.1f} us", f"p99 {part['p99'] * 1e6:.1f} us")
    for key, label in (
        ("import_seconds", "cold: import"),
        ("open_seconds", "cold: open"),
        ("first_look_up_seconds", "cold: first look-up"),
    ):
        part = frozen[key]
        table.add_row(label, f"{part['median'] * 1e3:.1f} ms", f"{part['min'] * 1e3:.1f} to {part['max'] * 1e3:.1f} ms")
    for key, label in (("command", "observatory frames find"), ("command_json", "observatory frames find --json")):
        wall, cpu = results[key]["wall_seconds"], results[key]["cpu_seconds"]
        table.add_row(
            label,
            f"p50 {wall['median'] * 1e3:.0f} ms",
            f"{wall['min'] * 1e3:.0f} to {wall['max'] * 1e3:.0f} ms, CPU {cpu['median'] * 1e3:.0f} ms",
        )
    Console().print(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    arguments = parser.parse_args()
    measured = main(arguments.records)
    if arguments.json:
        print(json.dumps({"machine": machine(), "results": measured}, indent=2))
    else:
        show(measured)
