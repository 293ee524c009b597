"""Producers and consumers of one process: what their users notice."""

from __future__ import annotations

import gc
import mmap
import os
import resource
import threading
from pathlib import Path

import numpy as np
import pytest

from dataplane._ring import (
    Descriptor,
    EventRing,
    RingConsumer,
    RingEnded,
    RingError,
    RingMonitor,
    RingProducer,
    SizeClass,
    Trace,
    layouts,
    monotonic_ns,
    wait_any,
)
from observatory.model.event import UNKNOWN_I64, UNKNOWN_U32, EventKind
from observatory.model.media import PayloadKind, PixelFormat

from .rings import PAGE, attach, frame, put, ring


def test_a_frame_crosses_without_a_copy() -> None:
    with ring() as (producer, (consumer,)):
        lease = producer.acquire(100, 0.0)
        assert lease is not None
        assert (lease.slab, lease.slot, lease.capacity_bytes) == (0, 0, PAGE)
        lease.array[:100] = np.arange(100, dtype=np.uint8)
        assert lease.publish(frame(5), 100) == 0
        taken = consumer.take(0.0)
        assert taken is not None
        said = taken.descriptor
        assert (taken.sequence, said.source_index, said.pts, said.bytes, said.slot) == (0, 5, 50, 100, 0)
        assert np.array_equal(taken.array, np.arange(100, dtype=np.uint8))
        taken.release()


def test_nothing_to_take_is_none_and_the_end_is_an_exception() -> None:
    with ring() as (producer, (consumer,)):
        assert consumer.take(0.0) is None
        assert consumer.take(0.01) is None
        put(producer, 0)
        assert producer.finish("migrated") == 1
        with consumer.take(0.0) as taken:  # type: ignore[union-attr]
            assert taken.sequence == 0
        for _ in range(2):
            with pytest.raises(RingEnded) as ended:
                consumer.take(10.0)
            assert (ended.value.reason, ended.value.final_seq) == ("migrated", 1)
        with pytest.raises(RingError, match="ended"):
            producer.acquire(1, 0.0)


def test_no_room_is_none_until_somebody_acknowledges() -> None:
    with ring(slots=1) as (producer, (consumer,)):
        assert put(producer, 0) == 0
        assert producer.acquire(1, 0.01) is None
        assert producer.free_slots == 0
        assert producer.outstanding == 1
        assert not producer.wait_acknowledged(0.0)
        taken = consumer.take(0.0)
        assert taken is not None
        assert producer.acquire(1, 0.0) is None
        taken.release()
        assert producer.wait_acknowledged(0.0)
        assert put(producer, 1) == 1
        with pytest.raises(RingError, match=f"no slot holds {PAGE + 1} bytes"):
            producer.acquire(PAGE + 1, 0.0)


def test_sleepers_are_woken() -> None:
    with ring(slots=1) as (producer, (consumer,)):
        for index in range(20):
            thread = threading.Thread(target=put, args=(producer, index))
            thread.start()
            taken = consumer.take(60.0)
            assert taken is not None
            thread.join()
            thread = threading.Thread(target=taken.release)
            thread.start()
            assert producer.wait_acknowledged(60.0)
            thread.join()


def test_closing_wakes_a_sleeper_of_another_thread() -> None:
    with ring(slots=1) as (producer, (consumer,)):
        errors = []

        def sleep() -> None:
            with pytest.raises(RingError, match="closed") as error:
                consumer.take(60.0)
            errors.append(error.value)

        thread = threading.Thread(target=sleep)
        thread.start()
        consumer.close()
        thread.join()
        assert len(errors) == 1
        with pytest.raises(RingError, match="closed"):
            consumer.take(0.0)
        producer.close()
        with pytest.raises(RingError, match="closed"):
            producer.acquire(1, 0.0)


