"""Why a pipeline cannot be placed, in words that name the operator, every class of devices and the clash."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from scheduler.constraints import Group
from scheduler.errors import ImpossiblePlacement
from scheduler.problem import Flow, Problem

_MOST_NAMED = 4


def raise_impossible(problem: Problem, groups: Sequence[Group]) -> NoReturn:
    """Raise ImpossiblePlacement with the first reason that holds: no device, no common domain, no room."""
    for task in problem.tasks:
        if not problem.candidates[task.index]:
            _no_device(problem, task.index)
    allowed = [frozenset(c) for c in problem.candidates]
    for group in groups:
        if not group.choices(allowed):
            _no_domain(problem, group)
    for flow in problem.flows:
        _some_way(problem, flow)
    _no_room(problem, groups)


def _fail(problem: Problem, message: str, mend: str, task: int | None = None) -> NoReturn:
    line = None if task is None else problem.tasks[task].node.line
    raise ImpossiblePlacement(message, file=problem.pipeline.source_file, line=line, mend=mend)


def _no_device(problem: Problem, task: int) -> NoReturn:
    node = problem.tasks[task].node
    by_reason: dict[tuple[str, str], list[str]] = {}
    for number, reason in problem.refusals[task].items():
        device = problem.devices[number]
        by_reason.setdefault((device.kind.value, reason), []).append(device.id)
    words = "; ".join(f"{_devices(kind, ids)}: {reason}" for (kind, reason), ids in by_reason.items())
    constrained = any("Device_Kind" in r for r in problem.refusals[task].values())
    if node.device is not None:
        mend = "remove device, or pin it to a device that can run it"
    elif constrained:
        mend = "give the constraint a weight (then it is a wish), or another value"
    else:
        mend = "place it on a topology with a device for it"
    _fail(problem, f"{node.name} ({node.op}) can run nowhere: {words}", mend, task)


def _devices(kind: str, ids: Sequence[str]) -> str:
    if len(ids) == 1:
        return ids[0]
    return f"{len(ids)} {kind} ({', '.join(ids[:_MOST_NAMED])}{', ...' if len(ids) > _MOST_NAMED else ''})"


def _no_domain(problem: Problem, group: Group) -> NoReturn:
    parts = []
    for member in group.members:
        devices = problem.candidates[member]
        names = sorted({group.domains[d] or "" for d in devices} - {""})
        where = f"only on {', '.join(problem.devices[d].id for d in sorted(devices)[:_MOST_NAMED])}"
        parts.append(
            f"{problem.tasks[member].node.name} can run {where} (in {', '.join(names) if names else 'no such domain'})"
        )
    first = group.members[0]
    _fail(
        problem,
        f"the hard constraint {group.text} cannot be kept: {'; '.join(parts)}",
        "give it a weight (then it is a wish), or take a member out",
        first,
    )


def _some_way(problem: Problem, flow: Flow) -> None:
    """Raise when no pair of devices for the ends of an edge has a path whose time can be predicted."""
    producer, consumer = problem.tasks[flow.producer], problem.tasks[flow.consumer]
    reason = ""
    for source in problem.candidates[producer.index]:
        for target in problem.candidates[consumer.index]:
            if problem.transfer(flow.payload_bytes, source, target) is not None:
                return
            why = problem.path(flow.payload_bytes, source, target).reason
            reason = reason or f"{problem.devices[source].id} to {problem.devices[target].id}: {why}"
    _fail(
        problem,
        f"the transfer {flow.name} cannot be predicted between any devices of {producer.node.name} and"
        f" {consumer.node.name}; {reason}",
        "give the links a bandwidth and a latency in a topology file",
        consumer.index,
    )


def _no_room(problem: Problem, groups: Sequence[Group]) -> NoReturn:
    """Every operator has devices, every constraint a domain, but not together: say what is needed and what there is."""
    busiest = max(
        (t for t in problem.tasks),
        key=lambda t: min(
            c.seconds * t.rate / problem.capacity(d, c.engine) for d, c in problem.candidates[t.index].items()
        ),
    )
    needs = []
    for device, candidate in list(problem.candidates[busiest.index].items())[:_MOST_NAMED]:
        load = candidate.seconds * busiest.rate
        have = problem.capacity(device, candidate.engine)
        needs.append(f"{problem.devices[device].id} {load:.3g} of {have} {candidate.engine.value} engines")
    kept = f", under the hard constraints {'; '.join(g.text for g in groups)}" if groups else ""
    rate = f" at {busiest.rate:g} frames/s" if problem.rate_is_asked_for else ""
    _fail(
        problem,
        f"no placement was found that keeps engines, sessions and memory within bounds{rate}{kept}; "
        f"{busiest.node.name} ({busiest.node.op}) alone needs: {', '.join(needs)}",
        "ask for fewer frames_per_second, give a constraint a weight, or place it on a larger topology",
        busiest.index,
    )
