"""A worker process: one operator instance, its input edges and its output ports.

Forked by the nursery (dataplane/nursery.py); everything it is to do arrives over the control channel
(dataplane/control.py). It ignores SIGINT and only reports SIGTERM (the supervisor decides what they mean), and the
kernel kills it when the nursery, or the supervisor above that, dies.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue

from dataplane import _ring
from dataplane.assignment import Assignment, OutputAssignment
from dataplane.control import END_SIGNAL, PROTOCOL, Channel, ControlClosed, close_all
from dataplane.errors import DataplaneError, OperatorFailed, Stopped
from dataplane.links import emulated
from dataplane.operators.base import Operator, OutputPort, Resume, Write
from dataplane.operators.registry import operator_type
from dataplane.pool import PoolUse
from observatory.model.errors import MediaObservatoryError
from observatory.model.media import PortFormat
from observatory.model.pipeline import OnFull

if TYPE_CHECKING:
    from dataplane._ring import ReadLease, WriteLease

WAIT_SLICE_SECONDS = 0.1  # longest sleep before looking at the stop flag
SERVED_AT_ONCE = 16  # payloads of one edge before the next edge has its turn
HANDSHAKE_SECONDS = 60.0
POOL_REPORT_SECONDS = 5.0
EPOCH_SECONDS = 60.0  # a disk that stalls for longer than that has stalled the supervisor too


class WorkerContext:
    """What the operator sees of its worker (dataplane.operators.base.Context)."""

    def __init__(self, assignment: Assignment, channel: Channel) -> None:
        self.name = assignment.operator
        self.inputs: Mapping[str, PortFormat] = {i.key: i.format for i in assignment.inputs}
        self.outputs: Mapping[str, OutputPort] = {
            o.port: OutputPort(name=o.port, format=o.format, slots=(), why="") for o in assignment.outputs
        }
        self.source = assignment.source
        self.start_seconds = assignment.start_seconds
        self.stopping = threading.Event()
        self.resume: Resume | None = None
        self.frames = 0
        self._channel = channel
        self._producers: dict[str, _ring.RingProducer] = {}
        self._dropping: list[tuple[str, _ring.RingProducer, int]] = []  # edge, its producer, handle of its consumer
        self._warned: set[str] = set()
        self._after_lost = 0  # one more than the largest source index reported as lost
        self._epochs: queue.SimpleQueue[int] = queue.SimpleQueue()  # numbers that the supervisor gave
        self._pools_due = 0.0  # when their use is to be reported next

    def add_producer(self, port: str, producer: _ring.RingProducer) -> None:
        """Make a port's ring known."""
        self._producers[port] = producer

    def watch_drops(self, edge: str, port: str, consumer: int) -> None:
        """Report what the drop_oldest policy takes away from that consumer."""
        self._dropping.append((edge, self._producers[port], consumer))

    def report_drops(self) -> None:
        """Tell the supervisor which frames were dropped since the last call."""
        for edge, producer, consumer in self._dropping:
            if dropped := producer.take_dropped(consumer):
                self._channel.send("dropped", edge=edge, source_indices=dropped)

    def report_pools(self) -> None:
        """Tell the supervisor how the pools are used, and what of them could not be had as it was asked for."""
        now = time.monotonic()
        self._pools_due = now + POOL_REPORT_SECONDS
        for port, producer in self._producers.items():
            notes = [(made.pages, made.note) for made in producer.size_classes if made.note is not None]
            use = PoolUse.of(producer.pool_stats(), now).model_dump()
            self._channel.send("pool", port=port, use=use, notes=notes)

    def acquire(self, payload_bytes: int, port: str = "video") -> WriteLease:
        """A slot of the port; sleeps until there is one. Raises Stopped."""
        producer = self._producers[port]
        while True:
            lease = producer.acquire(payload_bytes, WAIT_SLICE_SECONDS)
            if self._dropping:
                self.report_drops()
            if time.monotonic() >= self._pools_due:
                self.report_pools()
            if lease is not None:
                return lease
            if self.stopping.is_set():
                raise Stopped(f"stopped while waiting for a slot of {self.name}.{port}")

    def publish_together(self, writes: Sequence[Write]) -> int:
        """Publish several payloads of one port, in order."""
        leases, descriptors, sizes = zip(*writes, strict=True)
        return _ring.publish_together(leases, descriptors, sizes)

    def checkpoint(self, state: Mapping[str, JsonValue]) -> None:
        """Leave word for who continues this work; what was sent is with the supervisor, even if this process dies."""
        self._channel.send("checkpoint", state=dict(state))

    def lost(self, source_index: int | None, pts: int | None, reason: str) -> None:
        """Report one frame that will not come."""
        if source_index is not None:
            self._after_lost = max(self._after_lost, source_index + 1)
        self._channel.send("lost", source_index=source_index, pts=pts, reason=reason)

    def warn(self, message: str) -> None:
        """Report something once."""
        if message not in self._warned:
            self._warned.add(message)
            self._channel.send("warning", message=message)

    def scratch(self, path: str) -> None:
        """Report a temporary file, for the supervisor to remove if this process cannot."""
        self._channel.send("scratch", path=path)

    def finished_output(self, path: str, frames: int, by_edge: Mapping[str, int]) -> None:
        """Report one finished output file, and how many of its frames came over which edge."""
        self._channel.send("output", path=path, frames=frames, by_edge=dict(by_edge))

    def count_frame(self) -> None:
        """Count one frame as done."""
        self.frames += 1

    def source_waits(self, waiting: bool) -> None:
        """Report that the input went away, or came back."""
        self._channel.send("source", waiting=waiting)

    def begin_epoch(self, reason: str, pts_offset: int) -> int:
        """Ask for the number of the epoch that begins with the next source index, and wait for it.

        Raises:
            Stopped: the job ends.
            DataplaneError: the supervisor did not answer within EPOCH_SECONDS.
        """
        if self.stopping.is_set():
            raise Stopped(f"{self.name} was told to stop")
        first = max([self._after_lost, *(producer.next_source_index for producer in self._producers.values())])
        self._channel.send("epoch", reason=reason, pts_offset=pts_offset, source_index=first)
        deadline = time.monotonic() + EPOCH_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                return self._epochs.get(timeout=WAIT_SLICE_SECONDS)
            if self.stopping.is_set():
                raise Stopped(f"{self.name} was told to stop while it waited for the number of a new epoch")
        raise DataplaneError(f"{self.name}: no number for a new epoch within {EPOCH_SECONDS:g} s")

    def epoch_begun(self, epoch: int) -> None:
        """The supervisor's answer to `begin_epoch`; called by the thread that hears it."""
        self._epochs.put(epoch)


