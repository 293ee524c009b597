"""kill -9 at every step of the ring, and at random: native harnesses of tests/native, built and called here.

    kill_storm --kills N --seed S --json FILE        random kills
    failpoints --json FILE                           every failpoint with every actor

Their documents have `kills` and, of frames, `lost` (beyond the contract), `duplicates` and `corrupt`, then `leaked`
(slots, descriptors, mappings), and `reclaim_p50_seconds` and `reclaim_p99_seconds`: from the pidfd's word until the
dead one's page is replaced or its ring ended. What is not in a document is unknown; `problem` says why one failed.
The storm comes in the default class, where steps of the processes fall between each other most, and a shorter one under
SCHED_FIFO, where that is permitted: how soon a page is replaced is told there without what else the machine does.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.dataplane_machine import realtime_children, realtime_problem
from benchmarks.dataplane_pairs import Failed
from benchmarks.report import ROOT

BUILD = ROOT / "build" / "native-plain"
STORM, POINTS = "kill_storm", "failpoints"
LIMIT_SECONDS = 300
FIFO_PART = 5  # a fifth as many kills
ZEROS = ("lost", "duplicates", "corrupt", "leaked")


def measure(kills: int, seed: int) -> dict[str, Any]:
    """The harnesses' documents: {"points": ..., "storm": ..., "storm_fifo": ...}, the last one where it is permitted.

    Raises:
        Failed: a harness is not there, cannot be built, or failed.
    """
    found = {"points": _call(POINTS, []), "storm": _call(STORM, ["--kills", str(kills), "--seed", str(seed)])}
    if realtime_problem() is None:
        with realtime_children():
            fewer = ["--kills", str(max(1, kills // FIFO_PART)), "--seed", str(seed + 1)]
            found["storm_fifo"] = _call(STORM, fewer)
    return found


def _call(name: str, arguments: list[str]) -> dict[str, Any]:
    executable = _build(name)
    with tempfile.TemporaryDirectory(prefix="observatory-bench-") as folder:
        answer = Path(folder) / "answer.json"
        command = [str(executable), *arguments, "--json", str(answer)]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            raise Failed(f"{name} did not end within {LIMIT_SECONDS} s") from None
        if not answer.exists():
            raise Failed(f"{name} ended with code {ended.returncode}: {ended.stderr.strip()[-300:]}")
        document: dict[str, Any] = json.loads(answer.read_text())
    if ended.returncode:
        words = (ended.stderr or ended.stdout).strip()[-300:]
        document["problem"] = words or f"{name} ended with code {ended.returncode}"
    return document


def _build(name: str) -> Path:
    if not any((ROOT / "tests" / "native").rglob(f"{name}.cpp")):
        raise Failed(f"{name} is not part of tests/native")
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DOBSERVATORY_PYTHON_MODULES=OFF", "-DOBSERVATORY_NATIVE_TESTS=ON"]
    _cmake(["-S", str(ROOT), "-B", str(BUILD), "-G", "Ninja", *options])
    _cmake(["--build", str(BUILD), "--target", name])
    for found in BUILD.rglob(name):
        if found.is_file():
            return found
    raise Failed(f"{name} was not built")


def _cmake(arguments: list[str]) -> None:
    try:
        ended = subprocess.run(["cmake", *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        raise Failed("there is no cmake") from None
    if ended.returncode:
        raise Failed(f"cmake {arguments[0]}: {(ended.stderr or ended.stdout).strip()[-300:]}")
