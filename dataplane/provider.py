"""Operators that several jobs read: a supervisor of their own in a thread of its own, which lives while one job reads.

None of the jobs owns them. A job is a guest (dataplane.guest): its consumers' pages are admitted to the rings here, and
the rings' descriptors go straight to its workers. Whatever becomes of a job, its readers are let go and the others read
on; what becomes of the shared operators, all of them hear. Nothing here waits for a job: what a job's thread asks is
done in that thread, under the lock that this one does not hold while it waits.

Jobs that were invited before the operators began are waited for, so that each of them gets every payload.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from dataplane.control import close_all
from dataplane.errors import CannotJoin, CannotMigrate, DataplaneError, OperatorFailed, Stopped
from dataplane.guest import Guest
from dataplane.notices import Notice
from dataplane.supervisor import Supervisor
from dataplane.tee import Tee
from dataplane.wiring import Reader

if TYPE_CHECKING:
    from dataplane.assignment import Assignment
    from dataplane.control import Channel
    from dataplane.fabric import Fabric
    from dataplane.process import NurseryProcess, WorkerProcess

POLL_SECONDS = 0.1
STOP_SECONDS = 5.0  # how long operators that nobody reads may take to end in good order
EPOCH_SECONDS = 5.0  # how long a source waits for jobs to take note of its new epoch
MOST_READERS = 64  # of one ring (MO_MAX_CONSUMERS)
ENDED = ("done", "failed", "quarantined")
FOR_ONE = frozenset({"pool", "mapped"})  # what is to be counted once


class Phase(Enum):
    """How far a provider is."""

    STARTING = "starting"
    WAITING = "waiting for the jobs that were invited"
    RUNNING = "running"
    OVER = "over"


@dataclass(slots=True)
class NewEpoch:
    """The source waits for its number. `unaware`: guests that do not know it yet."""

    operator: str
    number: int
    unaware: set[str] = field(default_factory=set)
    deadline: float = field(default_factory=lambda: time.monotonic() + EPOCH_SECONDS)


class Provider:
    """Runs the shared operators. Any thread may call anything.

    Args:
        assignments: of the shared operators; the `place` of a port is its own number here.
        log_folder: where their standard error goes.
        on_end: called in the provider's thread when everything is over.
    """

    def __init__(
        self,
        assignments: Sequence[Assignment],
        log_folder: Path,
        nursery: NurseryProcess,
        fabric: Fabric | None = None,
        on_end: Callable[[Provider], None] = lambda _: None,
    ) -> None:
        self.places = {
            (a.operator, port.port): port.place for a in assignments for port in a.outputs if port.place is not None
        }
        self.hop_places = {edge.edge: edge.place for a in assignments for edge in a.inputs if edge.place is not None}
        self.hop_ports = {
            edge.place: self.places[edge.producer, edge.port]
            for a in assignments
            for edge in a.inputs
            if edge.place is not None and (edge.producer, edge.port) in self.places
        }
        self.slots = {
            (a.operator, port.port): max((size.slot_count for size in port.sizes), default=0)
            for a in assignments
            for port in a.outputs
        }
        self.pool_bytes = sum(
            size.slot_count * size.slot_bytes for a in assignments for port in a.outputs for size in port.sizes
        )
        self.tee = Tee()
        self._changed = threading.Condition(threading.RLock())
        self._supervisor = Supervisor(assignments, log_folder, nursery, fabric, guard=self._changed)
        self._wiring = self._supervisor.wiring
        self._sources = [a.operator for a in assignments if not a.inputs]
        self._guests: dict[str, Guest] = {}
        self._phase = Phase.STARTING
        self._error: DataplaneError | None = None
        self._newest_epoch = 0
        self._asked: NewEpoch | None = None
        self._to_repeat: dict[str, Notice] = {}  # by kind: what who comes later has to know too
        self._on_end = on_end
        self._thread = threading.Thread(target=self._run, name=f"shared {self._sources[0]}", daemon=True)

    def start(self) -> None:
        """Start the processes; the operators begin when all guests invited so far are in their places."""
        self._thread.start()

    def give_up(self) -> None:
        """Instead of `start`: nobody needs it any more."""
        self._close()

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the end of everything; False after the timeout."""
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    # -- guests ------------------------------------------------------------------------------------------------------

    def invite(self, name: str, operators: Mapping[str, str], ports: Sequence[tuple[str, str]] = ()) -> Guest:
        """A place for one more job, which may be let in now or later; without an end to it everything goes on for it.

        Args:
            name: of the job.
            operators: its names of the shared operators, and ours.
            ports: (our operator, port) per edge that it is going to read.

        Raises:
            CannotJoin: they are about to end, or have as many readers as can be.
        """
        with self._changed:
            if self._phase is Phase.OVER or any(w.state in ENDED for w in self._supervisor.workers.values()):
                raise CannotJoin("the shared operators are at their end")
            if name in self._guests:
                raise CannotJoin(f"{name} reads the shared operators already")
            for port in set(ports):
                readers = [r for g in self._guests.values() for r in g.readers.values()]
                there = sum((r.edge.producer, r.edge.port) == port for r in readers)
                if there + list(ports).count(port) > MOST_READERS:
                    raise CannotJoin(f"a port has at most {MOST_READERS} readers")
            guest = self._guests[name] = Guest(self, name, operators, self.tee.outlet())
            return guest

    @property
    def guest_names(self) -> tuple[str, ...]:
        """Of all guests, in the order in which they came."""
        with self._changed:
            return tuple(self._guests)

    def let_in(self, guest: Guest) -> None:
        """Admit the readers of a guest. Raises DataplaneError: what the operators failed with; Stopped: cancelled."""
        with self._changed:
            while self._phase is Phase.STARTING and not guest.cancelled():
                self._changed.wait(POLL_SECONDS)
            if guest.cancelled():
                raise Stopped("stopped while shared operators were starting")
            if self._phase is Phase.OVER:
                raise self._error or CannotJoin("the shared operators have ended")
            self._wiring.admit(list(guest.readers.values()))
            tails = {port: n for port, n in self._wiring.published().items() if guest.takes_part_in(port[0])}
            guest.shares.begin(tails, guest.ports_read)
            guest.in_place = True
            for notice in self._to_repeat.values():
                guest.tell(notice)
            self._changed.notify_all()

    def succeed(self, guest: Guest, reader: Reader, page: int, channel: Channel) -> None:
        """Another process of a guest reads on where one died."""
        with self._changed:
            before = reader.channel
            if guest.gone or self._phase is Phase.OVER:
                reader.channel = channel
                close_all([page])
            else:
                self._wiring.succeed_guest(reader.name, page, channel)
            before.close()

    def end_shares(self, guest: Guest) -> None:
        """Nothing more is for this guest: all that it reads ends behind what is published now."""
        with self._changed:
            if guest.gone or not guest.in_place or self._phase is Phase.OVER:
                return
            over = [name for name, worker in self._supervisor.workers.items() if worker.state in ENDED]
            guest.shares.end(self._wiring.published(), over)
            self._wiring.end_shares([reader.name for reader in guest.readers.values()])

    def let_go(self, guest: Guest) -> None:
        """Forget a guest; a second call does nothing."""
        with self._changed:
            if guest.gone:
                return
            guest.gone = True
            self._guests.pop(guest.name, None)
            guest.shares.close(self._tails())
            for reader in guest.readers.values():
                if not guest.in_place:
                    close_all([reader.page])
                elif self._phase is not Phase.OVER:
                    self._wiring.let_go(reader.name)
                reader.channel.close()
            self._settle_epoch(guest.name)
            self._changed.notify_all()

    def _tails(self) -> dict[tuple[str, str], int]:
        return {} if self._phase in (Phase.STARTING, Phase.OVER) else self._wiring.published()

    # -- what guests ask ---------------------------------------------------------------------------------------------

    def workers(self) -> dict[str, WorkerProcess]:
        """The processes, by operator."""
        with self._changed:
            return dict(self._supervisor.workers)

    def queues(self) -> dict[str, dict[str, int]]:
        """Of all edges, by the names that they have here."""
        with self._changed:
            return {} if self._phase is Phase.OVER else self._supervisor.queues()

    def published(self, guest: Guest) -> dict[tuple[str, str], int]:
        """Per port: what was published for that guest."""
        with self._changed:
            return guest.shares.published(self._tails())

    def frames(self, guest: Guest, source: str) -> int:
        """Frames that a source made for that guest."""
        return self.published(guest).get((source, "video"), 0)

    def migrate(self, operator: str) -> None:
        """Let another process go on with a shared operator. Raises CannotMigrate."""
        with self._changed:
            if self._phase is not Phase.RUNNING:
                raise CannotMigrate(f"the shared operators are {self._phase.value}")
            self._supervisor.migrate(operator)

    # -- epochs ------------------------------------------------------------------------------------------------------

    def know_epoch(self, guest: Guest, epoch: int) -> None:
        """The number of the epoch with which a guest's stream began: those that follow have higher ones."""
        with self._changed:
            guest.epoch = epoch
            self._newest_epoch = max(self._newest_epoch, epoch)

    def knows_epoch(self, guest: Guest) -> None:
        """A guest has taken note of the newest epoch."""
        with self._changed:
            self._settle_epoch(guest.name)

    def _begin_epoch(self, notice: Notice) -> None:
        self._newest_epoch += 1
        aware_of = [guest.name for guest in self._guests.values() if guest.in_place]
        self._asked = NewEpoch(notice.operator, self._newest_epoch, set(aware_of))
        told = Notice(notice.operator, "epoch", {**notice.message, "epoch": self._newest_epoch})
        self._to_repeat["epoch"] = told
        self._tell_all(told)

    def _settle_epoch(self, aware: str | None = None) -> None:
        """Answer the source when everybody knows, or has had the time to."""
        asked = self._asked
        if asked is None:
            return
        asked.unaware.discard(aware or "")
        if not asked.unaware or time.monotonic() > asked.deadline:
            self._asked = None
            self._supervisor.answer_epoch(asked.operator, asked.number)

    # -- the provider's thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._supervisor.start(cancelled=lambda: not self._guests, hold=True)
            for ring in self._supervisor.event_rings.values():
                self.tee.add_ring(ring)
            with self._changed:
                self._phase = Phase.WAITING
                self._changed.notify_all()
                self._changed.wait_for(lambda: all(guest.in_place for guest in self._guests.values()))
                self._supervisor.release()
                self._phase = Phase.RUNNING
            while self._serve():
                pass
            self._end_in_good_order()
        except Stopped:
            pass  # nobody waited for it any more
        except DataplaneError as error:
            self._fail(error)
        except BaseException as error:  # a defect of ours ends those who share, not the platform
            traceback.print_exception(error)
            self._fail(OperatorFailed(f"internal error: {type(error).__name__}: {error}"))
        finally:
            self._close()

    def _serve(self) -> bool:
        """One round; False when nobody is left."""
        notices = self._supervisor.poll(POLL_SECONDS)
        with self._changed:
            for notice in notices:
                self._pass_on(notice)
            self._settle_epoch()
            if not self._guests:
                self._phase = Phase.OVER
            return bool(self._guests)

    def _end_in_good_order(self) -> None:
        with self._changed:
            self._supervisor.stop()
        deadline = time.monotonic() + STOP_SECONDS
        while not self._supervisor.finished and time.monotonic() < deadline:
            self._supervisor.poll(POLL_SECONDS)

    def _fail(self, error: DataplaneError) -> None:
        with self._changed:
            self._error = error
            for guest in self._guests.values():
                guest.shares.close(self._tails())
                guest.inbox.error = error
            self._phase = Phase.OVER

    def _close(self) -> None:
        with self._changed:
            self._phase = Phase.OVER
            self._changed.notify_all()
        try:
            self._supervisor.close()
            for ring in self._supervisor.all_event_rings:
                self.tee.remove_ring(ring)
            self._supervisor.close_event_rings()
        finally:
            self._on_end(self)

    # -- notices -----------------------------------------------------------------------------------------------------

    def _pass_on(self, notice: Notice) -> None:
        message = notice.message
        match notice.kind:
            case "admitted" | "share_ended":
                self._tell_share(notice)
            case "dropped" | "perished":
                self._tell_reader(notice)
            case "epoch":
                self._begin_epoch(notice)
            case "events":
                self.tee.add_ring(message["ring"])
            case "events_end":
                self.tee.remove_ring(message["ring"])
                message["ring"].close()
            case "done":
                for guest in self._guests.values():
                    guest.shares.operator_over(notice.operator)
            case "succeeded" | "migrated":
                for guest in self._guests.values():
                    if guest.in_place:
                        guest.shares.begin_unsaid(notice.operator)
                self._tell_all(notice)
            case "source":
                self._to_repeat["source"] = notice
                self._tell_all(notice)
            case "terminated":
                pid = self._supervisor.workers[notice.operator].pid
                self._tell_all(Notice(notice.operator, "terminated", {**message, "pid": pid}))
            case kind if kind in FOR_ONE:
                for guest in list(self._guests.values())[:1]:
                    guest.tell(notice)
            case _:
                self._tell_all(notice)

    def _tell_all(self, notice: Notice) -> None:
        for guest in self._guests.values():
            if guest.in_place:
                guest.tell(notice)

    def _tell_reader(self, notice: Notice) -> None:
        """Of one edge: of a guest's, or of one between shared operators."""
        for guest in self._guests.values():
            if (key := guest.key_of(notice.message["edge"])) is not None:
                guest.tell(Notice(notice.operator, notice.kind, {**notice.message, "edge": key}))

    def _tell_share(self, notice: Notice) -> None:
        """Where a guest's readers of a port were let in, or where their shares have ended."""
        message = notice.message
        port, sequence, source_index = (notice.operator, message["port"]), message["sequence"], message["source_index"]
        for guest in self._guests.values():
            if any(reader.name in message["edges"] for reader in list(guest.readers.values())):
                tell = guest.shares.begun if notice.kind == "admitted" else guest.shares.ended
                tell(port, sequence, source_index)
