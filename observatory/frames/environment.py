"""One LMDB environment per process and folder, with its failures in words.

LMDB forbids opening the same files twice in one process, so every FrameStore of a process shares one environment. It
must not cross a fork: processes that read or write the store are spawned, or open it after the fork.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import lmdb

from observatory.frames.errors import (
    FrameStoreDamaged,
    FrameStoreError,
    FrameStoreFull,
    FrameStoreVersion,
    NoFrameStore,
)

SCHEMA = b"1"
TABLES = ("meta", "streams", "runs", "manifests", "records", "index", "lost", "lineage", "counters")
ADDED_TABLES = ("epochs",)
"""Of later versions: an older store has them once it was opened for writing."""
MAP_BYTES = 64 << 30
"""Address space reserved for the map (bytes); sparse: the file is as large as what was written. Doubled when full."""

_SMALLEST_MAP = 1 << 30
_READERS = 512
_LOCK_BYTES = 40960  # of LMDB's lock file: a header and 64 bytes per reader
_LEAST_FREE_BYTES = 1 << 20
_SLACK_PAGES = 256  # pages at the end that LMDB may have allocated and never written
_RESIZE_SECONDS = 10.0

T = TypeVar("T")
Transaction = lmdb.Transaction

_lock = threading.Lock()
_open: dict[tuple[int, str], Environment] = {}


class Environment:
    """An open LMDB environment and its tables. Made by `acquire`, given back by `release`."""

    def __init__(self, folder: Path, *, create: bool, map_bytes: int) -> None:
        self.folder = folder
        self.writable = os.access(folder, os.W_OK)
        self.users = 0
        self._gate = threading.Condition()
        self._readers = 0
        self._writing = threading.Lock()  # the map must not grow under another thread's transaction
        self._map_bytes = map_bytes
        self._env: Any = None
        self.tables: dict[str, Any] = {}
        try:
            self._open(create)
        except BaseException:
            self._close()
            raise

    @contextmanager
    def read(self) -> Iterator[Any]:
        """A read-only transaction: one consistent snapshot. Never waits for a writer."""
        with self._gate:
            self._adopt_added()
            transaction = self._begin()
            self._readers += 1
        try:
            yield transaction
        except lmdb.Error as error:
            raise translate(error, self.folder) from None
        finally:
            transaction.abort()
            with self._gate:
                self._readers -= 1
                self._gate.notify_all()

    def write(self, work: Callable[[Any], T]) -> T:
        """Run `work(transaction)` in one write transaction and commit it; all of it is stored, or nothing.

        `work` may run twice: when the map was too small, it grows and the work begins again.

        Raises:
            FrameStoreFull: the disk is full or fails; nothing of this transaction is stored.
            FrameStoreError: no permission to write, or the files are damaged.
        """
        with self._writing:
            return self._write(work)

    def _write(self, work: Callable[[Any], T]) -> T:
        reopened = False
        while True:
            try:
                with self._env.begin(write=True) as transaction:
                    return work(transaction)
            except lmdb.MapFullError:
                self._resize(self._map_bytes * 2)
            except lmdb.MapResizedError:
                self._resize(0)
            except lmdb.PanicError as error:
                if reopened:
                    raise translate(error, self.folder) from None
                reopened = True
                self._reopen()
            except lmdb.Error as error:
                raise translate(error, self.folder) from None

    def usage(self) -> tuple[int, int]:
        """(Bytes of the pages that hold something, bytes of the file). LMDB reuses free pages, its file never shrinks.

        Pages that only list free pages (8 bytes for each) are not counted.
        """
        with self.read() as transaction:
            stats = [transaction.stat(), *(transaction.stat(table) for table in self.tables.values())]
        pages = 2 + sum(s["branch_pages"] + s["leaf_pages"] + s["overflow_pages"] for s in stats)
        return pages * stats[0]["psize"], (self.folder / "data.mdb").stat().st_size

    def _begin(self) -> Any:
        try:
            return self._env.begin()
        except lmdb.MapResizedError:  # another process made it larger
            self._when_idle(lambda: self._env.set_mapsize(0))
            return self._env.begin()
        except lmdb.Error as error:
            raise translate(error, self.folder) from None

    def _resize(self, map_bytes: int) -> None:
        """Another map size, or (0) the one that another process gave it."""
        with self._gate:
            try:
                self._when_idle(lambda: self._env.set_mapsize(map_bytes))
            except lmdb.Error as error:
                raise translate(error, self.folder) from None
            self._map_bytes = self._env.info()["map_size"]

    def _reopen(self) -> None:
        """LMDB refuses everything after a failed write of its own meta page until it is opened again."""

        def again() -> None:
            self._close()
            self._open(create=False)

        with self._gate:
            self._when_idle(again)

    def _when_idle(self, work: Callable[[], None]) -> None:
        """Run `work` while no transaction of this process reads (the gate is held by the caller)."""
        deadline = time.monotonic() + _RESIZE_SECONDS
        while self._readers:
            if not self._gate.wait(max(0.0, deadline - time.monotonic())):
                raise FrameStoreError(
                    f"the frame store could not grow: look-ups in this process stayed open for {_RESIZE_SECONDS:g} s",
                    file=str(self.folder),
                )
        work()

    def _open(self, create: bool) -> None:
        if self.writable:
            self._prepare_lock()
        size = max(self._map_bytes, 1 << 20)
        while True:
            try:
                self._env = lmdb.open(
                    str(self.folder),
                    map_size=size,
                    readonly=not self.writable,
                    create=create,
                    metasync=False,
                    max_dbs=len(TABLES) + len(ADDED_TABLES),
                    max_readers=_READERS,
                    readahead=False,
                )
                break
            except (lmdb.Error, MemoryError) as error:
                out_of_memory = isinstance(error, MemoryError) or getattr(error, "code", 0) == errno.ENOMEM
                if out_of_memory and size > _SMALLEST_MAP:
                    size //= 2  # the address space of this process is limited
                    continue
                if isinstance(error, lmdb.Error):
                    raise translate(error, self.folder) from None
                raise
        try:
            self._map_bytes = self._env.info()["map_size"]
            self._check_length()
            if self.writable:
                self._env.reader_check()  # give back what killed readers kept
            self._open_tables(create)
        except lmdb.Error as error:
            raise translate(error, self.folder) from None

    def _prepare_lock(self) -> None:
        """Give the lock file its blocks before LMDB maps it: touching a hole on a full disk kills a process (SIGBUS).

        Never while it is open in this process: closing it would take LMDB's locks with it.
        """
        path = self.folder / "lock.mdb"
        try:
            if path.exists() and path.stat().st_blocks * 512 >= _LOCK_BYTES:
                return
            status = os.statvfs(self.folder)
            if status.f_bavail * status.f_frsize < _LEAST_FREE_BYTES:
                raise _full(self.folder, "the disk is full")
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.posix_fallocate(descriptor, 0, _LOCK_BYTES)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _from_system(error, self.folder) from None

    def _open_tables(self, create: bool) -> None:
        with self._env.begin() as transaction:
            made = transaction.stat()["entries"] > 0
        if not made:
            if not create:
                raise _absent(self.folder)
            with self._env.begin(write=True) as transaction:  # another process may have been faster: no matter
                for name in TABLES + ADDED_TABLES:
                    self._env.open_db(name.encode(), txn=transaction)
                meta = self._env.open_db(b"meta", txn=transaction)
                transaction.put(b"schema", SCHEMA, overwrite=False, db=meta)
        try:
            meta = self._env.open_db(b"meta", create=False)
            with self._env.begin() as transaction:
                schema = transaction.get(b"schema", db=meta)
        except (lmdb.NotFoundError, lmdb.IncompatibleError):
            schema = None
        if schema is None:
            raise FrameStoreDamaged(
                "is an LMDB database, but not a frame store", file=str(self.folder), mend=_MOVE_AWAY
            )
        if schema != SCHEMA:
            raise FrameStoreVersion(
                f"is a frame store of layout {schema.decode(errors='replace')}; this software knows layout "
                f"{SCHEMA.decode()}",
                file=str(self.folder),
                mend="read it with the version that wrote it, or move the folder away and start a new one",
            )
        for name in TABLES:
            self.tables[name] = self._env.open_db(name.encode(), create=False)
        self._open_added()

    def add_tables(self) -> None:
        """Make the tables that a store of an earlier version lacks. Raises FrameStoreFull, FrameStoreError."""
        with self._writing, self._gate:
            try:
                for name in ADDED_TABLES:
                    if name not in self.tables:
                        self.tables[name] = self._env.open_db(name.encode())
            except lmdb.Error as error:
                raise translate(error, self.folder) from None

    def _open_added(self) -> None:
        for name in ADDED_TABLES:
            if name not in self.tables:
                with suppress(lmdb.NotFoundError):
                    self.tables[name] = self._env.open_db(name.encode(), create=False)

    def _adopt_added(self) -> None:
        """Open tables that another process made since. To look is cheap, to open waits for whoever writes: once."""
        if len(self.tables) < len(TABLES) + len(ADDED_TABLES):
            transaction = self._begin()
            tables = transaction.stat()["entries"]
            transaction.abort()
            if tables > len(self.tables):
                self._open_added()

    def _check_length(self) -> None:
        """Refuse a file that ends before its last page: reading past the end would kill the process (SIGBUS)."""
        pages = self._env.info()["last_pgno"] + 1 - _SLACK_PAGES
        expected = pages * self._env.stat()["psize"]
        size = (self.folder / "data.mdb").stat().st_size
        if size < expected:
            raise FrameStoreDamaged(
                f"is cut off: {size} bytes of at least {expected}", file=str(self.folder / "data.mdb"), mend=_MOVE_AWAY
            )

    def _close(self) -> None:
        self.tables.clear()
        if self._env is not None:
            self._env.close()
            self._env = None


_MOVE_AWAY = "move the folder away; the next run starts a new one"


def acquire(folder: Path, *, write: bool, map_bytes: int = MAP_BYTES) -> Environment:
    """The environment in `folder`, opened if this process has not yet. Writers create what is missing.

    Raises:
        NoFrameStore: there is none, and `write` is False.
        FrameStoreError: see `observatory.frames.errors`.
    """
    with _lock:
        key = (os.getpid(), os.path.realpath(folder))
        environment = _open.get(key)
        if environment is None:
            try:
                if write:
                    folder.mkdir(parents=True, exist_ok=True)
                elif not (folder / "data.mdb").stat().st_size:
                    raise _absent(folder)
            except (FileNotFoundError, NotADirectoryError):
                raise _absent(folder) from None
            except OSError as error:
                raise _from_system(error, folder) from None
            environment = _open[key] = Environment(folder, create=write, map_bytes=map_bytes)
        if write and not environment.writable:
            if not environment.users:
                release_now(key, environment)
            raise FrameStoreError("cannot be written: permission denied", file=str(folder), mend=_OWNER)
        environment.users += 1
        return environment


def is_open(folder: Path) -> bool:
    """Whether this process has the store in `folder` open."""
    with _lock:
        return (os.getpid(), os.path.realpath(folder)) in _open


def release(environment: Environment) -> None:
    """Give an acquired environment back; the last one closes it."""
    with _lock:
        environment.users -= 1
        if environment.users <= 0:
            release_now((os.getpid(), os.path.realpath(environment.folder)), environment)


def release_now(key: tuple[int, str], environment: Environment) -> None:
    """Close an environment and forget it (the registry's lock is held by the caller)."""
    environment._close()
    if _open.get(key) is environment:
        del _open[key]


_OWNER = "run as the user who owns the state directory, or choose another with --state"


def _absent(folder: Path) -> NoFrameStore:
    return NoFrameStore(
        f"no frames were recorded yet: there is no frame store in {folder}",
        mend="start `observatory run` first, or name the state directory of a run with --state",
    )


def _from_system(error: OSError, folder: Path) -> FrameStoreError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        return _full(folder, os.strerror(error.errno))
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return FrameStoreError(f"cannot be opened: {os.strerror(error.errno)}", file=str(folder), mend=_OWNER)
    return FrameStoreError(f"cannot be opened: {error.strerror or error}", file=str(folder))


def _full(folder: Path, reason: str) -> FrameStoreFull:
    try:
        status = os.statvfs(folder)
        free = status.f_bavail * status.f_frsize
    except OSError:
        free = -1
    left = f"; {free / 1e6:.1f} MB are free" if free >= 0 else ""
    return FrameStoreFull(
        f"frame records cannot be stored: {reason}{left} in {folder}",
        mend="free disk space, or move the state directory with --state; what was stored before is intact",
    )


def translate(error: lmdb.Error, folder: Path) -> FrameStoreError:
    """An LMDB error as one of ours."""
    code = getattr(error, "code", 0) or 0
    if isinstance(error, lmdb.MapFullError):
        return _full(folder, "the address space for its map cannot grow")
    if isinstance(error, lmdb.PanicError):
        return _full(folder, "an earlier write failed")
    if isinstance(error, lmdb.DiskError) or code in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        # LMDB reports a write that was cut short, as on a full disk, as an input/output error.
        full = code != errno.EIO or _nearly_full(folder)
        return _full(folder, "the disk is full" if full else "the disk failed (input/output error)")
    if isinstance(
        error,
        (
            lmdb.InvalidError,
            lmdb.CorruptedError,
            lmdb.PageNotFoundError,
            lmdb.IncompatibleError,
            lmdb.VersionMismatchError,
        ),
    ):
        words = str(error).rsplit(": ", 1)[-1]
        return FrameStoreDamaged(f"is not a readable frame store: {words}", file=str(folder), mend=_MOVE_AWAY)
    if isinstance(error, lmdb.ReadersFullError):
        return FrameStoreError(
            f"{_READERS} processes read the frame store already", file=str(folder), mend="end some of them"
        )
    if code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return FrameStoreError(f"cannot be opened: {os.strerror(code)}", file=str(folder), mend=_OWNER)
    if "already open in this process" in str(error):
        return FrameStoreError(
            "is open in the parent of this forked process", file=str(folder), mend="spawn the process instead"
        )
    return FrameStoreError(f"cannot be used: {error}", file=str(folder))


def _nearly_full(folder: Path) -> bool:
    try:
        status = os.statvfs(folder)
    except OSError:
        return False
    return status.f_bavail * status.f_frsize < 64 << 20
