"""The transports side by side: every pair of processes once per round, all in one run, in another order each round."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.dataplane_pairs import FLOOR, Failed, Job, Kind, measure
from benchmarks.dataplane_transports import BY_NAME, TRANSPORTS
from benchmarks.report import spread

SIZES: Mapping[str, int] = {"64 B": 64, "4K": 3840 * 2160 * 3 // 2, "8K": 7680 * 4320 * 3 // 2}
LATENCY = (FLOOR, "ring", "ring-spinning", "iceoryx2-event", "iceoryx2-polling", "shared-memory-queue", "pyzmq")
SEED = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of everything. Frames by size; transports that copy get a part of them."""

    rounds: int
    latency_frames: int
    throughput_frames: Mapping[str, int]
    sizes: Sequence[str] = tuple(SIZES)
    latency: Sequence[str] = LATENCY
    throughput: Sequence[str] = tuple(t.name for t in TRANSPORTS if t.name != "ring-spinning")
    classes: Sequence[str] = ("fifo", "other")


@dataclass(slots=True)
class Found:
    """What the rounds gave: {class: {kind: {size: {transport: [one dictionary per round]}}}}."""

    cells: dict[str, dict[str, dict[str, dict[str, list[dict[str, float] | None]]]]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    rounds: int = 0  # whole ones
    interrupted: bool = False

    def measure(self, where: Cell, plan: Plan) -> None:
        """One cell of one round."""
        value = None
        try:
            value = measure(where.job(plan))
        except Failed as failure:
            self.failures.append(str(failure))
        kinds = self.cells.setdefault(where.scheduling, {})
        sizes = kinds.setdefault(where.kind, {}).setdefault(where.size, {})
        sizes.setdefault(where.transport, []).append(value)


@dataclass(frozen=True, slots=True)
class Cell:
    """One thing that is measured once per round."""

    scheduling: str
    kind: Kind
    size: str
    transport: str

    def job(self, plan: Plan) -> Job:
        frames = plan.latency_frames if self.kind == "latency" else plan.throughput_frames[self.size]
        if self.size != "64 B" and self.transport != FLOOR and BY_NAME[self.transport].copies:
            frames = max(2, frames // (10 if self.size == "4K" else 30))
        warm = min(20, max(10, frames // 10))
        return Job(self.transport, self.kind, SIZES[self.size], frames, self.scheduling == "fifo", warm)


def cells(plan: Plan, leave_out: Mapping[str, str]) -> Iterator[Cell]:
    """All cells of a round; without the transports that cannot be measured here."""
    for scheduling in plan.classes:
        for size in plan.sizes:
            for name in plan.latency:
                if name not in leave_out and (name != FLOOR or size == "64 B"):
                    yield Cell(scheduling, "latency", size, name)
            if scheduling != plan.classes[0]:
                continue  # how many frames a second is the same in every class where the machine has nothing else to do
            for name in plan.throughput:
                huge = BY_NAME[name].huge_pages or name.startswith("ceiling")
                if name not in leave_out and not (size == "64 B" and huge):
                    yield Cell(scheduling, "throughput", size, name)


def run(plan: Plan, leave_out: Mapping[str, str], tell: Callable[[str], None], until: float) -> Found:
    """Every cell once per round. What fails is told, and unknown in that round.

    After the first, no round is begun that would not be over at `until` (time.monotonic()), if it took as long as the
    one before. Who interrupts after a whole round keeps what there is.
    """
    found = Found()
    order = random.Random(SEED)
    took = 0.0
    for number in range(plan.rounds):
        began = time.monotonic()
        if number and began + took > until:
            break
        todo = list(cells(plan, leave_out))
        order.shuffle(todo)
        try:
            for done, cell in enumerate(todo):
                tell(f"round {number + 1} of {plan.rounds}, {done + 1} of {len(todo)}: {cell.transport}, {cell.size}")
                found.measure(cell, plan)
        except KeyboardInterrupt:
            if not number:
                raise
            found.interrupted = True
            break
        took = time.monotonic() - began
        found.rounds += 1
    return found


def values(found: Mapping[str, Any], scheduling: str, kind: str, size: str, transport: str, key: str) -> list[float]:
    """One figure of a cell in each round; rounds where it failed are left out."""
    return [one[key] for one in _rounds(found, scheduling, kind, size, transport) if one is not None]


def ratio(
    found: Mapping[str, Any], scheduling: str, kind: str, key: str, ours: tuple[str, str], theirs: tuple[str, str]
) -> dict[str, float] | None:
    """Ours over theirs, each (size, transport), round by round; None where no round has both."""
    pairs = zip(_rounds(found, scheduling, kind, *ours), _rounds(found, scheduling, kind, *theirs), strict=False)
    ratios = [one[key] / other[key] for one, other in pairs if one is not None and other is not None]
    return spread(ratios) if ratios else None


def _rounds(
    found: Mapping[str, Any], scheduling: str, kind: str, size: str, transport: str
) -> Sequence[dict[str, float] | None]:
    rounds: Sequence[dict[str, float] | None] = found.get(scheduling, {}).get(kind, {}).get(size, {}).get(transport, [])
    return rounds
