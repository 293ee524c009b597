"""How long a pipeline goes without a worker that was killed: a ladder of two rungs at 50 frames/s, kill -9 for each.

It is paced, as live work is: what the others wait is then the death's doing, not that of processors that all want. In
every run each operator is killed once. From its SIGKILL to the first thing that its successor did is told by the frame
records (CLOCK_MONOTONIC, as the kill): the successor's first launch on a frame. So is how long the others went without
a frame over it (dataplane_gaps.py). The files must have every frame once.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np

from benchmarks.dataplane_gaps import QUIET_SECONDS, Gap, survivors, worst
from benchmarks.dataplane_pairs import Failed
from observatory.app.control import ask_all
from observatory.frames.ingest import stored_to_records
from observatory.frames.store import FrameStore
from observatory.model.kinds import EventKind

OBSERVATORY = Path(sys.executable).parent / "observatory"
PIPELINE = Path(__file__).parent.parent / "observatory" / "app" / "pipelines" / "abr-ladder.yaml"
START_SECONDS = 60.0
RUN_SECONDS = 300.0
OUTPUTS = 2  # files of the ladder
PACED = """apiVersion: media.observatory/v1
kind: MediaPipeline
metadata: {name: paced-ladder}
spec:
  operators:
    - {name: decode, op: decode, params: {source: {size: 640x360, rate: 50}}}
    - {name: scale-a, op: scale, inputs: [decode], params: {width: 480, height: 270}}
    - {name: mark-a, op: watermark, inputs: [scale-a], params: {text: a}}
    - {name: encode-a, op: encode, inputs: [mark-a], params: {codec: libx264, preset: ultrafast, bitrate: 800k}}
    - {name: mux-a, op: mux, inputs: [encode-a], params: {path: a.mp4}}
    - {name: scale-b, op: scale, inputs: [decode], params: {width: 320, height: 180}}
    - {name: encode-b, op: encode, inputs: [scale-b], params: {codec: libx264, preset: ultrafast, bitrate: 400k}}
    - {name: mux-b, op: mux, inputs: [encode-b], params: {path: b.mp4}}
"""

Times = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Kill:
    """One worker's end. Times are CLOCK_MONOTONIC."""

    operator: str
    at_ns: int
    dead_ns: int


@dataclass(frozen=True, slots=True)
class Death:
    """What came of a kill: seconds until its successor's first launch, and the survivors' gaps meanwhile."""

    operator: str
    seconds: float
    gaps: list[Gap]


def measure(frames: int, runs: int, seed: int) -> dict[str, Any]:
    """Kill each worker of the ladder once in each of `runs` runs of `frames` frames, in an order drawn from `seed`.

    Raises:
        Failed: the run failed, as it does where workers that die are not succeeded.
    """
    order = random.Random(seed)
    waits: dict[str, list[float]] = {}
    gaps: list[list[Gap]] = []
    lost = duplicates = unseen = kills = 0
    for _ in range(runs):
        with tempfile.TemporaryDirectory(prefix="observatory-bench-") as name:
            folder = Path(name)
            killed, summary = _run(folder, frames, order)
            kills += len(killed)
            found = _deaths(folder / "state", killed)
            for death in found:
                waits.setdefault(death.operator, []).append(death.seconds)
                gaps.append(death.gaps)
            unseen += len(killed) - len(found)
            short, twice = files(folder, frames)
            lost += short + sum(len(stream["lost"]) for stream in summary["streams"])
            duplicates += twice
    every = [seconds for one in waits.values() for seconds in one]
    if not every:
        raise Failed("no successor was seen at work")
    return {
        "kills": kills,
        "unseen": unseen,
        "frames_per_run": frames,
        "lost": lost,
        "duplicates": duplicates,
        "p50_seconds": float(np.percentile(every, 50)),
        "p99_seconds": float(np.percentile(every, 99)),
        "max_seconds": max(every),
        "siblings": worst(gaps, downstream=False),
        "downstream": worst(gaps, downstream=True),
        "operators": {name: float(np.median(one)) for name, one in sorted(waits.items())},
    }


