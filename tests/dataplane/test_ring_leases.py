"""Leases: memory is never looked at after it was given back, and arrays behave as NumPy's do."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from dataplane._ring import Descriptor, LeaseError, ReadLease, RingConsumer, RingError, RingProducer, WriteLease
from observatory.model.media import PayloadKind, PixelFormat

from .rings import PAGE, frame, put, ring


def acquired(producer: RingProducer) -> WriteLease:
    lease = producer.acquire(PAGE, 0.0)
    assert lease is not None
    return lease


def taken(consumer: RingConsumer) -> ReadLease:
    lease = consumer.take(0.0)
    assert lease is not None
    return lease


def test_a_lease_is_not_released_under_an_array() -> None:
    with ring() as (producer, (consumer,)):
        put(producer, 7)
        lease = taken(consumer)
        whole = lease.array
        view = whole[2:4].reshape(1, 2)
        with pytest.raises(LeaseError, match=r"1 view\(s\) alive"):
            lease.release()
        del whole
        with pytest.raises(LeaseError, match="alive"):
            lease.release()  # the view keeps it
        shared = view.data
        del view
        with pytest.raises(LeaseError, match="alive"):
            lease.release()
        assert consumer.acked == 0
        del shared
        lease.release()
        assert consumer.acked == 1
        for use in (lambda: lease.array, lambda: lease.plane(0), lease.launch, lease.release):
            with pytest.raises((LeaseError, IndexError)):
                use()
        assert lease.descriptor.source_index == 7  # words about the frame stay


def test_every_array_counts() -> None:
    with ring() as (producer, (consumer,)):
        put(producer, 0)
        lease = taken(consumer)
        arrays = [lease.array for _ in range(3)]
        while arrays:
            with pytest.raises(LeaseError, match=rf"{len(arrays)} view\(s\)"):
                lease.release()
            arrays.pop()
        lease.release()


def test_readers_cannot_write() -> None:
    with ring() as (producer, (consumer,)):
        put(producer, 0)
        lease = taken(consumer)
        array = lease.array
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True
        with pytest.raises(TypeError, match=r"read-only|readonly"):
            array.data[0] = 1
        del array
        lease.release()


def test_the_producer_writes_what_the_consumer_reads() -> None:
    with ring() as (producer, (consumer,)):
        lease = acquired(producer)
        array = lease.array
        assert array.flags.writeable
        assert array.dtype == np.uint8
        assert array.shape == (PAGE,)
        array[:] = 1
        words = array[:64].view("<u4").reshape(4, 4)
        words[...] = np.arange(16).reshape(4, 4)
        del array, words
        lease.publish(frame(0), PAGE)
        read = taken(consumer)
        assert np.array_equal(read.array[:64].view("<u4"), np.arange(16))
        assert np.all(read.array[64:] == 1)
        read.release()


def test_a_lease_is_not_published_under_an_array() -> None:
    with ring() as (producer, (consumer,)):
        lease = acquired(producer)
        view = lease.array[:4]
        with pytest.raises(LeaseError, match=r"1 view\(s\) alive"):
            lease.publish(frame(0), 1)
        assert producer.tail == 0
        view[:] = 5  # the lease is still open
        del view
        assert lease.publish(frame(0), 4) == 0
        assert taken(consumer).array.tolist() == [5] * 4


def test_a_published_lease_is_over() -> None:
    with ring() as (producer, _):
        lease = acquired(producer)
        lease.publish(frame(0), 1)
        for use in (lambda: lease.array, lease.launch, lease.abandon, lambda: lease.publish(frame(0), 1)):
            with pytest.raises(LeaseError, match="ended"):
                use()
        assert (lease.slab, lease.slot) == (0, 0)


def test_an_abandoned_slot_is_lent_again_when_nobody_can_write_there() -> None:
    with ring(slots=1) as (producer, _):
        lease = acquired(producer)
        view, other = lease.array, memoryview(lease)
        lease.abandon()
        with pytest.raises(LeaseError, match="ended"):
            lease.abandon()
        assert producer.free_slots == 0
        view[:] = 1  # late, but into nobody's frame
        del view
        assert producer.free_slots == 0
        other.release()
        assert producer.free_slots == 1


def test_a_refused_publish_leaves_the_lease_open() -> None:
    with ring() as (producer, _):
        lease = acquired(producer)
        with pytest.raises(RingError, match=f"holds {PAGE} bytes"):
            lease.publish(frame(0), PAGE + 1)
        outside = Descriptor(payload_kind=PayloadKind.VIDEO_FRAME, height=2, planes=[(0, 5)])
        with pytest.raises(RingError, match="plane 0 ends at byte 10 of 9"):
            lease.publish(outside, 9)
        with pytest.raises(RingError, match="no payload"):
            lease.publish(Descriptor(payload_kind=PayloadKind.FRAME_LOST), 0)
        assert producer.tail == 0
        assert lease.publish(outside, 10) == 0


def test_leaving_the_block_abandons_what_was_not_published() -> None:
    with ring(slots=1) as (producer, _):
        with acquired(producer) as lease:
            assert producer.free_slots == 0
        assert producer.free_slots == 1
        with pytest.raises(ZeroDivisionError), acquired(producer):
            _ = 1 / 0
        assert producer.free_slots == 1
        with acquired(producer) as lease:
            lease.publish(frame(0), 1)
        assert producer.outstanding == 1
        assert producer.tail == 1


def test_a_forgotten_write_lease_gives_its_slot_back() -> None:
    with ring(slots=1) as (producer, _):
        acquired(producer)
        gc.collect()
        assert producer.free_slots == 1
        view = acquired(producer).array
        gc.collect()
        assert producer.free_slots == 0  # somebody can still write there
        del view
        assert producer.free_slots == 1


def test_leaving_the_block_acknowledges_unless_the_work_failed() -> None:
    with ring() as (producer, (consumer,)):
        put(producer, 0)
        with taken(consumer) as lease:
            assert consumer.held == 1
        assert (consumer.held, consumer.acked) == (0, 1)
        put(producer, 1)
        lease = taken(consumer)
        array = lease.array
        with pytest.raises(ZeroDivisionError), lease:
            _ = 1 / 0
        assert (consumer.held, consumer.acked) == (1, 1)
        del array
        lease.release()
        assert consumer.acked == 2
        put(producer, 2)
        with taken(consumer) as lease:
            lease.release()  # early is fine


def test_a_forgotten_read_lease_acknowledges_nothing() -> None:
    with ring() as (producer, (consumer,)):
        put(producer, 0)
        taken(consumer)
        gc.collect()
        assert (consumer.held, consumer.acked, producer.outstanding) == (1, 0, 1)


def test_arrays_outlive_consumer_and_producer() -> None:
    with ring() as (producer, (consumer,)):
        put(producer, 258)
        writing = acquired(producer)
        written = writing.array
        lease = taken(consumer)
        array = lease.array
        consumer.close()
        producer.close()
        assert array[:2].tolist() == [2, 1]
        written[:] = 3
        with pytest.raises(LeaseError, match="alive"):
            lease.release()
        del array
        with pytest.raises(RingError, match="closed"):
            lease.release()
        with pytest.raises(LeaseError, match="alive"):
            writing.publish(frame(0), 1)
        del written
        with pytest.raises(RingError, match="closed"):
            writing.publish(frame(0), 1)


def test_planes_are_rows_of_bytes() -> None:
    width, height, stride = 6, 5, 8
    with ring() as (producer, (consumer,)):
        lease = acquired(producer)
        lease.array[:] = np.arange(PAGE, dtype=np.uint32).astype(np.uint8)
        said = Descriptor(
            payload_kind=PayloadKind.VIDEO_FRAME,
            pixel_format=PixelFormat.YUV420P,
            width=width,
            height=height,
            planes=[(0, stride), (64, 4), (80, 4)],
        )
        lease.publish(said, 92)
        read = taken(consumer)
        whole = read.array
        for index, (offset, rows, row_bytes) in enumerate([(0, 5, 8), (64, 3, 4), (80, 3, 4)]):
            plane = read.plane(index)
            assert plane.shape == (rows, row_bytes)
            assert not plane.flags.writeable
            assert np.array_equal(plane.ravel(), whole[offset : offset + rows * row_bytes])
            assert np.shares_memory(plane, whole)
        for index in (-1, 3):
            with pytest.raises(IndexError):
                read.plane(index)
        del plane, whole
        read.release()


def test_leases_do_not_keep_each_other_alive() -> None:
    with ring() as (producer, (consumer,)):
        put(producer, 0)
        lease = taken(consumer)
        alive = weakref.ref(lease.array)
        assert alive() is None
        lease.release()
