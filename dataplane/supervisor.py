"""The supervisor: starts one worker per operator, connects their rings, watches them, and ends them all.

It is driven by its caller: `start`, then `poll` until `finished`. Nothing per frame passes through here; queue depths
are read from the rings' own shared words.
"""

from __future__ import annotations

import contextlib
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dataplane import _ring
from dataplane.assignment import Assignment
from dataplane.control import END_SIGNAL, Channel, ControlClosed, close_all, error_of
from dataplane.errors import DataplaneError, Stopped, WorkerDied
from dataplane.fabric import Fabric
from dataplane.process import NurseryProcess, WorkerProcess
from dataplane.wiring import Wiring

HANDSHAKE_SECONDS = 60.0
START_SLICE_SECONDS = 0.1  # longest sleep before asking whether the start is still wanted
ROOT_CAUSE_SECONDS = 2.0  # how long a "my producer failed" waits for the producer's own word
LOG_NAME = 200  # characters of an operator's name in its log's; what is cut off shares a log
EVENT_RING_CAPACITY = 1 << 14


class Notice:
    """One thing a worker said while running.

    `kind` is lost, dropped, source, warning, output, mapped, pool, terminated, done or epoch: the worker of a source
    waits for `Supervisor.answer_epoch` then.
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
        self.wiring = Wiring(assignments)
        self._selector = selectors.DefaultSelector()
        self._closed = False
        self._started = False  # operators may have begun to work
        self._cancelled: Callable[[], bool] = lambda: False
        self._second_hand: tuple[float, DataplaneError] | None = None
        self._early: list[Notice] = []  # said during the start

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
            self._configure(self.workers[name], assignment)
        for worker in self.workers.values():
            self._collect(worker)
        self.wiring.connect({name: worker.channel for name, worker in self.workers.items()})
        self._started = True
        for worker in self.workers.values():
            worker.channel.send("start")
            worker.state = "running"
            self._selector.register(worker.channel, selectors.EVENT_READ, worker)
            self._selector.register(worker.pidfd, selectors.EVENT_READ, worker)

    def _configure(self, worker: WorkerProcess, assignment: Assignment) -> None:
        self._expect(worker, "hello")
        events = _ring.EventRing.create(EVENT_RING_CAPACITY)
        self.event_rings[worker.operator] = events
        fabric = () if self._fabric is None else self._fabric.fds
        worker.channel.send("configure", assignment=assignment.model_dump(mode="json"), fds=[events.fd, *fabric])

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

    def _expect(self, worker: WorkerProcess, kind: str) -> None:
        message, fds = self._next(worker, kind)
        close_all(fds)
        if message["type"] == "failed":
            raise error_of(message, worker.operator)
        if message["type"] != kind:
            raise DataplaneError(f"worker {worker.operator} said {message['type']!r}, expected {kind!r}")

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
        for key, _ in self._selector.select(timeout_seconds):
            worker: WorkerProcess = key.data
            if isinstance(key.fileobj, Channel):
                self._hear(worker, notices)
            else:
                self._bury(worker, notices)
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
        if kind == "scratch":
            worker.note_scratch(Path(message["path"]))
        elif kind == "done":
            worker.state = "done"
            worker.frames = message["frames"]
            worker.cpu_seconds = message["cpu_seconds"]
        notices.append(Notice(worker.operator, kind, message))

    def _bury(self, worker: WorkerProcess, notices: list[Notice]) -> None:
        """A worker process is gone: hear its last words, end its rings, complain when it had not finished."""
        self._selector.unregister(worker.pidfd)
        if worker.listening:
            self._hear(worker, notices)
        if worker.state not in ("done", "failed"):
            worker.state = "dead"
            self.wiring.end_rings_of(worker.operator)
            raise self._death(worker)

    def _death(self, worker: WorkerProcess) -> WorkerDied:
        how = worker.reap()
        tail = worker.log_tail()
        return WorkerDied(
            f"operator {worker.operator} (pid {worker.pid}) {how}" + (f"; its last words: {tail}" if tail else ""),
            mend="finished outputs are intact; run it again (SIGKILL without your doing: out of memory?)",
        )

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
        for name, assignment in self._assignments.items():
            if not assignment.inputs and self.workers[name].state == "running":
                with contextlib.suppress(ControlClosed):  # it ended at this very moment; poll will see it
                    self.workers[name].channel.send("stop")

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
