"""A sysfs tree that is in memory: what an archive holds, without unpacking it to a disk."""

from __future__ import annotations

import posixpath
from pathlib import Path, PurePosixPath

from observatory.topology.importers.sysfs.tree import SysfsTree

_MOST_LINKS = 40  # as in the kernel: a path that follows more leads in a circle


class Entries:
    """Files, folders and links of an archive, by their path in it."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.links: dict[str, str] = {}
        self.folders: dict[str, set[str]] = {"": set()}

    def add_folder(self, path: str) -> None:
        """A folder, and those above it."""
        missing = []
        while path not in self.folders:
            missing.append(path)
            path = path.rpartition("/")[0]
        for folder in reversed(missing):
            above, _, name = folder.rpartition("/")
            self.folders[folder] = set()
            self.folders[above].add(name)

    def add_file(self, path: str, data: bytes) -> None:
        """A file."""
        self._enter(path)
        self.files[path] = data

    def add_link(self, path: str, target: str) -> None:
        """A symbolic link; where it leads needs not be there."""
        self._enter(path)
        self.links[path] = target

    def _enter(self, path: str) -> None:
        folder, _, name = path.rpartition("/")
        if folder not in self.folders:
            self.add_folder(folder)
        self.folders[folder].add(name)

    def resolve(self, path: str) -> str | None:
        """Where a path leads, all links followed; None when it leads nowhere, outside, or in a circle."""
        todo = path.split("/")[::-1]
        here = ""
        followed = 0
        while todo:
            part = todo.pop()
            if part in ("", "."):
                continue
            if part == "..":
                if not here:
                    return None
                here = posixpath.dirname(here)
                continue
            here = f"{here}/{part}" if here else part
            target = self.links.get(here)
            if target is not None:
                followed += 1
                if target.startswith("/") or followed > _MOST_LINKS:
                    return None
                here = posixpath.dirname(here)
                todo += target.split("/")[::-1]
        return here if here in self.folders or here in self.files else None


class MemoryTree(SysfsTree):
    """The tree below the folder `root` of an archive. Links out of it are not followed."""

    def __init__(self, entries: Entries, root: str, name: Path) -> None:
        super().__init__(name)
        self._entries = entries
        self._base = root
        self._resolved: dict[str, str | None] = {}

    def raw(self, path: str, limit: int = 1 << 16) -> bytes | None:
        """The first `limit` bytes of a file, or None."""
        folder, _, name = path.rpartition("/")
        real = self.real(folder)
        if real is None:
            return None
        data = self._entries.files.get(self._full(f"{real}/{name}" if real not in ("", ".") else name))
        return None if data is None else data[:limit]

    def process_text(self, name: str) -> str | None:
        """The text of a file below the `proc` beside a root called `sys`."""
        parent, _, last = self._base.rpartition("/")
        data = self._entries.files.get(f"{parent}/proc/{name}" if parent else f"proc/{name}") if last == "sys" else None
        return self._decoded(data, f"proc/{name}")

    def names(self, path: str) -> list[str]:
        """The names in a folder, sorted."""
        real = self.real(path)
        found = sorted(self._entries.folders.get(self._full(real), ())) if real is not None else []
        for name in found:
            if not name.isprintable():
                self.warn(f"{path}/{name!a}", "has a name that is no text")
        return [name for name in found if name.isprintable()]

    def real(self, path: str) -> str | None:
        """Where a path leads, relative to the root; None when it leads nowhere or outside."""
        if path not in self._resolved:
            self._resolved[path] = self._real_of(path)
        return self._resolved[path]

    def link_name(self, path: str) -> str | None:
        """The last part of where a link points."""
        folder, _, name = path.rpartition("/")
        real = self.real(folder)
        target = None if real is None else self._entries.links.get(self._full(f"{real}/{name}"))
        return None if target is None else PurePosixPath(target).name or None

    def _real_of(self, path: str) -> str | None:
        found = self._entries.resolve(self._full(path))
        if found is None:
            return None
        if self._base and found != self._base and not found.startswith(f"{self._base}/"):
            self.warn(path, "leads out of the tree")
            return None
        return found[len(self._base) :].lstrip("/") or "."

    def _full(self, path: str) -> str:
        path = "" if path == "." else path
        return f"{self._base}/{path}".strip("/") if path else self._base
