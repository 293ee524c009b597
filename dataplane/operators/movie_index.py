"""The index of an MP4 or MOV file, made from the fragments in it: sample tables, which players of plain files want.

ISO/IEC 14496-12. A recording grows in fragments, which a death cannot spoil. At the end the header of the first one
gets the tables of all samples, and the fragments become the contents of one `mdat`. What describes the codecs is
libavformat's, copied from that header.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from dataplane.operators.piece_writer import boxes

Buffer = bytes | memoryview
_NOT_SYNC = 0x10000  # of sample flags
_LARGEST_32 = 2**32 - 1
_TABLES = frozenset({"stts", "ctts", "stsc", "stsz", "stco", "co64", "stss", "sgpd", "sbgp", "sdtp"})
_U32, _U64 = np.dtype(">u4"), np.dtype(">u8")


@dataclass(frozen=True, slots=True)
class Start:
    """Where a track begins, in the job's time, in ticks of `unit`: 0 of the track's own time is at `dts`."""

    pts: int
    dts: int
    unit: Fraction


@dataclass(slots=True)
class Samples:
    """The samples of one track; times in ticks of the track."""

    dts: list[npt.NDArray[np.int64]] = field(default_factory=list)
    durations: list[npt.NDArray[np.int64]] = field(default_factory=list)
    offsets: list[npt.NDArray[np.int64]] = field(default_factory=list)  # of PTS from DTS
    sizes: list[npt.NDArray[np.int64]] = field(default_factory=list)
    flags: list[npt.NDArray[np.int64]] = field(default_factory=list)
    chunks: list[tuple[int, int]] = field(default_factory=list)  # place in the file, samples


def box(kind: str, *contents: bytes) -> bytes:
    """One box."""
    size = 8 + sum(len(part) for part in contents)
    return struct.pack(">I4s", size, kind.encode("latin-1")) + b"".join(contents)


def full_box(kind: str, version: int, flags: int, *contents: bytes) -> bytes:
    """One box with a version and flags."""
    return box(kind, struct.pack(">I", version << 24 | flags), *contents)


# -- fragments ---------------------------------------------------------------------------------------------------------


def samples_in(data: Buffer, start: int, end: int) -> dict[int, Samples]:
    """All samples of the fragments between two offsets, by track id."""
    found: dict[int, Samples] = {}
    for kind, first, last in boxes(data, start, end):
        if kind == "moof":
            for child, a, b in boxes(data, first, last):
                if child == "traf":
                    _read_track(data, first - 8, a, b, found)
    return found


def media_in(data: Buffer, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Where the contents of the `mdat`s between two offsets begin and end."""
    return ((a, b) for kind, a, b in boxes(data, start, end) if kind == "mdat")


def _read_track(data: Buffer, moof: int, start: int, end: int, found: dict[int, Samples]) -> None:
    usual = {0x8: 0, 0x10: 0, 0x20: 0}  # duration, size, flags
    samples, time = Samples(), 0
    for kind, at, _ in boxes(data, start, end):
        (said,) = struct.unpack_from(">I", data, at)
        version, flags = said >> 24, said & 0xFFFFFF
        if kind == "tfhd":
            (track,) = struct.unpack_from(">I", data, at + 4)
            samples = found.setdefault(track, samples)
            at += 8 + (8 if flags & 1 else 0) + (4 if flags & 2 else 0)
            for bit in usual:
                if flags & bit:
                    (usual[bit],) = struct.unpack_from(">I", data, at)
                    at += 4
        elif kind == "tfdt":
            (time,) = struct.unpack_from(">Q" if version else ">I", data, at + 4)
        elif kind == "trun":
            time = _read_run(data, at + 4, flags, moof, usual, samples, time)


def _read_run(
    data: Buffer, at: int, flags: int, moof: int, usual: Mapping[int, int], samples: Samples, time: int
) -> int:
    (count,) = struct.unpack_from(">I", data, at)
    place, first_flags, at = moof, None, at + 4
    if flags & 1:
        (offset,) = struct.unpack_from(">i", data, at)
        place, at = moof + offset, at + 4
    if flags & 4:
        (first_flags,) = struct.unpack_from(">I", data, at)
        at += 4
    columns = [bit for bit in (0x100, 0x200, 0x400, 0x800) if flags & bit]
    table = np.frombuffer(data, _U32, count * len(columns), at).reshape(count, len(columns)).astype(np.int64)
    named = {bit: table[:, n] for n, bit in enumerate(columns)}
    durations = named.get(0x100, np.full(count, usual[0x8], np.int64))
    said = named.get(0x400, np.full(count, usual[0x20], np.int64)).copy()
    if first_flags is not None and count:
        said[0] = first_flags
    ends = time + np.cumsum(durations)
    samples.dts.append(ends - durations)
    samples.durations.append(durations)
    samples.sizes.append(named.get(0x200, np.full(count, usual[0x10], np.int64)))
    samples.flags.append(said)
    # Signed in version 1, and never as large as that in version 0.
    samples.offsets.append(named.get(0x800, np.zeros(count, np.int64)).astype(np.int32).astype(np.int64))
    samples.chunks.append((place, count))
    return int(ends[-1]) if count else time


