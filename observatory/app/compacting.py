"""Pools that were larger than what a job uses give memory back, and get it again when slots lack.

A pool changes its size with the process that made it (dataplane/pool.py says why), so an operator whose pool is to
shrink goes over to another process while frames flow, as `observatory move` would do it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dataplane.assignment import Assignment, OutputAssignment, PortSize
from dataplane.errors import CannotMigrate
from dataplane.migration import check_migration
from dataplane.pool import Advice, ClassNeed, Policy, PoolUse, advise

if TYPE_CHECKING:
    from dataplane.supervisor import Supervisor

MOST_REPORTS = 1000  # of a port: more than an hour
PATIENCE_SECONDS = 10.0  # after a refusal: something else is under way


@dataclass(frozen=True, slots=True)
class Wish:
    """An operator's assignment with pools of other sizes, and why."""

    assignment: Assignment
    words: str


class Compaction:
    """The pools of one job. For the thread that polls its supervisor.

    Args:
        assignments: as sizing made them.
        policy: when it is worth it; None: never.
    """

    def __init__(self, assignments: Sequence[Assignment], policy: Policy | None) -> None:
        self._planned = {a.operator: a for a in assignments if policy is not None and _can_move(a)}
        self._policy = policy
        self._reports: dict[tuple[str, str], deque[PoolUse]] = {}
        self._due: dict[str, float] = {}  # operator -> not before that time, in the clock of the reports

    def note(self, operator: str, port: str, use: PoolUse) -> Wish | None:
        """A worker reported; what its operator should go over to."""
        reports = self._reports.setdefault((operator, port), deque(maxlen=MOST_REPORTS))
        reports.append(use)
        planned = self._planned.get(operator)
        if planned is None or use.seconds < self._due.get(operator, 0.0):
            return None
        sizes = next(output.sizes for output in planned.outputs if output.port == port)
        if any(size.least_slots is None for size in sizes):
            return None
        advice = advise(reports, [_need(size) for size in sizes], self._policy)
        if advice is None:
            return None
        self._due[operator] = use.seconds + PATIENCE_SECONDS
        outputs = tuple(self._resized(operator, output, port, advice) for output in planned.outputs)
        return Wish(planned.model_copy(update={"outputs": outputs}), f"{operator}.{port}: {advice.reason}")

    def _resized(self, operator: str, output: OutputAssignment, port: str, advice: Advice) -> OutputAssignment:
        """That port as advised, the others as they are now."""
        reports = self._reports.get((operator, output.port))
        if output.port == port:
            slots = advice.slots
        elif reports:
            slots = tuple(one.slot_count for one in reports[-1].classes)
        else:
            return output
        sizes = tuple(_with_slots(size, count) for size, count in zip(output.sizes, slots, strict=True))
        return output.model_copy(update={"sizes": sizes})


def carry_out(wish: Wish, supervisor: Supervisor) -> bool:
    """Begin it; False where it cannot be done now: the next report brings it up again."""
    try:
        supervisor.migrate(wish.assignment.operator, wish.assignment)
    except CannotMigrate:
        return False
    return True


def _can_move(assignment: Assignment) -> bool:
    try:
        check_migration(assignment)
    except CannotMigrate:
        return False
    return True


def _need(size: PortSize) -> ClassNeed:
    assert size.least_slots is not None
    return ClassNeed(size.slot_bytes, size.least_slots, size.slot_count)


def _with_slots(size: PortSize, count: int) -> PortSize:
    changes: Mapping[str, int] = {"slot_count": count, "slab_slots": min(size.slab_slots, count)}
    return size.model_copy(update=changes)
