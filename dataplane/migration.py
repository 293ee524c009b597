"""The work of an operator goes over to another process while frames flow.

The new instance is started beside the old one and opened there (codecs, pools: "warming"). Once it is warm, the old
one's input is cut: the producer decides between two commits, frames before are the old one's, frames after the new
one's (`RingProducer.cut`). The old instance finishes its share, publishes what is left in it, and ends its rings; the
new one's begin where those ended, so consumers read every payload once, in order. A source is told to stop at a frame
instead, and the new one goes on with the next. A sink's unacknowledged input is delivered again to the new one after
the old one was killed, as after any death: what it has written is whole by its commit contract.

Whatever goes wrong before the cut leaves the old instance at work. A death after it is succeeded like any other.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import StrEnum

from dataplane.assignment import Assignment
from dataplane.errors import CannotMigrate
from dataplane.operators.registry import operator_type
from dataplane.process import WorkerProcess


class Stage(StrEnum):
    """How far a migration is."""

    WARMING = "warming"
    CUTTING = "cutting"  # producers, or the source itself, were asked
    DRAINING = "draining"  # the old instance finishes its share
    KILLING = "killing"  # of sinks: SIGKILL was sent


@dataclass(slots=True)
class Migration:
    """One that is under way. `cut` is by edge: the first sequence of the new instance."""

    operator: str
    beside: WorkerProcess
    assignment: Assignment
    stage: Stage = Stage.WARMING
    awaited: set[str] = field(default_factory=set)  # edges whose producers have not answered
    cut: dict[str, int] = field(default_factory=dict)
    began_seconds: float = field(default_factory=time.monotonic)
    cut_seconds: float | None = None  # when it was asked for

    @property
    def committed(self) -> bool:
        """Whether the old instance will not do the rest."""
        return self.stage in (Stage.DRAINING, Stage.KILLING)


def check_migration(assignment: Assignment) -> None:
    """Raises CannotMigrate where the operator of that assignment cannot go over to another process."""
    kind = operator_type(assignment.op)
    how = kind.restart(kind.Params.model_validate(assignment.params), assignment.source)
    if not how.migration:
        raise CannotMigrate(f"operator {assignment.operator} cannot be moved while it runs: {how.why}")
    if how.cut != "any":
        raise CannotMigrate(f"operator {assignment.operator} can only be cut at key frames, which is not done yet")
    if len(assignment.inputs) > 1 and not kind.sink:
        raise CannotMigrate(f"operator {assignment.operator} has several inputs: they are not cut together yet")
