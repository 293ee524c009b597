"""One frame's way through placed operators: when each starts and ends, with every engine doing one thing at a time."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from observatory.model.device import EngineKind
from scheduler.problem import Problem

SLACK = 1e-9
"""Relative; loads are sums of floats."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a task would run: lane of its engine, start and finish in seconds from the frame's start."""

    device: int
    engine: EngineKind
    lane: int
    start: float
    finish: float


class Schedule:
    """Tasks put into the gaps of engine lanes, with the hard caps: load, sessions, memory.

    A device has as many lanes of a kind as it has engines. `rate_scale` scales the frame rates of the load cap.
    """

    def __init__(self, problem: Problem, rate_scale: float = 1.0) -> None:
        self.problem = problem
        self.rate_scale = rate_scale
        self.slots: dict[int, Slot] = {}
        self._lanes: dict[tuple[int, EngineKind], list[list[tuple[float, float]]]] = {}
        self._load: dict[tuple[int, EngineKind], float] = {}
        self._sessions: dict[tuple[int, EngineKind], int] = {}
        self._memory: dict[int, int] = {}

    @property
    def makespan(self) -> float:
        """When the last task ends, seconds."""
        return max((s.finish for s in self.slots.values()), default=0.0)

    def ready(self, task: int, device: int) -> float | str:
        """When all inputs of the task are on the device; words when one of them cannot be predicted to come."""
        problem = self.problem
        ready = 0.0
        for flow in problem.incoming[task]:
            source = self.slots[flow.producer].device
            seconds = problem.transfer(flow.payload_bytes, source, device)
            if seconds is None:
                why = problem.path(flow.payload_bytes, source, device).reason
                return f"the transfer {flow.name} from {problem.devices[source].id} cannot be predicted: {why}"
            ready = max(ready, self.slots[flow.producer].finish + seconds)
        return ready

    def slot(self, task: int, device: int) -> Slot | str:
        """The earliest gap for the task on the device after its inputs; words when they cannot get there."""
        ready = self.ready(task, device)
        if isinstance(ready, str):
            return ready
        candidate = self.problem.possible[task][device]
        lanes = self._lanes.get((device, candidate.engine), [])
        best_lane, best_start = len(lanes), ready
        if len(lanes) == self.problem.capacity(device, candidate.engine):
            best_start = float("inf")
        for number, lane in enumerate(lanes):
            start = _gap(lane, ready, candidate.seconds)
            if start < best_start or (start == best_start and best_lane == len(lanes)):
                best_lane, best_start = number, start
        return Slot(device, candidate.engine, best_lane, best_start, best_start + candidate.seconds)

    def over_cap(self, task: int, device: int) -> str | None:
        """Which hard cap the task would break on the device; None when it fits beside what is there."""
        problem = self.problem
        candidate = problem.possible[task][device]
        key = (device, candidate.engine)
        name, kind = problem.devices[device].id, candidate.engine.value
        sessions = problem.sessions(device, candidate.engine)
        if sessions is not None and self._sessions.get(key, 0) + 1 > sessions:
            return f"{name}: all {sessions} {kind} sessions are taken"
        load = self._load.get(key, 0.0) + candidate.seconds * problem.tasks[task].rate * self.rate_scale
        capacity = problem.capacity(device, candidate.engine)
        if load > capacity * (1 + SLACK):
            rate = problem.tasks[task].rate * self.rate_scale
            return f"{name}: at {rate:.4g} frames/s its {kind} engines would be busy {load:.3g} of {capacity}"
        memory = problem.devices[device].memory_bytes
        if memory is not None and self._memory.get(device, 0) + problem.tasks[task].memory_bytes > memory:
            return f"{name}: its memory of {memory / 1e9:.4g} GB is full"
        return None

    def put(self, task: int, slot: Slot) -> None:
        """Take the slot."""
        key = (slot.device, slot.engine)
        lanes = self._lanes.setdefault(key, [])
        if slot.lane == len(lanes):
            lanes.append([])
        insort(lanes[slot.lane], (slot.start, slot.finish))
        self.slots[task] = slot
        self._charge(task, slot, 1)

    def undo(self, task: int) -> None:
        """Give the task's slot back."""
        slot = self.slots.pop(task)
        self._lanes[slot.device, slot.engine][slot.lane].remove((slot.start, slot.finish))
        self._charge(task, slot, -1)

    def placement(self) -> list[int]:
        """Device number by task; every task must be placed."""
        return [self.slots[t.index].device for t in self.problem.tasks]

    def placed(self) -> Mapping[int, int]:
        """Device number by task, for the tasks placed so far."""
        return {task: slot.device for task, slot in self.slots.items()}

    def _charge(self, task: int, slot: Slot, sign: int) -> None:
        key = (slot.device, slot.engine)
        seconds = self.problem.possible[task][slot.device].seconds
        rate = self.problem.tasks[task].rate * self.rate_scale
        self._load[key] = self._load.get(key, 0.0) + sign * seconds * rate
        self._sessions[key] = self._sessions.get(key, 0) + sign
        self._memory[slot.device] = self._memory.get(slot.device, 0) + sign * self.problem.tasks[task].memory_bytes


def schedule_of(
    problem: Problem, order: Sequence[int], placement: Sequence[int], rate_scale: float = 1.0
) -> Schedule | str:
    """The schedule of a given placement, tasks taken in `order`; words when it breaks a cap or cannot be predicted."""
    schedule = Schedule(problem, rate_scale)
    for task in order:
        device = placement[task]
        broken = schedule.over_cap(task, device)
        if broken is not None:
            return broken
        slot = schedule.slot(task, device)
        if isinstance(slot, str):
            return slot
        schedule.put(task, slot)
    return schedule


def _gap(lane: Sequence[tuple[float, float]], ready: float, seconds: float) -> float:
    """Start of the first gap of that length in a lane (busy intervals in order), not before `ready`."""
    start = ready
    for busy_from, busy_to in lane:
        if start + seconds <= busy_from:
            return start
        start = max(start, busy_to)
    return start
