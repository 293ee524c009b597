"""Rings put together the way these tests need them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dataplane._ring import Descriptor, RingConsumer, RingProducer, SizeClass
from observatory.model.media import PayloadKind

PAGE = 4096


def frame(source_index: int) -> Descriptor:
    """A video frame about which little is said."""
    return Descriptor(
        payload_kind=PayloadKind.VIDEO_FRAME, source_index=source_index, pts=source_index * 10, time_base=(1, 25)
    )


def attach(consumer: RingConsumer, producer: RingProducer) -> None:
    """Attach a consumer of this process."""
    consumer.attach(producer.ring_fd, producer.slab_fds, producer.slab_slot_bytes)


def put(producer: RingProducer, source_index: int, payload_bytes: int = 8) -> int | None:
    """Publish one frame whose first bytes say its source index; None when there is no room."""
    lease = producer.acquire(payload_bytes, 0.0)
    if lease is None:
        return None
    lease.array[:8] = list(source_index.to_bytes(8, "little"))
    return lease.publish(frame(source_index), payload_bytes)


@contextmanager
def ring(
    policies: Sequence[str] = ("block",), *, capacity: int = 8, slots: int = 4, slot_bytes: int = PAGE
) -> Iterator[tuple[RingProducer, list[RingConsumer]]]:
    """A producer and one attached consumer per policy; their handles are 0, 1, ..."""
    producer = RingProducer(capacity=capacity, size_classes=[SizeClass(slot_bytes, slots)])
    consumers = [RingConsumer(policy) for policy in policies]
    for consumer, policy in zip(consumers, policies, strict=True):
        producer.admit(consumer.page_fd, policy)
        attach(consumer, producer)
    yield producer, consumers
    for consumer in consumers:
        consumer.close()
    producer.close()
