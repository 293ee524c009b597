"""What a sink has taken in and has not yet made part of its output, kept in files.

What was written stays when a process is killed: the kernel has it. So nothing is synced; when the machine itself loses
power, the journal is lost with the output that it belongs to. A record that was cut short is one that nobody has
acknowledged.

Two files take turns: one is written while the other still has records that are needed, and is emptied once it has not.
So there are never more than two, they are bounded by what is not yet in the output, and their names are known from the
beginning.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dataplane.operators.frames import KEY_FRAME
from dataplane.operators.places import hold
from observatory.model.event import UNKNOWN_I64, UNKNOWN_U64
from observatory.model.media import PayloadKind

if TYPE_CHECKING:
    from dataplane._ring import Descriptor, ReadLease

CHUNK_BYTES = 1024 * 1024
"""Size from which on the other file is written next."""

_CRC = struct.Struct("<I")  # of all that follows
_HEAD = struct.Struct("<IBBHIqQqqqII")
_NO_TIME = UNKNOWN_I64


class RecordKind(IntEnum):
    """What a record is."""

    START = 1  # of a file: `sequence` numbers the files, `source_index` the first record in it
    PACKET = 2
    PARAMETERS = 3  # of a stream; JSON of CodecParameters
    NOTE = 4  # what was decided and cannot be found out again; JSON
    SNAPSHOT = 5  # JSON


class Record(NamedTuple):
    """One record. Times are ticks of `time_base`; None: unknown. `number` counts all records of a journal."""

    kind: RecordKind
    number: int
    track: int
    sequence: int  # of the payload in its ring
    epoch: int
    source_index: int | None
    pts: int | None
    dts: int | None
    duration: int
    time_base: tuple[int, int]
    key_frame: bool
    payload: bytes


class Journal:
    """The journal in two files. Calls raise OSError."""

    def __init__(self, paths: tuple[Path, Path]) -> None:
        self.paths = paths
        self._fds: list[int] = []
        self._sizes = [0, 0]
        self._last = [-1, -1]  # number of the last record in each file
        self._current = 0
        self._generation = 0
        self._next = 0

    @property
    def next_number(self) -> int:
        """Of the record that is written next."""
        return self._next

    # -- the beginning ---------------------------------------------------------------------------------------------

    def create(self) -> None:
        """Make both files, empty."""
        self._open()
        for fd in self._fds:
            os.ftruncate(fd, 0)
        self._begin_file(0)

    def recover(self) -> tuple[dict[str, Any] | None, list[Record]]:
        """The last snapshot (None: there is none) and all records that are still there, in their order.

        What comes next is written behind them.
        """
        self._open()
        read = [_read(fd) for fd in self._fds]
        begun = sorted((found[0].sequence, file) for file, (found, _) in enumerate(read) if found)
        records: list[Record] = []
        for generation, file in begun:
            found, size = read[file]
            self._generation, self._current = generation, file
            self._sizes[file], self._last[file] = size, found[-1].number
            if records and found[0].number != records[-1].number + 1:
                raise OSError(errno.EIO, f"the journal {self.paths[file]} is damaged")
            records += found
        if not records:
            self._begin_file(0)
            return None, []
        os.ftruncate(self._fds[self._current], self._sizes[self._current])
        self._next = records[-1].number + 1
        said = [record for record in records if record.kind == RecordKind.SNAPSHOT]
        kept = (RecordKind.PACKET, RecordKind.PARAMETERS, RecordKind.NOTE)
        state = json.loads(said[-1].payload) if said else None
        return state, [record for record in records if record.kind in kept]

    def _open(self) -> None:
        for path in self.paths:
            self._fds.append(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666))
            hold(self._fds[-1])

    # -- writing ---------------------------------------------------------------------------------------------------

    def take(self, frame: ReadLease, said: Descriptor, track: int) -> int:
        """Keep one payload of a ring; its number. Once this returns, the payload may be acknowledged."""
        described = said.payload_kind == PayloadKind.CODEC_PARAMETERS
        number, unit = self._next, said.time_base
        self._write(
            RecordKind.PARAMETERS if described else RecordKind.PACKET,
            [frame.array.data],
            (track, said.epoch, frame.sequence, said.source_index, said.pts, said.dts, said.duration, *unit),
            bool(said.flags & KEY_FRAME),
        )
        return number

    def note(self, note: Mapping[str, Any]) -> None:
        """Keep a decision."""
        self._write(RecordKind.NOTE, [json.dumps(note).encode()])

    def snapshot(self, state: Mapping[str, Any], needed: int) -> None:
        """Replace what is known by `state`; of the records before it only those from number `needed` on are needed."""
        text = json.dumps(state).encode()
        self._write(RecordKind.SNAPSHOT, [text])
        other = 1 - self._current
        if self._sizes[self._current] >= CHUNK_BYTES and self._last[other] < needed:
            self._begin_file(other, text)

    def _begin_file(self, file: int, state: bytes | None = None) -> None:
        """Go on in a file, which has nothing that is needed; with the snapshot, so that the other one may go."""
        os.ftruncate(self._fds[file], 0)
        self._current, self._sizes[file] = file, 0
        self._generation += 1
        self._write(RecordKind.START, [], (0, 0, self._generation, self._next, *_NOTHING[4:]))
        if state is not None:
            self._write(RecordKind.SNAPSHOT, [state])

    def _write(
        self,
        kind: RecordKind,
        payload: Sequence[bytes | memoryview],
        fields: tuple[int, ...] | None = None,
        key_frame: bool = False,
    ) -> None:
        size = sum(len(part) for part in payload)
        track, epoch, *rest = fields or _NOTHING
        head = _HEAD.pack(size, kind, key_frame, track, epoch, *rest)
        crc = zlib.crc32(head)
        for part in payload:
            crc = zlib.crc32(part, crc)
        fd, at = self._fds[self._current], self._sizes[self._current]
        whole = _CRC.size + len(head) + size
        try:
            written = os.pwritev(fd, [_CRC.pack(crc), head, *payload], at)
            if written < whole:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, at)
            raise
        self._sizes[self._current] = at + whole
        self._last[self._current] = self._next
        self._next += 1

    # -- the end ---------------------------------------------------------------------------------------------------

    def remove(self) -> None:
        """Remove both files. Raises nothing."""
        for path in self.paths:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the files; what is in them stays."""
        while self._fds:
            os.close(self._fds.pop())