def test_wait_any_names_those_with_something_to_take() -> None:
    with ring() as (left, (a,)), ring() as (right, (b,)):
        assert wait_any([a, b], 0.0) == []
        assert wait_any([a, b], 0.01) == []
        put(right, 0)
        assert wait_any([a, b], 60.0) == [1]
        put(left, 0)
        assert wait_any([a, b], 60.0) == [0, 1]
        for consumer in (a, b):
            with consumer.take(0.0) as _:  # type: ignore[union-attr]
                pass
        thread = threading.Thread(target=left.finish)
        thread.start()
        assert wait_any([a, b], 60.0) == [0]
        thread.join()
        assert wait_any([], 0.001) == []


def test_dropped_frames_are_counted_and_listed() -> None:
    with ring(["drop_oldest"], slots=2) as (producer, (consumer,)):
        for index in range(5):
            assert put(producer, 100 + index) == index
        assert producer.dropped(0) == 3
        assert producer.take_dropped(0) == [100, 101, 102]
        assert producer.take_dropped(0) == []
        assert (producer.backlog(0), consumer.backlog) == (2, 2)
        taken = consumer.take(0.0)
        assert taken is not None
        assert taken.descriptor.source_index == 103
        taken.release()


def test_a_lost_frame_has_no_payload() -> None:
    with ring() as (producer, (consumer,)):
        lost = Descriptor(payload_kind=PayloadKind.FRAME_LOST, source_index=3)
        assert producer.publish_empty(lost, 0.0) == 0
        with pytest.raises(RingError, match="only a lost frame"):
            producer.publish_empty(frame(1), 0.0)
        taken = consumer.take(0.0)
        assert taken is not None
        assert taken.array.shape == (0,)
        assert taken.descriptor.source_index == 3
        taken.release()


def test_a_late_consumer_starts_where_it_was_admitted() -> None:
    with ring(slots=8) as (producer, _):
        put(producer, 0)
        late = RingConsumer()
        attach(late, producer)
        assert late.take(0.0) is None
        producer.admit(late.page_fd, "block")
        put(producer, 1)
        taken = late.take(0.0)
        assert taken is not None
        assert taken.sequence == 1
        taken.release()
        late.close()


def test_a_supervisor_ends_the_ring_of_a_dead_producer() -> None:
    with ring() as (producer, (consumer,)):
        monitor = RingMonitor(producer.ring_fd)
        handle = monitor.watch(consumer.page_fd)
        assert monitor.consumer(handle) == {"taken": 0, "acked": 0, "held": 0, "waiting": 0}
        monitor.seal_ring()
        with pytest.raises(PermissionError):
            mmap.mmap(producer.ring_fd, PAGE)
        put(producer, 0)
        taken = consumer.take(0.0)
        assert taken is not None
        assert monitor.consumer(handle) == {"taken": 1, "acked": 0, "held": 1, "waiting": 0}
        assert (monitor.tail, monitor.ended) == (1, False)
        assert monitor.end("failed") == 1
        assert monitor.ended
        with pytest.raises(RingEnded, match="failed"):
            consumer.take(60.0)
        monitor.close()


def test_the_next_incarnation_is_read_in_order() -> None:
    with ring() as (first, (consumer,)):
        put(first, 0)
        second = RingProducer(
            capacity=4, size_classes=[SizeClass(PAGE, 2)], incarnation=2, first_sequence=first.finish("migrated")
        )
        second.admit(consumer.page_fd, "block")
        put(second, 1)
        with pytest.raises(RingError, match="not ended"):
            attach(consumer, second)
        held = consumer.take(0.0)
        assert held is not None
        with pytest.raises(RingEnded, match="migrated"):
            consumer.take(0.0)
        attach(consumer, second)
        taken = consumer.take(0.0)
        assert taken is not None
        assert taken.sequence == 1
        taken.release()
        held.release()
        assert first.wait_acknowledged(0.0)
        assert second.wait_acknowledged(0.0)
        second.close()


def test_what_end_at_says_counts_when_the_ring_has_no_end() -> None:
    with ring() as (producer, (consumer,)):
        put(producer, 0)
        consumer.end_at(1, "failed")
        with consumer.take(0.0) as _:  # type: ignore[union-attr]
            pass
        with pytest.raises(RingEnded) as ended:
            consumer.take(0.0)
        assert (ended.value.reason, ended.value.final_seq) == ("failed", 1)


