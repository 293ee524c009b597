"""Starting one worker: the process, what it is to run, and the rings and pages it makes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dataplane import _ring
from dataplane.assignment import Assignment
from dataplane.control import ControlClosed, check_hello, close_all, error_of
from dataplane.errors import DataplaneError, Stopped, WorkerDied
from dataplane.fabric import Fabric
from dataplane.notices import Notice
from dataplane.process import NurseryProcess, WorkerProcess
from dataplane.wiring import Wiring

HANDSHAKE_SECONDS = 60.0
START_SLICE_SECONDS = 0.1  # longest sleep before asking whether the start is still wanted
LOG_NAME = 200  # characters of an operator's name in its log's; what is cut off shares a log


class Recruiter:
    """Starts the workers of one job.

    Args:
        log_folder: where each worker's standard error goes (one file per operator); it must exist.
        nursery: where workers come from.
        fabric: whose links their edges cross, where they say so.
        wiring: gets the rings and pages they make.
        say: told of what they say meanwhile.
    """

    def __init__(
        self,
        log_folder: Path,
        nursery: NurseryProcess,
        fabric: Fabric | None,
        wiring: Wiring,
        say: Callable[[Notice], None],
    ) -> None:
        self._log_folder = log_folder
        self._nursery = nursery
        self._fabric = fabric
        self._wiring = wiring
        self._say = say
        self.cancelled: Callable[[], bool] = lambda: False

    def spawn(
        self, operator: str, after: WorkerProcess | None = None, beside: WorkerProcess | None = None
    ) -> WorkerProcess:
        """A process, `after` a dead one or `beside` a living one, whose log it continues. Raises DataplaneError."""
        log = self._log_folder / f"{operator[:LOG_NAME]}.log"
        return WorkerProcess(operator, self._nursery, log, self.cancelled, after, beside)

    def configure(
        self,
        worker: WorkerProcess,
        assignment: Assignment,
        events: _ring.EventRing,
        *,
        incarnation: int = 1,
        first_sequences: Mapping[str, int],
        beside: bool = False,
    ) -> None:
        """Tell it what to run; ports that `first_sequences` does not name begin later. Raises DataplaneError."""
        check_hello(self.expect(worker, "hello"), worker.operator)
        fabric = () if self._fabric is None else self._fabric.fds
        try:
            worker.channel.send(
                "configure",
                assignment=assignment.model_dump(mode="json"),
                incarnation=incarnation,
                first_sequences=dict(first_sequences),
                beside=beside,
                fds=[events.fd, *fabric],
            )
        except ControlClosed:
            raise death_of(worker) from None

    def collect(self, worker: WorkerProcess) -> None:
        """Take the rings, slabs and pages a worker made. Raises DataplaneError."""
        while True:
            message, fds = self._next(worker, "ready")
            match message["type"]:
                case "port":
                    self._wiring.offer_port(worker.operator, message["port"], fds, message["slot_bytes"])
                case "page":
                    self._wiring.offer_page(worker.operator, message["edge"], fds[0])
                case "mapped":
                    self._say(Notice(worker.operator, "mapped", message))
                case "ready":
                    return
                case "failed":
                    raise error_of(message, worker.operator)
                case other:
                    close_all(fds)
                    raise DataplaneError(f"worker {worker.operator} said {other!r} during the start")

    def expect(self, worker: WorkerProcess, kind: str) -> dict[str, Any]:
        """The next thing it says, which has to be that. Raises DataplaneError."""
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
                raise death_of(worker) from None
            if received is not None and received[0]["type"] == "terminated":
                self._say(Notice(worker.operator, "terminated", received[0]))
            elif received is not None:
                return received
            if self.cancelled():
                raise Stopped(f"stopped while worker {worker.operator} was starting")
        raise DataplaneError(f"worker {worker.operator}: no {awaited!r} within {HANDSHAKE_SECONDS:g} s")


def death_of(worker: WorkerProcess) -> WorkerDied:
    """In words, of a worker whose process has ended."""
    how = worker.reap()
    tail = worker.log_tail()
    return WorkerDied(
        f"operator {worker.operator} (pid {worker.pid}) {how}" + (f"; its last words: {tail}" if tail else ""),
        mend="finished outputs are intact; run it again (SIGKILL without your doing: out of memory?)",
    )
