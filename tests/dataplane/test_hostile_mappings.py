"""Consumers that want to change what they were lent: ring and slabs stay read-only by every way there is."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator

import pytest

from .exchange_stage import Intruder, Stage, stage

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
MADV_REMOVE = 9
PUNCH_HOLE, ZERO_RANGE = 0x3, 0x11  # both with KEEP_SIZE
BYTES = 4096


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One for all: at the end the honest reader must have had every frame, whatever was tried."""
    with stage(tmp_path_factory.mktemp("exchange") / "cam.sock") as made:
        yield made
        made.check()


def check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def map_writable(fd: int) -> None:
    mmap.mmap(fd, BYTES, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE).close()


def on_a_readable_mapping(fd: int, act: Callable[[int], int]) -> None:
    at = LIBC.mmap(None, BYTES, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    assert at not in (None, ctypes.c_void_p(-1).value)
    try:
        check(act(at))
    finally:
        LIBC.munmap(at, BYTES)


WAYS: dict[str, Callable[[int], object]] = {
    "mmap": map_writable,
    "mprotect": lambda fd: on_a_readable_mapping(
        fd, lambda at: int(LIBC.mprotect(at, BYTES, mmap.PROT_READ | mmap.PROT_WRITE))
    ),
    "madvise": lambda fd: on_a_readable_mapping(fd, lambda at: int(LIBC.madvise(at, BYTES, MADV_REMOVE))),
    "write": lambda fd: os.pwrite(fd, b"x", 0),
    "write vectors": lambda fd: os.pwritev(fd, [b"x"], 0),
    "copy": lambda fd: os.copy_file_range(fd, fd, 10, 0, BYTES),
    "truncate": lambda fd: os.ftruncate(fd, 0),
    "grow": lambda fd: os.ftruncate(fd, 1 << 30),
    "punch a hole": lambda fd: check(LIBC.fallocate(fd, PUNCH_HOLE, 0, BYTES)),
    "zero a range": lambda fd: check(LIBC.fallocate(fd, ZERO_RANGE, 0, BYTES)),
    "reserve more": lambda fd: os.posix_fallocate(fd, 1 << 30, BYTES),
    "seal": lambda fd: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE),
    "open for truncation": lambda fd: os.close(os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_TRUNC)),
}
REFUSALS = {errno.EPERM, errno.EACCES, errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF, errno.EBUSY}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("which", [0, 1], ids=["ring", "slab"])
@pytest.mark.parametrize("opened", ["sent", "again"])
def test_what_was_lent_cannot_be_changed(scene: Stage, way: str, which: int, opened: str) -> None:
    """Neither through the descriptor that was sent nor through one opened anew by its name in /proc."""
    with Intruder(scene.out.path) as intruder:
        intruder.enter()
        scene.publish(5)
        sent = intruder.handles[which]
        before = os.pread(sent, 1 << 20, 0)
        fd = sent if opened == "sent" else os.open(f"/proc/self/fd/{sent}", os.O_RDWR)
        with pytest.raises(OSError, match=r".") as error:
            WAYS[way](fd)
        assert error.value.errno in REFUSALS
        assert len(before) == os.fstat(sent).st_size
        if which == 1:
            assert os.pread(sent, 1 << 20, 0) == before
        if fd != sent:
            os.close(fd)
        scene.publish(20)


def test_the_ways_work_where_nothing_is_sealed() -> None:
    """That each of them is refused for the seals, and not because it is done wrong."""
    failed = set()
    for way, act in WAYS.items():
        fd = os.memfd_create("open", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, 2 * BYTES)
        try:
            act(fd)
        except OSError:
            failed.add(way)
        os.close(fd)
    assert failed == {"zero a range"}  # which no memfd can do, sealed or not
