"""The workers of one job and what is kept for them: what the supervisor and the migrations it does share."""

from __future__ import annotations

import contextlib
import selectors
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from dataplane import _ring
from dataplane.assignment import Assignment
from dataplane.continuation import Legacy
from dataplane.control import Channel
from dataplane.notices import Notice
from dataplane.operators.handover import resume_as_json
from dataplane.process import WorkerProcess
from dataplane.recruiting import Recruiter
from dataplane.wiring import Wiring, tell

EVENT_RING_CAPACITY = 1 << 14


@dataclass(slots=True)
class Crew:
    """By operator: what it is to do, the process that does it now, and what the ones before left."""

    assignments: dict[str, Assignment]
    legacies: dict[str, Legacy]
    wiring: Wiring
    recruiter: Recruiter
    say: Callable[[Notice], None]
    guests: frozenset[str] = frozenset()  # operators that read from those of another supervisor
    workers: dict[str, WorkerProcess] = field(default_factory=dict)
    event_rings: dict[str, _ring.EventRing] = field(default_factory=dict)
    selector: selectors.DefaultSelector = field(default_factory=selectors.DefaultSelector)
    stopping: bool = False  # the sources were told to end

    @property
    def channels(self) -> dict[str, Channel]:
        """To the process that does the work now."""
        return {name: worker.channel for name, worker in self.workers.items()}

    def watch(self, worker: WorkerProcess) -> None:
        """Listen to it from now on."""
        self.selector.register(worker.channel, selectors.EVENT_READ, worker)
        self.selector.register(worker.pidfd, selectors.EVENT_READ, worker)

    def unwatch(self, worker: WorkerProcess) -> None:
        """No longer."""
        for watched in (worker.channel, worker.pidfd):
            with contextlib.suppress(KeyError, ValueError):
                self.selector.unregister(watched)

    @staticmethod
    def release(worker: WorkerProcess) -> None:
        """Everything is connected: let it work."""
        tell(worker.channel, "start")
        worker.state = "running"

    def continue_with(self, worker: WorkerProcess, reason: Literal["died", "migrated"]) -> None:
        """Let it go on with what others did before."""
        resume = self.legacies[worker.operator].resume(reason)
        tell(worker.channel, "continue", resume=resume_as_json(resume))
        if self.stopping and worker.operator in self.guests:
            tell(worker.channel, "last")
        self.release(worker)
        if self.stopping and not self.assignments[worker.operator].inputs:
            tell(worker.channel, "stop")
