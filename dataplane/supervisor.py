"""The supervisor: starts one worker per operator, connects their rings, watches them, and ends them all.

It is driven by its caller: `start`, then `poll` until `finished`. Nothing per frame passes through here; queue depths
are read from the rings' own shared words. A worker that dies is succeeded by another process, which gets its input
again from the first payload that was not acknowledged and continues its rings (dataplane/wiring.py).
"""

from __future__ import annotations

import contextlib
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NoReturn, Self

from dataplane import _ring
from dataplane.assignment import Assignment
from dataplane.continuation import Legacy
from dataplane.control import END_SIGNAL, Channel, ControlClosed, close_all, error_of
from dataplane.errors import CannotMigrate, DataplaneError, WorkerDied
from dataplane.fabric import Fabric
from dataplane.migration import Migration, Stage, check_migration
from dataplane.notices import Notice
from dataplane.operators.base import Loss
from dataplane.operators.handover import resume_as_json
from dataplane.operators.registry import operator_type
from dataplane.process import NurseryProcess, WorkerProcess
from dataplane.recruiting import Recruiter, death_of
from dataplane.restarts import WINDOW_SECONDS, Backoff
from dataplane.wiring import Wiring, tell

ROOT_CAUSE_SECONDS = 2.0  # how long a "my producer failed" waits for the producer's own word
EVENT_RING_CAPACITY = 1 << 14
PRUNE_SECONDS = 0.5


