"""What a whole placement is worth, fast: the same schedule as `scheduler.schedule`, on plain numbers.

Search looks at thousands of placements; this keeps no objects per task. A test holds it to `Schedule`'s results.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from observatory.model.device import EngineKind
from scheduler.constraints import Wish
from scheduler.problem import Problem
from scheduler.schedule import SLACK

Worth = tuple[float, float]
"""Objective (makespan plus penalties for broken wishes) and transfer seconds summed over edges; smaller is better."""


class Evaluator:
    """Evaluates placements (device number by task) of one problem, tasks scheduled in one order."""

    def __init__(
        self,
        problem: Problem,
        order: Sequence[int],
        soft: Sequence[Wish],
        *,
        penalty_scale: float,
        rate_scale: float = 1.0,
    ) -> None:
        kinds = {kind: number for number, kind in enumerate(EngineKind)}
        self.evaluations = 0
        self._problem = problem
        self._order = order
        self._soft = soft
        self._penalty_scale = penalty_scale
        self._devices = len(problem.devices)
        # By task, by device: (seconds, engine number, load); an engine number stands for a device and an engine kind.
        self._on: list[dict[int, tuple[float, int, float]]] = [
            {
                d: (c.seconds, d * len(kinds) + kinds[c.engine], c.seconds * task.rate * rate_scale)
                for d, c in problem.possible[task.index].items()
            }
            for task in problem.tasks
        ]
        self._lanes = {
            d * len(kinds) + kinds[e.kind]: (e.count, e.sessions, e.count * (1 + SLACK))
            for d, device in enumerate(problem.devices)
            for e in device.engines
        }
        self._memory = [(t.memory_bytes) for t in problem.tasks]
        self._memory_cap = [d.memory_bytes for d in problem.devices]
        self._transfers: dict[int, dict[int, float | None]] = {f.payload_bytes: {} for f in problem.flows}
        self._incoming = [[(f.producer, f.payload_bytes) for f in flows] for flows in problem.incoming]

    def worth(self, placement: Sequence[int]) -> Worth | None:
        """What the placement is worth; None when it breaks a cap or crosses a path that cannot be predicted."""
        self.evaluations += 1
        finish = [0.0] * len(placement)
        busy: dict[int, list[list[tuple[float, float]]]] = {}
        load: dict[int, float] = {}
        held: dict[int, int] = {}
        cost = 0.0
        for task in self._order:
            device = placement[task]
            seconds, engine, share = self._on[task][device]
            count, sessions, cap = self._lanes[engine]
            load[engine] = used = load.get(engine, 0.0) + share
            held[device] = memory = held.get(device, 0) + self._memory[task]
            most = self._memory_cap[device]
            if used > cap or (most is not None and memory > most):
                return None
            ready = 0.0
            for producer, payload in self._incoming[task]:
                source = placement[producer]
                arrives = finish[producer]
                if source != device:
                    moved = self._transfer(payload, source, device)
                    if moved is None:
                        return None
                    cost += moved
                    arrives += moved
                if arrives > ready:
                    ready = arrives
            lanes = busy.setdefault(engine, [])
            finish[task] = _insert(lanes, count, ready, seconds)
            if sessions is not None and sum(map(len, lanes)) > sessions:
                return None
        objective = max(finish)
        if self._soft:
            objective += self._penalty_scale * sum(w.weight for w in self._soft if not w.group.met(placement))
        return objective, cost

    def _transfer(self, payload: int, source: int, target: int) -> float | None:
        known = self._transfers[payload]
        key = source * self._devices + target
        if key not in known:
            known[key] = self._problem.transfer(payload, source, target)
        return known[key]


def _insert(lanes: list[list[tuple[float, float]]], count: int, ready: float, seconds: float) -> float:
    """Put a task into the earliest gap of the lanes, or into a new lane; when it ends."""
    best_start, best = ready, len(lanes)
    if best == count:
        best_start = float("inf")
    for number, lane in enumerate(lanes):
        start = ready
        for busy_from, busy_to in lane:
            if start + seconds <= busy_from:
                break
            if busy_to > start:
                start = busy_to
        if start < best_start or (start == best_start and best == len(lanes)):
            best_start, best = start, number
    if best == len(lanes):
        lanes.append([])
    insort(lanes[best], (best_start, best_start + seconds))
    return best_start + seconds
