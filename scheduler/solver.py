"""Placing a pipeline: HEFT over every way to keep the hard constraints, single moves until none helps, and the record.

The objective is the makespan of one frame plus, for every broken wish, its weight times the length of the average
critical path; of equals, the smaller sum of transfer seconds over the edges (`predicted_cost`). The load cap holds for
the rate that the pipeline's `qos` asks for. When it asks for none, the rate is the source's own, and where no placement
keeps up with it, half of it and so on: a file may be worked off more slowly than it plays.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from dataplane.operators.base import Operator
from observatory.model.cost import CostParameters
from observatory.model.pipeline import Edge, Pipeline
from observatory.model.plan import CandidateScore, DecisionRecord, EdgeCost, Placement
from observatory.model.topology import Topology
from observatory.topology.cost_matrix import LARGEST_DENSE, CostMatrix
from scheduler.constraints import Allowed, Group, Wish, combinations, hard_groups, wishes
from scheduler.explain import raise_impossible
from scheduler.heft import heft, rank_order, upward_ranks
from scheduler.problem import Problem, build_problem
from scheduler.schedule import Schedule, schedule_of

SOLVER = "heft+moves"
MOST_HALVINGS = 20
MOST_EVALUATIONS = 20_000
"""Schedules that looking for better moves may evaluate, about; each takes some microseconds per operator."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A placement (device number by task), its schedule and what it is worth; smaller is better."""

    placement: tuple[int, ...]
    schedule: Schedule
    objective: float
    cost: float

    @property
    def key(self) -> tuple[float, float, tuple[int, ...]]:
        """Total order of answers: objective, then transfer cost, then device numbers."""
        return (self.objective, self.cost, self.placement)


def place(
    pipeline: Pipeline,
    edges: Sequence[Edge],
    topology: Topology,
    parameters: CostParameters,
    operator_types: Mapping[str, type[Operator]],
    *,
    trigger: str = "submitted",
) -> tuple[Placement, DecisionRecord]:
    """Where each operator runs, and why.

    The same arguments give the same placement. `operator_types` by operator name; `edges` as typed, with formats.

    Raises:
        ImpossiblePlacement: no placement keeps the hard constraints and caps: names operator, devices and reasons.
    """
    began = time.perf_counter()
    problem = build_problem(pipeline, edges, topology, parameters, operator_types)
    groups, soft = hard_groups(problem), wishes(problem)
    notes = list(problem.notes)
    solver = _Solver(problem, soft)
    best, allowed, scale = solver.solve(groups, notes)
    if best is None:
        raise_impossible(problem, groups)
    runner_up = solver.best_move(best, allowed, scale)
    placement = Placement(pipeline=pipeline.name, devices=problem.names(best.placement))
    breakdown, binding = _breakdown(problem, solver.order, best, allowed, groups)
    unmet = [f"{w.group.text} (weight {w.weight * 100:g})" for w in soft if not w.group.met(best.placement)]
    if scale < 1:
        unmet.append(_slower(problem, scale))
        binding = f"engine capacity: {unmet[-1]}"
    created = time.time()
    content = {"topology": topology.name, "placement": placement.devices, "created": created}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    bound = _lower_bound(problem)
    record = DecisionRecord(
        id=f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(created))}-{digest[:8]}",
        trigger=trigger,
        created_unix_seconds=created,
        software_version=version("media-observatory"),
        solver=SOLVER,
        input_topology_matrix=_matrix(problem, parameters, best),
        candidate_nodes=tuple(dict.fromkeys(problem.devices[d].node for c in problem.candidates for d in sorted(c))),
        score_breakdown=breakdown,
        edges=_edge_costs(problem, best),
        final_placement=_qualified(pipeline, placement.devices),
        predicted_cost=best.cost,
        makespan_seconds=best.schedule.makespan,
        lower_bound=bound,
        gap=(best.cost - bound) / best.cost if best.cost > 0 else 0.0,
        runner_up=_qualified(pipeline, problem.names(runner_up.placement)) if runner_up else None,
        binding_constraint=binding,
        unmet_wishes=tuple(unmet),
        notes=tuple(notes),
        solve_seconds=time.perf_counter() - began,
        cost_parameters=parameters,
    )
    return placement, record


class _Solver:
    """The search, on one problem and its wishes."""

    def __init__(self, problem: Problem, soft: Sequence[Wish]) -> None:
        self.problem = problem
        self.soft = soft
        self.order: list[int] = []
        self.penalty_scale = 0.0
        self.evaluations = 0

    def solve(self, groups: Sequence[Group], notes: list[str]) -> tuple[Answer | None, Allowed, float]:
        """The best answer, the devices it could choose from, and the share of the wanted rate it was found for."""
        if not all(self.problem.candidates):
            return None, (), 1.0
        base: Allowed = tuple(frozenset(c) for c in self.problem.candidates)
        ranks = upward_ranks(self.problem, base)
        self.order, self.penalty_scale = rank_order(ranks), max(ranks)
        ways = list(combinations(groups, self.problem.candidates, notes))
        halvings = 0 if self.problem.rate_is_asked_for else MOST_HALVINGS
        for scale in (0.5**k for k in range(halvings + 1)):
            found: list[tuple[Answer, Allowed]] = []
            for allowed in ways:
                schedule = heft(self.problem, allowed, self.soft, rate_scale=scale)
                if schedule is not None:
                    found.append((self._improved(self._answer(schedule), allowed, scale), allowed))
            if found:
                answer, allowed = min(found, key=lambda f: f[0].key)
                return answer, allowed, scale
        return None, (), 1.0

    def best_move(self, answer: Answer, allowed: Allowed, scale: float) -> Answer | None:
        """The best other placement that differs in one operator; None when there is none that keeps the caps."""
        moves = self._moves(answer, allowed, scale)
        return min(moves, key=lambda a: a.key, default=None)

    def _improved(self, answer: Answer, allowed: Allowed, scale: float) -> Answer:
        """The answer after single moves, each the best of all, until none helps."""
        self.evaluations = 0
        while self.evaluations < MOST_EVALUATIONS:
            better = self.best_move(answer, allowed, scale)
            if better is None or better.key[:2] >= answer.key[:2]:
                break
            answer = better
        return answer

    def _moves(self, answer: Answer, allowed: Allowed, scale: float) -> list[Answer]:
        found: list[Answer] = []
        for task in self.order:
            if self.evaluations > MOST_EVALUATIONS and found:
                break
            for device in sorted(allowed[task]):
                if device == answer.placement[task]:
                    continue
                self.evaluations += 1
                moved = [*answer.placement]
                moved[task] = device
                schedule = schedule_of(self.problem, self.order, moved, scale)
                if not isinstance(schedule, str):
                    found.append(self._answer(schedule))
        return found

    def _answer(self, schedule: Schedule) -> Answer:
        placement = tuple(schedule.placement())
        broken = sum(w.weight for w in self.soft if not w.group.met(placement))
        return Answer(
            placement=placement,
            schedule=schedule,
            objective=schedule.makespan + broken * self.penalty_scale,
            cost=sum(_flow_seconds(self.problem, placement)),
        )


