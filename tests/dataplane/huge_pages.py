"""The hugetlb pool of the machine, enlarged for a test and put back (as tests/native/huge_pages.hpp does)."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SETTING = Path("/proc/sys/vm/nr_hugepages")


@contextmanager
def huge_pages(count: int) -> Iterator[None]:
    """`count` pages of 2 MB in all, for one test of the machine at a time; skips where that is not permitted.

    The lock file holds the number to go back to: one that was killed leaves it for the next one.
    """
    path = Path(tempfile.gettempdir()) / "observatory-test-hugepages.lock"
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if left := os.pread(lock, 32, 0):
            _set(int(left))
        before = int(SETTING.read_text())
        os.pwrite(lock, str(before).encode(), 0)
        try:
            _set(count)
            if int(SETTING.read_text()) != count:
                required = os.environ.get("CI") == "true" and os.geteuid() == 0
                (pytest.fail if required else pytest.skip)(f"vm.nr_hugepages cannot be set to {count} here")
            yield
        finally:
            _set(before)
            os.ftruncate(lock, 0)
    finally:
        os.close(lock)


def _set(count: int) -> None:
    try:
        SETTING.write_text(str(count))
    except OSError:
        return  # the number read back tells
