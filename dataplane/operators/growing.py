"""Files that grow piece by piece and are whole up to the last one: what is appended, and how they are completed.

A growing file is described by a few numbers (`state`). Who continues it cuts it to its length and appends the next
piece. Completing it can be done over again, as long as it is cut to that length before.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from av.packet import Packet
from av.stream import Stream

from dataplane.operators import matroska_index, movie_index
from dataplane.operators.containers import MOV_FAMILY
from dataplane.operators.matroska_index import clusters_of, header_of
from dataplane.operators.movie_index import Start, with_edits
from dataplane.operators.packets import move_by
from dataplane.operators.piece_writer import (
    FRAGMENT_OPTIONS,
    ContinuityCounters,
    PieceStream,
    boxes,
    split_header,
    write_piece,
)
from dataplane.operators.pieces import MIB, Part, Rule
from dataplane.operators.places import hold
from observatory.model.media import CodecParameters

Style = Literal["plain", "faststart", "fragmented"]

_COPIED_AT_ONCE = 64 * MIB
_MAY_BE_EARLIER = (-10, -10, 1, 1)
"""PTS, DTS and unit: where a track begins that had nothing in the first piece; no earlier time can be said."""
_FREE = (16).to_bytes(4, "big") + b"free" + bytes(8)
"""What becomes the head of an `mdat` around all fragments: that store is what makes the file a plain one."""


@dataclass(frozen=True, slots=True)
class Track:
    """What a file says of a stream, and that it is given to its muxer at all."""

    number: int
    said: CodecParameters


class GrowingFile:
    """Base: what is common to all containers. `state` is data, to be stored and given back."""

    rule = Rule(least_seconds=1.0, most_seconds=5.0)

    def __init__(self, container: str, tracks: Sequence[Track], state: Mapping[str, Any] | None = None) -> None:
        self._container = container
        self._tracks = tracks
        self._state: dict[str, Any] = {"bytes": 0, "header_bytes": 0, **(state or {})}

    @property
    def size_bytes(self) -> int:
        """Up to the end of the last piece."""
        size: int = self._state["bytes"]
        return size

    def state(self) -> dict[str, Any]:
        """What has to be known to go on."""
        return dict(self._state)

    def append(self, fd: int, parts: Sequence[Part]) -> None:
        """Write the next piece; then `state` is another one. Raises OSError and what libavformat does."""
        data = self._made(parts)
        at = self.size_bytes
        write_all(fd, data, at)
        self._state["bytes"] = at + len(data)

    def complete(self, fd: int, spare: Path) -> bool:
        """Make of the pieces a whole file: in place, or (True) at `spare`. Raises OSError."""
        return False

    # -- for the containers ----------------------------------------------------------------------------------------

    def _made(self, parts: Sequence[Part]) -> bytes:
        raise NotImplementedError

    def _shift(self, parts: Sequence[Part], by: str) -> Fraction:
        """Seconds by which all times are later in the file, so that none is before 0: found in the first piece."""
        if "shift" not in self._state:
            times = [(getattr(one.packet, by) or 0) * one.packet.time_base for part in parts for one in part.packets]
            milliseconds = math.ceil(-min(times, default=Fraction(0)) * 1000)
            self._state["shift"] = max(0, milliseconds)
        return Fraction(self._state["shift"], 1000)


class TransportStream(GrowingFile):
    """MPEG-TS: pieces one behind the other, their counters running on."""

    def __init__(
        self, container: str, tracks: Sequence[Track], state: Mapping[str, Any] | None = None, blu_ray: bool = False
    ) -> None:
        super().__init__(container, tracks, state)
        self._packet = 192 if blu_ray else 188
        self._options = {"avoid_negative_ts": "disabled", "mpegts_m2ts_mode": str(int(blu_ray))}

    def _made(self, parts: Sequence[Part]) -> bytes:
        shift = self._shift(parts, "dts")
        given = {part.track: part for part in parts}
        streams = []
        for track in self._tracks:
            part = given.get(track.number)
            said = track.said if part is None else part.packets[0].said
            streams.append(PieceStream(track.number, said, [] if part is None else _moved(part, shift)))
        counters = ContinuityCounters(self._packet, self._state.get("counters"))
        data = counters.continued(write_piece(self._container, self._options, streams))
        self._state["counters"] = counters.state()
        return data


class Matroska(GrowingFile):
    """Matroska, WebM: one header, then clusters."""

    def _made(self, parts: Sequence[Part]) -> bytes:
        shift = self._shift(parts, "pts")
        given = {part.track: _moved(part, shift) for part in parts}
        ends = [int(((p.pts or 0) + (p.duration or 0)) * p.time_base * 1000) for ps in given.values() for p in ps]
        self._state["milliseconds"] = max(self._state.get("milliseconds", 0), *ends)
        streams = [PieceStream(track.number, track.said, given.get(track.number, [])) for track in self._tracks]
        data = write_piece(self._container, {"avoid_negative_ts": "disabled"}, streams)
        header = b"" if self.size_bytes else header_of(data)
        self._state["header_bytes"] = self._state["header_bytes"] or len(header)
        return header + clusters_of(data)

    def complete(self, fd: int, spare: Path) -> bool:
        """Append the index, then say in the header what is known now."""
        size, until = self.size_bytes, self._state["milliseconds"]
        with mmap.mmap(fd, size, prot=mmap.PROT_READ) as whole, memoryview(whole) as view:
            index, changes = matroska_index.completion(view, self._state["header_bytes"], size, until)
        write_all(fd, index, size)
        for at, data in changes:
            write_all(fd, data, at)
        return False


class Movie(GrowingFile):
    """MP4, MOV: header and fragments; plain files get an index of all samples at the end."""

    def __init__(
        self,
        container: str,
        tracks: Sequence[Track],
        state: Mapping[str, Any] | None = None,
        style: Style = "plain",
    ) -> None:
        super().__init__(container, tracks, {"fragments": 0, "starts": {}, **(state or {})})
        self._style = style
        # Nobody sees the fragments of a plain file; its chunks are as long as they are.
        self.rule = Rule(1.0, 10.0) if style == "fragmented" else Rule(0.5, 1.0)

    def _made(self, parts: Sequence[Part]) -> bytes:
        first = not self.size_bytes
        if first:
            late = {str(track.number): _MAY_BE_EARLIER for track in self._tracks}
            self._state["starts"] = late | {str(part.track): _start(part) for part in parts}
        starts = self._starts()
        given = {part.track: part for part in parts}
        streams = []
        for track in self._tracks:
            part = given.get(track.number)
            if part is not None:
                _let_last(part)
                start = starts[track.number + 1]
                streams.append(PieceStream(track.number, track.said, _moved(part, -start.dts * start.unit)))
            elif first:
                streams.append(PieceStream(track.number, track.said, []))
        self._state["fragments"] += 1
        options = {"use_stream_ids_as_track_ids": "1", "fragment_index": str(self._state["fragments"])}
        header, media = split_header(write_piece(self._container, FRAGMENT_OPTIONS | options, streams))
        if not first:
            return media
        header = with_edits(header, starts)
        if self._style != "fragmented":
            _, _, cut = next(boxes(header))  # behind ftyp
            header = header[:cut] + _FREE + header[cut:]
        self._state["header_bytes"] = len(header)
        return header + media

    def _starts(self) -> dict[int, Start]:
        """By track id."""
        return {
            int(number) + 1: Start(pts, dts, Fraction(num, den))
            for number, (pts, dts, num, den) in self._state["starts"].items()
        }

    def complete(self, fd: int, spare: Path) -> bool:
        """Make it a plain file, with the index at its end or (in a copy) at its beginning."""
        if self._style == "fragmented":
            return False
        size, header_bytes = self.size_bytes, self._state["header_bytes"]
        with mmap.mmap(fd, size, prot=mmap.PROT_READ) as whole, memoryview(whole) as view:
            _, _, cut = next(boxes(view))
            header = bytes(view[:cut]) + _FREE + bytes(view[cut + len(_FREE) : header_bytes])  # as it was made
            samples = movie_index.samples_in(view, header_bytes, size)
            media = list(movie_index.media_in(view, header_bytes, size))
        if self._style == "faststart":
            self._copy(fd, header, samples, media, spare)
            return True
        write_all(fd, movie_index.index(header, self._starts(), samples), size)
        write_all(fd, _mdat_head(size - cut), cut)
        return False

    def _copy(
        self,
        fd: int,
        header: bytes,
        samples: Mapping[int, movie_index.Samples],
        media: Sequence[tuple[int, int]],
        spare: Path,
    ) -> None:
        """Type, index, and behind it the contents of all fragments."""
        _, _, cut = next(boxes(header))
        index = movie_index.index(header, self._starts(), samples)
        while True:  # its own length is in it
            moved, at = {}, cut + len(index) + 16
            for start, end in media:
                moved[start] = at - start
                at += end - start
            placed = {track: _placed(found, media, moved) for track, found in samples.items()}
            again = movie_index.index(header, self._starts(), placed)
            if len(again) == len(index):
                break
            index = again
        target = os.open(spare, os.O_CREAT | os.O_RDWR | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            hold(target)
            head = header[:cut] + again + _mdat_head(16 + sum(end - start for start, end in media))
            write_all(target, head, 0)
            at = len(head)
            for start, end in media:
                _copy_range(fd, target, start, end - start, at)
                at += end - start
        finally:
            os.close(target)


def growing_file(
    container: str, path: Path, style: Style, tracks: Sequence[Track], state: Mapping[str, Any] | None = None
) -> GrowingFile:
    """The file of a container, new or as `state` says."""
    if container in MOV_FAMILY:
        return Movie(container, tracks, state, style)
    if container == "mpegts":
        return TransportStream(container, tracks, state, blu_ray=path.suffix.lower() == ".m2ts")
    return Matroska(container, tracks, state)


def rule_of(container: str, style: Style) -> Rule:
    """Where its pieces end."""
    return growing_file(container, Path(), style, []).rule


def write_all(fd: int, data: bytes, at: int) -> None:
    """Write all of it at one place. Raises OSError."""
    left = memoryview(data)
    while left:
        written = os.pwrite(fd, left, at)
        left, at = left[written:], at + written


def _copy_range(source: int, target: int, start: int, size: int, at: int) -> None:
    while size:
        wanted = min(size, _COPIED_AT_ONCE)
        try:
            done = os.copy_file_range(source, target, wanted, start, at)
        except OSError:  # a file system or kernel that cannot
            done = os.pwrite(target, os.pread(source, min(wanted, MIB), start), at)
        if not done:
            raise OSError(5, "the temporary file is shorter than it was")
        start, at, size = start + done, at + done, size - done


def _mdat_head(size: int) -> bytes:
    """The head of a `mdat` of that many bytes, with it."""
    return (1).to_bytes(4, "big") + b"mdat" + size.to_bytes(8, "big")


def _placed(
    samples: movie_index.Samples, media: Sequence[tuple[int, int]], moved: Mapping[int, int]
) -> movie_index.Samples:
    """The same samples where their chunks have been moved to."""
    chunks, at = [], 0
    for place, count in samples.chunks:
        while media[at][1] <= place:
            at += 1
        chunks.append((place + moved[media[at][0]], count))
    return movie_index.Samples(samples.dts, samples.durations, samples.offsets, samples.sizes, samples.flags, chunks)


def _start(part: Part) -> tuple[int, int, int, int]:
    packet = part.packets[0].packet
    dts = packet.dts or 0
    return (dts if packet.pts is None else packet.pts), dts, packet.time_base.numerator, packet.time_base.denominator


def _moved(part: Part, by: Fraction) -> list[Packet[Stream]]:
    """The packets, all times later by that many seconds."""
    packets = [one.packet for one in part.packets]
    for packet in packets if by else ():
        move_by(packet, round(by / packet.time_base))
    return packets


def _let_last(part: Part) -> None:
    """Let the last packet last until the next one of its stream: libavformat can only guess it."""
    last, following = part.packets[-1].packet, part.following
    if following is not None and last.dts is not None and following.dts is not None and following.dts > last.dts:
        last.duration = following.dts - last.dts
