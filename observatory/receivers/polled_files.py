"""Small files that are read again and again: kept open, as reading one anew costs six times less than opening it.

Of sysfs and procfs a read at offset 0 gives the value of now. A recorded or emulated tree may replace a file by
another of its name, so there the open file is checked for having been removed. Only so many are kept open; the rest are
opened each time.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_LARGEST_READ = 1 << 14
_SHARE_OF_DESCRIPTORS = 8  # a receiver takes at most this part of what the process may have open
_MOST_DIGITS = 20
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # no wait, so that a pipe in a file's place hangs nobody


class PolledFile:
    """One file. `read` gives None where it is not there, or where its driver does not tell."""

    __slots__ = ("_budget", "_descriptor", "path")

    def __init__(self, path: str, budget: PolledFiles) -> None:
        self.path = path
        self._budget = budget
        self._descriptor = -1

    def read(self) -> bytes | None:
        """Its bytes now, without white space around them."""
        descriptor = self._descriptor
        if descriptor < 0:
            return self._read_anew()
        try:
            if self._budget.may_be_replaced and os.fstat(descriptor).st_nlink == 0:
                self.close()
                return self._read_anew()
            return os.pread(descriptor, _LARGEST_READ, 0).strip()
        except OSError:  # the device is gone, or just now does not tell
            self.close()
            return self._read_anew()

    def count(self) -> float | None:
        """The number in it, at least 0; None where there is none: `N/A (no PMA)`, a value below 0, half a write."""
        data = self.read()
        if data is None or not data.isdigit() or len(data) > _MOST_DIGITS:
            return None
        return float(data)

    def close(self) -> None:
        """Let go of it; `read` opens it again."""
        if self._descriptor >= 0:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1
            self._budget.open_now -= 1

    def _read_anew(self) -> bytes | None:
        try:
            descriptor = os.open(self.path, _FLAGS)
        except OSError:
            return None
        try:
            data = os.pread(descriptor, _LARGEST_READ, 0).strip()
        except OSError:
            os.close(descriptor)
            return None
        if self._budget.open_now < self._budget.most_open:
            self._descriptor = descriptor
            self._budget.open_now += 1
        else:
            os.close(descriptor)
        return data


class PolledFiles:
    """The files of one receiver, below `root` (which stands before /sys)."""

    def __init__(self, root: Path, *, most_open: int | None = None) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.most_open = soft // _SHARE_OF_DESCRIPTORS if most_open is None else most_open
        self.open_now = 0
        self.may_be_replaced = root != Path("/")
        self._root = root
        self._files: list[PolledFile] = []

    def file(self, path: str) -> PolledFile:
        """The file at `path`, relative to the root: `sys/class/net/eth0/speed`."""
        made = PolledFile(str(self._root / path), self)
        self._files.append(made)
        return made

    def existing(self, path: str) -> PolledFile | None:
        """As `file`, where it is there."""
        return self.file(path) if (self._root / path).exists() else None

    def close(self) -> None:
        """Let go of all, for good."""
        for file in self._files:
            file.close()
        self._files.clear()


class FolderWatch:
    """Tells when names came to folders or went, looking every so often. Folders that are not there are empty."""

    def __init__(self, folders: Iterable[Path], seconds: float) -> None:
        self._folders = tuple(folders)
        self._seconds = seconds
        self._names = self._look()
        self._due = time.monotonic() + seconds

    def has_changed(self) -> bool:
        """Whether there are other names than at the last look."""
        if time.monotonic() < self._due:
            return False
        self._due = time.monotonic() + self._seconds
        names = self._look()
        changed = names != self._names
        self._names = names
        return changed

    def _look(self) -> tuple[frozenset[str], ...]:
        found = []
        for folder in self._folders:
            try:
                found.append(frozenset(os.listdir(folder)))  # noqa: PTH208  # of thousands of names, four times a second
            except OSError:
                found.append(frozenset())
        return tuple(found)