# -- header ------------------------------------------------------------------------------------------------------------


def with_edits(header: bytes, starts: Mapping[int, Start]) -> bytes:
    """The header of a fragmented file, whose tracks begin at their own 0, with the times at which they are shown."""
    out = b""
    for kind, a, b in boxes(header):
        out += _moov(header, a, b, starts, None) if kind == "moov" else header[a - 8 : b]
    return out


def index(header: bytes, starts: Mapping[int, Start], samples: Mapping[int, Samples]) -> bytes:
    """The `moov` of a plain file with those samples."""
    a, b = next((a, b) for kind, a, b in boxes(header) if kind == "moov")
    return _moov(header, a, b, starts, samples)


def _moov(
    data: bytes, start: int, end: int, starts: Mapping[int, Start], samples: Mapping[int, Samples] | None
) -> bytes:
    parts = list(boxes(data, start, end))
    scale = next(_ticks_per_second(data, a) for kind, a, _ in parts if kind == "mvhd")
    made: list[bytes] = []
    longest = 0
    for kind, a, b in parts:
        if kind == "trak":
            track = _Track(data, a, b, scale, starts, samples)
            if samples is None or track.samples is not None:  # one that has nothing is left out
                made.append(track.box())
                longest = max(longest, track.shown)
        elif kind not in ("mvhd", "mvex" if samples is not None else "", "edts"):
            made.append(data[a - 8 : b])
    mvhd = next(_with_duration("mvhd", data[a:b], longest, 4) for kind, a, b in parts if kind == "mvhd")
    return box("moov", mvhd, *made)


def _ticks_per_second(data: bytes, at: int) -> int:
    """Of an `mvhd` or `mdhd`."""
    found: int = struct.unpack_from(">I", data, at + (20 if data[at] else 12))[0]
    return found


def _with_duration(kind: str, contents: bytes, duration: int, between: int) -> bytes:
    """`mvhd`, `tkhd`, `mdhd`: two times, `between` bytes, the duration; 64 bits for each of these where needed."""
    large, flags = contents[0], contents[1:4]
    times = struct.unpack_from(">QQ" if large else ">II", contents, 4)
    at = 4 + (16 if large else 8)
    middle, rest = contents[at : at + between], contents[at + between + (8 if large else 4) :]
    wide = duration > _LARGEST_32 or max(times) > _LARGEST_32
    pattern = ">QQ" if wide else ">II"
    said = struct.pack(">Q" if wide else ">I", duration)
    return box(kind, bytes([wide]) + flags, struct.pack(pattern, *times), middle, said, rest)


class _Track:
    """One track of the header, while it gets its tables."""

    def __init__(
        self,
        data: bytes,
        start: int,
        end: int,
        movie_scale: int,
        starts: Mapping[int, Start],
        samples: Mapping[int, Samples] | None,
    ) -> None:
        self._data, self._place = data, (start, end)
        tkhd = next(a for kind, a, _ in boxes(data, start, end) if kind == "tkhd")
        (track,) = struct.unpack_from(">I", data, tkhd + (20 if data[tkhd] else 12))
        self.samples = None if samples is None else samples.get(track)
        self._scale = next(_ticks_per_second(data, a) for kind, a, _ in _below(data, start, end, "mdia", "mdhd"))
        self._start = starts.get(track)
        self._media_time, self._delay = self._edit(movie_scale)
        self._length = 0 if self.samples is None else _length(self.samples)
        shown = 0 if self.samples is None else max(0, _shown_until(self.samples) - self._media_time)
        self._edit_length = round(Fraction(shown * movie_scale, self._scale))
        self.shown = self._edit_length + self._delay

    def _edit(self, movie_scale: int) -> tuple[int, int]:
        """What of the media is before the first picture (ticks of the track); the pause before that (of the movie)."""
        if self._start is None:
            return 0, 0
        dts = self._start.dts * self._start.unit * self._scale
        ahead = (self._start.pts - self._start.dts) * self._start.unit * self._scale
        if self.samples is not None:  # in tables, the first sample is at 0
            dts, ahead = dts + int(self.samples.dts[0][0]), Fraction(int(self.samples.offsets[0][0]))
        if dts + ahead > 0:
            return round(ahead), round((dts + ahead) / self._scale * movie_scale)
        return max(0, round(-dts)), 0

    def box(self) -> bytes:
        """The `trak`."""
        return box("trak", *self._rebuilt(*self._place))

    def _rebuilt(self, start: int, end: int) -> Iterator[bytes]:
        for kind, a, b in boxes(self._data, start, end):
            if kind == "tkhd":
                yield _with_duration("tkhd", self._data[a:b], self.shown, 8)
                yield self._edts()
            elif kind == "mdhd":
                yield _with_duration("mdhd", self._data[a:b], self._length, 4)
            elif kind in ("mdia", "minf", "stbl"):
                yield box(kind, *self._rebuilt(a, b))
            elif kind == "stsd":
                yield self._data[a - 8 : b]
                yield from _no_tables() if self.samples is None else _tables(self.samples)
            elif kind not in _TABLES and kind != "edts":
                yield self._data[a - 8 : b]

    def _edts(self) -> bytes:
        edits = [(self._delay, -1)] if self._delay else []
        edits.append((self._edit_length, self._media_time))
        wide = any(length > _LARGEST_32 or time >= 2**31 for length, time in edits)
        pattern = ">QqI" if wide else ">IiI"
        entries = [struct.pack(pattern, length, time, 0x10000) for length, time in edits]
        return box("edts", full_box("elst", int(wide), 0, struct.pack(">I", len(edits)), *entries))


