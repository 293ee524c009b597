"""A port's pool as its owner sees it: what was made, the books, and memory that comes back."""

from __future__ import annotations

import mmap
import os
import resource
from pathlib import Path

import numpy as np
import pytest

from dataplane._ring import (
    RingConsumer,
    RingError,
    RingProducer,
    SizeClass,
    available_memory,
    free_hugetlb_bytes,
    memory_nodes,
    node_memory,
)
from dataplane.pool import PoolUse
from tests.dataplane.huge_pages import huge_pages
from tests.dataplane.rings import attach, frame, put, ring

HUGE = 2 << 20


def shared_bytes_of(process: int | str) -> int:
    """Bytes of slabs that a process has mapped and resident, as the kernel counts them."""
    total, inside = 0, False
    for line in Path(f"/proc/{process}/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0] and not line.split(" ", 1)[0].endswith(":"):
            inside = "/memfd:observatory-slab" in line
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def test_a_class_of_several_slabs_is_one_class() -> None:
    producer = RingProducer(capacity=16, size_classes=[SizeClass(4096, 10, slab_slots=4), SizeClass(8192, 1)])
    consumer = RingConsumer()
    producer.admit(consumer.page_fd, "block")
    attach(consumer, producer)
    assert len(producer.slab_fds) == 4
    assert producer.slab_slot_bytes == (4096, 4096, 4096, 8192)
    large, _ = producer.size_classes
    assert (large.slot_count, large.slab_count, large.slab_slots, large.slab_bytes) == (10, 3, 4, 40960)
    assert [os.fstat(fd).st_size for fd in producer.slab_fds] == [16384, 16384, 8192, 8192]
    for index in range(10):
        assert put(producer, index) == index
        lease = consumer.take(1.0)
        assert lease is not None
        assert (lease.descriptor.slab, lease.descriptor.slot) == divmod(index, 4)
        assert int.from_bytes(lease.array[:8].tobytes(), "little") == index
    consumer.close()
    producer.close()


def test_the_books_of_a_port() -> None:
    producer = RingProducer(capacity=4, size_classes=[SizeClass(4096, 2), SizeClass(8192, 1)])
    consumer = RingConsumer()
    producer.admit(consumer.page_fd, "block")
    attach(consumer, producer)
    assert producer.pool_stats().hit_rate is None
    for index in range(3):
        assert put(producer, index, 100) == index
    assert put(producer, 3, 100) is None
    stats = producer.pool_stats()
    assert (stats.hits, stats.fallbacks, stats.waits_for_slot) == (2, 1, 1)
    assert stats.hit_rate == 0.5
    small, large = stats.classes
    assert (small.in_use, small.high_water, small.payload_bytes, small.internal_bytes) == (2, 2, 200, 2 * 3996)
    assert (large.in_use, large.internal_bytes) == (1, 8092)
    assert (small.resident_bytes, large.resident_bytes) == (8192, 4096)
    for _ in range(3):
        lease = consumer.take(1.0)
        assert lease is not None
        lease.release()
    assert put(producer, 3, 100) == 3  # the one that waited: counted already
    with pytest.raises(RingError, match="no slot holds 9000 bytes"):
        producer.acquire(9000, 0.0)
    stats = producer.pool_stats()
    assert (stats.hits, stats.waits_for_slot, stats.too_big) == (2, 1, 1)
    assert [c.in_use for c in stats.classes] == [1, 0]
    use = PoolUse.of(stats, 1.0)
    assert use.hit_rate == stats.hit_rate == 0.5
    assert PoolUse.model_validate(use.model_dump()) == use
    assert use.resident_bytes == 8192 + 4096
    assert (use.internal_bytes, use.external_bytes) == (3996, 4096)
    consumer.close()
    producer.close()


def test_a_full_ring_is_another_wait_than_a_full_pool() -> None:
    with ring(capacity=2, slots=4) as (producer, _):
        assert put(producer, 0) == 0
        assert put(producer, 1) == 1
        assert put(producer, 2) is None
        stats = producer.pool_stats()
        assert (stats.hits, stats.waits_for_descriptor, stats.waits_for_slot) == (2, 1, 0)


def test_drop_oldest_reclaims() -> None:
    with ring(["drop_oldest"], slots=2) as (producer, _):
        for index in range(4):
            assert put(producer, index) == index
        stats = producer.pool_stats()
        assert (stats.hits, stats.reclaims, stats.waits_for_slot) == (2, 2, 0)


def test_prefault_and_populate_leave_no_fault_for_later() -> None:
    producer = RingProducer(capacity=8, size_classes=[SizeClass(1 << 20, 4, slab_slots=2)])
    producer.prefault()
    assert producer.pool_stats().classes[0].resident_bytes == 4 << 20
    consumer = RingConsumer()
    producer.admit(consumer.page_fd, "block")
    consumer.attach(producer.ring_fd, producer.slab_fds, producer.slab_slot_bytes, populate=True)
    before = shared_bytes_of("self")
    assert before == 8 << 20  # once to write, once to read
    leases = [producer.acquire(1 << 20, 0.0) for _ in range(4)]
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for index, lease in enumerate(leases):
        assert lease is not None
        lease.array[:] = index
    seen = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    assert seen < 256  # of the interpreter; the slots have 1024 pages
    for index, lease in enumerate(leases):
        assert lease is not None
        lease.publish(frame(index), 1 << 20)
    assert shared_bytes_of("self") == before
    consumer.close()
    producer.close()


def test_memory_returns_when_the_last_one_lets_go() -> None:
    producer = RingProducer(capacity=8, size_classes=[SizeClass(1 << 20, 8, reserve=True)])
    consumer = RingConsumer()
    producer.admit(consumer.page_fd, "block")
    attach(consumer, producer)
    fd = os.dup(producer.slab_fds[0])
    put(producer, 0)
    lease = consumer.take(1.0)
    assert lease is not None
    view = lease.array
    producer.close()
    consumer.close()
    assert int(view[0]) == 0
    assert shared_bytes_of("self") > 0, "an array keeps the memory mapped"
    assert os.fstat(fd).st_blocks * 512 == 8 << 20
    del view, lease
    assert shared_bytes_of("self") == 0
    os.close(fd)


def test_on_a_node() -> None:
    if not (nodes := memory_nodes()):
        pytest.skip("the kernel lists no NUMA nodes")
    node = f"node{nodes[-1]}"
    producer = RingProducer(capacity=4, size_classes=[SizeClass(1 << 20, 2, domain=node)])
    (made,) = producer.size_classes
    assert (made.domain, made.note, made.reserved) == (node, None, True)
    producer.close()
    with pytest.raises(RingError, match=r"no memory on node777; it has: node\d"):
        RingProducer(capacity=4, size_classes=[SizeClass(4096, 1, domain="node777")])
    with pytest.raises(RingError, match="no slabs in the memory of n0/gpu0"):
        RingProducer(capacity=4, size_classes=[SizeClass(4096, 1, domain="n0/gpu0")])


def test_on_2_mb_pages() -> None:
    with huge_pages(8):
        before = free_hugetlb_bytes()
        producer = RingProducer(capacity=8, size_classes=[SizeClass(3 << 20, 2, True)])
        (made,) = producer.size_classes
        assert (made.pages, made.page_bytes, made.huge_pages, made.note) == ("hugetlb", HUGE, True, None)
        assert (made.slab_bytes, made.waste_bytes) == (3 * HUGE, 0)
        assert before - free_hugetlb_bytes() == 3 * HUGE
        consumer = RingConsumer()
        producer.admit(consumer.page_fd, "block")
        attach(consumer, producer)
        put(producer, 5, 3 << 20)
        lease = consumer.take(1.0)
        assert lease is not None
        assert int(lease.array[0]) == 5
        del lease
        consumer.close()
        producer.close()
        assert free_hugetlb_bytes() == before


def test_without_2_mb_pages() -> None:
    with huge_pages(0):
        producer = RingProducer(capacity=8, size_classes=[SizeClass(3 << 20, 2, True)])
        (made,) = producer.size_classes
        assert made.reserved
        assert made.note is not None
        assert made.note.startswith("no 2 MB pages from the hugetlb pool (3 pages of 2 MB are needed, 0 are free)")
        assert (made.pages == "none") == (made.page_bytes == mmap.PAGESIZE)
        producer.close()


def test_what_the_machine_says_of_its_memory(tmp_path: Path) -> None:
    folder = tmp_path / "sys/devices/system/node"
    (folder / "node2").mkdir(parents=True)
    (folder / "has_memory").write_text("0,2-3\n")
    (folder / "node2/meminfo").write_text("Node 2 MemFree: 100 kB\nNode 2 Inactive(file): 20 kB\n")
    assert memory_nodes(str(tmp_path)) == (0, 2, 3)
    assert node_memory(2, str(tmp_path)) == (
        122880,
        f"MemFree and Inactive(file) of {tmp_path}/sys/devices/system/node/node2/meminfo",
    )
    assert node_memory(3, str(tmp_path)) is None
    available, origin = available_memory()
    assert available > 0
    assert origin


def test_a_reservation_that_cannot_be_is_refused_with_the_sum() -> None:
    half = available_memory()[0] // 2 + (64 << 20)
    half -= half % mmap.PAGESIZE
    with pytest.raises(RingError, match=rf"cannot reserve {2 * half} bytes for slabs \(1 x {half} \+ 1 x {half}\)"):
        RingProducer(capacity=4, size_classes=[SizeClass(half, 1, reserve=True)] * 2)
    assert shared_bytes_of("self") == 0


def test_arrays_of_slots_behind_the_first_slab() -> None:
    producer = RingProducer(capacity=8, size_classes=[SizeClass(8192, 4, slab_slots=1)])
    leases = [producer.acquire(8192, 0.0) for _ in range(4)]
    for index, lease in enumerate(leases):
        assert lease is not None
        assert (lease.slab, lease.slot) == (index, 0)
        lease.array[:] = index + 1
    for index, fd in enumerate(producer.slab_fds):
        with mmap.mmap(fd, 8192, access=mmap.ACCESS_READ) as seen:
            assert np.frombuffer(seen[:], np.uint8).tolist() == [index + 1] * 8192
    producer.close()