def test_events_of_both_ends_tell_one_story() -> None:
    with ring() as (producer, (consumer,)):
        events = EventRing.create(64)
        producer.trace(Trace(events, 1, 2, 3, 4))
        consumer.trace(Trace(events, 1, 2, 5, 6))
        lease = producer.acquire(10, 0.0)
        assert lease is not None
        lease.launch()
        lease.publish(frame(9), 10)
        taken = consumer.take(0.0)
        assert taken is not None
        taken.launch()
        taken.release()
        told = events.drain()
        kinds = [EventKind(int(kind)) for kind in told["kind"]]
        assert kinds == [
            EventKind.DMA_BUF_ALLOC,
            EventKind.PRODUCER_KERNEL_LAUNCH,
            EventKind.FENCE_SIGNAL,
            EventKind.CONSUMER_WAIT_FENCE,
            EventKind.CONSUMER_KERNEL_LAUNCH,
            EventKind.SLOT_RELEASE,
        ]
        assert told["place"].tolist() == [3, 3, 3, 5, 5, 5]
        assert told["device"].tolist() == [4, 4, 4, 6, 6, 6]
        assert told["bytes"].tolist() == [10] * 3 + [UNKNOWN_U32] * 3
        assert set(told["source_index"]) == {9}
        assert told["time_ns"][0] == lease.alloc_ns
        assert told["time_ns"][3] == taken.wait_ns
        times = [int(told["time_ns"][i]) for i in (0, 1, 2, 4, 5)]
        assert times == sorted(times)
        # Sound and parameters have no hop records.
        for kind in (PayloadKind.AUDIO_PACKET, PayloadKind.CODEC_PARAMETERS):
            other = producer.acquire(1, 0.0)
            assert other is not None
            other.publish(Descriptor(payload_kind=kind), 1)
            with consumer.take(0.0) as _:  # type: ignore[union-attr]
                pass
        assert len(events.drain()) == 0


def test_waiting_starts_with_the_first_call_that_found_nothing() -> None:
    with ring() as (producer, (consumer,)):
        before = monotonic_ns()
        consumer.take(0.0)
        after = monotonic_ns()
        put(producer, 0)
        put(producer, 1)
        first, second = consumer.take(0.0), consumer.take(0.0)
        assert first is not None
        assert second is not None
        assert first.wait_ns is not None
        assert before <= first.wait_ns <= after
        assert second.wait_ns is None  # it was there at once, and nobody traces


def test_times_are_taken_where_somebody_traces() -> None:
    with ring() as (producer, (consumer,)):
        lease = producer.acquire(8, 0.0)
        assert lease is not None
        assert lease.alloc_ns is None
        put(producer, 2)
        taken = consumer.take(0.0)
        assert taken is not None
        said = taken.descriptor
        assert (said.alloc_ns, said.launch_ns, said.signal_ns) == (UNKNOWN_I64,) * 3
        events = EventRing.create(64)
        producer.trace(Trace(events, 1, 1, 0, 0))
        before = monotonic_ns()
        lease.publish(frame(0), 8)  # lent before there was a trace
        put(producer, 1)
        for _ in range(2):
            taken = consumer.take(0.0)
            assert taken is not None
            said = taken.descriptor
            assert before <= said.alloc_ns <= said.launch_ns <= said.signal_ns
            assert taken.wait_ns is None
        consumer.trace(Trace(events, 1, 1, 0, 0))
        put(producer, 2)
        taken = consumer.take(0.0)
        assert taken is not None
        assert taken.wait_ns is not None
        assert taken.wait_ns > taken.descriptor.signal_ns


def test_slabs_are_made_in_pages_and_only_ours_to_write() -> None:
    producer = RingProducer(capacity=3, size_classes=[SizeClass(PAGE + 1, 2), SizeClass(1, 1)])
    assert [(s.slot_bytes, s.slot_count, s.huge_pages) for s in producer.size_classes] == [
        (2 * PAGE, 2, False),
        (PAGE, 1, False),
    ]
    for slab in producer.slab_fds:
        with pytest.raises(PermissionError):
            mmap.mmap(slab, PAGE)
        with pytest.raises(PermissionError):
            os.ftruncate(slab, 0)
        with pytest.raises(PermissionError):
            os.pwrite(slab, b"x", 0)
        mmap.mmap(slab, PAGE, prot=mmap.PROT_READ).close()
    producer.close()


