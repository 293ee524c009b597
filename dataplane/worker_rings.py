"""The rings of one worker: those of its output ports, those that its input edges read, and who reads and follows whom.

Two threads use it: the operator's, and the one that hears the supervisor. Each call of the native module is one step to
the other thread (it holds the GIL except while it sleeps), so pages are admitted, replaced and cut between two commits.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from dataplane import _ring
from dataplane.assignment import Assignment, InputAssignment, OutputAssignment
from dataplane.control import Channel, close_all
from dataplane.links import emulated
from observatory.model.pipeline import OnFull

BETWEEN_RINGS_SECONDS = 0.005  # how often an edge without a ring is looked at while others are read


class WorkerRings:
    """Makes the rings and pages of an assignment, and does with them what the supervisor says.

    Args:
        assignment: what they are for.
        channel: to the supervisor.
        incarnation: the number of this process among those that did this work.
        first_sequences: where each port begins; ports that are not named begin when they are told to.
    """

    def __init__(
        self,
        assignment: Assignment,
        channel: Channel,
        events: _ring.EventRing,
        fabric: _ring.Fabric | None,
        first_sequences: Mapping[str, int],
        incarnation: int,
    ) -> None:
        self.producers: dict[str, _ring.RingProducer] = {}
        self.consumers: dict[str, _ring.RingConsumer] = {}
        self._assignment = assignment
        self._channel = channel
        self._events = events
        self._fabric = fabric
        self._first = first_sequences
        self.incarnation = incarnation
        self._readers: dict[tuple[str, str], int] = {}  # port, edge -> handle of who reads it now
        self._leaving: dict[tuple[str, str], int] = {}  # the same, of those that were cut off
        # Edge, producer and handle of every reader under drop_oldest.
        self.dropping: tuple[tuple[str, _ring.RingProducer, int], ...] = ()
        self._next: dict[str, deque[tuple[list[int], list[int]]]] = {}  # edge -> descriptors, slot sizes
        self._came = threading.Condition()  # guards _next

    # -- making ----------------------------------------------------------------------------------------------------

    def make(self) -> None:
        """Make rings, slabs and pages, and hand them to the supervisor."""
        for output in self._assignment.outputs:
            began = time.monotonic()
            self.producers[output.port] = producer = self._make_producer(output)
            mapped_in = time.monotonic() - began
            self._channel.send(
                "port",
                port=output.port,
                slot_bytes=list(producer.slab_slot_bytes),
                fds=[producer.ring_fd, *producer.slab_fds],
            )
            self._report_mapped(mapped_in, [producer.ring_fd, *producer.slab_fds], port=output.port)
        for edge in self._assignment.inputs:
            self.consumers[edge.key] = consumer = self._make_consumer(edge)
            self._channel.send("page", edge=edge.key, fds=[consumer.page_fd])

    def _make_producer(self, output: OutputAssignment) -> _ring.RingProducer:
        producer = _ring.RingProducer(
            capacity=output.ring_capacity,
            size_classes=[size.wish(output.huge_pages) for size in output.sizes],
            incarnation=self.incarnation,
            first_sequence=self._first.get(output.port),
        )
        if output.place is not None:
            producer.trace(self._trace(output.place))
        return producer

    def _make_consumer(self, edge: InputAssignment) -> _ring.RingConsumer:
        consumer = _ring.RingConsumer(edge.policy)
        if edge.place is not None:
            consumer.trace(self._trace(edge.place))
        emulated.put_under(consumer, edge.link, self._fabric, edge.key)
        return consumer

    def _trace(self, place: int) -> _ring.Trace:
        job = self._assignment
        return _ring.Trace(self._events, job.stream, job.epoch, place, job.real_device)

    def _report_mapped(self, seconds: float, fds: Sequence[int], **what: Any) -> None:
        """Say how long it took to map these rings and slabs: a producer also makes and seals its own."""
        size = sum(os.fstat(fd).st_size for fd in fds)
        self._channel.send("mapped", operator=self._assignment.operator, seconds=seconds, bytes=size, **what)

    # -- what the supervisor says ------------------------------------------------------------------------------------

    def obey(self, message: dict[str, Any], fds: list[int]) -> bool:
        """Do what a message says; False when it is not about rings. Descriptors are closed or kept."""
        match message["type"]:
            case "input":
                self._offer(message["edge"], fds, message["slot_bytes"])
                return True  # they are kept until the ring is attached
            case "output":
                self._admit(message["port"], message["edge"], message["policy"], fds[0])
            case "admit":
                self._admit_together(message["port"], message["edges"], message["policies"], fds)
            case "end":
                self._end(message["port"], message["edges"])
            case "let_go":
                self._let_go(message["port"], message["edge"])
            case "replace":
                self._replace(message["port"], message["edge"], fds[0], leaving=message["leaving"])
            case "cut":
                self._cut(message["port"], message["edge"], fds[0])
            case "dismiss":
                self._dismiss(message["port"], message["edge"])
            case "begin":
                self.producers[message["port"]].begin(message["first_sequence"])
                self._channel.send("begun", port=message["port"])
            case _:
                return False
        close_all(fds)
        return True

    def _admit(self, port: str, edge: str, policy: OnFull, page_fd: int) -> None:
        handle = self._readers[port, edge] = self.producers[port].admit(page_fd, policy)
        if policy == OnFull.DROP_OLDEST:
            self.dropping = (*self.dropping, (edge, self.producers[port], handle))

    def _admit_together(self, port: str, edges: list[str], policies: list[OnFull], pages: list[int]) -> None:
        """Let readers of another job in, all at the same sequence."""
        producer = self.producers[port]
        try:
            handles, sequence, source_index = producer.admit_together(pages, policies)
        except _ring.RingError:  # it has just ended: who is not listed sees an ended ring as empty
            handles, sequence, source_index = [], producer.tail, producer.next_source_index
        for edge, policy, handle in zip(edges, policies, handles, strict=False):
            self._readers[port, edge] = handle
            if policy == OnFull.DROP_OLDEST:
                self.dropping = (*self.dropping, (edge, producer, handle))
        self._channel.send("admitted", port=port, edges=edges, sequence=sequence, source_index=source_index)

    def _end(self, port: str, edges: list[str]) -> None:
        """End the shares of readers of another job, all at the same sequence."""
        producer = self.producers[port]
        try:
            handles = [self._readers[port, edge] for edge in edges if (port, edge) in self._readers]
            sequence, source_index = producer.stop(handles)
        except _ring.RingError:  # all of them ended a moment ago, with the ring
            sequence, source_index = producer.tail, producer.next_source_index
        self._channel.send("share_ended", port=port, edges=edges, sequence=sequence, source_index=source_index)

    def _let_go(self, port: str, edge: str) -> None:
        handle = self._readers.pop((port, edge), None)
        if handle is not None:  # else it was a reader of the ring of the process before this one
            self._forget(port, edge, handle)

    def _replace(self, port: str, edge: str, page_fd: int, *, leaving: bool) -> None:
        handle = (self._leaving if leaving else self._readers)[port, edge]
        _, lost = self.producers[port].replace(handle, page_fd)
        self._channel.send("replaced", port=port, edge=edge, leaving=leaving, lost=lost)

    def _cut(self, port: str, edge: str, page_fd: int) -> None:
        producer, old = self.producers[port], self._readers[port, edge]
        try:
            new = producer.cut(old, page_fd)
        except _ring.RingError as error:  # it has just ended: nothing is left to hand over
            self._channel.send("uncut", port=port, edge=edge, reason=str(error))
            return
        self._leaving[port, edge], self._readers[port, edge] = old, new
        if any(handle == old and of is producer for _, of, handle in self.dropping):
            self.dropping = (*self.dropping, (edge, producer, new))
        self._channel.send("cut", port=port, edge=edge, sequence=producer.tail)

    def _dismiss(self, port: str, edge: str) -> None:
        handle = self._leaving.pop((port, edge), None)
        if handle is not None:  # else it was cut off from the ring of the process before this one
            self._forget(port, edge, handle)

    def _forget(self, port: str, edge: str, handle: int) -> None:
        producer = self.producers[port]
        if dropped := producer.take_dropped(handle):
            self._channel.send("dropped", edge=edge, source_indices=dropped)
        self.dropping = tuple(d for d in self.dropping if d[1:] != (producer, handle))
        producer.dismiss(handle)

    # -- one ring after the other --------------------------------------------------------------------------------------

    def _offer(self, edge: str, fds: list[int], slot_bytes: list[int]) -> None:
        """A ring for an edge, to be attached when the one before is read to its end."""
        with self._came:
            self._next.setdefault(edge, deque()).append((fds, slot_bytes))
            self._came.notify_all()

    def _attach(self, edge: str, fds: list[int], slot_bytes: list[int]) -> None:
        began = time.monotonic()
        try:
            self.consumers[edge].attach(fds[0], fds[1:], slot_bytes)
            self._report_mapped(time.monotonic() - began, fds, edge=edge)
        finally:
            close_all(fds)

    def follow(self, edge: str, timeout_seconds: float) -> bool:
        """Attach the first ring, or that which follows the one that has ended, once it is there. False: it is not."""
        with self._came:
            if not self._came.wait_for(lambda: self._next.get(edge), timeout_seconds):
                return False
            fds, slot_bytes = self._next[edge].popleft()
        self._attach(edge, fds, slot_bytes)
        return True

    def finish(self, reason: str) -> None:
        """End every ring that has begun."""
        for producer in self.producers.values():
            if producer.begun:
                producer.finish(reason)
