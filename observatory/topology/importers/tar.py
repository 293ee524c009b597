"""Members of a tar archive in memory: names, links and where each file's bytes are, nothing else.

POSIX.1-1988 (ustar), GNU's long names and links, and paths of POSIX.1-2001 (pax). Python's `tarfile` reads all of a
header and takes ten times as long; a recorded sysfs has ten thousand members.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_BLOCK = 512
_REGULAR = frozenset(b"\x000 7")
_FOLDER, _SYMLINK, _HARDLINK = ord("5"), ord("2"), ord("1")
_LONG_NAME, _LONG_LINK, _PAX = ord("L"), ord("K"), ord("x")


class BadTar(ValueError):
    """What the bytes are not."""


class Member(NamedTuple):
    """One entry: `target` of a link (hard or symbolic), `start` and `size` of a file's bytes."""

    name: str
    is_folder: bool = False
    target: str | None = None
    is_hard_link: bool = False
    start: int = 0
    size: int = 0


def tar_members(data: bytes) -> Iterator[Member]:
    """The members in order; devices, pipes and what else no sysfs has are left out. Raises BadTar."""
    at = 0
    long_name: str | None = None
    long_link: str | None = None
    while at + _BLOCK <= len(data) and data[at] != 0:
        header = data[at : at + _BLOCK]
        size = _size(header[124:136])
        kind = header[156]
        start = at + _BLOCK
        at = start + -(-size // _BLOCK) * _BLOCK
        if start + size > len(data):
            raise BadTar("it is cut off")
        if kind == _LONG_NAME:
            long_name = _text(data[start : start + size])
        elif kind == _LONG_LINK:
            long_link = _text(data[start : start + size])
        elif kind == _PAX:
            told = _pax(data[start : start + size])
            long_name, long_link = told.get("path", long_name), told.get("linkpath", long_link)
        else:
            name = long_name if long_name is not None else _name(header)
            if kind in _REGULAR and name[-1:] != "/":
                yield Member(name, start=start, size=size)
            elif kind == _FOLDER or kind in _REGULAR:
                yield Member(name, is_folder=True)
            elif kind in (_SYMLINK, _HARDLINK):
                target = long_link if long_link is not None else _text(header[157:257])
                yield Member(name, target=target, is_hard_link=kind == _HARDLINK)
            long_name = long_link = None


def _size(digits: bytes) -> int:
    if digits[:11].isdigit() and digits[11] in b" \0":  # as almost all are written
        text = digits[:11]
    else:
        text = digits.strip(b" \0")
    if not text:
        return 0
    if not text.isdigit():
        raise BadTar("a header makes no sense")
    try:
        return int(text, 8)
    except ValueError:
        raise BadTar("a header makes no sense") from None


def _text(data: bytes) -> str:
    end = data.find(b"\0")
    return (data if end < 0 else data[:end]).decode("utf-8", "replace")


def _name(header: bytes) -> str:
    name = _text(header[:100])
    if header[257:263] == b"ustar\0" and header[345]:
        return f"{_text(header[345:500])}/{name}"
    return name


def _pax(data: bytes) -> dict[str, str]:
    """Records `LENGTH KEY=VALUE` and a newline."""
    found: dict[str, str] = {}
    at = 0
    while at < len(data):
        digits = data[at : at + 12].split(b" ", 1)[0]
        if not digits.isdigit() or int(digits) <= len(digits):
            raise BadTar("a header makes no sense")
        record = data[at + len(digits) + 1 : at + int(digits) - 1]
        key, _, value = record.partition(b"=")
        found[key.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
        at += int(digits)
    return found
