"""One end of a traced hand-over: `python probe_peer.py produce|consume SOCKET_FD EVENTS_FD COUNT`."""

from __future__ import annotations

import os
import socket
import sys

from dataplane._ring import (
    Descriptor,
    EventRing,
    RingConsumer,
    RingEnded,
    RingProducer,
    SizeClass,
    Trace,
    monotonic_ns,
)
from observatory.model.event import EventKind
from observatory.model.media import PayloadKind

STREAM, EPOCH = 3, 2
PORT, HOP = 11, 12


def receive_fds(channel: socket.socket, count: int) -> list[int]:
    _, fds, _, _ = socket.recv_fds(channel, 1, count)
    assert len(fds) == count
    return fds


def produce(channel: socket.socket, events: EventRing, count: int) -> None:
    producer = RingProducer(capacity=8, size_classes=[SizeClass(4096, 3)])
    producer.trace(Trace(events, STREAM, EPOCH, PORT, 0))
    socket.send_fds(channel, [b"r"], [producer.ring_fd, *producer.slab_fds])
    (page,) = receive_fds(channel, 1)
    producer.admit(page, "block")
    os.close(page)
    for index in range(count):
        lease = producer.acquire(100 + index, 60.0)
        assert lease is not None
        lease.launch()
        frame = Descriptor(
            payload_kind=PayloadKind.VIDEO_PACKET, source_index=1000 + index, pts=-7 * index, time_base=(1, 25)
        )
        lease.publish(frame, 100 + index)
    for kind in (EventKind.LINK_START, EventKind.LINK_END):  # as links emit them
        events.emit(kind, monotonic_ns(), 1000, 0, (1, 25), STREAM, EPOCH, HOP, 0, 2**32 - 1, 0)
    producer.finish()
    assert producer.wait_acknowledged(60.0)


def consume(channel: socket.socket, events: EventRing, count: int) -> None:
    consumer = RingConsumer()
    consumer.trace(Trace(events, STREAM, EPOCH, HOP, 1))
    socket.send_fds(channel, [b"p"], [consumer.page_fd])
    ring, slab = receive_fds(channel, 2)
    consumer.attach(ring, [slab], [4096])
    for _ in range(count):
        lease = consumer.take(60.0)
        assert lease is not None
        lease.launch()
        lease.release()
    try:
        assert consumer.take(60.0) is None
    except RingEnded:
        return
    raise AssertionError("the ring did not end")


if __name__ == "__main__":
    role = {"produce": produce, "consume": consume}[sys.argv[1]]
    role(socket.socket(fileno=int(sys.argv[2])), EventRing.attach(int(sys.argv[3])), int(sys.argv[4]))
