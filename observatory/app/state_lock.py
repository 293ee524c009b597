"""One platform per state directory: a lock that the kernel gives back whatever happens to its owner."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from observatory.app.errors import AlreadyRunning, NotRunning
from observatory.errors import ObservatoryError

NAME = "platform.lock"


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
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = _owner(self._fd)
            os.close(self._fd)
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
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, said, 0)
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
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = _owner(fd)
    else:
        raise _nobody(state)  # nobody holds it: its owner is gone
    finally:
        os.close(fd)
    return state / "run" / f"{owner.get('pid')}.sock"


def _owner(fd: int) -> dict[str, object]:
    try:
        said = json.loads(os.pread(fd, 4096, 0))
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def _nobody(state: Path) -> NotRunning:
    return NotRunning(
        "no platform runs on this state directory",
        file=str(state),
        mend="start one with `observatory up`, or name its --state",
    )
