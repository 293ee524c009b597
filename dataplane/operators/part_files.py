"""The hidden files of an output that is not complete: beside it, in use while a process holds them, removed with it."""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path

from dataplane.operators.journal import Journal
from dataplane.operators.places import LONGEST_NAME, hold, is_held

_ROOM = 24  # bytes that a name gets longer by


class PartFiles:
    """The file that grows, its journal, and a spare one. Calls raise OSError.

    Known by the name of its main file, which is what a checkpoint has to say.
    """

    def __init__(self, final: Path, main: Path) -> None:
        self.final = final
        self.main = main
        self.spare = self._beside("c")
        self.journal = Journal((self._beside("a"), self._beside("b")))
        self.fd = -1

    def _beside(self, letter: str) -> Path:
        return self.main.with_name(f"{self.main.name.removesuffix(self.final.suffix)}-{letter}{self.final.suffix}")

    @classmethod
    def new(cls, final: Path) -> PartFiles:
        """Names that nobody has; the files of processes that were killed go."""
        _remove_abandoned(final)
        stem = f".{_short(final)}.part-{os.getpid()}"
        names = (final.with_name(f"{stem}{f'-{number}' if number else ''}{final.suffix}") for number in count())
        return cls(final, next(path for path in names if not path.exists()))

    def create(self, scratch: Callable[[str], None]) -> None:
        """Make them, empty."""
        self.open(scratch)
        os.ftruncate(self.fd, 0)
        self.journal.create()

    def open(self, scratch: Callable[[str], None]) -> None:
        """Open the main one, and report all names."""
        self.fd = os.open(self.main, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        hold(self.fd)
        self.report(scratch)

    def report(self, scratch: Callable[[str], None]) -> None:
        """Report all names, also of those that are made later."""
        for path in self._all():
            scratch(str(path))

    def _all(self) -> tuple[Path, ...]:
        return (self.main, *self.journal.paths, self.spare)

    def remove(self) -> None:
        """Remove what is there. Raises nothing."""
        for path in self._all():
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of them; they stay."""
        self.journal.close()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def inode_of(path: Path) -> int | None:
    """What tells a file from every other one there; None: there is none."""
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _short(path: Path) -> str:
    """The stem, cut where a temporary name made from it would be too long."""
    room = LONGEST_NAME - len(os.fsencode(path.suffix)) - _ROOM
    return os.fsencode(path.stem)[:room].decode(errors="ignore")


def _remove_abandoned(final: Path) -> None:
    """Remove files of the same output that nobody holds."""
    for other in final.parent.glob(f".{glob.escape(_short(final))}.part-*{glob.escape(final.suffix)}"):
        if not is_held(other):
            with contextlib.suppress(OSError):
                other.unlink()