def _flow_seconds(problem: Problem, placement: Sequence[int]) -> list[float]:
    """Transfer seconds of every edge; all of them can be predicted in a schedule that was found."""
    return [
        problem.transfer(f.payload_bytes, placement[f.producer], placement[f.consumer]) or 0.0 for f in problem.flows
    ]


def _edge_costs(problem: Problem, answer: Answer) -> tuple[EdgeCost, ...]:
    costs = []
    for flow, seconds in zip(problem.flows, _flow_seconds(problem, answer.placement), strict=True):
        source, target = answer.placement[flow.producer], answer.placement[flow.consumer]
        costs.append(
            EdgeCost(
                edge=flow.name,
                producer_device=problem.devices[source].id,
                consumer_device=problem.devices[target].id,
                path=() if source == target else problem.path(flow.payload_bytes, source, target).ids,
                bytes_per_frame=flow.payload_bytes,
                predicted_seconds=seconds,
                share=min(seconds / answer.cost, 1.0) if answer.cost > 0 else 0.0,
            )
        )
    return tuple(costs)


def _breakdown(
    problem: Problem, order: Sequence[int], answer: Answer, allowed: Allowed, groups: Sequence[Group]
) -> tuple[tuple[CandidateScore, ...], str | None]:
    """How every device would do for every operator, the rest placed as answered; and the costliest refusal.

    The refusal that kept an operator from finishing earlier, by the most, is the binding constraint.
    """
    schedule = Schedule(problem, answer.schedule.rate_scale)
    scores: dict[int, list[CandidateScore]] = {}
    binding: tuple[float, str] = (0.0, "")
    for task in order:
        name = problem.tasks[task].node.name
        chosen = answer.schedule.slots[task]
        scores[task] = []
        for number, device in enumerate(problem.devices):
            finish: float | None = None
            rejected = problem.refusals[task].get(number)
            if number in problem.possible[task]:
                slot = schedule.slot(task, number)
                finish = None if isinstance(slot, str) else slot.finish
                if rejected is None and number not in allowed[task]:
                    kept = [g.text for g in groups if task in g.members]
                    rejected = f"outside the domain chosen for: {'; '.join(kept)}"
                rejected = rejected or schedule.over_cap(task, number) or (slot if isinstance(slot, str) else None)
                if rejected is not None and finish is not None and chosen.finish - finish > binding[0]:
                    binding = (chosen.finish - finish, f"{name} on {device.id}: {rejected}")
            scores[task].append(
                CandidateScore(operator=name, device=device.id, finish_seconds=finish, rejected=rejected)
            )
        schedule.put(task, chosen)
    flat = tuple(score for task in problem.tasks for score in scores[task.index])
    return flat, binding[1] or None


def _matrix(problem: Problem, parameters: CostParameters, answer: Answer) -> dict[str, object]:
    """The cost matrix between all candidate devices (only those used, when there are more than 512), and its source."""
    candidates = sorted({d for c in problem.candidates for d in c})
    if len(candidates) > LARGEST_DENSE:
        candidates = sorted(set(answer.placement))[:LARGEST_DENSE]
    matrix = CostMatrix(problem.finder, parameters).as_dict([problem.devices[d].id for d in candidates])
    topology = problem.topology
    return {
        "topology": topology.name,
        "provenance": topology.provenance,
        "sources": list(topology.sources),
        **matrix,
    }


def _lower_bound(problem: Problem) -> float:
    """Transfer seconds that no placement undercuts: every edge between the best pair of candidates of its ends."""
    total = 0.0
    for flow in problem.flows:
        sources, targets = problem.candidates[flow.producer], problem.candidates[flow.consumer]
        if sources.keys() & targets.keys():
            continue
        costs = (problem.transfer(flow.payload_bytes, a, b) for a in sources for b in targets)
        total += min((c for c in costs if c is not None), default=0.0)
    return total


def _slower(problem: Problem, scale: float) -> str:
    fastest = max(t.rate for t in problem.tasks)
    return f"no placement keeps up with {fastest:g} frames/s; placed for {fastest * scale:.3g} frames/s"


def _qualified(pipeline: Pipeline, devices: Mapping[str, str]) -> dict[str, str]:
    return {f"{pipeline.name}/{operator}": device for operator, device in devices.items()}
