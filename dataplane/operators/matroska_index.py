"""What a Matroska or WebM file says of itself as a whole, written by us: size, duration, and where its clusters are.

RFC 9559 (Matroska) and RFC 8794 (EBML). The clusters, and what describes the tracks, are libavformat's. While a file
grows it is like one that is streamed, without size and index.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import islice

Buffer = bytes | memoryview

EBML, SEGMENT, SEEK_HEAD, SEEK, SEEK_ID, SEEK_POSITION = 0x1A45DFA3, 0x18538067, 0x114D9B74, 0x4DBB, 0x53AB, 0x53AC
INFO, DURATION, TRACKS, TRACK_ENTRY, TRACK_NUMBER, TRACK_TYPE = 0x1549A966, 0x4489, 0x1654AE6B, 0xAE, 0xD7, 0x83
CLUSTER, TIMESTAMP, SIMPLE_BLOCK, BLOCK_GROUP, BLOCK, REFERENCE_BLOCK = 0x1F43B675, 0xE7, 0xA3, 0xA0, 0xA1, 0xFB
CUES, CUE_POINT, CUE_TIME, CUE_POSITIONS, CUE_TRACK, CUE_CLUSTER = 0x1C53BB6B, 0xBB, 0xB3, 0xB7, 0xF7, 0xF1

PICTURES = 1  # a track type
KEY = 0x80  # of a simple block's flags
_SEEK_ROOM = 96  # bytes for the seek head: three entries take 60 or so
_UNKNOWN_SIZE = b"\x01\xff\xff\xff\xff\xff\xff\xff"
_BLOCKS_LOOKED_AT = 16
"""Before the first picture of a cluster comes at most the sound that libavformat put there."""


class NotMatroska(ValueError):
    """Bytes that libavformat's muxer does not write."""


def elements(data: Buffer, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The elements between two offsets: id, where it begins, where its contents begin and end."""
    while start < end:
        name, at = _number(data, start, keep_marker=True)
        size, at = _number(data, at, keep_marker=False)
        if at + size > end:
            raise NotMatroska(f"an element at {start} is cut short")
        yield name, start, at, at + size
        start = at + size


def _number(data: Buffer, at: int, keep_marker: bool) -> tuple[int, int]:
    if at >= len(data) or not data[at]:
        raise NotMatroska(f"no number at {at}")
    length = 9 - data[at].bit_length()
    value = int.from_bytes(data[at : at + length], "big")
    return value if keep_marker else value & ~(1 << 7 * length), at + length


def element(name: int, contents: bytes) -> bytes:
    """One element; its size takes 8 bytes from 127 on."""
    size = len(contents)
    head = bytes([0x80 | size]) if size < 0x7F else (1 << 56 | size).to_bytes(8, "big")
    return name.to_bytes((name.bit_length() + 7) // 8, "big") + head + contents


def _unsigned(name: int, value: int) -> bytes:
    return element(name, value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big"))


def _void(size: int) -> bytes:
    """Nothing, in that many bytes (at least 9)."""
    return b"\xec" + (1 << 56 | size - 9).to_bytes(8, "big") + bytes(size - 9)


def _segment(file: Buffer) -> tuple[int, int]:
    """Where the contents of the segment begin and end in a file of libavformat's."""
    for name, _, start, end in elements(file, 0, len(file)):
        if name == SEGMENT:
            return start, end
    raise NotMatroska("no segment")


def header_of(file: bytes) -> bytes:
    """The beginning of a growing file, from a whole one with the same tracks."""
    _, _, _, ebml_end = next(elements(file, 0, len(file)))
    start, end = _segment(file)
    kept = b"".join(file[at:last] for name, at, _, last in elements(file, start, end) if name in (INFO, TRACKS))
    return file[:ebml_end] + SEGMENT.to_bytes(4, "big") + _UNKNOWN_SIZE + _void(_SEEK_ROOM) + kept


def clusters_of(file: bytes) -> bytes:
    """Only the clusters."""
    start, end = _segment(file)
    return b"".join(file[at:last] for name, at, _, last in elements(file, start, end) if name == CLUSTER)


def completion(
    data: Buffer, header_bytes: int, size_bytes: int, milliseconds: float
) -> tuple[bytes, list[tuple[int, bytes]]]:
    """What a file that grew to `size_bytes` needs to be complete: an index to append; what to write over, and where."""
    _, _, _, ebml_end = next(elements(data, 0, header_bytes))
    base = ebml_end + 12  # positions count from the contents of the segment on
    places = {name: (at, a, b) for name, at, a, b in elements(data, base + _SEEK_ROOM, header_bytes)}
    if INFO not in places or TRACKS not in places:
        raise NotMatroska("no description of the tracks")
    cues = b"".join(_cues(data, header_bytes, size_bytes, base, _pictures(data, *places[TRACKS][1:])))
    index = element(CUES, cues) if cues else b""
    seek = _seek(INFO, places[INFO][0] - base) + _seek(TRACKS, places[TRACKS][0] - base)
    seek += _seek(CUES, size_bytes - base) if cues else b""
    seek = element(SEEK_HEAD, seek)
    changes = [(base, seek + _void(_SEEK_ROOM - len(seek)))]
    for name, _, a, b in elements(data, *places[INFO][1:]):
        if name == DURATION:
            changes.append((a, struct.pack(">d" if b - a == 8 else ">f", milliseconds)))
    changes.append((base - 8, (1 << 56 | size_bytes + len(index) - base).to_bytes(8, "big")))
    return index, changes


def _seek(name: int, position: int) -> bytes:
    return element(SEEK, element(SEEK_ID, name.to_bytes(4, "big")) + _unsigned(SEEK_POSITION, position))


def _pictures(data: Buffer, start: int, end: int) -> set[int]:
    """Numbers of the tracks of pictures."""
    found = set()
    for name, _, a, b in elements(data, start, end):
        if name == TRACK_ENTRY:
            said = {child: int.from_bytes(data[x:y], "big") for child, _, x, y in elements(data, a, b)}
            if said[TRACK_TYPE] == PICTURES:
                found.add(said[TRACK_NUMBER])
    return found


def _cues(data: Buffer, start: int, end: int, base: int, pictures: set[int]) -> Iterator[bytes]:
    """An entry for each cluster whose first picture is a key frame."""
    for name, at, a, b in elements(data, start, end):
        blocks = islice(_blocks(data, a, b) if name == CLUSTER else (), _BLOCKS_LOOKED_AT)
        first = next((block for block in blocks if block[0] in pictures), None)
        if first is not None and first[2]:
            where = _unsigned(CUE_TRACK, first[0]) + _unsigned(CUE_CLUSTER, at - base)
            yield element(CUE_POINT, _unsigned(CUE_TIME, max(0, first[1])) + element(CUE_POSITIONS, where))


def _blocks(data: Buffer, start: int, end: int) -> Iterator[tuple[int, int, bool]]:
    """Track, time (ms), and whether it is a key frame, of the blocks of a cluster."""
    base = 0
    for name, _, a, b in elements(data, start, end):
        if name == TIMESTAMP:
            base = int.from_bytes(data[a:b], "big")
        elif name == SIMPLE_BLOCK:
            track, at = _number(data, a, keep_marker=False)
            (time,) = struct.unpack_from(">h", data, at)
            yield track, base + time, bool(data[at + 2] & KEY)
        elif name == BLOCK_GROUP:
            inside = {child: x for child, _, x, _ in elements(data, a, b)}
            track, at = _number(data, inside[BLOCK], keep_marker=False)
            (time,) = struct.unpack_from(">h", data, at)
            yield track, base + time, REFERENCE_BLOCK not in inside