def _run(folder: Path, frames: int, order: random.Random) -> tuple[list[Kill], dict[str, Any]]:
    (folder / "ladder.yaml").write_text(PACED)
    command = [str(OBSERVATORY), "up", "ladder.yaml", "--realtime", "--no-web", "--frames", str(frames), "--json"]
    with (
        (folder / "errors").open("w") as errors,
        ended(
            subprocess.Popen(
                [*command, "--state", str(folder / "state")],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        ) as running,
    ):
        killed = _kill_all(folder / "state", running, order)
        try:
            output, _ = running.communicate(timeout=RUN_SECONDS)
        except subprocess.TimeoutExpired:
            raise Failed(f"a run with {len(killed)} kills did not end within {RUN_SECONDS:.0f} s") from None
    if running.returncode:
        said = (folder / "errors").read_text().strip().splitlines() or ["no word"]
        raise Failed(f"a run failed after {len(killed)} kills: {said[-1]}")
    (pipeline,) = json.loads(output)["pipelines"]
    return killed, pipeline["summary"]


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """However this is left, the process and its workers are gone (its workers die with it)."""
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _kill_all(state: Path, running: subprocess.Popen[bytes], order: random.Random) -> list[Kill]:
    workers = pids_at_work(state, running)
    names = sorted(workers)
    order.shuffle(names)
    killed: list[Kill] = []
    for name in names:
        time.sleep(QUIET_SECONDS)  # nothing else is to happen around a death
        if name not in workers or running.poll() is not None:
            break
        with suppress(ProcessLookupError):
            killed.append(_kill(name, workers[name]))
        workers = pids_at_work(state, running, len(names), workers[name])
    return killed


def _kill(name: str, pid: int) -> Kill:
    watched = os.pidfd_open(pid)
    try:
        at = time.monotonic_ns()
        signal.pidfd_send_signal(watched, signal.SIGKILL)
        select.select([watched], [], [], 10.0)
        return Kill(name, at, time.monotonic_ns())
    finally:
        os.close(watched)


def pids_at_work(
    state: Path, running: subprocess.Popen[bytes], least: int = 1, gone: int | None = None
) -> dict[str, int]:
    """Pids of the workers that run, by operator, once frames are under way, at least so many run, and `gone` is not one
    of them; none when the run is over.
    """
    deadline = time.monotonic() + START_SECONDS
    while running.poll() is None and time.monotonic() < deadline:
        for snapshot in ask_all(state, "snapshot").answers:
            for pipeline in snapshot["pipelines"]:
                at_work = any(stream["frames_done"] for stream in pipeline["streams"])
                pids = {w["operator"]: w["pid"] for w in pipeline["workers"] if w["state"] == "running"}
                if at_work and len(pids) >= least and gone not in pids.values():
                    return pids
        time.sleep(0.05)
    return {}


def times_of(state: Path) -> Iterator[tuple[str, str, Times]]:
    """(producer, consumer, times) of each hop with records: a row per frame by source index, a column per event."""
    with FrameStore.open(state) as store, store.read() as reader:
        for info in reader.streams():
            for epoch in reader.epochs(info.id):
                tables = reader.run(info.id, epoch)
                pairs = list(reader.raw_records(info.id, epoch))
                if tables is None or not pairs:
                    continue
                records = stored_to_records([key for key, _ in pairs], [value for _, value in pairs])
                for number, hop in enumerate(tables.hops):
                    mine = records[records["hop"] == number]
                    yield hop.producer, hop.consumer, mine[np.argsort(mine["source_index"])]["times_ns"]


def _deaths(state: Path, killed: list[Kill]) -> list[Death]:
    """What the records say of each kill; those whose successor was not seen at work are left out."""
    edges: set[tuple[str, str]] = set()
    work: dict[str, list[Times]] = {}
    input_launches: dict[str, list[Times]] = {}
    for producer, consumer, times in times_of(state):
        edges.add((producer, consumer))
        taken = times[:, EventKind.CONSUMER_KERNEL_LAUNCH]
        work.setdefault(consumer, []).append(taken)
        work.setdefault(producer, []).append(times[:, EventKind.PRODUCER_KERNEL_LAUNCH])
        input_launches.setdefault(consumer, []).append(taken[taken > 0])
    launches = {consumer: np.sort(np.concatenate(each)) for consumer, each in input_launches.items()}
    found = []
    for kill in killed:
        times = np.concatenate(work.get(kill.operator, [np.empty(0, dtype=np.int64)]))
        later = times[times > kill.dead_ns]
        if len(later):
            back = int(later.min())
            gaps = survivors(launches, edges, kill.operator, kill.at_ns, back)
            found.append(Death(kill.operator, (back - kill.at_ns) / 1e9, gaps))
    return found


def files(folder: Path, frames: int) -> tuple[int, int]:
    """Frames that are missing in the files, and frames that are there twice, by their PTS."""
    paths = sorted(folder.glob("*.mp4"))
    missing, twice = frames * (OUTPUTS - len(paths)), 0
    for path in paths:
        with av.open(str(path)) as container:
            stamps = [packet.pts for packet in container.demux(video=0) if packet.pts is not None]
        missing += max(0, frames - len(set(stamps)))
        twice += len(stamps) - len(set(stamps))
    return missing, twice