_NOTHING = (0, 0, -1, UNKNOWN_U64, _NO_TIME, _NO_TIME, _NO_TIME, 0, 1)


def _read(fd: int) -> tuple[list[Record], int]:
    """The whole records of a file, and where they end."""
    with open(fd, "rb", closefd=False) as stream:
        stream.seek(0)
        data = stream.read()
    found, at = [], 0
    for record, end in _records(data):
        found.append(record)
        at = end
    if found and found[0].kind != RecordKind.START:
        return [], 0
    return found, at


def _records(data: bytes) -> Iterator[tuple[Record, int]]:
    at, number = 0, 0
    head = _CRC.size + _HEAD.size
    while at + head <= len(data):
        (crc,) = _CRC.unpack_from(data, at)
        size, kind, key, track, epoch, sequence, index, pts, dts, duration, num, den = _HEAD.unpack_from(data, at + 4)
        end = at + head + size
        if end > len(data) or zlib.crc32(memoryview(data)[at + _CRC.size : end]) != crc:
            return
        if kind == RecordKind.START:
            number = index
        yield (
            Record(
                RecordKind(kind),
                number,
                track,
                sequence,
                epoch,
                None if index == UNKNOWN_U64 else index,
                _known(pts),
                _known(dts),
                max(0, duration),
                (num, den),
                bool(key),
                data[at + head : end],
            ),
            end,
        )
        at, number = end, number + 1


def _known(time: int) -> int | None:
    return None if time == UNKNOWN_I64 else time
