"""The other process of the tests in test_ring_processes.py: `python ring_peer.py ROLE SOCKET_FD [ARGUMENT...]`."""

from __future__ import annotations

import os
import socket
import sys
import time

from dataplane._ring import Descriptor, RingConsumer, RingEnded, RingProducer, SizeClass, die_with_parent
from observatory.model.media import PayloadKind

SLOT_BYTES = 65536


def frame(source_index: int) -> Descriptor:
    return Descriptor(payload_kind=PayloadKind.VIDEO_FRAME, source_index=source_index)


def receive_fds(channel: socket.socket, count: int) -> list[int]:
    _, fds, _, _ = socket.recv_fds(channel, 1, count)
    assert len(fds) == count
    return fds


def make_producer(channel: socket.socket) -> RingProducer:
    """A ring whose descriptors were sent, and which has admitted the consumer page that came back."""
    producer = RingProducer(capacity=8, size_classes=[SizeClass(SLOT_BYTES, 3)])
    socket.send_fds(channel, [b"r"], [producer.ring_fd, *producer.slab_fds])
    (page,) = receive_fds(channel, 1)
    producer.admit(page, "block")
    os.close(page)
    return producer


def publish(producer: RingProducer, source_index: int) -> None:
    lease = producer.acquire(SLOT_BYTES, 60.0)
    assert lease is not None
    lease.array[:] = source_index % 251
    lease.publish(frame(source_index), SLOT_BYTES)


def produce(channel: socket.socket, count: int) -> None:
    """Publish `count` frames and end the ring; then wait until all are acknowledged."""
    producer = make_producer(channel)
    for index in range(count):
        publish(producer, index)
    producer.finish()
    assert producer.wait_acknowledged(60.0)


def produce_for_ever(channel: socket.socket) -> None:
    """Until killed."""
    producer = make_producer(channel)
    index = 0
    while True:
        publish(producer, index)
        index += 1


def make_consumer(channel: socket.socket) -> RingConsumer:
    consumer = RingConsumer()
    socket.send_fds(channel, [b"p"], [consumer.page_fd])
    fds = receive_fds(channel, 2)
    consumer.attach(fds[0], fds[1:], [SLOT_BYTES])
    for fd in fds:
        os.close(fd)
    return consumer


def consume(channel: socket.socket) -> None:
    """Read to the end and answer with how many frames came."""
    consumer = make_consumer(channel)
    count = 0
    try:
        while True:
            with consumer.take(60.0) as lease:  # type: ignore[union-attr]
                assert lease.sequence == lease.descriptor.source_index == count
                assert bool((lease.array == count % 251).all())
            count += 1
    except RingEnded as ended:
        channel.send(f"{count} {ended.reason} {ended.final_seq}".encode())


def hold(channel: socket.socket) -> None:
    """Take one frame and keep it for ever."""
    lease = make_consumer(channel).take(60.0)
    assert lease is not None
    channel.send(b"held")
    time.sleep(600)


def sleep_in_take(channel: socket.socket) -> None:
    """Wait for a frame that never comes, until a signal says otherwise."""
    consumer = make_consumer(channel)
    try:
        channel.send(b"waiting")
        consumer.take(float("inf"))
    except KeyboardInterrupt:
        channel.send(b"interrupted")


def sleep_in_acquire(channel: socket.socket) -> None:
    """Wait for room that never comes, until a signal says otherwise."""
    producer = make_producer(channel)
    for index in range(3):
        publish(producer, index)
    try:
        channel.send(b"waiting")
        producer.acquire(1, float("inf"))
    except KeyboardInterrupt:
        channel.send(b"interrupted")


def outlive(channel: socket.socket) -> None:
    """Ask to die with the parent, which is the first argument."""
    die_with_parent(int(sys.argv[3]))
    channel.send(b"ready")
    time.sleep(600)


if __name__ == "__main__":
    role = globals()[sys.argv[1]]
    link = socket.socket(fileno=int(sys.argv[2]))
    if role is produce:
        produce(link, int(sys.argv[3]))
    else:
        role(link)
