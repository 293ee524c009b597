"""Making the file of a frame store smaller: LMDB never does, it only reuses pages.

For the start of a process that will write: nobody else may have the store open meanwhile. Whoever opens it while it is
compacted waits, and then sees the new file.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import lmdb

from observatory.frames.environment import acquire, is_open, release, translate
from observatory.frames.errors import FrameStoreError

WORTHWHILE = 0.9
"""A file is compacted when less than this share of it is in use."""

_HEADER_BYTES = 4096  # of LMDB's lock file


class Compaction(NamedTuple):
    """Bytes of the file before and after."""

    before_bytes: int
    after_bytes: int


def shrink(state: Path, budget_bytes: int) -> Compaction | None:
    """Compact the store under `state` if its file is larger than the budget and has enough free pages.

    Returns:
        None when there is no store, or nothing to gain.

    Raises:
        FrameStoreError: it would be worthwhile and cannot be done: the store is in use, or the disk has no room for the
            copy. Nothing has changed.
    """
    folder = Path(state) / "frames"
    data = folder / "data.mdb"
    if not data.exists() or data.stat().st_size <= budget_bytes:
        return None
    environment = acquire(folder, write=True)
    try:
        used, size = environment.usage()
    finally:
        release(environment)
    return compact(state) if used < WORTHWHILE * size else None


def compact(state: Path) -> Compaction:
    """Write the store under `state` anew without its free pages.

    Raises:
        FrameStoreError: the store is in use, cannot be read, or the disk has no room for the copy. Nothing has changed.
    """
    folder = Path(state) / "frames"
    data, copy = folder / "data.mdb", folder / "compacted"
    with _alone(folder) as lock:
        try:
            shutil.rmtree(copy, ignore_errors=True)  # what a killed process left
            copy.mkdir()
            environment = lmdb.open(str(folder), readonly=True, lock=False, max_dbs=32, readahead=False)
            try:
                before = data.stat().st_size
                environment.copy(str(copy), compact=True)
            finally:
                environment.close()
            with (copy / "data.mdb").open("rb") as written:
                os.fsync(written.fileno())
                after = os.fstat(written.fileno()).st_size
            # The lock file says at which transaction the old file was; who waits to open must not believe it.
            os.pwrite(lock, bytes(_HEADER_BYTES), 0)
            (copy / "data.mdb").replace(data)
            _sync(folder)
            release(acquire(folder, write=True))  # writes the header of the lock file anew
        except lmdb.Error as error:
            raise translate(error, folder) from None
        except OSError as error:
            raise FrameStoreError(f"cannot be compacted: {error.strerror}", file=str(folder)) from None
        finally:
            shutil.rmtree(copy, ignore_errors=True)
    return Compaction(before, after)


@contextmanager
def _alone(folder: Path) -> Iterator[int]:
    """The lock file's descriptor, with the lock that LMDB takes to find out whether anybody has the store open."""
    if is_open(folder):
        raise _in_use(folder)
    try:
        descriptor = os.open(folder / "lock.mdb", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise FrameStoreError(f"cannot be compacted: {error.strerror}", file=str(folder / "lock.mdb")) from None
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError:
            raise _in_use(folder) from None
        yield descriptor
    finally:
        os.close(descriptor)


def _in_use(folder: Path) -> FrameStoreError:
    return FrameStoreError(
        "is in use and cannot be compacted",
        file=str(folder),
        mend="end what runs on this state directory, then start again",
    )


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
