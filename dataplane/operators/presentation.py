"""The folder of one presentation: held by one run at a time, with what an earlier one left, and the master playlist."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Collection
from pathlib import Path

from dataplane.errors import OutputFailed
from dataplane.operators.places import is_held
from dataplane.operators.rendition import Rendition, previous_playlist, write_whole

MASTER = "master.m3u8"
_RENDITION = re.compile(r"((?:video|audio)-[\w.-]+)\.m3u8")


class PresentationFolder:
    """A folder that this process has for itself. Calls raise OSError."""

    def __init__(self, path: Path, said: str) -> None:
        self._path = path
        self._said = said  # the path as a user wrote it
        self._lock: int | None = None
        self._master: str | None = None

    @property
    def temporary(self) -> Path:
        """The master playlist while it is not complete."""
        return self._path / f".{MASTER}.part"

    @property
    def journal(self) -> tuple[Path, Path]:
        """What is not in a segment yet."""
        return self._path / ".journal-a", self._path / ".journal-b"

    def take(self, again: bool) -> None:
        """Make the folder, and keep others from writing there. Raises OutputFailed when another run does.

        `again`: go on with what an instance of the same run left there. Its supervisor holds the journal meanwhile, so
        that another run sees that somebody is about to come back.
        """
        if not again:
            self._path.mkdir(exist_ok=True)
        self._lock = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._refused() from None
        except OSError:  # a file system without locks: nobody can be told
            return
        if not again and any(is_held(path) for path in self.journal):
            raise self._refused()

    def _refused(self) -> OutputFailed:
        self.close()
        return OutputFailed(
            "another run writes there", file=self._said, mend="end that run, or give this one a folder of its own"
        )

    def take_up(self, renditions: Collection[Rendition], go_on: bool) -> None:
        """Remove what an earlier run left; or go on behind it, if that is wished, it never ended and is of one kind."""
        found = {rendition.name: previous_playlist(self._path / rendition.playlist) for rendition in renditions}
        there = [playlist for playlist in found.values() if playlist is not None]
        suffixes = {rendition.suffix for rendition in renditions}
        same = all(Path(entry.uri).suffix.lstrip(".") in suffixes for p in there for entry in p.entries)
        goes_on = go_on and same and not all(playlist.ended for playlist in there)
        self._remove_others({rendition.name for rendition in renditions})
        if not goes_on:
            (self._path / MASTER).unlink(missing_ok=True)
        for rendition in renditions:
            previous = found[rendition.name]
            if goes_on and previous is not None:
                rendition.take_up(previous)
            rendition.clear()
        self.temporary.unlink(missing_ok=True)

    def write_master(self, text: str) -> None:
        """Name the renditions; nothing is written when nothing has changed."""
        if text != self._master:
            write_whole(self._path / MASTER, self.temporary, text.encode())
            self._master = text

    def discard(self, renditions: Collection[Rendition]) -> None:
        """Remove what is not complete, if this run has the folder. Raises nothing."""
        if self._lock is not None:
            for rendition in renditions:
                rendition.discard()
            with contextlib.suppress(OSError):
                self.temporary.unlink(missing_ok=True)

    def close(self) -> None:
        """Let another one have the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _remove_others(self, ours: Collection[str]) -> None:
        """Remove renditions that an earlier presentation had, and this one has not."""
        with contextlib.suppress(FileNotFoundError):
            for name in set(_RENDITION.findall((self._path / MASTER).read_text(errors="replace"))) - set(ours):
                Rendition(self._path, name, "", 1, 0).clear()
