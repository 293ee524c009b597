"""What an operator sees of its worker: slots, and words for the supervisor."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pydantic import JsonValue

from dataplane import _ring
from dataplane.assignment import Assignment
from dataplane.control import Channel
from dataplane.errors import DataplaneError, Stopped
from dataplane.operators.base import OutputPort, Resume, Write
from dataplane.pool import PoolUse
from dataplane.worker_rings import WorkerRings
from observatory.model.media import PortFormat

if TYPE_CHECKING:
    from dataplane._ring import WriteLease

WAIT_SLICE_SECONDS = 0.1  # longest sleep before looking at the stop flag
POOL_REPORT_SECONDS = 5.0
EPOCH_SECONDS = 60.0  # a disk that stalls for longer than that has stalled the supervisor too


class WorkerContext:
    """What the operator sees of its worker (dataplane.operators.base.Context)."""

    def __init__(self, assignment: Assignment, channel: Channel, rings: WorkerRings) -> None:
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
        self._rings = rings
        self._producers = rings.producers
        self._warned: set[str] = set()
        self._after_lost = 0  # one more than the largest source index of what is lost, or was published by others
        self._epochs: queue.SimpleQueue[int] = queue.SimpleQueue()  # numbers that the supervisor gave
        self._pools_due = 0.0  # when their use is to be reported next

    def report_drops(self) -> None:
        """Tell the supervisor which frames were dropped since the last call."""
        for edge, producer, consumer in self._rings.dropping:
            if dropped := producer.take_dropped(consumer):
                self._channel.send("dropped", edge=edge, source_indices=dropped)

    def report_pools(self) -> None:
        """Tell the supervisor how the pools are used, and what of them could not be had as it was asked for."""
        now = time.monotonic()
        self._pools_due = now + POOL_REPORT_SECONDS
        for port, producer in self._producers.items():
            notes = [(made.pages, made.note) for made in producer.size_classes if made.note is not None]
            use = PoolUse.of(producer.pool_stats(), now, self._rings.incarnation).model_dump()
            self._channel.send("pool", port=port, use=use, notes=notes)

    def acquire(self, payload_bytes: int, port: str = "video") -> WriteLease:
        """A slot of the port; sleeps until there is one. Raises Stopped."""
        producer = self._producers[port]
        while True:
            lease = producer.acquire(payload_bytes, WAIT_SLICE_SECONDS)
            self.report_drops()
            if time.monotonic() >= self._pools_due:
                self.report_pools()
            if lease is not None:
                return lease
            if self.stopping.is_set():
                raise Stopped(f"stopped while waiting for a slot of {self.name}.{port}")

    def publish_together(self, writes: Sequence[Write]) -> int:
        """Publish several payloads of one port, in order and by one commit."""
        leases, descriptors, sizes = zip(*writes, strict=True)
        return _ring.publish_together(leases, descriptors, sizes)

    def continues(self, resume: Resume) -> None:
        """Others did this work before: where they left off."""
        told = [published.next_source_index for published in resume.published.values()]
        told += [loss.source_index + 1 for loss in resume.lost if loss.source_index is not None]
        self._after_lost = max([self._after_lost, *told])
        if not self.inputs:  # a source: every index below is a frame, or was lost
            published = max([0, *(published.next_source_index for published in resume.published.values())])
            lost = {loss.source_index for loss in resume.lost if loss.source_index is not None}
            self.frames = published - len([index for index in lost if index < published])
        self.resume = resume

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
