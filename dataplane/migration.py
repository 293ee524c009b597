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

import signal
import time
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any

from dataplane import _ring
from dataplane.assignment import Assignment
from dataplane.crew import EVENT_RING_CAPACITY, Crew
from dataplane.errors import CannotMigrate, DataplaneError, WorkerDied
from dataplane.notices import Notice
from dataplane.operators.registry import operator_type
from dataplane.process import WorkerProcess
from dataplane.wiring import tell

KILL_SECONDS = 5.0


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
    cut: dict[str, int] = field(default_factory=dict)
    began_seconds: float = field(default_factory=time.monotonic)
    cut_seconds: float | None = None  # when it was asked for

    @property
    def committed(self) -> bool:
        """Whether the old instance will not do the rest."""
        return self.stage in (Stage.DRAINING, Stage.KILLING)

    def report(self, old: WorkerProcess, now_seconds: float) -> dict[str, Any]:
        """What the notice says of one that is over."""
        cut_seconds = now_seconds if self.cut_seconds is None else self.cut_seconds
        return {
            "pid": self.beside.pid,
            "old_pid": old.pid,
            "cut": self.cut,
            "warming_seconds": cut_seconds - self.began_seconds,
            "cut_over_seconds": now_seconds - cut_seconds,
        }


class Verdict(Enum):
    """What the death of an old instance means for its migration."""

    NOTHING = "it is succeeded as usual"
    TAKE_OVER = "the new instance takes over at once"
    WAIT = "a producer may have cut already: its answer decides"


