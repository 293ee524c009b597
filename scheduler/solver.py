"""Placing a pipeline: HEFT over every way to keep the hard constraints, moves until none helps, and the record.

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
from scheduler.evaluate import Evaluator, Worth
from scheduler.explain import raise_impossible
from scheduler.heft import heft, rank_order, upward_ranks
from scheduler.problem import Problem, build_problem
from scheduler.schedule import Schedule, schedule_of
from scheduler.search import Placed, gathered, improved, single_moves, spent

SOLVER = "heft+moves"
MOST_HALVINGS = 20


@dataclass(frozen=True, slots=True)
class Answer:
    """A placement, its schedule, its transfer seconds, what it could choose from, and the share of the rate kept."""

    placement: Placed
    schedule: Schedule
    cost: float
    allowed: Allowed
    rate_scale: float


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
    best = solver.solve(groups, notes)
    if best is None:
        raise_impossible(problem, groups)
    runner_up = solver.runner_up(best)
    placement = Placement(pipeline=pipeline.name, devices=problem.names(best.placement))
    breakdown, binding = _breakdown(problem, solver.order, best, groups)
    unmet = [f"{w.group.text} (weight {w.weight * 100:g})" for w in soft if not w.group.met(best.placement)]
    deadline = pipeline.qos.deadline_seconds
    if deadline is not None and best.schedule.makespan > deadline:
        unmet.append(f"deadline of {deadline:g} s: a frame is predicted to take {best.schedule.makespan:.3g} s")
    if best.rate_scale < 1:
        unmet.append(_slower(problem, best.rate_scale))
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
        runner_up=_qualified(pipeline, problem.names(runner_up)) if runner_up else None,
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

    def solve(self, groups: Sequence[Group], notes: list[str]) -> Answer | None:
        """The best answer found; None when there is none."""
        if not all(self.problem.candidates):
            return None
        base: Allowed = tuple(frozenset(c) for c in self.problem.candidates)
        ranks = upward_ranks(self.problem, base)
        self.order, self.penalty_scale = rank_order(ranks), max(ranks)
        ways = list(combinations(groups, self.problem.candidates, notes))
        halvings = 0 if self.problem.rate_is_asked_for else MOST_HALVINGS
        for scale in (0.5**k for k in range(halvings + 1)):
            found = self._best_at(scale, ways)
            if found is not None:
                return found
        return None

    def runner_up(self, answer: Answer) -> Placed | None:
        """The best other placement that differs in one operator; None when there is none that keeps the caps."""
        evaluator = self._evaluator(answer.rate_scale)
        best: tuple[Worth, Placed] | None = None
        for moved in single_moves(self.problem, answer.allowed, answer.placement):
            worth = evaluator.worth(moved)
            if worth is not None and (best is None or (worth, moved) < best):
                best = (worth, moved)
            if spent(self.problem, evaluator):
                break
        return None if best is None else best[1]

    def _best_at(self, scale: float, ways: Sequence[Allowed]) -> Answer | None:
        evaluator = self._evaluator(scale)
        starts: list[tuple[Worth, Placed, Allowed]] = []
        for allowed in ways:
            schedule = heft(self.problem, allowed, self.soft, rate_scale=scale)
            if schedule is None:
                continue
            first = tuple(schedule.placement())
            for start in dict.fromkeys((first, *gathered(self.problem, allowed, first))):
                worth = evaluator.worth(start)
                if worth is not None:
                    starts.append((worth, start, allowed))
        if not starts:
            return None
        starts.sort(key=lambda s: s[:2])
        best = starts[0]
        for worth, start, allowed in starts:  # the most promising first, while the budget lasts
            placement, better = improved(self.problem, evaluator, allowed, start, worth)
            best = min(best, (better, placement, allowed), key=lambda s: s[:2])
        return self._answer(best[1], best[2], scale)

    def _evaluator(self, scale: float) -> Evaluator:
        return Evaluator(self.problem, self.order, self.soft, penalty_scale=self.penalty_scale, rate_scale=scale)

    def _answer(self, placement: Placed, allowed: Allowed, scale: float) -> Answer:
        schedule = schedule_of(self.problem, self.order, placement, scale)
        if isinstance(schedule, str):
            raise AssertionError(f"an evaluated placement has no schedule: {schedule}")
        return Answer(placement, schedule, sum(_flow_seconds(self.problem, placement)), allowed, scale)


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
    problem: Problem, order: Sequence[int], answer: Answer, groups: Sequence[Group]
) -> tuple[tuple[CandidateScore, ...], str | None]:
    """How every device would do for every operator, the rest placed as answered; and the costliest refusal.

    The refusal that kept an operator from finishing earlier, by the most, is the binding constraint.
    """
    schedule = Schedule(problem, answer.rate_scale)
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
                if rejected is None and number not in answer.allowed[task]:
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
