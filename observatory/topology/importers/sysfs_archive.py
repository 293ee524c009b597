"""Recorded sysfs trees: a tar archive (plain, gzip, bzip2, xz), Prometheus' `.ttar`, or a folder.

A tar is what `tar cf machine.tar --exclude=... /sys` or hwloc's `hwloc-gather-topology` makes. A ttar is a text
(github.com/ideaship/ttar):

    Path: sys/class/net/eth0/speed        Lines: 1, then the lines          Directory: ...
    Path: sys/bus/pci/devices/...         SymlinkTo: ../../../devices/...

Where in it the tree begins is found by its folders. Nothing is unpacked to a disk; what is no file of sysfs's size is
left out.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import posixpath
import re
import zlib
from typing import Any

from observatory.model.topology import Topology
from observatory.topology.errors import MachineUnreadable
from observatory.topology.importers.real import read_machine, read_tree
from observatory.topology.importers.source import Format, Source
from observatory.topology.importers.sysfs.memory_tree import Entries, MemoryTree
from observatory.topology.importers.tar import BadTar, tar_members

_MOST_UNPACKED = 100_000_000
_MOST_ENTRIES = 300_000
_LARGEST_FILE = 1 << 16
_LONGEST_PATH = 4096
_CHUNK = 1 << 20
_MARKS = ("devices/system/cpu", "bus/pci/devices", "class/infiniband", "class/net")
_PACKED: tuple[tuple[bytes, Any], ...] = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\x00", lzma.open))
_TTAR = re.compile(rb"# Archive created by ttar|# ttar - - -|(?:Directory|Path): \S+\n(?:Mode|Lines|SymlinkTo): ")
_TTAR_ESCAPES = re.compile(r"\\(.)|NULLBYTE")


def _is_tar(source: Source) -> bool:
    return source.data.startswith(tuple(mark for mark, _ in _PACKED)) or source.data[257:262] == b"ustar"


def _recognise(source: Source) -> bool:
    return source.is_folder or _is_tar(source) or _TTAR.match(source.data) is not None


def _read(source: Source) -> Topology:
    if source.is_folder:
        return _read_folder(source)
    entries = _from_tar(source) if _is_tar(source) else _from_ttar(source)
    root = _root(entries)
    if root is None:
        source.fail(
            "holds no sysfs tree", mend="it should have sys/devices/system/cpu, sys/bus/pci or sys/class/infiniband"
        )
    tree = MemoryTree(entries, root, source.path)
    return read_tree(tree, source.name, name="sysfs", whole=False).model_copy(update={"sources": (source.name,)})


def _read_folder(source: Source) -> Topology:
    for root in (source.path, source.path / "sys"):
        if (root / _MARKS[0]).is_dir():
            try:
                found = read_machine(root)
            except MachineUnreadable as failure:
                source.fail(failure.message, mend=failure.mend)
            return found.model_copy(update={"name": "sysfs", "sources": (source.name,)})
    source.fail("is a folder without a sysfs tree", mend="name the folder that has devices/system/cpu in it, or a file")


# -- where the tree is -------------------------------------------------------------------------------------------------


def _root(entries: Entries) -> str | None:
    """The folder that has most of what a sysfs tree has; the highest of several."""
    candidates: dict[str, int] = {}
    for folder in entries.folders:
        for weight, mark in zip((8, 4, 2, 1), _MARKS, strict=True):
            if folder == mark or folder.endswith(f"/{mark}"):
                root = folder[: -len(mark)].rstrip("/")
                candidates[root] = candidates.get(root, 0) + weight
    if not candidates:  # a record of the InfiniBand class alone
        cards = {path.split("/ports/")[0] for path in entries.files if path.endswith("/ports/1/rate")}
        homes = {posixpath.dirname(card) for card in cards}
        if len(homes) == 1 and "class" not in entries.folders[""]:
            entries.add_link("class/infiniband", f"../{homes.pop()}")
            return ""
    best = sorted(candidates, key=lambda root: (-candidates[root], root.count("/"), root))
    return best[0] if best else None


# -- tar ---------------------------------------------------------------------------------------------------------------


def _from_tar(source: Source) -> Entries:
    data = _unpacked(source)
    entries = Entries()
    try:
        for count, member in enumerate(tar_members(data)):
            if count > _MOST_ENTRIES:
                source.fail(f"holds more than {_MOST_ENTRIES:,} files", mend="leave out what is not of the hardware")
            path = _clean(member.name)
            if path is None:
                continue
            if member.is_folder:
                entries.add_folder(path)
            elif member.is_hard_link:
                entries.add_file(path, entries.files.get(_clean(member.target or "") or "", b""))
            elif member.target is not None:
                entries.add_link(path, member.target)
            elif member.size <= _LARGEST_FILE:
                entries.add_file(path, data[member.start : member.start + member.size])
    except BadTar as failure:
        source.fail(f"is no whole tar archive: {failure}", mend="the file is cut off, or something else is in it")
    return entries


def _unpacked(source: Source) -> bytes:
    """The bytes of the archive, never more than a limit: a small file can unpack to any size."""
    opener = next((o for mark, o in _PACKED if source.data.startswith(mark)), None)
    if opener is None:
        return source.data
    out = bytearray()
    try:
        with opener(io.BytesIO(source.data)) as stream:
            while chunk := stream.read(_CHUNK):
                out += chunk
                if len(out) > _MOST_UNPACKED:
                    source.fail(f"unpacks to more than {_MOST_UNPACKED / 1e6:g} MB", mend="no sysfs tree is so large")
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as failure:
        source.fail(f"cannot be unpacked: {failure}", mend="the file is cut off or damaged")
    return bytes(out)


def _clean(name: str) -> str | None:
    """A path inside the archive; None for one that leads out."""
    if len(name) > _LONGEST_PATH:
        return None
    if name and name[0] not in "/." and "/." not in name and "//" not in name and "\0" not in name:
        return name.rstrip("/")  # as almost all are
    path = posixpath.normpath(name.lstrip("/"))
    return None if path in (".", "") or path.startswith("../") or path == ".." else path


# -- ttar --------------------------------------------------------------------------------------------------------------


def _from_ttar(source: Source) -> Entries:
    entries = Entries()
    lines = source.data.decode("utf-8", "surrogateescape").replace("\r\n", "\n").split("\n")
    at, path, count = 0, None, 0
    while at < len(lines):
        key, _, value = lines[at].partition(": ")
        at += 1
        if key == "Directory":
            path, count = None, count + 1
            if (folder := _clean(value)) is not None:
                entries.add_folder(folder)
        elif key == "Path":
            path, count = _clean(value), count + 1
        elif key == "SymlinkTo" and path is not None:
            entries.add_link(path, value)
        elif key == "Lines":
            if not value.isascii() or not value.isdigit() or len(value) > 7 or at + int(value) > len(lines):
                source.fail("has a file that is longer than the archive", at, "the file is cut off")
            body = "\n".join(lines[at : at + int(value)])
            at += int(value)
            if path is not None and len(body) <= _LARGEST_FILE:
                entries.add_file(path, _ttar_bytes(body))
        if count > _MOST_ENTRIES:
            source.fail(f"holds more than {_MOST_ENTRIES:,} files", at)
    return entries


def _ttar_bytes(body: str) -> bytes:
    """A file's text: it ends in a line's end, unless EOF says that it does not."""
    if "\\" in body or "NULLBYTE" in body:
        body = _TTAR_ESCAPES.sub(lambda m: m[1] if m[1] is not None else "\0", body)
    body = body[:-3] if body.endswith("EOF") else f"{body}\n"
    return body.encode("utf-8", "surrogateescape")


FORMAT = Format(name="sysfs", title="recorded sysfs tree (tar, ttar, folder)", recognise=_recognise, read=_read)
