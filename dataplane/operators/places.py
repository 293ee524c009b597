"""Places for outputs: what can be found out before anything runs, and what a failed write means."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path

from dataplane.errors import BadParameters, OutputFailed

LONGEST_NAME = 255  # bytes, of a file


def real_path(path: str) -> Path:
    """The file that a path means: links are followed, so that they stay links. Absolute, so that it is no URL."""
    return Path(os.path.realpath(path))


def is_folder(path: Path) -> bool:
    """Whether there is a folder; False too for what cannot be a name."""
    try:
        return path.is_dir()
    except OSError:  # a part of it is too long, for example
        return False


def check_folder(op: str, folder: Path) -> None:
    """Raises BadParameters when nothing can be made in that folder."""
    if not is_folder(folder):
        raise BadParameters(f"{op}: there is no folder {folder}", mend=f"mkdir -p {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise BadParameters(f"{op}: the folder {folder} may not be written", mend="choose another path")


def check_name(op: str, name: str) -> None:
    """Raises BadParameters for a name that no file can have."""
    if len(os.fsencode(name)) > LONGEST_NAME:
        raise BadParameters(f"{op}: the name {name} is too long", mend="choose a shorter one")


def hold(fd: int) -> None:
    """Say that a temporary file is in use, until the descriptor is closed; several processes may say so of one.

    The supervisor says it too of every file that a worker reported as scratch: so one whose worker died is in use while
    another worker may take it over.
    """
    with contextlib.suppress(OSError):  # a file system without locks: nobody will clean up there
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)


def is_held(path: Path) -> bool:
    """Whether anybody says that a file is in use; True too where nobody can tell."""
    try:
        with path.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def output_failed(error: Exception, path: str) -> OutputFailed:
    """What went wrong with the output at `path`, as people should read it."""
    code = getattr(error, "errno", None)
    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return OutputFailed("no space is left for it", file=path, mend="make room, or write to another disk")
    if code in (errno.EACCES, errno.EROFS, errno.EPERM):
        return OutputFailed("it may not be written here", file=path, mend="change the path or its permissions")
    reason = getattr(error, "strerror", None) or str(error)
    return OutputFailed(f"cannot be written ({reason})", file=path)
