"""A worker process: one operator instance, its input edges and its output ports.

Forked by the nursery (dataplane/nursery.py); everything it is to do arrives over the control channel
(dataplane/control.py), and a thread of its own hears it. It ignores SIGINT and only reports SIGTERM (the supervisor
decides what they mean), and the kernel kills it when the nursery, or the supervisor above that, dies.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from dataplane import _ring
from dataplane.assignment import Assignment
from dataplane.control import END_SIGNAL, PROTOCOL, Channel, ControlClosed, close_all
from dataplane.errors import DataplaneError, OperatorFailed, Stopped
from dataplane.links import emulated
from dataplane.operators.base import Operator
from dataplane.operators.handover import resume_from_json
from dataplane.operators.registry import operator_type
from dataplane.worker_context import WAIT_SLICE_SECONDS, WorkerContext
from dataplane.worker_rings import BETWEEN_RINGS_SECONDS, WorkerRings
from observatory.model.errors import MediaObservatoryError

if TYPE_CHECKING:
    from dataplane._ring import ReadLease

SERVED_AT_ONCE = 16  # payloads of one edge before the next edge has its turn
HANDSHAKE_SECONDS = 60.0


class Worker:
    """The life of one worker, from the handshake to its last message."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        message, fds = self._hello()
        try:
            self.assignment = Assignment.model_validate(message["assignment"])
            self._beside = message["beside"]  # another instance still does this work: wait for its word
            self._rings = WorkerRings(
                self.assignment,
                channel,
                _ring.EventRing.attach(fds[0]),
                emulated.open_fabric(fds[1:]),
                message["first_sequences"],
                message["incarnation"],
            )
        finally:
            close_all(fds)
        self.context = WorkerContext(self.assignment, channel, self._rings)
        kind = operator_type(self.assignment.op)
        self.operator: Operator = kind(kind.Params.model_validate(self.assignment.params))
        self._started = threading.Event()
        self._handed_over = False  # what is left of the input is for another instance
        self._last = False  # nobody comes after this instance: where its share is cut off, its input ends
        self._misled: BaseException | None = None  # what went wrong with something that the supervisor said

    def _hello(self) -> tuple[dict[str, Any], list[int]]:
        versions = {name: layout["version"] for name, layout in _ring.layouts().items()}
        self._channel.send("hello", protocol=PROTOCOL, abi=versions, pid=os.getpid())
        return self._channel.expect("configure", HANDSHAKE_SECONDS)

    # -- start ---------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make rings and pages, trade them through the supervisor, wait for the start.

        Beside another instance the operator is opened meanwhile, and the slots are touched.
        """
        self._rings.make()
        self._channel.send("ready")
        threading.Thread(target=self._listen, name="control", daemon=True).start()
        if self._beside:
            self.operator.open(self.context)
            for producer in self._rings.producers.values():
                producer.prefault()
            self._channel.send("warm")
        while not self._started.wait(WAIT_SLICE_SECONDS):
            if self._misled is not None:
                raise self._misled
            # Asked in this order: a stop that came after the start finds it.
            if self.context.stopping.is_set() and not self._started.is_set():
                raise Stopped(f"{self.assignment.operator} was told to stop before it started")
        self.context.report_pools()

    def _listen(self) -> None:
        """Hear the supervisor."""
        try:
            while (received := self._channel.receive()) is not None:
                self._hear(*received)
        except (ControlClosed, OSError):
            pass
        except BaseException as error:  # for the operator's thread, which ends the worker
            self._misled = error
        self.context.stopping.set()

    def _hear(self, message: dict[str, Any], fds: list[int]) -> None:
        if self._rings.obey(message, fds):
            return
        try:
            match message["type"]:
                case "continue":
                    self.context.continues(resume_from_json(message["resume"]))
                case "start":
                    self._started.set()
                case "stop":
                    self.context.stopping.set()
                case "last":
                    self._last = True
                    self._channel.send("noted")
                case "hand_over":
                    self._handed_over = True
                    self.context.stopping.set()
                case "epoch":
                    self.context.epoch_begun(message["epoch"])
        finally:
            close_all(fds)

    # -- work ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the operator to its end; its output rings are ended whatever happens."""
        reason = "failed"
        try:
            if not self._beside:
                self.operator.open(self.context)
            self._continue()
            if self.operator.source:
                self._run_source()
            else:
                self._run_consumer()
            self.operator.flush(self.context)
            reason = self._how_it_ends()
        except BaseException:
            self._abort()
            raise
        finally:
            self._rings.finish(reason)
            self.operator.close()

    def _continue(self) -> None:
        if self.context.resume is None:
            return
        try:
            self.operator.continue_from(self.context.resume, self.context)
        except Stopped:
            if not self.operator.source:
                raise
            # A source that was told to end before it had found its place: what was published stands.

    def _how_it_ends(self) -> str:
        if self._handed_over:
            return "migrated"
        return "stopped" if self.context.stopping.is_set() else "end_of_stream"

    def _abort(self) -> None:
        """Let the operator throw its work away; what goes wrong then must not hide what went wrong before."""
        signal.signal(END_SIGNAL, signal.SIG_IGN)  # ending is what it does; SIGKILL follows if it takes too long
        try:
            self.operator.abort()
        except Exception as error:
            traceback.print_exception(error)  # standard error is the worker's log

    def _run_source(self) -> None:
        try:
            while not self.context.stopping.is_set() and self.operator.step(self.context):
                pass
        except Stopped:
            pass  # told to end early: what was published stands
        if self._misled is not None:
            raise self._misled

    def _run_consumer(self) -> None:
        if len(self._rings.consumers) == 1:
            (edge, consumer), *_ = self._rings.consumers.items()
            self._follow(edge)
            while (lease := self._take(edge, consumer)) is not None:
                self.operator.process(lease, edge, self.context)
            self.operator.ended(edge, self.context)
            return
        reading: dict[str, _ring.RingConsumer] = {}
        between = set(self._rings.consumers)  # edges whose next ring has not come yet
        while reading or between:
            for edge in [edge for edge in between if self._rings.follow(edge, 0.0)]:
                between.remove(edge)
                reading[edge] = self._rings.consumers[edge]
            names = list(reading)
            slice_seconds = BETWEEN_RINGS_SECONDS if between else WAIT_SLICE_SECONDS
            if not names:
                time.sleep(slice_seconds)
            for index in _ring.wait_any([reading[name] for name in names], slice_seconds):
                self._serve(names[index], reading, between)
            self._check_stop()

    def _serve(self, edge: str, reading: dict[str, _ring.RingConsumer], between: set[str]) -> None:
        """Process what one edge has, up to a bound: the others wait meanwhile."""
        consumer = reading[edge]
        try:
            for _ in range(SERVED_AT_ONCE):
                lease = consumer.take(0.0)
                if lease is None:
                    return
                self.operator.process(lease, edge, self.context)
        except _ring.RingEnded as end:
            del reading[edge]
            if self._goes_on(edge, end):
                between.add(edge)
            else:
                self.operator.ended(edge, self.context)

    def _take(self, edge: str, consumer: _ring.RingConsumer) -> ReadLease | None:
        """The next payload of the only edge; None at its end."""
        while True:
            try:
                lease = consumer.take(WAIT_SLICE_SECONDS)
            except _ring.RingEnded as end:
                if not self._goes_on(edge, end):
                    return None
                self._follow(edge)
                continue
            if lease is not None:
                return lease
            self._check_stop()

    def _follow(self, edge: str) -> None:
        while not self._rings.follow(edge, WAIT_SLICE_SECONDS):
            self._check_stop()

    def _goes_on(self, edge: str, end: _ring.RingEnded) -> bool:
        """Whether another ring of the edge follows. Raises Stopped when its producer failed."""
        if end.reason == "failed":
            raise Stopped(f"the producer of {edge} failed")
        if end.reason == "cut":
            self._handed_over = not self._last
        return end.reason == "migrated"

    def _check_stop(self) -> None:
        if self._misled is not None:
            raise self._misled
        if self.context.stopping.is_set():
            raise Stopped(f"{self.assignment.operator} was told to stop")

    def report_done(self) -> None:
        """The last message of a worker that came to its end."""
        self.context.report_drops()
        self.context.report_pools()
        frames, seconds = self.context.frames, time.process_time()
        self._channel.send("done", frames=frames, cpu_seconds=seconds, handed_over=self._handed_over)


