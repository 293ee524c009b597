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
from dataplane.errors import CannotMigrate, DataplaneError
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
    events: _ring.EventRing  # of the new instance
    assignment: Assignment
    stage: Stage = Stage.WARMING
    cut: dict[str, int] = field(default_factory=dict)
    began_seconds: float = field(default_factory=time.monotonic)
    cut_seconds: float | None = None  # when it was asked for
    share_done: bool = False  # of the old instance

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
        self.retired: dict[WorkerProcess, _ring.EventRing] = {}  # handed over, and about to end

    @property
    def event_rings(self) -> list[_ring.EventRing]:
        """Those of processes that are not the ones that do the work now."""
        return [*self.retired.values(), *(migration.events for migration in self._under_way.values())]

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
        check_migration(assignment)
        self._check_moment(operator, old)
        if operator in crew.guests and not operator_type(assignment.op).sink:
            words = "it reads what another pipeline shares with this one, which is not handed over yet"
            raise CannotMigrate(f"operator {operator} cannot be moved while it runs: {words}")
        legacy = crew.legacies[operator]
        legacy.incarnation += 1
        try:
            events = _ring.EventRing.create(EVENT_RING_CAPACITY)
            beside = crew.recruiter.spawn(operator, beside=old)
            try:
                crew.recruiter.configure(
                    beside, assignment, events, incarnation=legacy.incarnation, first_sequences={}, beside=True
                )
                crew.recruiter.collect(beside)
            except BaseException:
                self._discard(beside, old)
                raise
        except (DataplaneError, _ring.RingError) as error:
            words = f"operator {operator} stays where it is, its new process did not start: {error}"
            raise CannotMigrate(words) from None
        self._under_way[operator] = Migration(operator, beside, events, assignment)
        crew.say(Notice(operator, "events", {"ring": events}))
        crew.watch(beside)

    def _check_moment(self, operator: str, old: WorkerProcess) -> None:
        """Raises CannotMigrate where it cannot be moved now. Neighbours are not moved at once: one cuts the other."""
        crew = self._crew
        if crew.stopping:
            raise CannotMigrate(f"operator {operator} cannot be moved now: the job ends")
        if old.state != "running":
            raise CannotMigrate(f"operator {operator} cannot be moved now: it is {old.state}")
        for moving in self._under_way:
            if moving == operator or self._reads(moving, operator) or self._reads(operator, moving):
                raise CannotMigrate(f"operator {operator} cannot be moved now: {moving} is being moved")

    def _reads(self, consumer: str, producer: str) -> bool:
        return any(edge.producer == producer for edge in self._crew.assignments[consumer].inputs)

    def advance(self, worker: WorkerProcess, message: dict[str, Any]) -> WorkerProcess | None:
        """The new instance is warm, or a producer answered; the old instance where it has ended meanwhile."""
        if message["type"] == "warm":
            if self.is_beside(worker):
                self._cut(self._under_way[worker.operator])
            return None
        edge = message["edge"]
        migration = self._under_way.get(consumer_of(edge))
        if migration is None or migration.stage is not Stage.CUTTING:
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
        elif idle := [name for name in self._producers(migration) if self._crew.workers[name].state != "running"]:
            self.abandon(migration.operator, f"its producer {idle[0]} is {self._crew.workers[idle[0]].state}")
        else:
            migration.stage = Stage.CUTTING
            self._crew.wiring.cut(migration.operator, self._crew.channels)

    @staticmethod
    def _producers(migration: Migration) -> list[str]:
        return [edge.producer for edge in migration.assignment.inputs]

    def _was_cut(self, migration: Migration, edge: str, sequence: int) -> None:
        migration.cut[edge] = sequence
        migration.stage = Stage.DRAINING
        self._crew.wiring.was_cut(migration.operator, edge, migration.beside.channel)

    def _orphan(self, migration: Migration) -> WorkerProcess | None:
        old = self._crew.workers[migration.operator]
        return old if old.state == "dead" or migration.share_done else None

    def handed_over(self, old: WorkerProcess) -> bool:
        """The old instance has done its share; whether the new one may take over.

        It sees the cut as soon as its producer has made it, perhaps before that has said so.
        """
        migration = self._under_way.get(old.operator)
        if migration is None:
            raise DataplaneError(f"operator {old.operator} (pid {old.pid}) was cut off for nobody")
        migration.share_done = True
        return migration.stage is not Stage.CUTTING

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

    def beside_ended(self, beside: WorkerProcess, how: str) -> None:
        """The new instance is dead. Once the producers were asked, only their answer tells whether it has a share."""
        if self._under_way[beside.operator].stage is Stage.WARMING:
            self.abandon(beside.operator, f"its new process {how}")

    def old_ended(self, old: WorkerProcess) -> None:
        """The old instance came to the end of its input, and hands nothing over."""
        migration = self._under_way.get(old.operator)
        if migration is not None and migration.stage is not Stage.CUTTING:  # else its producer is about to say "uncut"
            self.abandon(old.operator, "its input ended before that")

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
        crew.legacies[name].note_published(crew.wiring.trails_of(name))
        self.retired[old], crew.event_rings[name] = crew.event_rings[name], migration.events
        beside.inherit(old)
        lives = beside.alive and self._begin_rings(beside)
        if migration.stage is not Stage.KILLING:
            crew.wiring.leave(name, crew.channels)
        elif lives:
            crew.wiring.succeed(name, crew.channels)
        if old.buried:
            self.bury(old)
        crew.say(Notice(name, "migrated", migration.report(old, time.monotonic())))
        if not lives:
            crew.unwatch(beside)
            crew.wiring.withdraw(name)
            return beside
        crew.continue_with(beside, "migrated")
        return None

    def _begin_rings(self, beside: WorkerProcess) -> bool:
        """Let its rings begin where the old ones ended, and connect them; False when it dies meanwhile."""
        finals = self._crew.wiring.final_sequences(beside.operator)
        try:
            for port, final in finals.items():
                tell(beside.channel, "begin", port=port, first_sequence=final)
            for _ in finals:
                self._crew.recruiter.expect(beside, "begun")
        except DataplaneError:  # whatever it is, the work goes on in another process
            beside.signal(signal.SIGKILL)
            beside.wait(KILL_SECONDS)
            return False
        self._crew.wiring.open_ports(beside.operator, self._crew.channels)
        return True

    def bury(self, old: WorkerProcess) -> None:
        """The process of an old instance is gone."""
        self._crew.say(Notice(old.operator, "events_end", {"ring": self.retired.pop(old)}))
        old.close(log_goes_on=True)

    def abandon(self, operator: str, why: str) -> None:
        """Give one up that has not cut: the old instance works on."""
        migration = self._under_way.pop(operator)
        self._discard(migration.beside, self._crew.workers[operator])
        self._crew.say(Notice(operator, "events_end", {"ring": migration.events}))
        self._crew.say(Notice(operator, "stayed", {"why": why}))

    def _discard(self, beside: WorkerProcess, old: WorkerProcess) -> None:
        self._crew.unwatch(beside)
        self._crew.wiring.withdraw(beside.operator)
        beside.signal(signal.SIGKILL)
        beside.wait(KILL_SECONDS)
        beside.scratch = [path for path in beside.scratch if path not in old.scratch]
        beside.remove_scratch()
        beside.close(log_goes_on=True)

    def close(self) -> None:
        """The job ends: new instances have done nothing yet."""
        for migration in self._under_way.values():
            self._discard(migration.beside, self._crew.workers[migration.operator])


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
