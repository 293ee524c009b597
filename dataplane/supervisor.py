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
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from dataplane import _ring
from dataplane.assignment import Assignment
from dataplane.continuation import Legacy
from dataplane.control import END_SIGNAL, Channel, ControlClosed, check_hello, close_all, error_of
from dataplane.errors import DataplaneError, Stopped, WorkerDied
from dataplane.fabric import Fabric
from dataplane.operators.base import Loss
from dataplane.operators.handover import resume_as_json
from dataplane.operators.registry import operator_type
from dataplane.process import NurseryProcess, WorkerProcess
from dataplane.restarts import WINDOW_SECONDS, Backoff
from dataplane.wiring import Wiring, tell

HANDSHAKE_SECONDS = 60.0
START_SLICE_SECONDS = 0.1  # longest sleep before asking whether the start is still wanted
ROOT_CAUSE_SECONDS = 2.0  # how long a "my producer failed" waits for the producer's own word
LOG_NAME = 200  # characters of an operator's name in its log's; what is cut off shares a log
EVENT_RING_CAPACITY = 1 << 14
PRUNE_SECONDS = 0.5


class Notice:
    """One thing a worker said while running, or the supervisor itself.

    `kind` is lost, dropped, source, warning, output, mapped, pool, terminated, done or epoch: the worker of a source
    waits for `Supervisor.answer_epoch` then. The supervisor says died (`how`, `pid`, and `delay_seconds` until
    it is succeeded), succeeded (`pid`, `incarnation`, `seconds` since the death was seen) and perished (of an `edge`
    under drop_oldest: `source_indices` that its dead consumer held).
    """

    __slots__ = ("kind", "message", "operator")

    def __init__(self, operator: str, kind: str, message: dict[str, Any]) -> None:
        self.operator = operator
        self.kind = kind
        self.message = message


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
        self._nursery = nursery
        self._assignments = {a.operator: a for a in assignments}
        self._log_folder = log_folder
        self._fabric = fabric
        self.workers: dict[str, WorkerProcess] = {}
        self.event_rings: dict[str, _ring.EventRing] = {}
        self.wiring = Wiring(assignments, self._perished)
        self._legacies: dict[str, Legacy] = {a.operator: Legacy() for a in assignments}
        self._backoffs: dict[str, Backoff] = {a.operator: Backoff() for a in assignments}
        self._due: dict[str, tuple[float, float]] = {}  # dead operator -> when it is succeeded, when it was seen dead
        self._selector = selectors.DefaultSelector()
        self._closed = False
        self._started = False  # operators may have begun to work
        self._cancelled: Callable[[], bool] = lambda: False
        self._second_hand: tuple[float, DataplaneError] | None = None
        self._early: list[Notice] = []  # said during the start
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
        self._cancelled = cancelled
        for name in self._assignments:
            log = self._log_folder / f"{name[:LOG_NAME]}.log"
            self.workers[name] = WorkerProcess(name, self._nursery, log, cancelled)
        for name, assignment in self._assignments.items():
            self._configure(self.workers[name], assignment, {port.port: 0 for port in assignment.outputs})
        for worker in self.workers.values():
            self._collect(worker)
        self.wiring.connect(self._channels)
        self._started = True
        for worker in self.workers.values():
            self._release(worker)

    @property
    def _channels(self) -> dict[str, Channel]:
        return {name: worker.channel for name, worker in self.workers.items()}

    def _release(self, worker: WorkerProcess) -> None:
        """Everything is connected: let it work, and listen to it."""
        tell(worker.channel, "start")
        worker.state = "running"
        self._selector.register(worker.channel, selectors.EVENT_READ, worker)
        self._selector.register(worker.pidfd, selectors.EVENT_READ, worker)

    def _configure(self, worker: WorkerProcess, assignment: Assignment, first_sequences: Mapping[str, int]) -> None:
        check_hello(self._expect(worker, "hello"), worker.operator)
        # One process after the other writes there.
        events = self.event_rings.setdefault(worker.operator, _ring.EventRing.create(EVENT_RING_CAPACITY))
        fabric = () if self._fabric is None else self._fabric.fds
        worker.channel.send(
            "configure",
            assignment=assignment.model_dump(mode="json"),
            incarnation=self._legacies[worker.operator].incarnation,
            first_sequences=dict(first_sequences),
            beside=False,
            fds=[events.fd, *fabric],
        )

    def _collect(self, worker: WorkerProcess) -> None:
        """Take the rings, slabs and pages a worker made."""
        while True:
            message, fds = self._next(worker, "ready")
            match message["type"]:
                case "port":
                    self.wiring.offer_port(worker.operator, message["port"], fds, message["slot_bytes"])
                case "page":
                    self.wiring.offer_page(worker.operator, message["edge"], fds[0])
                case "mapped":
                    self._early.append(Notice(worker.operator, "mapped", message))
                case "ready":
                    return
                case "failed":
                    raise error_of(message, worker.operator)
                case other:
                    close_all(fds)
                    raise DataplaneError(f"worker {worker.operator} said {other!r} during the start")

    def _expect(self, worker: WorkerProcess, kind: str) -> dict[str, Any]:
        message, fds = self._next(worker, kind)
        close_all(fds)
        if message["type"] == "failed":
            raise error_of(message, worker.operator)
        if message["type"] != kind:
            raise DataplaneError(f"worker {worker.operator} said {message['type']!r}, expected {kind!r}")
        return message

    def _next(self, worker: WorkerProcess, awaited: str) -> tuple[dict[str, Any], list[int]]:
        deadline = time.monotonic() + HANDSHAKE_SECONDS
        while time.monotonic() < deadline:
            try:
                received = worker.channel.receive(START_SLICE_SECONDS)
            except ControlClosed:
                raise self._death(worker) from None
            if received is not None:
                return received
            if self._cancelled():
                raise Stopped(f"stopped while worker {worker.operator} was starting")
        raise DataplaneError(f"worker {worker.operator}: no {awaited!r} within {HANDSHAKE_SECONDS:g} s")

    # -- run -----------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether every worker has come to its end and is gone."""
        return all(worker.state == "done" and not worker.alive for worker in self.workers.values())

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
        if kind == "failed":
            worker.state = "failed"
            error = error_of(message, worker.operator)
            if not message.get("stopped"):
                raise error
            if self._second_hand is None:
                self._second_hand = (time.monotonic(), error)
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
        notices.append(Notice(worker.operator, kind, message))

    def _bury(self, worker: WorkerProcess, notices: list[Notice]) -> None:
        """A worker process is gone: hear its last words; another one goes on where it had not come to its end."""
        self._selector.unregister(worker.pidfd)
        if worker.listening:
            self._hear(worker, notices)
        if worker.state not in ("done", "failed"):
            self._mourn(worker, notices)

    # -- deaths ----------------------------------------------------------------------------------------------------

    def _mourn(self, worker: WorkerProcess, notices: list[Notice]) -> None:
        """End the rings of a worker that died; another one follows, or WorkerDied is raised."""
        name, seen = worker.operator, time.monotonic()
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
        error = self._death(worker)
        if not (deaths := self._backoffs[worker.operator].deaths):
            worker.state = "dead"
            raise error
        worker.state = "quarantined"
        raise WorkerDied(
            f"operator {worker.operator} is quarantined: {deaths} deaths within {WINDOW_SECONDS:g} s, at last: {error}",
            mend="see its log; where it dies at the same frame each time, that frame or its codec is at fault",
        )

    def _death(self, worker: WorkerProcess) -> WorkerDied:
        how = worker.reap()
        tail = worker.log_tail()
        return WorkerDied(
            f"operator {worker.operator} (pid {worker.pid}) {how}" + (f"; its last words: {tail}" if tail else ""),
            mend="finished outputs are intact; run it again (SIGKILL without your doing: out of memory?)",
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
            dead = self.workers[name]
            legacy = self._legacies[name]
            legacy.incarnation += 1
            log = self._log_folder / f"{name[:LOG_NAME]}.log"
            heir = self.workers[name] = WorkerProcess(name, self._nursery, log, self._cancelled, dead)
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
        name = heir.operator
        self._configure(heir, self._assignments[name], self.wiring.final_sequences(name))
        self._collect(heir)
        self.wiring.open_ports(name, self._channels)
        self.wiring.succeed(name, self._channels)
        tell(heir.channel, "continue", resume=resume_as_json(self._legacies[name].resume("died")))
        self._release(heir)
        if self._stopping and not self._assignments[name].inputs:
            tell(heir.channel, "stop")

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
        for worker in self.workers.values():
            worker.signal(END_SIGNAL)
        deadline = time.monotonic() + (grace_seconds if self._started else 0.0)
        for worker in self.workers.values():
            worker.wait(max(0.0, deadline - time.monotonic()))
        for worker in self.workers.values():
            worker.signal(signal.SIGKILL)
            worker.wait(5.0)
            if worker.state != "done":
                worker.remove_scratch()
            worker.close()
        self.wiring.close()
        self._selector.close()

    def close_event_rings(self) -> None:
        """Unmap the event rings, once the collector has read their last events."""
        for ring in self.event_rings.values():
            ring.close()
        self.event_rings.clear()
