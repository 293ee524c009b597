"""Moving operators while frames flow: the gap that their consumers see, on an idle machine and beside CPU hogs.

`observatory run` on the shipped ladder; one operator after the other moves to another process. What consumers waited
over a move is told by the frame records: the longest time between two of their launches that lies in the move, from the
moment it was asked for to the answer. (A sink has no consumers: it is its own launches.) The warming of the new process
is in that time, and the old one works meanwhile. The files must have every frame once.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.dataplane_gaps import longest_gap
from benchmarks.dataplane_pairs import Failed
from benchmarks.dataplane_restarts import (
    OBSERVATORY,
    PIPELINE,
    RUN_SECONDS,
    Times,
    ended,
    files,
    pids_at_work,
    times_of,
)
from observatory.app.control import ControlClient, sockets
from observatory.app.moving import find_pipeline
from observatory.model.errors import MediaObservatoryError
from observatory.model.kinds import EventKind

ASK_SECONDS = 90.0
HOG = "import sys\nfrom dataplane._ring import die_with_parent\ndie_with_parent(int(sys.argv[1]))\nwhile True: pass"


@dataclass(frozen=True, slots=True)
class Move:
    """One that was made. Times are CLOCK_MONOTONIC."""

    operator: str
    asked_ns: int
    answered_ns: int


def measure(moves: int, frames: int) -> dict[str, Any]:
    """Move operators of the ladder `moves` times, on the idle machine and with a process per processor that computes.

    Args:
        moves: How many moves each time.
        frames: Length of a run; there are as many runs as it takes.

    Returns:
        {"idle": ..., "hog": ...}, each with `moves`, `seen` (gaps), `lost`, `duplicate`, `reordered` (frames), and
        `p50_seconds` and `p99_seconds` of the gap.

    Raises:
        Failed: it cannot be measured.
    """
    found = {"idle": _measure(moves, frames)}
    with _hogs():
        found["hog"] = _measure(moves, frames)
    return found


def _measure(wanted: int, frames: int) -> dict[str, Any]:
    gaps: list[float] = []
    done = lost = duplicate = reordered = 0
    operators: Iterator[int] = itertools.count()
    while done < wanted:
        with tempfile.TemporaryDirectory(prefix="observatory-bench-") as name:
            folder = Path(name)
            moved, summary = _run(folder, frames, wanted - done, operators)
            if not moved:
                raise Failed("a run ended before anything was moved")
            done += len(moved)
            seen, wrong = _gaps(folder / "state", moved)
            gaps += seen
            reordered += wrong
            short, twice = files(folder, frames)
            lost += short + sum(len(stream["lost"]) for stream in summary["streams"])
            duplicate += twice
    if not gaps:
        raise Failed("no gap was seen")
    return {
        "moves": done,
        "seen": len(gaps),
        "lost": lost,
        "duplicate": duplicate,
        "reordered": reordered,
        "p50_seconds": float(np.percentile(gaps, 50)),
        "p99_seconds": float(np.percentile(gaps, 99)),
    }


def _run(folder: Path, frames: int, most: int, operators: Iterator[int]) -> tuple[list[Move], dict[str, Any]]:
    """One run in which operators move one after the other, going on where the run before left off."""
    state = folder / "state"
    command = [str(OBSERVATORY), "run", str(PIPELINE), "--frames", str(frames), "--json", "--state", str(state)]
    with (
        (folder / "errors").open("w") as errors,
        ended(
            subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors)
        ) as running,
    ):
        names = sorted(pids_at_work(state, running))
        moved: list[Move] = []
        while names and len(moved) < most:
            try:
                moved.append(_move(state, names[next(operators) % len(names)]))
            except MediaObservatoryError as error:
                if not moved and running.poll() is None:
                    raise Failed(f"nothing was moved: {error}") from None
                break  # the run comes to its end
        try:
            output, _ = running.communicate(timeout=RUN_SECONDS)
        except subprocess.TimeoutExpired:
            raise Failed(f"a run with {len(moved)} moves did not end within {RUN_SECONDS:.0f} s") from None
    if running.returncode:
        raise Failed(f"a run failed after {len(moved)} moves: {(folder / 'errors').read_text().strip()[-300:]}")
    return moved, json.loads(output)


def _move(state: Path, operator: str) -> Move:
    path, pipeline = find_pipeline(sockets(state), None, operator)
    client = ControlClient(path)
    try:
        asked = time.monotonic_ns()
        client.ask("move", {"pipeline": pipeline, "operator": operator}, ASK_SECONDS)
        return Move(operator, asked, time.monotonic_ns())
    finally:
        client.close()


@contextmanager
def _hogs() -> Iterator[None]:
    """A process per processor that only computes."""
    command = [sys.executable, "-c", HOG, str(os.getpid())]
    hogs = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
        for hog in hogs:
            hog.wait()


def _gaps(state: Path, moved: list[Move]) -> tuple[list[float], int]:
    """Seconds that consumers waited over each move, and raw frames that were signalled before their predecessor."""
    launches: dict[str, list[Times]] = {}
    reordered = 0
    for producer, consumer, times in times_of(state):
        at = np.sort(times[:, EventKind.CONSUMER_KERNEL_LAUNCH])
        launches.setdefault(producer, []).append(at[at > 0])
        if consumer.startswith("mux"):
            launches.setdefault(consumer, []).append(at[at > 0])
        else:  # packets are in decoding order by right
            signals = times[:, EventKind.FENCE_SIGNAL]
            reordered += int((np.diff(signals[signals > 0]) < 0).sum())
    found = []
    for move in moved:
        each = [longest_gap(at, move.asked_ns, move.answered_ns) for at in launches.get(move.operator, [])]
        found += [max(seen)] if (seen := [gap for gap in each if gap is not None]) else []
    return found, reordered
