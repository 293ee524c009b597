"""`script/bench dataplane`: the ring beside its peers, and what it costs alone, under kill -9 and in moves.

Two processes per measurement, both ends Python as a user would write them; all transports once per round, in another
order each round. Ratios are taken within a round: median, smallest and largest round.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from rich.console import Console
from rich.status import Status

from benchmarks import (
    dataplane_calls,
    dataplane_kills,
    dataplane_migration,
    dataplane_parts,
    dataplane_restarts,
    dataplane_rounds,
    slot_calls,
)
from benchmarks.dataplane_figures import figures, markdown
from benchmarks.dataplane_machine import huge_pages, processors, realtime_problem
from benchmarks.dataplane_pairs import Failed
from benchmarks.dataplane_rounds import SIZES, Plan
from benchmarks.dataplane_transports import TRANSPORTS
from benchmarks.report import read_results, write_results, write_table

HUGE_PAGES = 128  # of 2 MB: four 8K frames, and some to spare
READERS = 8
SEED = 1


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of everything is done."""

    plan: Plan
    slot_rounds: int
    attachments: int
    traced_frames: int
    fan_out_frames: int
    fan_out_rounds: int
    kills: int
    pipeline_frames: int
    pipeline_runs: int
    moves: int


FULL = Extent(
    plan=Plan(rounds=5, latency_frames=500, throughput_frames={"64 B": 20_000, "4K": 600, "8K": 150}),
    slot_rounds=15,
    attachments=500,
    traced_frames=5000,
    fan_out_frames=200,
    fan_out_rounds=3,
    kills=10_000,
    pipeline_frames=1500,
    pipeline_runs=3,
    moves=40,
)
QUICK = Extent(
    plan=Plan(
        rounds=1,
        latency_frames=50,
        throughput_frames={"64 B": 1000, "4K": 40, "8K": 20},
        classes=("fifo",),
    ),
    slot_rounds=2,
    attachments=20,
    traced_frames=500,
    fan_out_frames=20,
    fan_out_rounds=1,
    kills=50,
    pipeline_frames=0,  # no pipeline is run
    pipeline_runs=0,
    moves=0,
)
Tell = Callable[[str], None]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="script/bench dataplane", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a little of everything, in about 30 s; nothing is written"
    )
    parser.add_argument("--only", choices=PARTS, action="append", help="just this part; the others' results stay")
    chosen = parser.parse_args(arguments)
    console = Console(stderr=True)
    extent = QUICK if chosen.quick else FULL
    results: dict[str, Any] = {}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ExitStack() as stack:
        problem = stack.enter_context(huge_pages(HUGE_PAGES))
        status = stack.enter_context(console.status("starting"))
        for part in chosen.only or PARTS:
            try:
                results[part] = PARTS[part](extent, problem, partial(_show, status, part))
            except (Failed, OSError, RuntimeError, subprocess.SubprocessError) as failure:
                results[part] = {"missing": str(failure)}
            except KeyboardInterrupt:
                print("interrupted; nothing was written", file=sys.stderr)
                return 130
    if chosen.quick:
        print(markdown(results))
        return 0
    merged = {**read_results("dataplane"), **results}
    merged = {part: merged[part] for part in PARTS if part in merged}
    merged["figures"] = [asdict(figure) for figure in figures(merged)]
    table = markdown(merged)
    write_table("dataplane", table)
    print(table)
    print(f"\ndataplane: results in {write_results('dataplane', merged)}")
    return 0


def _show(status: Status, part: str, words: str) -> None:
    status.update(f"{part}: {words}")


def _transports(extent: Extent, no_huge_pages: str | None, tell: Tell) -> dict[str, Any]:
    return measure_transports(extent.plan, no_huge_pages, tell)


def measure_transports(plan: Plan, no_huge_pages: str | None, tell: Tell) -> dict[str, Any]:
    """All transports that this machine allows, as a JSON-able dictionary."""
    left_out, notes = {}, []
    for transport in TRANSPORTS:
        why = transport.missing() or (no_huge_pages if transport.huge_pages else None)
        if why is not None:
            left_out[transport.name] = why
    classes = tuple(plan.classes)
    if "fifo" in classes and (why := realtime_problem()) is not None:
        notes.append(f"All in the default class: {why}.")
        classes = ("other",)
    if processors() is None:
        notes.append("Nothing is pinned: there is one processor only.")
    plan = Plan(
        plan.rounds, plan.latency_frames, plan.throughput_frames, plan.sizes, plan.latency, plan.throughput, classes
    )
    found = dataplane_rounds.run(plan, left_out, tell)
    return {
        "rounds": plan.rounds,
        "classes": classes,
        "sizes": list(plan.sizes),
        "latency": list(plan.latency),
        "throughput": list(plan.throughput),
        "left_out": left_out,
        "notes": [*notes, *(f"A measurement failed: {words.splitlines()[-1]}" for words in found.failures)],
        "cells": found.cells,
    }


def _slot_calls(extent: Extent, _no_huge_pages: str | None, tell: Tell) -> dict[str, Any]:
    tell(f"{extent.slot_rounds} rounds")
    return slot_calls.measure(rounds=extent.slot_rounds)


def _attach(extent: Extent, no_huge_pages: str | None, tell: Tell) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, huge in (("huge", True), ("small", False)):
        tell(f"{key} pages")
        times = extent.attachments if huge else max(10, extent.attachments // 10)
        try:
            if huge and no_huge_pages is not None:
                raise Failed(no_huge_pages)
            found[key] = dataplane_parts.attach_seconds(SIZES["8K"], huge, times)
        except Failed as failure:
            found[key] = {"missing": str(failure)}
    return found


def _system_calls(extent: Extent, _no_huge_pages: str | None, tell: Tell) -> dict[str, Any]:
    tell("tracing two processes")
    return dataplane_calls.count(extent.traced_frames)


def _fan_out(extent: Extent, _no_huge_pages: str | None, tell: Tell) -> dict[str, Any]:
    tell(f"{READERS} readers")
    realtime = realtime_problem() is None
    return dataplane_parts.fan_out(READERS, SIZES["4K"], extent.fan_out_frames, extent.fan_out_rounds, realtime)


def _kills(extent: Extent, _no_huge_pages: str | None, tell: Tell) -> dict[str, Any]:
    tell(f"{extent.kills:,} at random, and at every failpoint")
    return dataplane_kills.measure(extent.kills, SEED)


def _restarts(extent: Extent, _no_huge_pages: str | None, tell: Tell) -> dict[str, Any]:
    if not extent.pipeline_runs:
        raise Failed("left out of the quick run")
    tell(f"{extent.pipeline_runs} runs of {extent.pipeline_frames:,} frames")
    return dataplane_restarts.measure(extent.pipeline_frames, extent.pipeline_runs, SEED)


def _migration(extent: Extent, _no_huge_pages: str | None, tell: Tell) -> dict[str, Any]:
    if not extent.moves:
        raise Failed("left out of the quick run")
    tell(f"{extent.moves} moves, twice")
    return dataplane_migration.measure(extent.moves)


PARTS: Mapping[str, Callable[[Extent, str | None, Tell], dict[str, Any]]] = {
    "transports": _transports,
    "slot-calls": _slot_calls,
    "attach": _attach,
    "system-calls": _system_calls,
    "fan-out": _fan_out,
    "kills": _kills,
    "restarts": _restarts,
    "migration": _migration,
}