def _report_sigterm(channel: Channel) -> None:
    """Whoever stops a service sends SIGTERM to all its processes: only the supervisor knows what to make of it."""
    with contextlib.suppress(DataplaneError):
        channel.send("terminated")


def _report_failure(channel: Channel, operator: str | None, error: BaseException) -> None:
    """Tell the supervisor why this worker ends; an unexpected exception is named with the place it came from."""
    if isinstance(error, MediaObservatoryError):
        known = error
    else:
        frames = traceback.extract_tb(error.__traceback__)
        place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
        known = OperatorFailed(f"{operator or 'worker'}: {type(error).__name__}: {error}{place}")
        traceback.print_exception(error)  # standard error is the worker's log
    stopped = isinstance(error, Stopped)
    with contextlib.suppress(DataplaneError):  # nobody may be left to hear it
        channel.send("failed", error=known.as_dict(), exit_code=int(known.exit_code), stopped=stopped)


def _end(_signal: int, _frame: FrameType | None) -> None:
    raise Stopped("ended by the supervisor")


def run_worker(channel: Channel) -> int:
    """The whole life of a worker process; its exit code. What goes wrong is said over the channel."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(END_SIGNAL, _end)
    signal.signal(signal.SIGTERM, lambda *_: _report_sigterm(channel))
    worker: Worker | None = None
    try:
        worker = Worker(channel)
        worker.prepare()
        worker.run()
        worker.report_done()
    except BaseException as error:
        _report_failure(channel, worker.assignment.operator if worker else None, error)
        return 1
    return 0