class Migrations:
    """Those of one job. What is returned as dead is for the supervisor to succeed."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._under_way: dict[str, Migration] = {}
        self.retired: list[WorkerProcess] = []  # handed over, and about to end
        self.event_rings: list[_ring.EventRing] = []  # of instances beside others

    def under_way(self, operator: str) -> bool:
        """Whether one of that operator has begun and is not over."""
        return operator in self._under_way

    def is_beside(self, worker: WorkerProcess) -> bool:
        """Whether it is the new instance of one."""
        migration = self._under_way.get(worker.operator)
        return migration is not None and migration.beside is worker

    def begin(self, operator: str, assignment: Assignment | None = None) -> None:
        """Start a process beside the one that works. Raises CannotMigrate."""
        crew = self._crew
        old, assignment = crew.workers[operator], assignment or crew.assignments[operator]
        if old.state != "running" or crew.stopping or operator in self._under_way:
            raise CannotMigrate(f"operator {operator} cannot be moved now: it is {old.state}, or being moved")
        check_migration(assignment)
        legacy = crew.legacies[operator]
        legacy.incarnation += 1
        beside = crew.recruiter.spawn(operator, beside=old)
        events = _ring.EventRing.create(EVENT_RING_CAPACITY)
        try:
            crew.recruiter.configure(
                beside, assignment, events, incarnation=legacy.incarnation, first_sequences={}, beside=True
            )
            crew.recruiter.collect(beside)
        except DataplaneError as error:
            self._discard(beside, old)
            words = f"operator {operator} stays where it is, its new process did not start: {error}"
            raise CannotMigrate(words) from None
        self._under_way[operator] = Migration(operator, beside, assignment)
        self.event_rings.append(events)
        crew.say(Notice(operator, "events", {"ring": events}))
        crew.watch(beside)

    def advance(self, worker: WorkerProcess, message: dict[str, Any]) -> WorkerProcess | None:
        """The new instance is warm, or a producer answered; the old instance where it died meanwhile."""
        if message["type"] == "warm":
            if self.is_beside(worker):
                self._cut(self._under_way[worker.operator])
            return None
        edge = message["edge"]
        migration = self._under_way.get(consumer_of(edge))
        if migration is None:
            return None
        if message["type"] == "cut":
            self._was_cut(migration, edge, message["sequence"])
        else:
            self.abandon(migration.operator, message["reason"])
        return self._orphan(migration)

    def _cut(self, migration: Migration) -> None:
        old = self._crew.workers[migration.operator]
        migration.cut_seconds = time.monotonic()
        if operator_type(migration.assignment.op).sink:
            migration.stage = Stage.KILLING
            old.signal(signal.SIGKILL)
        elif not migration.assignment.inputs:
            migration.stage = Stage.DRAINING
            tell(old.channel, "hand_over")
        else:
            migration.stage = Stage.CUTTING
            self._crew.wiring.cut(migration.operator, self._crew.channels)

    def _was_cut(self, migration: Migration, edge: str, sequence: int) -> None:
        migration.cut[edge] = sequence
        migration.stage = Stage.DRAINING
        self._crew.wiring.was_cut(migration.operator, edge, migration.beside.channel)

    def _orphan(self, migration: Migration) -> WorkerProcess | None:
        old = self._crew.workers[migration.operator]
        return old if old.state == "dead" else None

    # -- deaths ----------------------------------------------------------------------------------------------------

    def death_of(self, old: WorkerProcess) -> Verdict:
        """The process that works now is dead."""
        migration = self._under_way.get(old.operator)
        if migration is None or migration.stage is Stage.DRAINING:
            return Verdict.NOTHING
        if migration.stage is Stage.KILLING:
            return Verdict.TAKE_OVER
        if migration.stage is Stage.CUTTING:
            return Verdict.WAIT
        self.abandon(old.operator, f"its old process {old.reap()}")
        return Verdict.NOTHING

    def producer_died(self, producer: str) -> list[WorkerProcess]:
        """A producer is dead, and its rings are ended: what it was asked to cut is cut, or is not."""
        orphans = []
        for migration in list(self._under_way.values()):
            edge = next((edge for edge in migration.assignment.inputs if edge.producer == producer), None)
            if migration.stage is not Stage.CUTTING or edge is None:
                continue
            sequence = self._crew.wiring.cut_by_the_dead(migration.operator, edge.key)
            if sequence is None:
                self.abandon(migration.operator, f"its producer {producer} died")
            else:
                self._was_cut(migration, edge.key, sequence)
            if (orphan := self._orphan(migration)) is not None:
                orphans.append(orphan)
        return orphans

    # -- ends ------------------------------------------------------------------------------------------------------

    def take_over(self, old: WorkerProcess) -> WorkerProcess | None:
        """The old instance has done its share, or is dead (sinks): the new one goes on.

        Returns the new one when it is dead by now.
        """
        name, crew = old.operator, self._crew
        migration = self._under_way.pop(name)
        beside = crew.workers[name] = migration.beside
        crew.assignments[name] = migration.assignment
        crew.legacies[name].note_published(crew.wiring.end_rings_of(name, "migrated"))
        beside.inherit(old)
        lives = beside.alive and self._begin_rings(beside)
        if lives and migration.stage is Stage.KILLING:
            crew.wiring.succeed(name, crew.channels)
        if migration.stage is Stage.KILLING:
            old.close()
        else:
            crew.wiring.leave(name, crew.channels)
            self.retired.append(old)
        if not lives:
            crew.unwatch(beside)
            crew.wiring.withdraw(name)
            return beside
        crew.continue_with(beside, "migrated")
        crew.say(Notice(name, "migrated", migration.report(old, time.monotonic())))
        return None

    def _begin_rings(self, beside: WorkerProcess) -> bool:
        """Let its rings begin where the old ones ended, and connect them; False when it dies meanwhile."""
        finals = self._crew.wiring.final_sequences(beside.operator)
        try:
            for port, final in finals.items():
                tell(beside.channel, "begin", port=port, first_sequence=final)
            for _ in finals:
                self._crew.recruiter.expect(beside, "begun")
        except WorkerDied:
            return False
        self._crew.wiring.open_ports(beside.operator, self._crew.channels)
        return True

    def abandon(self, operator: str, why: str) -> None:
        """Give one up before the cut: the old instance works on. After the cut nothing happens."""
        migration = self._under_way.get(operator)
        if migration is None or migration.committed:
            return
        del self._under_way[operator]
        self._discard(migration.beside, self._crew.workers[operator])
        self._crew.say(Notice(operator, "stayed", {"why": why}))

    def _discard(self, beside: WorkerProcess, old: WorkerProcess) -> None:
        self._crew.unwatch(beside)
        self._crew.wiring.withdraw(beside.operator)
        beside.signal(signal.SIGKILL)
        beside.wait(KILL_SECONDS)
        beside.scratch = [path for path in beside.scratch if path not in old.scratch]
        beside.remove_scratch()
        beside.close()

    def close(self) -> None:
        """The job ends: new instances have done nothing yet."""
        for migration in self._under_way.values():
            self._discard(migration.beside, self._crew.workers[migration.operator])
        self._under_way.clear()


def consumer_of(edge: str) -> str:
    """The operator that reads the edge of that key (`a->b`, `a->b:audio`)."""
    return edge.partition("->")[2].partition(":")[0]


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