class Supervisor:
    """All workers of one job.

    Args:
        assignments: one per operator, producers before consumers.
        log_folder: where each worker's standard error goes (one file per operator); it must exist.
        nursery: where workers come from; its owner closes it, after this.
        fabric: whose links their edges cross, where they say so.
    """

    def __init__(
        self,
        assignments: Sequence[Assignment],
        log_folder: Path,
        nursery: NurseryProcess,
        fabric: Fabric | None = None,
    ) -> None:
        self._assignments = {a.operator: a for a in assignments}
        self.workers: dict[str, WorkerProcess] = {}
        self.event_rings: dict[str, _ring.EventRing] = {}
        self._extra_rings: list[_ring.EventRing] = []  # of processes beside others
        self.wiring = Wiring(assignments, self._perished)
        self._recruiter = Recruiter(log_folder, nursery, fabric, self.wiring, self._say)
        self._migrations: dict[str, Migration] = {}
        self._retired: list[WorkerProcess] = []  # handed over, and about to end
        self._legacies: dict[str, Legacy] = {a.operator: Legacy() for a in assignments}
        self._backoffs: dict[str, Backoff] = {a.operator: Backoff() for a in assignments}
        self._due: dict[str, tuple[float, float]] = {}  # dead operator -> when it is succeeded, when it was seen dead
        self._selector = selectors.DefaultSelector()
        self._closed = False
        self._started = False  # operators may have begun to work
        self._second_hand: tuple[float, DataplaneError] | None = None
        self._early: list[Notice] = []  # for the next, or this, poll
        self._stopping = False
        self._pruned = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- start ---------------------------------------------------------------------------------------------------

    def start(self, cancelled: Callable[[], bool] = lambda: False) -> None:
        """Start and connect all workers; `cancelled` is looked at while waiting for them.

        Raises DataplaneError (Stopped: cancelled); call `close` then, too.
        """
        self._recruiter.cancelled = cancelled
        for name in self._assignments:
            self.workers[name] = self._recruiter.spawn(name)
        for name, assignment in self._assignments.items():
            events = self.event_rings[name] = _ring.EventRing.create(EVENT_RING_CAPACITY)
            first = {port.port: 0 for port in assignment.outputs}
            self._recruiter.configure(self.workers[name], assignment, events, first_sequences=first)
        for worker in self.workers.values():
            self._recruiter.collect(worker)
        self.wiring.connect(self._channels)
        self._started = True
        for worker in self.workers.values():
            self._watch(worker)
            self._release(worker)

    def _say(self, notice: Notice) -> None:
        self._early.append(notice)

    @property
    def _channels(self) -> dict[str, Channel]:
        return {name: worker.channel for name, worker in self.workers.items()}

    def _release(self, worker: WorkerProcess) -> None:
        """Everything is connected: let it work."""
        tell(worker.channel, "start")
        worker.state = "running"

    def _watch(self, worker: WorkerProcess) -> None:
        """Listen to it from now on."""
        self._selector.register(worker.channel, selectors.EVENT_READ, worker)
        self._selector.register(worker.pidfd, selectors.EVENT_READ, worker)

    # -- run -----------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether every worker has come to its end and is gone."""
        return not self._retired and all(w.state == "done" and not w.alive for w in self.workers.values())

    def poll(self, timeout_seconds: float) -> list[Notice]:
        """What workers said within the timeout; the first call also gives what they said during the start.

        Raises:
            DataplaneError: a worker failed or died; its own words when it had any.
        """
        notices, self._early = self._early, []
        for key, _ in self._selector.select(self._until_due(timeout_seconds)):
            worker: WorkerProcess = key.data
            if isinstance(key.fileobj, Channel):
                self._hear(worker, notices)
            else:
                self._bury(worker, notices)
        self._succeed_the_dead(notices)
        self._prune()
        notices += self._early
        self._early = []
        if self._second_hand is not None and time.monotonic() - self._second_hand[0] > ROOT_CAUSE_SECONDS:
            raise self._second_hand[1]
        return notices

    def _hear(self, worker: WorkerProcess, notices: list[Notice]) -> None:
        """Read everything one worker has said by now."""
        try:
            while (received := worker.channel.receive(0.0)) is not None:
                message, fds = received
                close_all(fds)
                self._note(worker, message, notices)
        except ControlClosed:
            self._selector.unregister(worker.channel)
            worker.listening = False

    def _note(self, worker: WorkerProcess, message: dict[str, Any], notices: list[Notice]) -> None:
        kind = message["type"]
        if kind == "failed" and self._is_beside(worker):
            self._abandon(worker.operator, f"its new process failed: {message['error'].get('message')}")
            return
        if kind == "failed":
            worker.state = "failed"
            error = error_of(message, worker.operator)
            if not message.get("stopped"):
                raise error
            if self._second_hand is None:
                self._second_hand = (time.monotonic(), error)
            return
        if kind in ("warm", "cut", "uncut"):
            self._advance(worker, message)
            return
        legacy = self._legacies[worker.operator]
        if kind == "checkpoint":
            legacy.state = message["state"]
            return
        if kind == "replaced":
            self.wiring.replaced(worker.operator, message["port"], message["edge"], message["lost"])
            return
        if kind == "lost":
            legacy.note_loss(Loss(message["source_index"], message["pts"], message["reason"]))
        elif kind == "scratch":
            worker.note_scratch(Path(message["path"]))
        elif kind == "done":
            worker.state = "done"
            worker.frames = message["frames"]
            worker.cpu_seconds = message["cpu_seconds"]
            if message["handed_over"]:
                self._take_over(worker)
                return
            self._abandon(worker.operator, "its input ended before that")
        notices.append(Notice(worker.operator, kind, message))

    def _bury(self, worker: WorkerProcess, notices: list[Notice]) -> None:
        """A worker process is gone: hear its last words; another one goes on where it had not come to its end."""
        self._selector.unregister(worker.pidfd)
        if worker.listening:
            self._hear(worker, notices)
        if worker in self._retired:
            self._retired.remove(worker)
            worker.close()
        elif self._is_beside(worker):
            self._abandon(worker.operator, f"its new process {worker.reap()}")
        elif worker.state not in ("done", "failed"):
            self._mourn(worker, notices)

    # -- deaths ----------------------------------------------------------------------------------------------------

    def _mourn(self, worker: WorkerProcess, notices: list[Notice]) -> None:
        """End the rings of a worker that died; another one follows, or WorkerDied is raised."""
        name, seen = worker.operator, time.monotonic()
        migration = self._migrations.get(name)
        if migration is not None and migration.stage is Stage.KILLING:
            self._take_over(worker)
            return
        if migration is not None and not migration.committed:
            self._abandon(name, f"its old process {worker.reap()}")
        delay = self._backoffs[name].died(seen) if self._may_be_succeeded(name) else None
        trails = self.wiring.end_rings_of(name, "failed" if delay is None else "migrated")
        if delay is None:
            self._give_up(worker)
        self._legacies[name].note_published(trails)
        worker.state = "dead"
        self._due[name] = (seen + delay, seen)
        notices.append(Notice(name, "died", {"how": worker.reap(), "pid": worker.pid, "delay_seconds": delay}))

    def _may_be_succeeded(self, operator: str) -> bool:
        assignment = self._assignments[operator]
        kind = operator_type(assignment.op)
        return kind.restart(kind.Params.model_validate(assignment.params), assignment.source).after_death

    def _give_up(self, worker: WorkerProcess) -> NoReturn:
        error = death_of(worker)
        if not (deaths := self._backoffs[worker.operator].deaths):
            worker.state = "dead"
            raise error
        worker.state = "quarantined"
        raise WorkerDied(
            f"operator {worker.operator} is quarantined: {deaths} deaths within {WINDOW_SECONDS:g} s, at last: {error}",
            mend="see its log; where it dies at the same frame each time, that frame or its codec is at fault",
        )

    def _perished(self, edge: str, source_indices: list[int]) -> None:
        if source_indices:
            operator = edge.partition("->")[2].partition(":")[0]
            self._early.append(Notice(operator, "perished", {"edge": edge, "source_indices": source_indices}))

    def _until_due(self, timeout_seconds: float) -> float:
        now = time.monotonic()
        return max(0.0, min([timeout_seconds, *(due - now for due, _ in self._due.values())]))

    def _succeed_the_dead(self, notices: list[Notice]) -> None:
        now = time.monotonic()
        for name in [name for name, (due, _) in self._due.items() if due <= now]:
            _, seen = self._due.pop(name)
            dead, legacy = self.workers[name], self._legacies[name]
            legacy.incarnation += 1
            heir = self.workers[name] = self._recruiter.spawn(name, dead)
            dead.close()
            try:
                self._install(heir)
            except WorkerDied:
                self.wiring.withdraw(name)
                self._mourn(heir, notices)
                continue
            seconds = time.monotonic() - seen
            message = {"pid": heir.pid, "incarnation": legacy.incarnation, "seconds": seconds}
            notices.append(Notice(name, "succeeded", message))

    def _install(self, heir: WorkerProcess) -> None:
        """Give a new worker the place of the dead one. Raises WorkerDied when it dies meanwhile."""
        name, migration = heir.operator, self._migrations.get(heir.operator)
        offers = self.wiring.set_aside(name)
        self._recruiter.configure(
            heir,
            self._assignments[name],
            self.event_rings[name],  # one process after the other writes there
            incarnation=self._legacies[name].incarnation,
            first_sequences=self.wiring.final_sequences(name),
        )
        self._recruiter.collect(heir)
        self.wiring.open_ports(name, self._channels)
        self.wiring.succeed(name, self._channels, leaving=migration is not None)
        self.wiring.put_back(offers)
        self._continue(heir, "died")
        self._watch(heir)
        if (self._stopping or migration is not None) and not self._assignments[name].inputs:
            tell(heir.channel, "stop" if migration is None else "hand_over")

    def _continue(self, heir: WorkerProcess, reason: Literal["died", "migrated"]) -> None:
        resume = self._legacies[heir.operator].resume(reason)
        tell(heir.channel, "continue", resume=resume_as_json(resume))
        self._release(heir)

    # -- migrations ------------------------------------------------------------------------------------------------

    def migrate(self, operator: str, assignment: Assignment | None = None) -> None:
        """Let another process go on with the work of an operator, under that assignment where one is given.

        Returns once the new process warms up; a notice says "migrated" or "stayed" later.

        Raises:
            CannotMigrate: it cannot be moved, or not now.
        """
        old = self.workers[operator]
        assignment = assignment or self._assignments[operator]
        if old.state != "running" or self._stopping or operator in self._migrations:
            raise CannotMigrate(f"operator {operator} cannot be moved now: it is {old.state}, or being moved")
        check_migration(assignment)
        legacy = self._legacies[operator]
        legacy.incarnation += 1
        beside = self._recruiter.spawn(operator, None)
        beside.restarts = old.restarts
        events = _ring.EventRing.create(EVENT_RING_CAPACITY)
        try:
            self._recruiter.configure(
                beside, assignment, events, incarnation=legacy.incarnation, first_sequences={}, beside=True
            )
            self._recruiter.collect(beside)
        except DataplaneError as error:
            self.wiring.withdraw(operator)
            beside.signal(signal.SIGKILL)
            beside.close()
            raise CannotMigrate(
                f"operator {operator} stays where it is, its new process did not start: {error}"
            ) from None
        self._migrations[operator] = Migration(operator, beside, assignment)
        self._extra_rings.append(events)
        self._say(Notice(operator, "events", {"ring": events}))
        self._watch(beside)

    def _is_beside(self, worker: WorkerProcess) -> bool:
        migration = self._migrations.get(worker.operator)
        return migration is not None and migration.beside is worker

    def _advance(self, worker: WorkerProcess, message: dict[str, Any]) -> None:
        """A migration goes one step on: the new instance is warm, or a producer answered."""
        name = worker.operator
        if message["type"] == "warm":
            self._cut(self._migrations[name])
            return
        name = message["edge"].partition("->")[2].partition(":")[0]
        migration = self._migrations.get(name)
        if migration is None:
            return
        if message["type"] == "uncut":
            self._abandon(name, message["reason"])
            return
        migration.cut[message["edge"]] = message["sequence"]
        migration.awaited.discard(message["edge"])
        migration.stage = Stage.DRAINING
        self.wiring.was_cut(name, message["edge"], migration.beside.channel)

    def _cut(self, migration: Migration) -> None:
        name = migration.operator
        old = self.workers[name]
        migration.cut_seconds = time.monotonic()
        if operator_type(migration.assignment.op).sink:
            migration.stage = Stage.KILLING
            old.signal(signal.SIGKILL)
        elif not migration.assignment.inputs:
            migration.stage = Stage.DRAINING
            tell(old.channel, "hand_over")
        else:
            migration.stage = Stage.CUTTING
            migration.awaited = set(self.wiring.cut(name, self._channels))

    def _take_over(self, old: WorkerProcess) -> None:
        """The old instance has done its share, or is dead (sinks): the new one goes on."""
        name = old.operator
        migration = self._migrations.pop(name)
        beside = migration.beside
        self._legacies[name].note_published(self.wiring.end_rings_of(name, "migrated"))
        beside.inherit(old)
        self.workers[name] = beside
        self._assignments[name] = migration.assignment
        try:
            self._begin(beside)
        except WorkerDied:
            beside.channel.close()  # it is succeeded as soon as its pidfd is looked at
        self.wiring.open_ports(name, self._channels)
        if migration.stage is Stage.KILLING:
            self.wiring.succeed(name, self._channels)
            old.close()
        else:
            self.wiring.leave(name, self._channels)
            self._retired.append(old)
        self._continue(beside, "migrated")
        now = time.monotonic()
        message = {
            "pid": beside.pid,
            "old_pid": old.pid,
            "cut": migration.cut,
            "warming_seconds": (migration.cut_seconds or now) - migration.began_seconds,
            "cut_over_seconds": now - (migration.cut_seconds or now),
        }
        self._say(Notice(name, "migrated", message))

    def _begin(self, beside: WorkerProcess) -> None:
        """Let its rings begin where the old ones ended, and wait until it has done so."""
        finals = self.wiring.final_sequences(beside.operator)
        for port, final in finals.items():
            tell(beside.channel, "begin", port=port, first_sequence=final)
        for _ in finals:
            self._recruiter.expect(beside, "begun")

    def _abandon(self, operator: str, why: str) -> None:
        """Give a migration up before the cut: the old instance works on."""
        migration = self._migrations.get(operator)
        if migration is None or migration.committed:
            return
        del self._migrations[operator]
        beside = migration.beside
        beside.signal(signal.SIGKILL)
        for watched in (beside.channel, beside.pidfd):
            with contextlib.suppress(KeyError):
                self._selector.unregister(watched)
        self.wiring.withdraw(operator)
        beside.wait(5.0)
        beside.close()
        self._say(Notice(operator, "stayed", {"why": why}))

    def _prune(self) -> None:
        if time.monotonic() - self._pruned > PRUNE_SECONDS:
            self._pruned = time.monotonic()
            self.wiring.prune()

    # -- talking ---------------------------------------------------------------------------------------------------

    def answer_epoch(self, operator: str, epoch: int) -> None:
        """Tell a source the number of the epoch it asked for; if it is gone meanwhile, `poll` says so."""
        with contextlib.suppress(ControlClosed):
            self.workers[operator].channel.send("epoch", epoch=epoch)

    def queues(self) -> dict[str, dict[str, int]]:
        """Per edge: `queued` (published, not yet taken) and `held` (taken, not acknowledged), right now."""
        return self.wiring.queues()

    # -- end -----------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ask the sources to end early; what is in flight is finished and the outputs stay playable."""
        self._stopping = True
        for name, assignment in self._assignments.items():
            if not assignment.inputs and self.workers[name].state == "running":
                tell(self.workers[name].channel, "stop")

    def close(self, grace_seconds: float = 2.0) -> None:
        """End all workers still alive (asked to, then SIGKILL), remove their temporary files, free everything.

        Workers that have not been started get no grace: they have nothing to clear up. A second call does nothing.
        """
        if self._closed:
            return
        self._closed = True
        for migration in self._migrations.values():
            migration.beside.signal(signal.SIGKILL)
            migration.beside.wait(5.0)
            migration.beside.close()
        everybody = [*self.workers.values(), *self._retired]
        for worker in everybody:
            worker.signal(END_SIGNAL)
        deadline = time.monotonic() + (grace_seconds if self._started else 0.0)
        for worker in everybody:
            worker.wait(max(0.0, deadline - time.monotonic()))
        for worker in everybody:
            worker.signal(signal.SIGKILL)
            worker.wait(5.0)
            if worker.state != "done":
                worker.remove_scratch()
            worker.close()
        self.wiring.close()
        self._selector.close()

    def close_event_rings(self) -> None:
        """Unmap the event rings, once the collector has read their last events."""
        for ring in [*self.event_rings.values(), *self._extra_rings]:
            ring.close()
        self.event_rings.clear()
        self._extra_rings.clear()
