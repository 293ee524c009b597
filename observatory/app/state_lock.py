"""One platform per state directory: a lock that the kernel gives back whatever happens to its owner.

It is an open file description lock (fcntl(2)): whether somebody holds it can be asked without taking it for a moment,
which would keep a platform that starts just then from having it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import struct
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from observatory.app.errors import AlreadyRunning, NotRunning
from observatory.errors import ObservatoryError

NAME = "platform.lock"
NAMING_SECONDS = 0.5  # a new owner has the lock a moment before the file says so
_FLOCK = "hhqqi4x"  # struct flock: type, whence, start, length (0: to the end), pid


class StateLock:
    """Holds `<state>/run/platform.lock`; the file says who does. A context manager.

    Raises:
        AlreadyRunning: another platform holds it; with its pid and address.
        ObservatoryError: the state directory cannot be used.
    """

    def __init__(self, state: Path) -> None:
        self._path = path = state / "run" / NAME
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            words = f"cannot be used: {error.strerror}"
            raise ObservatoryError(words, file=str(path.parent), mend="choose another --state directory") from None
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK))
        except OSError as error:
            owner = _owner(self._fd)
            os.close(self._fd)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                words = f"cannot be locked: {error.strerror}"
                mend = "choose another --state directory, on a disk of this machine"
                raise ObservatoryError(words, file=str(path), mend=mend) from None
            where = f" at {owner['url']}" if owner.get("url") else ""
            raise AlreadyRunning(
                f"a platform runs on this state directory already: pid {owner.get('pid', 'unknown')}{where}",
                file=str(state),
                mend="add a pipeline to it with `observatory submit`, or choose another --state",
            ) from None
        self.write(None)

    def write(self, url: str | None) -> None:
        """Say who holds the lock, and at which address it serves pages."""
        said = json.dumps({"pid": os.getpid(), "url": url}).encode() + b"\n"
        try:
            os.pwrite(self._fd, said, 0)
            os.ftruncate(self._fd, len(said))  # not before: who reads in between would find nothing
        except OSError:
            pass  # a full disk: the lock holds all the same, its owner is only not named

    @property
    def lost(self) -> bool:
        """Whether the file is not there any more, or another one: nobody who looks finds this process."""
        try:
            there = self._path.stat()
        except OSError:
            return True
        own = os.fstat(self._fd)
        return (there.st_dev, there.st_ino) != (own.st_dev, own.st_ino)

    def close(self) -> None:
        """Give the lock back. The file stays: removing it would let two platforms lock two files of one name."""
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def platform_socket(state: Path) -> Path:
    """The control socket of the platform on this state directory. Raises NotRunning."""
    path = state / "run" / NAME
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        raise _nobody(state) from None
    try:
        if not _held(fd):
            raise _nobody(state)  # its owner is gone
        owner = _owner(fd)
    finally:
        os.close(fd)
    return state / "run" / f"{owner.get('pid')}.sock"


def _flock(kind: int) -> bytes:
    """The whole file."""
    return struct.pack(_FLOCK, kind, os.SEEK_SET, 0, 0, 0)


def _held(fd: int) -> bool:
    """Whether somebody else holds the lock."""
    found: int = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK)))[0]
    return found != fcntl.F_UNLCK


def _owner(fd: int) -> dict[str, object]:
    """What the file says of whoever holds the lock; as soon as it names a living process, if that is soon."""
    deadline = time.monotonic() + NAMING_SECONDS
    while True:
        said = _said(fd)
        if _lives(said.get("pid")) or time.monotonic() > deadline:
            return said
        time.sleep(0.01)


def _said(fd: int) -> dict[str, object]:
    try:
        said = json.loads(os.pread(fd, 4096, 0))
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def _lives(pid: object) -> bool:
    return isinstance(pid, int) and Path(f"/proc/{pid}").exists()


def _nobody(state: Path) -> NotRunning:
    return NotRunning(
        "no platform runs on this state directory",
        file=str(state),
        mend="start one with `observatory up`, or name its --state",
    )
