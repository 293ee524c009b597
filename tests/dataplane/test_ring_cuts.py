"""Shares that end at a sequence, where the ring ends there too, or its producer dies in the midst of it."""

from __future__ import annotations

import mmap
import struct

import pytest

from dataplane._ring import RingConsumer, RingEnded, RingMonitor, RingProducer, SizeClass, layouts

from .rings import PAGE, attach, put, ring

ADMISSION = struct.Struct("<QQQQ")  # page_id, start, stop, reserved


def the_rest(consumer: RingConsumer) -> tuple[list[int], str]:
    """Sequences that it takes and acknowledges, and why there are no more."""
    taken = []
    try:
        while (lease := consumer.take(0.0)) is not None:
            taken.append(lease.sequence)
            lease.release()
    except RingEnded as end:
        return taken, end.reason
    return taken, "goes on"


@pytest.mark.parametrize("reason", ["migrated", "end_of_stream", "failed"])
@pytest.mark.parametrize("policy", ["block", "drop_oldest"])
def test_a_share_that_ends_with_the_ring_was_cut_all_the_same(policy: str, reason: str) -> None:
    """Else the old consumer would wait for a ring that follows, which is the new one's."""
    with ring([policy]) as (producer, (old,)):
        new = RingConsumer(policy)
        put(producer, 0)
        producer.cut(0, new.page_fd)
        producer.finish(reason)
        attach(new, producer)
        assert the_rest(old) == ([0], "cut")
        assert the_rest(new) == ([], reason)
        new.close()


@pytest.mark.parametrize("policy", ["block", "drop_oldest"])
def test_a_cut_that_was_made_by_half_is_finished_for_the_dead(policy: str) -> None:
    """The producer died after it had said where the old share ends, and before it had listed the new page."""
    with ring([policy]) as (producer, (old,)):
        new = RingConsumer(policy)
        monitor = RingMonitor(producer.ring_fd)
        handle = monitor.watch(old.page_fd)
        put(producer, 0)
        put(producer, 1)
        stop_at(producer, 2)
        monitor.end("migrated")
        assert monitor.finish_cut(handle, new.page_fd) == 2
        assert monitor.finish_cut(handle, new.page_fd) == 2, "twice is the same"
        attach(new, producer)
        assert the_rest(old) == ([0, 1], "cut")
        assert the_rest(new) == ([], "migrated")
        monitor.close()
        new.close()


def test_a_cut_that_had_not_begun_is_not_made_for_the_dead() -> None:
    with ring() as (producer, (old,)):
        new = RingConsumer("block")
        monitor = RingMonitor(producer.ring_fd)
        handle = monitor.watch(old.page_fd)
        put(producer, 0)
        monitor.end("migrated")
        assert monitor.finish_cut(handle, new.page_fd) is None
        assert the_rest(old) == ([0], "migrated")
        monitor.close()
        new.close()


def stop_at(producer: RingProducer, sequence: int) -> None:
    """Write the end of the first consumer's share into the ring, as its producer does first in a cut."""
    header = layouts()["mo_ring_header"]
    assert (header["version"], ADMISSION.size) == (3, 32)
    offset = header["fields"]["admissions"]
    with mmap.mmap(producer.ring_fd, 0) as memory:
        page_id, start, stop, reserved = ADMISSION.unpack_from(memory, offset)
        assert page_id
        assert stop == 2**64 - 1
        ADMISSION.pack_into(memory, offset, page_id, start, sequence, reserved)


def test_a_cut_is_finished_only_where_the_ring_has_ended() -> None:
    producer = RingProducer(capacity=2, size_classes=[SizeClass(PAGE, 1)])
    consumer, other = RingConsumer("block"), RingConsumer("block")
    producer.admit(consumer.page_fd, "block")
    monitor = RingMonitor(producer.ring_fd)
    with pytest.raises(Exception, match="the ring has not ended"):
        monitor.finish_cut(monitor.watch(consumer.page_fd), other.page_fd)
    monitor.close()
    producer.close()
    consumer.close()
    other.close()