def _below(data: bytes, start: int, end: int, *path: str) -> Iterable[tuple[str, int, int]]:
    for kind, a, b in boxes(data, start, end):
        if kind == path[0]:
            return [(kind, a, b)] if len(path) == 1 else _below(data, a, b, *path[1:])
    return []


def _length(samples: Samples) -> int:
    """From the first sample to the end of the last one."""
    return int(samples.dts[-1][-1] + samples.durations[-1][-1] - samples.dts[0][0])


def _shown_until(samples: Samples) -> int:
    """Where the picture that is shown last ends, seen from the first sample; it is among the last ones."""
    pairs = zip(samples.dts[-2:], samples.offsets[-2:], samples.durations[-2:], strict=True)
    last = max(int((dts + offset + length).max()) for dts, offset, length in pairs)
    return last - int(samples.dts[0][0])


# -- tables ------------------------------------------------------------------------------------------------------------


def _no_tables() -> Iterator[bytes]:
    for kind in ("stts", "stsc"):
        yield full_box(kind, 0, 0, bytes(4))
    yield full_box("stsz", 0, 0, bytes(8))
    yield full_box("stco", 0, 0, bytes(4))


def _tables(samples: Samples) -> Iterator[bytes]:
    dts = np.concatenate(samples.dts)
    last = samples.durations[-1][-1]
    yield full_box("stts", 0, 0, _runs(np.append(np.diff(dts), last)))
    sync = np.concatenate(samples.flags) & _NOT_SYNC == 0
    if not sync.all():
        numbers = np.flatnonzero(sync) + 1
        yield full_box("stss", 0, 0, struct.pack(">I", len(numbers)), numbers.astype(_U32).tobytes())
    offsets = np.concatenate(samples.offsets)
    if offsets.any():
        yield full_box("ctts", int(offsets.min() < 0), 0, _runs(offsets))
    yield full_box("stsc", 0, 0, _chunk_sizes(np.array([count for _, count in samples.chunks])))
    sizes = np.concatenate(samples.sizes)
    if (sizes == sizes[0]).all():
        yield full_box("stsz", 0, 0, struct.pack(">II", sizes[0], len(sizes)))
    else:
        yield full_box("stsz", 0, 0, struct.pack(">II", 0, len(sizes)), sizes.astype(_U32).tobytes())
    places = np.array([place for place, _ in samples.chunks], np.int64)
    wide = bool(places.max() > _LARGEST_32)
    listed = places.astype(_U64 if wide else _U32).tobytes()
    yield full_box("co64" if wide else "stco", 0, 0, struct.pack(">I", len(places)), listed)


def _firsts(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where a run of equal values begins."""
    return np.flatnonzero(np.append(True, values[1:] != values[:-1]))


def _runs(values: npt.NDArray[np.int64]) -> bytes:
    """Number of runs, and (length, value) of each."""
    firsts = _firsts(values)
    lengths = np.diff(np.append(firsts, len(values)))
    table = np.stack([lengths, values[firsts]], axis=1)
    return struct.pack(">I", len(firsts)) + (table & _LARGEST_32).astype(_U32).tobytes()


def _chunk_sizes(counts: npt.NDArray[np.int64]) -> bytes:
    """Number of runs, and (first chunk, samples in each, 1) of each."""
    firsts = _firsts(counts)
    table = np.stack([firsts + 1, counts[firsts], np.ones_like(firsts)], axis=1)
    return struct.pack(">I", len(firsts)) + table.astype(_U32).tobytes()
