"""The path at which a publisher is found: a Unix socket that only those who may can reach, one publisher at a time.

A socket file does not say whether somebody is behind it, so a lock beside it (`PATH.lock`, flock) does: the kernel
gives it up when its holder dies. Whoever has the lock may remove what a dead publisher left and take its place.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
from pathlib import Path

from dataplane.errors import AddressTaken, BadAddress, NobodyServes
from dataplane.exchange.credentials import peer_of

BACKLOG = 128
_MOST_PATH_BYTES = 107  # sun_path without its end


def open_socket() -> socket.socket:
    """A socket of the only kind that exchanges use: whole messages, in order, with descriptors."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)


class Address:
    """A listening socket at a path of our own; `close` gives both back.

    Args:
        path: where; its folder must be ours or root's, and nobody else may write there (unless it is sticky, as /tmp).
        mode: of the socket file: who may connect at all.

    Raises:
        AddressTaken: a living process has it.
        BadAddress: no such folder, no permission, something else is there, others could take our place.
    """

    def __init__(self, path: str | os.PathLike[str], mode: int) -> None:
        self.path = Path(path).absolute()
        _check_length(self.path)
        _check_folder(self.path.parent)
        self._lock = _lock(self.path)
        self.socket = open_socket()
        try:
            self._bind(mode)
        except BaseException:
            self.socket.close()
            self._give_up_lock()
            raise

    def _bind(self, mode: int) -> None:
        _remove_dead(self.path)
        try:
            # The mode of the socket is that of the file it makes: there is no moment at which others may connect.
            os.fchmod(self.socket.fileno(), mode & 0o600)
            self.socket.bind(str(self.path))
            self.path.chmod(mode)
            self._inode = self.path.lstat().st_ino
            self.socket.listen(BACKLOG)
        except OSError as error:
            raise BadAddress(f"cannot serve at {self.path}: {error.strerror}", mend=_mend(error)) from error
        self.socket.setblocking(False)

    def close(self) -> None:
        """Stop listening and remove the socket file, if it is still ours."""
        self.socket.close()
        with contextlib.suppress(OSError):
            if self.path.lstat().st_ino == self._inode:
                self.path.unlink()
        self._give_up_lock()

    def _give_up_lock(self) -> None:
        # Removed while it is held: who waits for it sees that what it has locked is gone (see _lock).
        with contextlib.suppress(OSError):
            _lock_path(self.path).unlink()
        os.close(self._lock)


def connect(path: str | os.PathLike[str]) -> socket.socket:
    """A connection to whoever serves there. Raises NobodyServes, BadAddress."""
    path = Path(path).absolute()
    _check_length(path)
    connection = open_socket()
    try:
        connection.connect(str(path))
    except OSError as error:
        connection.close()
        if isinstance(error, FileNotFoundError | ConnectionRefusedError):
            left = " (a dead one left its socket there)" if isinstance(error, ConnectionRefusedError) else ""
            raise NobodyServes(
                f"nobody publishes at {path}{left}", mend="start the publisher, or wait for it: wait_seconds=30"
            ) from error
        raise BadAddress(f"cannot connect to {path}: {error.strerror}", mend=_mend(error)) from error
    return connection


def _check_length(path: Path) -> None:
    if len(os.fsencode(path)) > _MOST_PATH_BYTES:
        raise BadAddress(
            f"{path} is too long for a socket: {len(os.fsencode(path))} bytes of at most {_MOST_PATH_BYTES}",
            mend="use a shorter one, for example in /run/user/$UID",
        )


def _check_folder(folder: Path) -> None:
    """Refuse a folder in which somebody else could put a socket of their own in our place."""
    try:
        status = folder.stat()
    except OSError as error:
        raise BadAddress(f"there is no folder {folder}: {error.strerror}", mend=f"mkdir -m 700 {folder}") from error
    if not stat.S_ISDIR(status.st_mode):
        raise BadAddress(f"{folder} is no folder")
    if status.st_uid not in (os.geteuid(), 0):
        raise BadAddress(
            f"{folder} belongs to uid {status.st_uid}, who could put another socket in our place",
            mend="use a folder of your own, for example /run/user/$UID",
        )
    if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        raise BadAddress(
            f"others may write to {folder} and could put another socket in our place",
            mend=f"chmod go-w {folder}, or use a folder of your own, for example /run/user/$UID",
        )


def _lock_path(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _lock(path: Path) -> int:
    """The lock of the path, held from now on. Raises AddressTaken, BadAddress."""
    file = _lock_path(path)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    while True:
        try:
            fd = os.open(file, flags, 0o600)
        except OSError as error:
            raise BadAddress(f"cannot lock {path}: {error.strerror}", mend=_mend(error)) from error
        try:
            if _is_locked(fd, file, path):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _is_locked(fd: int, file: Path, path: Path) -> bool:
    """Lock the file; False when it is no longer the one at that path."""
    status = os.fstat(fd)
    if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
        raise BadAddress(f"{file} is not ours", mend="remove it, or use another path")
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
        raise _taken(path, f"pid {pid}" if pid.isdigit() else "another process") from None
    with contextlib.suppress(FileNotFoundError):
        if file.lstat().st_ino == status.st_ino:
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
            return True
    return False


def _remove_dead(path: Path) -> None:
    """Remove the socket of a publisher that is gone. Raises AddressTaken when somebody answers there after all."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise BadAddress(f"{path} exists and is no socket", mend="use another path, or remove it")
    with open_socket() as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EPROTOTYPE):
                raise BadAddress(f"cannot look at {path}: {error.strerror}", mend=_mend(error)) from error
            raise _taken(path, "another process") from None
        raise _taken(path, str(peer_of(probe)))


def _taken(path: Path, who: str) -> AddressTaken:
    return AddressTaken(f"{who} serves at {path} already", mend="end it first, or use another path")


def _mend(error: OSError) -> str | None:
    match error.errno:
        case errno.EACCES | errno.EPERM:
            return "ask the publisher's user to let yours in (allow_uids, allow_gids), or use a folder of your own"
        case errno.EPROTOTYPE:
            return "what listens there is no exchange: use the publisher's path"
        case errno.EMFILE | errno.ENFILE:
            return "allow more open files (ulimit -n 4096)"
        case errno.ENOSPC | errno.EROFS:
            return "use a folder that can be written, for example /run/user/$UID"
    return None
