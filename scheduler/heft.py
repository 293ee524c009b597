"""HEFT: heterogeneous earliest finish time, insertion-based.

Topcuoglu, Hariri, Wu, "Performance-effective and low-complexity task scheduling for heterogeneous computing", IEEE TPDS
13(3), 2002. Tasks in order of falling upward rank (average service and transfer times along the longest way to an
exit), each put where it finishes first. Beyond the paper: a device has as many lanes as engines, hard caps, wishes that
add a penalty to the finish time, and backtracking when the caps leave a task nowhere to go.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.constraints import Allowed, Wish
from scheduler.problem import Problem
from scheduler.schedule import Schedule, Slot

MOST_STEPS = 20_000
"""Task placements tried before the search for one that keeps the caps gives up (beyond the one per task of HEFT)."""


def upward_ranks(problem: Problem, allowed: Allowed) -> list[float]:
    """Average seconds from the start of each task to the end of the frame, over the allowed devices."""
    ranks = [0.0] * len(problem.tasks)
    averages: dict[tuple[int, frozenset[int], frozenset[int]], float] = {}
    for task in reversed(problem.tasks):
        t = task.index
        devices = allowed[t]
        service = sum(problem.candidates[t][d].seconds for d in devices) / len(devices)
        below = 0.0
        for flow in problem.outgoing[t]:
            key = (flow.payload_bytes, devices, allowed[flow.consumer])
            if key not in averages:
                averages[key] = _average_transfer(problem, *key)
            below = max(below, averages[key] + ranks[flow.consumer])
        ranks[t] = service + below
    return ranks


def rank_order(ranks: Sequence[float]) -> list[int]:
    """Tasks by falling rank; of equals the earlier in topological order. Every producer is before its consumers."""
    return sorted(range(len(ranks)), key=lambda t: (-ranks[t], t))


def heft(
    problem: Problem, allowed: Allowed, wishes: Sequence[Wish], *, rate_scale: float = 1.0, steps: int = MOST_STEPS
) -> Schedule | None:
    """HEFT's schedule; None when no placement that keeps the caps was found (within `steps`, or at all).

    A broken wish costs its weight times the average length of the critical path.
    """
    ranks = upward_ranks(problem, allowed)
    order = rank_order(ranks)
    scale = max(ranks)
    by_task = [[w for w in wishes if t.index in w.group.members] for t in problem.tasks]
    schedule = Schedule(problem, rate_scale)
    choices: list[list[Slot]] = []
    left = steps + len(order)
    while True:
        if len(choices) == len(order):
            return schedule
        task = order[len(choices)]
        choices.append(_choices(schedule, task, allowed, by_task[task], scale))
        while not choices[-1]:  # nowhere to go: take the last decision back
            choices.pop()
            if not choices:
                return None
            schedule.undo(order[len(choices) - 1])
        left -= 1
        if left < 0:
            return None
        schedule.put(order[len(choices) - 1], choices[-1].pop(0))


def _choices(schedule: Schedule, task: int, allowed: Allowed, wishes: Sequence[Wish], scale: float) -> list[Slot]:
    """Slots for a task on every device it may have, best first."""
    placed = schedule.placed() if wishes else {}
    found: list[tuple[float, int, Slot]] = []
    for device in sorted(allowed[task]):
        if schedule.over_cap(task, device) is not None:
            continue
        slot = schedule.slot(task, device)
        if isinstance(slot, str):
            continue
        penalty = sum(w.weight for w in wishes if w.broken_by(task, device, placed, allowed)) * scale
        found.append((slot.finish + penalty, device, slot))
    return [slot for _, _, slot in sorted(found, key=lambda f: f[:2])]


def _average_transfer(problem: Problem, payload_bytes: int, sources: frozenset[int], targets: frozenset[int]) -> float:
    """Over all pairs of allowed devices whose transfer can be predicted."""
    total, count = 0.0, 0
    for source in sources:
        for target in targets:
            seconds = problem.transfer(payload_bytes, source, target)
            if seconds is not None:
                total, count = total + seconds, count + 1
    return total / count if count else 0.0
