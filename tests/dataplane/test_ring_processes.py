"""Rings between processes, their memory handed over with SCM_RIGHTS."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dataplane._ring import RingConsumer, RingEnded, RingError, RingMonitor, RingProducer, SizeClass, die_with_parent

from .rings import frame

PEER = Path(__file__).with_name("ring_peer.py")
SLOT_BYTES = 65536


class Peer:
    """A process that plays one of the roles of ring_peer.py."""

    def __init__(self, role: str, *arguments: object) -> None:
        self.channel, theirs = socket.socketpair()
        self.channel.settimeout(60.0)
        command = [sys.executable, str(PEER), role, str(theirs.fileno()), *map(str, arguments)]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()

    def fds(self, count: int) -> list[int]:
        _, fds, _, _ = socket.recv_fds(self.channel, 1, count)
        assert len(fds) == count
        return fds

    def hears(self) -> str:
        return self.channel.recv(100).decode()

    def close(self) -> None:
        self.process.kill()
        self.process.wait(60.0)
        self.channel.close()


@contextmanager
def peer(role: str, *arguments: object) -> Iterator[Peer]:
    made = Peer(role, *arguments)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def consumer_of(producer: Peer) -> Iterator[tuple[RingConsumer, RingMonitor]]:
    """A consumer here of a producer there, and the supervisor's view."""
    fds = producer.fds(2)
    consumer, monitor = RingConsumer(), RingMonitor(fds[0])
    monitor.watch(consumer.page_fd)
    monitor.seal_ring()
    consumer.attach(fds[0], fds[1:], [SLOT_BYTES])
    for fd in fds:
        os.close(fd)
    socket.send_fds(producer.channel, [b"p"], [consumer.page_fd])
    yield consumer, monitor
    consumer.close()
    monitor.close()


@contextmanager
def producer_for(*consumers: Peer) -> Iterator[RingProducer]:
    """A producer here for consumers there."""
    producer = RingProducer(capacity=8, size_classes=[SizeClass(SLOT_BYTES, 3)])
    for consumer in consumers:
        (page,) = consumer.fds(1)
        producer.admit(page, "block")
        os.close(page)
        socket.send_fds(consumer.channel, [b"r"], [producer.ring_fd, *producer.slab_fds])
    yield producer
    producer.close()


def publish(producer: RingProducer, source_index: int) -> None:
    lease = producer.acquire(SLOT_BYTES, 60.0)
    assert lease is not None
    lease.array[:] = source_index % 251
    lease.publish(frame(source_index), SLOT_BYTES)


def take_whole(consumer: RingConsumer, count: int) -> None:
    lease = consumer.take(60.0)
    assert lease is not None
    assert lease.sequence == lease.descriptor.source_index == count
    assert bool((lease.array == count % 251).all())
    lease.release()


def test_every_frame_of_another_process_arrives_whole() -> None:
    with peer("produce", 300) as producer, consumer_of(producer) as (consumer, _):
        for count in range(300):
            take_whole(consumer, count)
        with pytest.raises(RingEnded) as ended:
            consumer.take(60.0)
        assert (ended.value.final_seq, ended.value.reason) == (300, "end_of_stream")
        assert producer.process.wait(60.0) == 0


def test_several_processes_read_one_ring() -> None:
    with peer("consume") as left, peer("consume") as right, producer_for(left, right) as producer:
        for index in range(200):
            publish(producer, index)
        producer.finish("stopped")
        assert producer.wait_acknowledged(60.0)
        assert {left.hears(), right.hears()} == {"200 stopped 200"}
        assert left.process.wait(60.0) == right.process.wait(60.0) == 0


def test_a_killed_producer_leaves_only_whole_frames() -> None:
    with peer("produce_for_ever") as producer, consumer_of(producer) as (consumer, monitor):
        for count in range(20):
            take_whole(consumer, count)
        producer.process.kill()
        producer.process.wait(60.0)
        final = monitor.end("failed")
        for count in range(20, final):
            take_whole(consumer, count)
        with pytest.raises(RingEnded, match="failed") as ended:
            consumer.take(60.0)
        assert ended.value.final_seq == consumer.acked == monitor.tail == final


def test_a_killed_consumer_is_dismissed_and_its_sibling_goes_on() -> None:
    with peer("hold") as victim, peer("consume") as sibling, producer_for(victim, sibling) as producer:
        publish(producer, 0)
        assert victim.hears() == "held"
        for index in (1, 2):
            publish(producer, index)
        assert producer.acquire(1, 0.05) is None  # visibly stalled
        victim.process.kill()
        victim.process.wait(60.0)
        producer.dismiss(0)
        for index in range(3, 50):
            publish(producer, index)
        producer.finish()
        assert sibling.hears() == "50 end_of_stream 50"


@pytest.mark.parametrize("role", ["sleep_in_take", "sleep_in_acquire"])
def test_a_signal_ends_any_sleep(role: str) -> None:
    with peer(role) as sleeper, producer_for(sleeper) if role == "sleep_in_take" else consumer_of(sleeper):
        assert sleeper.hears() == "waiting"
        time.sleep(0.2)  # time enough to fall asleep
        sleeper.process.send_signal(signal.SIGINT)
        assert sleeper.hears() == "interrupted"


def test_a_reader_cannot_make_its_mapping_writable() -> None:
    with peer("produce", 1) as producer:
        ring, slab = fds = producer.fds(2)
        for fd in (ring, slab):
            # The ring is still the supervisor's to map; the slab is nobody's.
            opened = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
            if fd == slab:
                with pytest.raises(PermissionError):
                    os.write(opened, b"x")
            os.close(opened)
        RingMonitor(ring).seal_ring()
        with pytest.raises(RingError, match="not permitted"):
            RingMonitor(ring)
        for fd in fds:
            os.close(fd)


def test_processes_die_with_the_parent_they_name() -> None:
    # The parent here is a shell, which starts the peer and can be killed.
    ours, theirs = socket.socketpair()
    ours.settimeout(60.0)
    script = f'"{sys.executable}" "{PEER}" outlive {theirs.fileno()} $$ & wait'
    shell = subprocess.Popen(["/bin/sh", "-c", script], pass_fds=[theirs.fileno()])
    theirs.close()
    assert ours.recv(10) == b"ready"
    shell.kill()
    shell.wait(60.0)
    assert ours.recv(10) == b""  # the last holder of the other end is gone
    ours.close()


def test_a_parent_that_is_gone_already_is_an_error() -> None:
    with pytest.raises(RingError, match="is gone"):
        die_with_parent(2**30)
    script = "import os; from dataplane._ring import die_with_parent; die_with_parent(os.getppid())"
    subprocess.run([sys.executable, "-c", script], check=True)