def test_too_much_memory_is_refused_in_words() -> None:
    with pytest.raises(RingError, match=f"cannot reserve {2**45} bytes"):
        RingProducer(capacity=4, size_classes=[SizeClass(2**40, 2**5, True)])
    with pytest.raises(RingError, match="not 0"):
        RingProducer(capacity=4, size_classes=[SizeClass(PAGE, 0)])


def test_running_out_of_descriptors_leaves_nothing_half_made() -> None:
    before = _descriptors_and_mappings()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 3, hard))
    try:
        with pytest.raises(RingError, match="Too many open files"):
            RingProducer(capacity=4, size_classes=[SizeClass(PAGE, 1)] * (highest + 3))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert _descriptors_and_mappings() == before


def test_a_descriptor_that_points_outside_its_slab_is_refused() -> None:
    with ring() as (producer, (consumer,)):
        put(producer, 0)
        header = layouts()["mo_ring_header"]["size"]
        with mmap.mmap(producer.ring_fd, header + 256) as memory:  # not sealed against writing yet
            memory[header + layouts()["mo_descriptor"]["fields"]["slot"]] = 200
        for _ in range(2):
            with pytest.raises(RingError, match="sequence 0 is broken: slot 200 is beyond its slab"):
                consumer.take(0.0)
        assert (consumer.taken, consumer.held) == (0, 0)


@pytest.mark.parametrize("policy", ["", "drop", "BLOCK"])
def test_policies_are_two_words(policy: str) -> None:
    with pytest.raises(RingError, match="policy"):
        RingConsumer(policy)


def test_a_page_is_admitted_for_its_own_policy() -> None:
    with ring() as (producer, _):
        consumer = RingConsumer("drop_oldest")
        with pytest.raises(RingError, match="other policy"):
            producer.admit(consumer.page_fd, "block")
        with pytest.raises(RingError, match="not a consumer page"):
            producer.admit(producer.ring_fd, "block")
        with pytest.raises(RingError, match="reason"):
            producer.finish("enough")
        with pytest.raises(ValueError, match="not a number"):
            producer.acquire(1, float("nan"))


def _descriptors_and_mappings() -> tuple[int, int]:
    mappings = Path("/proc/self/maps").read_text().count("/memfd:observatory-")
    return len(list(Path("/proc/self/fd").iterdir())), mappings


def test_nothing_stays_open_or_mapped() -> None:
    gc.collect()
    before = _descriptors_and_mappings()
    for _ in range(5):
        with ring(["block", "drop_oldest"]) as (producer, (consumer, _)):
            put(producer, 0)
            taken = consumer.take(0.0)
            assert taken is not None
            monitor = RingMonitor(producer.ring_fd)
            events = EventRing.create(8)
            producer.trace(Trace(events, 0, 0, 0, 0))
            del taken
        del producer, consumer, monitor, events, _
    gc.collect()
    assert _descriptors_and_mappings() == before


def test_an_8k_ten_bit_frame_fits() -> None:
    width, height = 7680, 4320
    luma, chroma = width * height * 2, width * height // 2
    with ring(slots=1, slot_bytes=luma + 2 * chroma) as (producer, (consumer,)):
        lease = producer.acquire(luma + 2 * chroma, 0.0)
        assert lease is not None
        lease.array[luma + 2 * chroma - 1] = 7
        said = Descriptor(
            payload_kind=PayloadKind.VIDEO_FRAME,
            pixel_format=PixelFormat.YUV420P10LE,
            width=width,
            height=height,
            planes=[(0, 2 * width), (luma, width), (luma + chroma, width)],
        )
        lease.publish(said, luma + 2 * chroma)
        taken = consumer.take(0.0)
        assert taken is not None
        assert [taken.plane(i).shape for i in range(3)] == [(4320, 15360), (2160, 7680), (2160, 7680)]
        assert taken.plane(2)[-1, -1] == 7
        taken.release()
