"""Looking for better placements: from several starts, by moving one operator or joining both ends of an edge.

HEFT decides operator by operator and does not see that a cheap choice now makes every later transfer expensive; moves
of one operator cannot leave such a valley, joining two can, and so can starting with everything on one kind of device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scheduler.constraints import Allowed
from scheduler.evaluate import Evaluator, Worth
from scheduler.problem import Problem

MOST_TASK_STEPS = 200_000
"""Operators scheduled while looking for moves, in all; a step takes some microseconds, so this is about a second."""

Placed = tuple[int, ...]


def gathered(problem: Problem, allowed: Allowed, otherwise: Placed) -> Iterator[Placed]:
    """For every distinct kind of device: all operators that may go there gathered on its first, the rest as given."""
    seen = set()
    for number, device in enumerate(problem.devices):
        shape = (device.kind, device.engines)
        if shape not in seen and any(number in devices for devices in allowed):
            seen.add(shape)
            yield tuple(number if number in allowed[t] else otherwise[t] for t in range(len(allowed)))


def improved(
    problem: Problem, evaluator: Evaluator, allowed: Allowed, start: Placed, worth: Worth
) -> tuple[Placed, Worth]:
    """The placement after moves, each the best there is, until none helps or the budget is spent."""
    placement = start
    while not spent(problem, evaluator):
        best: tuple[Worth, Placed] | None = None
        for moved in (*single_moves(problem, allowed, placement), *joins(problem, allowed, placement)):
            found = evaluator.worth(moved)
            if found is not None and (best is None or (found, moved) < best):
                best = (found, moved)
            if spent(problem, evaluator):
                break
        if best is None or best[0] >= worth:
            break
        worth, placement = best
    return placement, worth


def spent(problem: Problem, evaluator: Evaluator) -> bool:
    """Whether the budget of evaluations is used up."""
    return evaluator.evaluations * len(problem.tasks) > MOST_TASK_STEPS


def single_moves(problem: Problem, allowed: Allowed, placement: Sequence[int]) -> Iterator[Placed]:
    """Every placement that differs in one operator."""
    for task in range(len(problem.tasks)):
        for device in sorted(allowed[task]):
            if device != placement[task]:
                yield (*placement[:task], device, *placement[task + 1 :])


def joins(problem: Problem, allowed: Allowed, placement: Sequence[int]) -> Iterator[Placed]:
    """Every placement with both ends of an edge on one device, where one or both were elsewhere."""
    for flow in problem.flows:
        for device in sorted(allowed[flow.producer] & allowed[flow.consumer]):
            if placement[flow.producer] != device and placement[flow.consumer] != device:
                moved = list(placement)
                moved[flow.producer] = moved[flow.consumer] = device
                yield tuple(moved)