class Worker:
    """The life of one worker, from the handshake to its last message."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        message, fds = self._hello()
        self.assignment = Assignment.model_validate(message["assignment"])
        self._events = _ring.EventRing.attach(fds[0])
        self._fabric = emulated.open_fabric(fds[1:])
        close_all(fds)
        self.context = WorkerContext(self.assignment, channel)
        kind = operator_type(self.assignment.op)
        self.operator: Operator = kind(kind.Params.model_validate(self.assignment.params))
        self._producers: dict[str, _ring.RingProducer] = {}
        self._consumers: dict[str, _ring.RingConsumer] = {}

    def _hello(self) -> tuple[dict[str, Any], list[int]]:
        versions = {name: layout["version"] for name, layout in _ring.layouts().items()}
        self._channel.send("hello", protocol=PROTOCOL, abi=versions, pid=os.getpid())
        return self._channel.expect("configure", HANDSHAKE_SECONDS)

    # -- start ---------------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Make rings and pages, trade them through the supervisor, wait for the start."""
        self._make_ports()
        while True:
            received = self._channel.receive(HANDSHAKE_SECONDS)
            if received is None:
                raise DataplaneError("the supervisor went silent during the start")
            message, fds = received
            match message["type"]:
                case "input":
                    began = time.monotonic()
                    self._consumers[message["edge"]].attach(fds[0], fds[1:], message["slot_bytes"])
                    self._report_mapped(time.monotonic() - began, fds, edge=message["edge"])
                case "output":
                    consumer = self._producers[message["port"]].admit(fds[0], message["policy"])
                    if message["policy"] == OnFull.DROP_OLDEST:
                        self.context.watch_drops(message["edge"], message["port"], consumer)
                case "start":
                    break
            close_all(fds)
        self.context.report_pools()
        threading.Thread(target=self._listen, name="control", daemon=True).start()

    def _make_ports(self) -> None:
        for output in self.assignment.outputs:
            began = time.monotonic()
            self._producers[output.port] = producer = self._make_producer(output)
            mapped_in = time.monotonic() - began
            self.context.add_producer(output.port, producer)
            self._channel.send(
                "port",
                port=output.port,
                slot_bytes=list(producer.slab_slot_bytes),
                fds=[producer.ring_fd, *producer.slab_fds],
            )
            self._report_mapped(mapped_in, [producer.ring_fd, *producer.slab_fds], port=output.port)
        for edge in self.assignment.inputs:
            consumer = _ring.RingConsumer(edge.policy)
            if edge.place is not None:
                consumer.trace(self._trace(edge.place))
            emulated.put_under(consumer, edge.link, self._fabric, edge.key)
            self._consumers[edge.key] = consumer
            self._channel.send("page", edge=edge.key, fds=[consumer.page_fd])
        self._channel.send("ready")

    def _report_mapped(self, seconds: float, fds: Sequence[int], **what: Any) -> None:
        """Say how long it took to map these rings and slabs: a producer also makes and seals its own."""
        size = sum(os.fstat(fd).st_size for fd in fds)
        self._channel.send("mapped", operator=self.assignment.operator, seconds=seconds, bytes=size, **what)

    def _make_producer(self, output: OutputAssignment) -> _ring.RingProducer:
        producer = _ring.RingProducer(
            capacity=output.ring_capacity,
            size_classes=[size.wish(output.huge_pages) for size in output.sizes],
        )
        if output.place is not None:
            producer.trace(self._trace(output.place))
        return producer

    def _trace(self, place: int) -> _ring.Trace:
        job = self.assignment
        return _ring.Trace(self._events, job.stream, job.epoch, place, job.real_device)

    def _listen(self) -> None:
        """Hear the supervisor while the operator works."""
        try:
            while (received := self._channel.receive()) is not None:
                close_all(received[1])
                match received[0]["type"]:
                    case "stop":
                        self.context.stopping.set()
                    case "epoch":
                        self.context.epoch_begun(received[0]["epoch"])
        except (ControlClosed, OSError):
            self.context.stopping.set()

    # -- work ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the operator to its end; its output rings are ended whatever happens."""
        reason = "failed"
        try:
            self.operator.open(self.context)
            if self.operator.source:
                self._run_source()
            else:
                self._run_consumer()
            self.operator.flush(self.context)
            reason = "stopped" if self.context.stopping.is_set() else "end_of_stream"
        except BaseException:
            self._abort()
            raise
        finally:
            for producer in self._producers.values():
                producer.finish(reason)
            self.operator.close()

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

    def _run_consumer(self) -> None:
        if len(self._consumers) == 1:
            (edge, consumer), *_ = self._consumers.items()
            while (lease := self._take(consumer)) is not None:
                self.operator.process(lease, edge, self.context)
            self.operator.ended(edge, self.context)
            return
        open_edges = dict(self._consumers)
        while open_edges:
            names = list(open_edges)
            for index in _ring.wait_any([open_edges[name] for name in names], WAIT_SLICE_SECONDS):
                self._serve(names[index], open_edges)
            self._check_stop()

    def _serve(self, edge: str, open_edges: dict[str, _ring.RingConsumer]) -> None:
        """Process what one edge has, up to a bound: the others wait meanwhile."""
        consumer = open_edges[edge]
        try:
            for _ in range(SERVED_AT_ONCE):
                lease = consumer.take(0.0)
                if lease is None:
                    return
                self.operator.process(lease, edge, self.context)
        except _ring.RingEnded as end:
            _refuse_failed(edge, end)
            del open_edges[edge]
            self.operator.ended(edge, self.context)

    def _take(self, consumer: _ring.RingConsumer) -> ReadLease | None:
        """The next payload of the only edge; None at its end."""
        while True:
            try:
                lease = consumer.take(WAIT_SLICE_SECONDS)
            except _ring.RingEnded as end:
                _refuse_failed(self.assignment.inputs[0].edge, end)
                return None
            if lease is not None:
                return lease
            self._check_stop()

    def _check_stop(self) -> None:
        if self.context.stopping.is_set():
            raise Stopped(f"{self.assignment.operator} was told to stop")

    def report_done(self) -> None:
        """The last message of a worker that came to its end."""
        self.context.report_drops()
        self.context.report_pools()
        self._channel.send("done", frames=self.context.frames, cpu_seconds=time.process_time())


def _refuse_failed(edge: str, end: _ring.RingEnded) -> None:
    if end.reason == "failed":
        raise Stopped(f"the producer of {edge} failed")


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
        worker.connect()
        worker.run()
        worker.report_done()
    except BaseException as error:
        _report_failure(channel, worker.assignment.operator if worker else None, error)
        return 1
    return 0
