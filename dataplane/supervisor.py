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
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from dataplane import _ring
from dataplane.assignment import Assignment
from dataplane.continuation import Legacy
from dataplane.control import END_SIGNAL, Channel, ControlClosed, close_all, error_of
from dataplane.crew import EVENT_RING_CAPACITY, Crew
from dataplane.errors import DataplaneError, NoProcess, WorkerDied
from dataplane.fabric import Fabric
from dataplane.foreign import Host
from dataplane.migration import Migrations, Verdict
from dataplane.notices import Notice
from dataplane.operators.base import Loss
from dataplane.operators.registry import operator_type
from dataplane.process import NurseryProcess, WorkerProcess
from dataplane.recruiting import Recruiter, death_of
from dataplane.restarts import WINDOW_SECONDS, Backoff
from dataplane.wiring import Wiring, tell

ROOT_CAUSE_SECONDS = 2.0  # how long a "my producer failed" waits for the producer's own word
PRUNE_SECONDS = 0.5


class Supervisor:
    """All workers of one job.

    Args:
        assignments: one per operator, producers before consumers.
        log_folder: where each worker's standard error goes (one file per operator); it must exist.
        nursery: where workers come from; its owner closes it, after this.
        fabric: whose links their edges cross, where they say so.
        hosts: by operator that another supervisor has, this job's place among its readers.
        guard: held while `poll` does something, and not while it waits: for who shares the supervisor with threads.
    """

    def __init__(
        self,
        assignments: Sequence[Assignment],
        log_folder: Path,
        nursery: NurseryProcess,
        fabric: Fabric | None = None,
        *,
        hosts: Mapping[str, Host] | None = None,
        guard: AbstractContextManager[object] | None = None,
    ) -> None:
        self.wiring = Wiring(assignments, self._perished, hosts)
        self._hosts = dict(hosts or {})
        self._guard = contextlib.nullcontext() if guard is None else guard
        self._crew = Crew(
            {a.operator: a for a in assignments},
            {a.operator: Legacy() for a in assignments},
            self.wiring,
            Recruiter(log_folder, nursery, fabric, self.wiring, self._say),
            self._say,
            frozenset(a.operator for a in assignments if any(e.producer in self._hosts for e in a.inputs)),
        )
        self._to_note: set[str] = (
            set()
        )  # readers of other jobs' operators that were told of their end, and said nothing yet
        self._shares_end = False  # and they are to end then
        self.workers = self._crew.workers
        self.event_rings = self._crew.event_rings
        self._migrations = Migrations(self._crew)
        self._backoffs: dict[str, Backoff] = {a.operator: Backoff() for a in assignments}
        self._due: dict[str, tuple[float, float]] = {}  # dead operator -> when it is succeeded, when it was seen dead
        self._closed = False
        self._started = False  # operators may have begun to work
        self._second_hand: tuple[float, DataplaneError] | None = None
        self._asking: dict[str, WorkerProcess] = {}  # sources that wait for the number of an epoch
        self._early: list[Notice] = []  # for the next, or this, poll
        self._pruned = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- start ---------------------------------------------------------------------------------------------------

    def start(self, cancelled: Callable[[], bool] = lambda: False, *, hold: bool = False) -> None:
        """Start and connect all workers; `cancelled` is looked at while waiting for them.

        They begin to work at once or, with `hold`, when `release` is called.

        Raises DataplaneError (Stopped: cancelled); call `close` then, too.
        """
        crew, recruiter = self._crew, self._crew.recruiter
        recruiter.cancelled = cancelled
        for name in crew.assignments:
            self.workers[name] = recruiter.spawn(name)
        for name, assignment in crew.assignments.items():
            events = self.event_rings[name] = _ring.EventRing.create(EVENT_RING_CAPACITY)
            first = {port.port: 0 for port in assignment.outputs}
            recruiter.configure(self.workers[name], assignment, events, first_sequences=first)
        for worker in self.workers.values():
            recruiter.collect(worker)
        self.wiring.connect(crew.channels)
        recruiter.cancelled = lambda: False  # from now on who dies is succeeded, also while the job is being stopped
        if not hold:
            self.release()

    def release(self) -> None:
        """Let all workers begin."""
        self._started = True
        for worker in self.workers.values():
            self._crew.watch(worker)
            self._crew.release(worker)

    def migrate(self, operator: str, assignment: Assignment | None = None) -> None:
        """Let another process go on with the work of an operator, under that assignment where one is given.

        Returns once the new process warms up; a notice says "migrated" or "stayed" later.

        Raises:
            CannotMigrate: it cannot be moved, or not now.
        """
        if operator in self._hosts:
            self._hosts[operator].migrate(operator)
        else:
            self._migrations.begin(operator, assignment)

    @property
    def operators(self) -> list[str]:
        """Those of its own, and those that it reads from."""
        return [*self._hosts, *self.workers]

    def _say(self, notice: Notice) -> None:
        self._early.append(notice)

    # -- run -----------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether every worker has come to its end and is gone."""
        return not self._migrations.retired and all(w.state == "done" and not w.alive for w in self.workers.values())

    def poll(self, timeout_seconds: float) -> list[Notice]:
        """What workers said within the timeout; the first call also gives what they said during the start.

        Raises:
            DataplaneError: a worker failed or died; its own words when it had any.
        """
        ready = self._crew.selector.select(self._until_due(timeout_seconds))
        with self._guard:
            return self._heed(ready)

    def _heed(self, ready: Sequence[tuple[selectors.SelectorKey, int]]) -> list[Notice]:
        notices, self._early = self._early, []
        for key, _ in ready:
            if self._crew.selector.get_map().get(key.fd) is not key:
                continue  # what another one said has ended it
            worker: WorkerProcess = key.data
            if isinstance(key.fileobj, Channel):
                self._hear(worker, notices)
            else:
                self._bury(worker, notices)
        self._succeed_the_dead(notices)
        self._prune()
        for host in self.wiring.hosts:
            notices += host.take_notices()
        self._end_shares()
        notices += self._early
        self._early = []
        if self._second_hand is not None and time.monotonic() - self._second_hand[0] > ROOT_CAUSE_SECONDS:
            raise self._second_hand[1]
        return notices

    def _hear(self, worker: WorkerProcess, notices: list[Notice]) -> None:
        """Read everything one worker has said by now."""
        try:
            while worker.listening and (received := worker.channel.receive(0.0)) is not None:
                message, fds = received
                close_all(fds)
                self._note(worker, message, notices)
        except ControlClosed:
            self._crew.selector.unregister(worker.channel)
            worker.listening = False

    def _note(self, worker: WorkerProcess, message: dict[str, Any], notices: list[Notice]) -> None:
        kind = message["type"]
        if kind == "failed" and self._migrations.is_beside(worker):
            self._migrations.beside_ended(worker, f"failed: {message['error'].get('message')}")
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
            if (orphan := self._migrations.advance(worker, message)) is not None:
                self._go_on_without(orphan, notices)
            return
        if kind == "pool" and worker is not self.workers[worker.operator]:
            return  # of a process that has handed over
        if kind == "noted":
            self._to_note.discard(worker.operator)
            return
        legacy = self._crew.legacies[worker.operator]
        if kind == "checkpoint":
            legacy.state = message["state"]
            return
        if kind == "replaced":
            edge, leaving, lost = message["edge"], message["leaving"], message["lost"]
            self.wiring.replaced(worker.operator, message["port"], edge, leaving=leaving, lost=lost)
            return
        if kind == "lost":
            legacy.note_loss(Loss(message["source_index"], message["pts"], message["reason"]))
        elif kind == "scratch":
            worker.note_scratch(Path(message["path"]))
        elif kind == "done":
            worker.state = "done"
            self._to_note.discard(worker.operator)
            worker.frames = message["frames"]
            worker.cpu_seconds = message["cpu_seconds"]
            if message["handed_over"]:
                if self._migrations.handed_over(worker):
                    self._take_over(worker, notices)
                return
            self._migrations.old_ended(worker)
        elif kind == "epoch":
            self._asking[worker.operator] = worker
        notices.append(Notice(worker.operator, kind, message))

    def _bury(self, worker: WorkerProcess, notices: list[Notice]) -> None:
        """A worker process is gone: hear its last words; another one goes on where it had not come to its end."""
        self._crew.selector.unregister(worker.pidfd)
        worker.buried = True
        if worker.listening:
            self._hear(worker, notices)
        if self._migrations.is_beside(worker):
            self._migrations.beside_ended(worker, worker.reap())
        elif worker in self._migrations.retired:
            self.wiring.end_rings_of(worker.channel, "migrated")
            self._migrations.bury(worker)
        elif worker is not self.workers[worker.operator]:
            return  # its last words have ended its migration
        elif worker.state == "done":
            self._end_rings(worker, "end_of_stream", notices)
        elif worker.state != "failed":
            self._mourn(worker, notices)

    def _end_rings(self, worker: WorkerProcess, reason: str, notices: list[Notice]) -> None:
        """A process is gone: nothing that it was asked to do is left undone."""
        self.wiring.end_rings_of(worker.channel, reason)
        for orphan in self._migrations.producer_died(worker.operator):
            self._go_on_without(orphan, notices)

    def _go_on_without(self, old: WorkerProcess, notices: list[Notice]) -> None:
        """The old instance of a migration had ended before it was known where it was cut."""
        if old.state == "dead":
            self._mourn(old, notices)
        else:
            self._take_over(old, notices)

    # -- deaths ----------------------------------------------------------------------------------------------------

    def _mourn(self, worker: WorkerProcess, notices: list[Notice]) -> None:
        """End the rings of a worker that died; another one follows, or WorkerDied is raised."""
        name, seen = worker.operator, time.monotonic()
        worker.state = "dead"
        self._to_note.discard(name)  # its heir is told as it starts
        match self._migrations.death_of(worker):
            case Verdict.TAKE_OVER:
                self._take_over(worker, notices)
                return
            case Verdict.WAIT:
                return
        delay = self._backoffs[name].died(seen) if self._may_be_succeeded(name) else None
        if delay is None:
            self.wiring.end_rings_of(worker.channel, "failed")
            self._give_up(worker)
        notices.append(Notice(name, "died", {"how": worker.reap(), "pid": worker.pid, "delay_seconds": delay}))
        self._end_rings(worker, "migrated", notices)
        self._crew.legacies[name].note_published(self.wiring.trails_of(name))
        self._due[name] = (seen + delay, seen)

    def _take_over(self, old: WorkerProcess, notices: list[Notice]) -> None:
        """The old instance of a migration has done its share; if the new one is dead by now, it is succeeded."""
        if (dead := self._migrations.take_over(old)) is not None:
            self._mourn(dead, notices)

    def _may_be_succeeded(self, operator: str) -> bool:
        assignment = self._crew.assignments[operator]
        kind = operator_type(assignment.op)
        return kind.restart(kind.Params.model_validate(assignment.params), assignment.source).after_death

    def _give_up(self, worker: WorkerProcess) -> NoReturn:
        error = death_of(worker)
        if not (deaths := self._backoffs[worker.operator].deaths):
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
            dead, legacy = self.workers[name], self._crew.legacies[name]
            try:
                heir = self._crew.recruiter.spawn(name, dead)
            except NoProcess:  # for the moment, as a rule
                delay = self._backoffs[name].died(now)
                if delay is None:
                    raise
                self._due[name] = (now + delay, seen)
                continue
            legacy.incarnation += 1
            self.workers[name] = heir
            dead.close(log_goes_on=True)
            try:
                self._install(heir)
            except WorkerDied:
                self._mourn(heir, notices)
                continue
            seconds = time.monotonic() - seen
            message = {"pid": heir.pid, "incarnation": legacy.incarnation, "seconds": seconds}
            notices.append(Notice(name, "succeeded", message))

    def _install(self, heir: WorkerProcess) -> None:
        """Give a new worker the place of the dead one. Raises WorkerDied when it dies meanwhile."""
        name, crew = heir.operator, self._crew
        moving = self._migrations.under_way(name)
        offers = self.wiring.set_aside(name)
        try:
            crew.recruiter.configure(
                heir,
                crew.assignments[name],
                self.event_rings[name],  # one process after the other writes there
                incarnation=crew.legacies[name].incarnation,
                first_sequences=self.wiring.final_sequences(name),
            )
            crew.recruiter.collect(heir)
        except BaseException:
            self.wiring.withdraw(name)
            self.wiring.put_back(offers)
            raise
        self.wiring.open_ports(name, crew.channels)
        self.wiring.succeed(name, crew.channels, leaving=moving)
        self.wiring.put_back(offers)
        crew.watch(heir)
        crew.continue_with(heir, "died")
        if moving and not crew.assignments[name].inputs:
            tell(heir.channel, "hand_over")

    def _prune(self) -> None:
        if time.monotonic() - self._pruned > PRUNE_SECONDS:
            self._pruned = time.monotonic()
            self.wiring.prune()

    # -- talking ---------------------------------------------------------------------------------------------------

    def answer_epoch(self, operator: str, epoch: int) -> None:
        """Tell a source the number of the epoch it asked for; if it is gone meanwhile, `poll` says so."""
        if operator in self._hosts:
            self._hosts[operator].answer_epoch(operator)
            return
        with contextlib.suppress(ControlClosed):
            self._asking.pop(operator).channel.send("epoch", epoch=epoch)

    def queues(self) -> dict[str, dict[str, int]]:
        """Per edge: `queued` (published, not yet taken) and `held` (taken, not acknowledged), right now."""
        return self.wiring.queues()

    # -- end -----------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ask the sources to end early; what is in flight is finished and the outputs stay playable."""
        self._crew.stopping = True
        for name, assignment in self._crew.assignments.items():
            if not assignment.inputs and self.workers[name].state == "running":
                tell(self.workers[name].channel, "stop")
        self._shares_end = bool(self._crew.guests)
        for name in self._crew.guests:
            if self.workers[name].state == "running":
                self._to_note.add(name)
                tell(self.workers[name].channel, "last")

    def _end_shares(self) -> None:
        """Once all readers of other jobs' operators know that nobody comes after them, their input is cut off."""
        if self._shares_end and not self._to_note:
            self._shares_end = False
            for host in self.wiring.hosts:
                host.end()

    def close(self, grace_seconds: float = 2.0) -> None:
        """End all workers still alive (asked to, then SIGKILL), remove their temporary files, free everything.

        Workers that have not been started get no grace: they have nothing to clear up. A second call does nothing.
        """
        if self._closed:
            return
        self._closed = True
        self._migrations.close()
        everybody = [*self.workers.values(), *self._migrations.retired]
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
        self._crew.selector.close()

    def close_event_rings(self) -> None:
        """Unmap the event rings, once the collector has read their last events."""
        for ring in self.all_event_rings:
            ring.close()
        self.event_rings.clear()

    @property
    def all_event_rings(self) -> list[_ring.EventRing]:
        """Of the processes that work, of those that may take over from them, and of those that have handed over."""
        return [*self.event_rings.values(), *self._migrations.event_rings]
