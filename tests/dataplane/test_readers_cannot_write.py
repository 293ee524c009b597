"""A consumer cannot change a payload, whatever it tries: not through its mapping, not through the descriptor it got."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from dataplane._ring import ReadLease, RingProducer

from .rings import PAGE, put, ring

libc = ctypes.CDLL(None, use_errno=True)
PROTECTIONS = {"write": mmap.PROT_WRITE, "read and write": mmap.PROT_READ | mmap.PROT_WRITE}


@pytest.fixture
def reading() -> Iterator[tuple[RingProducer, ReadLease]]:
    """A producer and a frame of it that a consumer holds, whose first byte is 7."""
    with ring() as (producer, (consumer,)):
        put(producer, 7)
        lease = consumer.take(0.0)
        assert lease is not None
        yield producer, lease
        assert bytes(lease)[0] == 7, "somebody wrote"


def address(lease: ReadLease) -> int:
    return int(lease.array.__array_interface__["data"][0])


@pytest.mark.parametrize("protection", PROTECTIONS.values(), ids=PROTECTIONS.keys())
def test_the_mapping_cannot_be_made_writable(reading: tuple[RingProducer, ReadLease], protection: int) -> None:
    _, lease = reading
    assert libc.mprotect(ctypes.c_void_p(address(lease)), ctypes.c_size_t(PAGE), protection) == -1
    assert ctypes.get_errno() == errno.EACCES


def test_the_kernel_does_not_write_there_for_us(reading: tuple[RingProducer, ReadLease]) -> None:
    """Reading a file into it, and /proc/self/mem, through which the owner of a private mapping could."""
    _, lease = reading
    source, sink = os.pipe()
    os.write(sink, b"x")
    assert libc.read(source, ctypes.c_void_p(address(lease)), ctypes.c_size_t(1)) == -1
    assert ctypes.get_errno() == errno.EFAULT
    memory = os.open("/proc/self/mem", os.O_RDWR)
    with pytest.raises(OSError, match=r".") as refused:
        os.pwrite(memory, b"x", address(lease))
    assert refused.value.errno in (errno.EIO, errno.EFAULT)
    for fd in (source, sink, memory):
        os.close(fd)


def test_the_slab_cannot_be_opened_and_mapped_again_for_writing(reading: tuple[RingProducer, ReadLease]) -> None:
    producer, _ = reading
    for slab in producer.slab_fds:
        for flags in (os.O_RDWR, os.O_WRONLY, os.O_RDWR | os.O_TRUNC):
            try:
                again = os.open(f"/proc/self/fd/{slab}", flags)
            except PermissionError:
                continue
            with pytest.raises(PermissionError):
                mmap.mmap(again, PAGE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
            with pytest.raises(PermissionError):
                os.pwrite(again, b"x", 0)
            with pytest.raises(PermissionError):
                os.ftruncate(again, 0)
            os.close(again)
        with pytest.raises(PermissionError):
            fcntl.fcntl(slab, fcntl.F_ADD_SEALS, 0)
        size = os.fstat(slab).st_size
        with mmap.mmap(slab, size, mmap.MAP_SHARED, mmap.PROT_READ) as seen:
            assert seen[0] == 7


def test_a_private_mapping_changes_nobody_elses_bytes(reading: tuple[RingProducer, ReadLease]) -> None:
    producer, lease = reading
    with mmap.mmap(producer.slab_fds[0], PAGE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as own:
        own[0] = 99
        assert bytes(lease)[0] == 7


def test_a_store_through_a_forged_pointer_ends_the_reader() -> None:
    """What a library does that ignores read-only flags: the process dies, the frame does not change."""
    script = """
import ctypes
from tests.dataplane.rings import put, ring
manager = ring()
producer, (consumer,) = manager.__enter__()
put(producer, 7)
lease = consumer.take(0.0)
ctypes.c_uint8.from_address(lease.array.__array_interface__["data"][0]).value = 1
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == -signal.SIGSEGV
