"""`script/bench dataplane`: the ring beside its peers, and what it costs alone, under kill -9 and in moves.

Two processes per measurement, both ends Python as a user would write them; all transports once per round, in another
order each round. Ratios are taken within a round: median, smallest and largest round. Each part is written as soon as
it is measured, with its own date, commit and machine; the transports come last and take what is left of the time.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
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
    dataplane_stopped,
    slot_calls,
)
from benchmarks.dataplane_figures import figures, markdown
from benchmarks.dataplane_machine import huge_pages, processors, realtime_problem
from benchmarks.dataplane_pairs import Failed
from benchmarks.dataplane_rounds import SIZES, Plan
from benchmarks.dataplane_transports import TRANSPORTS
from benchmarks.report import Part, measured_now, read_parts, stamps, write_parts, write_table

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
    stopped_frames: int
    kills: int
    pipeline_frames: int
    pipeline_runs: int
    moves: int
    moved_frames: int
    until: float = float("inf")  # time.monotonic(): no further round of the transports is begun after that


FULL = Extent(
    plan=Plan(rounds=5, latency_frames=500, throughput_frames={"64 B": 20_000, "4K": 600, "8K": 150}),
    slot_rounds=15,
    attachments=500,
    traced_frames=5000,
    fan_out_frames=200,
    fan_out_rounds=3,
    stopped_frames=4000,
    kills=10_000,
    pipeline_frames=2000,
    pipeline_runs=2,
    moves=40,
    moved_frames=2500,
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
    stopped_frames=400,
    kills=50,
    pipeline_frames=1000,
    pipeline_runs=1,
    moves=2,
    moved_frames=600,
)
FAILURES = (Failed, OSError, RuntimeError, ValueError, LookupError, subprocess.SubprocessError)
Tell = Callable[[str], None]


def main(arguments: Sequence[str]) -> int:
    chosen = _parser().parse_args(arguments)
    began = time.monotonic()
    extent = _extent(chosen)
    parts = {} if chosen.quick else read_parts("dataplane")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    written: list[str] = []
    try:
        with Console(stderr=True).status("starting") as status:
            for part in chosen.only or PARTS:
                if written and time.monotonic() > extent.until:
                    print(f"dataplane: no time left for {part}; its earlier results stay", file=sys.stderr)
                    continue
                parts[part] = _measured(part, extent, partial(_show, status, part))
                written.append(part)
                if not chosen.quick:
                    _write(parts)
                if parts[part].results.get("interrupted"):
                    raise KeyboardInterrupt
    except KeyboardInterrupt:
        kept = [] if chosen.quick else written
        print(f"dataplane: interrupted; written so far: {', '.join(kept) or 'nothing'}", file=sys.stderr)
        return 130
    print(_table(parts))
    print(f"\ndataplane: {time.monotonic() - began:.0f} s")
    return 0


def _show(status: Status, part: str, words: str) -> None:
    status.update(f"{part}: {words}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="script/bench dataplane", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a little of everything; nothing is written")
    parser.add_argument(
        "--only", choices=PARTS, action="append", help="just this part (may be repeated); the others' results stay"
    )
    parser.add_argument(
        "--minutes", type=_positive, default=15.0, help="begin no part and no round of the transports after (15)"
    )
    parser.add_argument("--rounds", type=_count, help=f"rounds of all transports ({FULL.plan.rounds})")
    parser.add_argument("--kills", type=_count, help=f"random kills ({FULL.kills:,})")
    parser.add_argument(
        "--moves", type=_count, help=f"moves on the idle machine, and as many beside hogs ({FULL.moves})"
    )
    return parser


def _positive(words: str) -> float:
    value = float(words)
    if not 0 < value < float("inf"):
        raise ValueError(words)
    return value


def _count(words: str) -> int:
    value = int(words)
    if value < 1:
        raise ValueError(words)
    return value


def _extent(chosen: argparse.Namespace) -> Extent:
    extent = QUICK if chosen.quick else FULL
    return replace(
        extent,
        plan=replace(extent.plan, rounds=chosen.rounds or extent.plan.rounds),
        kills=chosen.kills or extent.kills,
        moves=chosen.moves or extent.moves,
        until=time.monotonic() + 60 * chosen.minutes,
    )


def _measured(part: str, extent: Extent, tell: Tell) -> Part:
    began = time.monotonic()
    try:
        results = PARTS[part](extent, tell)
    except FAILURES as failure:
        results = {"missing": str(failure) or type(failure).__name__}
    return measured_now(time.monotonic() - began, results)


def _write(parts: Mapping[str, Part]) -> None:
    parts = {part: parts[part] for part in PARTS if part in parts}
    made = figures({part: one.results for part, one in parts.items()})
    write_parts("dataplane", parts, [asdict(figure) for figure in made])
    write_table("dataplane", _table(parts))


def _table(parts: Mapping[str, Part]) -> str:
    table = markdown({part: one.results for part, one in parts.items()})
    return "\n".join([table, "", *stamps(parts)])


def _transports(extent: Extent, tell: Tell) -> dict[str, Any]:
    with huge_pages(HUGE_PAGES) as problem:
        return measure_transports(extent.plan, problem, tell, extent.until)


def measure_transports(
    plan: Plan, no_huge_pages: str | None, tell: Tell, until: float = float("inf")
) -> dict[str, Any]:
    """All transports that this machine allows, as a JSON-able dictionary; at least one round, none begun too late."""
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
    plan = replace(plan, classes=classes)
    found = dataplane_rounds.run(plan, left_out, tell, until)
    if found.rounds < plan.rounds:
        why = "Interrupted after" if found.interrupted else "There was time for"
        notes.append(f"{why} {found.rounds} of {plan.rounds} rounds.")
    return {
        "rounds": found.rounds,
        "interrupted": found.interrupted,
        "classes": classes,
        "sizes": list(plan.sizes),
        "latency": list(plan.latency),
        "throughput": list(plan.throughput),
        "left_out": left_out,
        "notes": [*notes, *(f"A measurement failed: {words.splitlines()[-1]}" for words in found.failures)],
        "cells": found.cells,
    }


def _slot_calls(extent: Extent, tell: Tell) -> dict[str, Any]:
    tell(f"{extent.slot_rounds} rounds")
    return slot_calls.measure(rounds=extent.slot_rounds)


def _attach(extent: Extent, tell: Tell) -> dict[str, Any]:
    found: dict[str, Any] = {}
    tell("2 MB pages")
    try:
        with huge_pages(HUGE_PAGES) as problem:
            if problem is not None:
                raise Failed(problem)
            found["huge"] = dataplane_parts.attach_seconds(SIZES["8K"], True, extent.attachments)
    except Failed as failure:
        found["huge"] = {"missing": str(failure)}
    tell("4 KiB pages")
    found["small"] = dataplane_parts.attach_seconds(SIZES["8K"], False, max(10, extent.attachments // 10))
    return found


def _system_calls(extent: Extent, tell: Tell) -> dict[str, Any]:
    tell("tracing two processes")
    return dataplane_calls.count(extent.traced_frames)


def _fan_out(extent: Extent, tell: Tell) -> dict[str, Any]:
    tell(f"{READERS} readers")
    realtime = realtime_problem() is None
    return dataplane_parts.fan_out(READERS, SIZES["4K"], extent.fan_out_frames, extent.fan_out_rounds, realtime)


def _kills(extent: Extent, tell: Tell) -> dict[str, Any]:
    tell(f"{extent.kills:,} at random, and at every failpoint")
    return dataplane_kills.measure(extent.kills, SEED)


def _stopped(extent: Extent, tell: Tell) -> dict[str, Any]:
    tell("one of two consumers")
    return dataplane_stopped.measure(extent.stopped_frames, realtime_problem() is None)


def _restarts(extent: Extent, tell: Tell) -> dict[str, Any]:
    tell(f"{extent.pipeline_runs} runs of {extent.pipeline_frames:,} frames")
    return dataplane_restarts.measure(extent.pipeline_frames, extent.pipeline_runs, SEED)


def _migration(extent: Extent, tell: Tell) -> dict[str, Any]:
    tell(f"{extent.moves} moves, twice")
    return dataplane_migration.measure(extent.moves, extent.moved_frames)


PARTS: Mapping[str, Callable[[Extent, Tell], dict[str, Any]]] = {
    "slot-calls": _slot_calls,
    "attach": _attach,
    "system-calls": _system_calls,
    "fan-out": _fan_out,
    "stopped": _stopped,
    "kills": _kills,
    "restarts": _restarts,
    "migration": _migration,
    "transports": _transports,
}
