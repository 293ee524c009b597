"""The ring between two processes, and two processes that share the same memory and wait for nobody."""

from __future__ import annotations

import json
import mmap
import os
import socket
from typing import Any, ClassVar

import numpy as np

from benchmarks.dataplane_ends import PAGE_BYTES, SLOTS, Bytes, Receiver, Sender, Transport
from benchmarks.dataplane_machine import HUGE_PAGE_BYTES
from dataplane._ring import Descriptor, ReadLease, RingConsumer, RingProducer, SizeClass, WriteLease
from observatory.model.media import PayloadKind


def give_ring(end: socket.socket, producer: RingProducer) -> None:
    """Hand a producer's ring and slabs to another process (in a pipeline the supervisor does it)."""
    sizes = json.dumps(producer.slab_slot_bytes).encode()
    socket.send_fds(end, [sizes], [producer.ring_fd, *producer.slab_fds])


def get_ring(end: socket.socket, consumer: RingConsumer, populate: bool = False) -> None:
    """Attach to what `give_ring` sent."""
    sizes, fds, _, _ = socket.recv_fds(end, 4096, 64)
    consumer.attach(fds[0], fds[1:], json.loads(sizes), populate)
    for fd in fds:
        os.close(fd)


def admit(end: socket.socket, producer: RingProducer, policy: str = "block") -> None:
    """Let the consumer in whose page comes next."""
    _, fds, _, _ = socket.recv_fds(end, 1, 1)
    producer.admit(fds[0], policy)
    os.close(fds[0])


class _RingSender:
    def __init__(self, end: socket.socket, frame_bytes: int, huge_pages: bool) -> None:
        sizes = [SizeClass(frame_bytes, SLOTS, huge_pages)]
        self._producer = RingProducer(capacity=2 * SLOTS, size_classes=sizes)
        (made,) = self._producer.size_classes
        if huge_pages and made.pages != "hugetlb":
            raise RuntimeError(f"no 2 MB pages: {made.note}")
        admit(end, self._producer)
        give_ring(end, self._producer)
        self._bytes = frame_bytes
        self._descriptor = Descriptor(payload_kind=PayloadKind.VIDEO_FRAME)
        self._lease: WriteLease | None = None

    def frame(self) -> Bytes:
        while (lease := self._producer.acquire(self._bytes, 1.0)) is None:
            pass
        self._lease = lease
        return lease.array[: self._bytes]

    def send(self) -> None:
        self._lease.publish(self._descriptor, self._bytes)  # type: ignore[union-attr]


class _RingReceiver:
    def __init__(self, end: socket.socket, spin_seconds: float) -> None:
        self._consumer = RingConsumer()
        self._consumer.spin_seconds = spin_seconds
        socket.send_fds(end, [b"p"], [self._consumer.page_fd])
        get_ring(end, self._consumer)
        self._lease: ReadLease | None = None

    def take(self) -> Bytes:
        while (lease := self._consumer.take(1.0)) is None:
            pass
        self._lease = lease
        return lease.array

    def done(self) -> None:
        self._lease.release()  # type: ignore[union-attr]


class Ring(Transport):
    name = "ring"
    words = "ring, 4 KiB pages"
    spin_seconds: ClassVar[float] = 0.0

    @classmethod
    def sender(cls, end: Any, frame_bytes: int) -> Sender:
        return _RingSender(end, frame_bytes, cls.huge_pages)

    @classmethod
    def receiver(cls, end: Any, frame_bytes: int) -> Receiver:
        return _RingReceiver(end, cls.spin_seconds)


class RingHuge(Ring):
    name = "ring-huge"
    words = "ring, 2 MB pages"
    huge_pages = True


class RingSpinning(Ring):
    name = "ring-spinning"
    words = "ring, consumer spinning"
    spin_seconds = 1.0


# -- nobody waits for anybody ------------------------------------------------------------------------------------------


class _Unsynchronised:
    def __init__(self, fd: int, frame_bytes: int, stride_bytes: int, writes: bool, first: int) -> None:
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writes else 0)
        self._memory = np.frombuffer(mmap.mmap(fd, SLOTS * stride_bytes, mmap.MAP_SHARED, protection), dtype=np.uint8)
        self._frames = [self._memory[i * stride_bytes :][:frame_bytes] for i in range(SLOTS)]
        self._next = first

    def frame(self) -> Bytes:
        self._next = (self._next + 1) % SLOTS
        return self._frames[self._next]

    take = frame

    def send(self) -> None:
        pass

    done = send


class Ceiling(Transport):
    """Two processes go around the same frames, one writing, one reading."""

    name = "ceiling"
    words = "no synchronisation, 4 KiB pages"
    synchronised = False

    @classmethod
    def _stride(cls, frame_bytes: int) -> int:
        page = HUGE_PAGE_BYTES if cls.huge_pages else PAGE_BYTES
        return -(-frame_bytes // page) * page

    @classmethod
    def sender(cls, end: Any, frame_bytes: int) -> Sender:
        stride = cls._stride(frame_bytes)
        fd = os.memfd_create("observatory-bench", os.MFD_HUGETLB | os.MFD_HUGE_2MB if cls.huge_pages else 0)
        os.ftruncate(fd, SLOTS * stride)
        socket.send_fds(end, [b"m"], [fd])
        return _Unsynchronised(fd, frame_bytes, stride, True, 0)

    @classmethod
    def receiver(cls, end: Any, frame_bytes: int) -> Receiver:
        _, fds, _, _ = socket.recv_fds(end, 1, 1)
        return _Unsynchronised(fds[0], frame_bytes, cls._stride(frame_bytes), False, SLOTS // 2)


class CeilingHuge(Ceiling):
    name = "ceiling-huge"
    words = "no synchronisation, 2 MB pages"
    huge_pages = True
