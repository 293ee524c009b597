"""A sysfs tree, live or recorded: files below one root, and a note of each that was there and made no sense.

Nothing outside the root is read, wherever its links point. What is absent is None; what is there and unreadable or
garbled is None and a warning with its name. Processes' files (`/proc`) are those beside a root called `sys`: `/proc`
for `/sys`, `recorded/proc` for `recorded/sys`, none for any other root.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from observatory.topology.cpulist import parse_cpulist, parse_cpumask

Value = TypeVar("Value")

_LARGEST_READ = 1 << 16  # sysfs gives a page at most; a recorded tree may hold anything
_NOTHING_TO_SAY = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.ENODEV, errno.ENODATA, errno.ENXIO, errno.EOPNOTSUPP}
)
"""A driver answers these where a value does not apply: the speed of a network card without a cable is EINVAL."""
_MOST_DIGITS = 7
_SHOWN_CHARACTERS = 40
_SHOWN_ALIKE = 3  # warnings about files of one name that are written out; more are counted

_INTEGER = re.compile(r"[-+]?[0-9]{1,20}\Z")
_HEXADECIMAL = re.compile(r"(?:0x)?([0-9a-fA-F]{1,16})\Z")


def parse_integer(text: str) -> int:
    """A decimal number as the kernel writes it. Raises ValueError for any other text."""
    if _INTEGER.match(text) is None:
        raise ValueError(f"{text!r} is no whole number")
    return int(text)


def parse_hexadecimal(text: str) -> int:
    """A hexadecimal number with or without `0x`. Raises ValueError for any other text."""
    match = _HEXADECIMAL.match(text)
    if match is None:
        raise ValueError(f"{text!r} is no hexadecimal number")
    return int(match[1], 16)


class SysfsTree:
    """Files below `root`. Paths are strings relative to it, as in the kernel's documentation."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._real = root.resolve()
        self._folders: dict[str, str | None] = {}  # where each leads, for it is asked once per file
        self._notes: dict[tuple[str, str], list[str]] = {}

    # -- what was read -------------------------------------------------------------------------------------------

    def raw(self, path: str, limit: int = _LARGEST_READ) -> bytes | None:
        """The first `limit` bytes of a file, or None."""
        folder, _, name = path.rpartition("/")
        if folder not in self._folders:
            self._folders[folder] = self.real(folder)
        real = self._folders[folder]
        return None if real is None else self._read(self._real / real / name, path, limit)

    def text(self, path: str) -> str | None:
        """A file's text without white space around it; None when there is none."""
        return self._decoded(self.raw(path), path)

    def process_text(self, name: str) -> str | None:
        """The text of a file below the `proc` that belongs to this tree, or None."""
        if self.root.name != "sys":
            return None
        path = self.root.parent / "proc" / name
        if not path.resolve().is_relative_to(self.root.parent.resolve()):
            return None  # a recorded tree with a link to the live machine
        return self._decoded(self._read(path, str(path), _LARGEST_READ), str(path))

    def parsed(self, path: str, parse: Callable[[str], Value | None]) -> Value | None:
        """What `parse` makes of a file's text; None, and noted, when that raises ValueError."""
        text = self.text(path)
        if text is None:
            return None
        try:
            return parse(text)
        except ValueError:
            shown = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
            self.warn(path, f"makes no sense: {shown!r}")
            return None

    def integer(self, path: str) -> int | None:
        """A decimal number, or None."""
        return self.parsed(path, parse_integer)

    def hexadecimal(self, path: str) -> int | None:
        """A hexadecimal number with or without `0x`, or None."""
        return self.parsed(path, parse_hexadecimal)

    def cpus(self, stem: str, lists: str, mask: str) -> tuple[int, ...] | None:
        """Processors from `stem/lists` (`0-3,8`), or from `stem/mask` (`0000ffff`) of kernels that have no list."""
        found = self.parsed(f"{stem}/{lists}", parse_cpulist)
        return found if found is not None else self.parsed(f"{stem}/{mask}", parse_cpumask)

    def names(self, path: str) -> list[str]:
        """The names in a folder, sorted; empty when there is none."""
        real = self.real(path)
        try:
            found = [] if real is None else sorted(entry.name for entry in (self._real / real).iterdir())
        except OSError as error:
            self._note(path, error)
            return []
        for name in found:
            if not name.isprintable():
                self.warn(f"{path}/{name!a}", "has a name that is no text")
        return [name for name in found if name.isprintable()]

    def numbered(self, path: str, prefix: str) -> tuple[int, ...]:
        """The numbers of the entries of a folder that are called `prefix` and a number, ascending."""
        numbers = (name.removeprefix(prefix) for name in self.names(path) if name.startswith(prefix))
        return tuple(sorted(int(n) for n in numbers if n.isascii() and n.isdigit() and len(n) < _MOST_DIGITS))

    def online(self, path: str, prefix: str) -> tuple[int, ...]:
        """The numbers listed in `path/online` that have a folder `path/prefix*`; all that have where it lists none."""
        listed = self.parsed(f"{path}/online", parse_cpulist)
        shown = self.numbered(path, prefix)
        if not listed:
            if shown:
                self.warn(f"{path}/online", f"lists none: every {prefix} that is shown is taken as online")
            return tuple(n for n in shown if self.text(f"{path}/{prefix}{n}/online") != "0")
        if shown and not set(listed) <= set(shown):
            self.warn(f"{path}/online", f"lists more than there are: each {prefix} that is not shown is left out")
            return tuple(n for n in listed if n in set(shown))
        return listed

    def real(self, path: str) -> str | None:
        """Where a path leads, relative to the root, all links followed; None when it leads nowhere or outside."""
        try:
            target = (self._real / path).resolve(strict=True)
        except (OSError, RuntimeError, ValueError):  # nowhere; in a circle; a name that cannot be one
            return None
        if not target.is_relative_to(self._real):
            self.warn(path, "leads out of the tree")
            return None
        return str(target.relative_to(self._real))

    def link_name(self, path: str) -> str | None:
        """The last part of where a link points, which needs not be there: a function's driver."""
        try:
            return (self._real / path).readlink().name or None
        except OSError:
            return None

    # -- what was not understood -----------------------------------------------------------------------------------

    def warn(self, path: str, what: str) -> None:
        """Note what is wrong with a file; many of one name become one warning."""
        kind = what.partition(":")[0]
        self._notes.setdefault((path.rpartition("/")[2], kind), []).append(f"{path} {what}")

    def warnings(self) -> list[str]:
        """All notes, in the order in which they came up."""
        found: list[str] = []
        for (name, kind), notes in self._notes.items():
            found += notes[:_SHOWN_ALIKE]
            more = len(notes) - _SHOWN_ALIKE
            if more > 0:
                found.append(f"{more} more files called {name}: {kind}")
        return found

    def _note(self, path: str, error: OSError) -> None:
        if error.errno not in _NOTHING_TO_SAY:
            self.warn(path, f"cannot be read: {error.strerror}")

    def _read(self, full: Path, path: str, limit: int) -> bytes | None:
        try:
            # No link, so that what is read lies in the tree; no wait, so that a pipe in a file's place hangs nobody.
            file = os.open(full, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            self._note(path, error)
            return None
        try:
            return os.read(file, limit)
        except OSError as error:
            self._note(path, error)
            return None
        finally:
            os.close(file)

    def _decoded(self, data: bytes | None, path: str) -> str | None:
        if data is None:
            return None
        try:
            text = data.decode().strip(" \t\r\n\0")  # old kernels end some lists with a zero byte
        except UnicodeDecodeError:
            self.warn(path, "makes no sense: it is no text")
            return None
        if not all(c.isprintable() or c in "\n\t" for c in text):  # nor what would move the reader's cursor
            self.warn(path, "makes no sense: it is no text")
            return None
        return text or None
