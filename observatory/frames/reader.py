"""One consistent snapshot of the frame store, and every way to walk it. Needs neither NumPy nor Pydantic."""

from __future__ import annotations

import json
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import islice, takewhile
from typing import Any, NamedTuple

from observatory.frames.counters import StreamCounters
from observatory.frames.errors import FrameStoreDamaged
from observatory.frames.keys import (
    FRAME_KEY,
    INDEX_KEY,
    INDEX_VALUE,
    RECORD_KEY,
    RUN_KEY,
    StoredRecord,
    after,
    frame_key,
    index_key,
    parse_index_key,
    parse_record,
    run_key,
)
from observatory.frames.marks import RULES_KEY, KeepRange, Mark, Rules, keep_ranges, mark_key, parse_mark, parse_rules
from observatory.frames.runs import RunEpoch, RunTables, parse_epoch, parse_run

_LARGEST = 2**63 - 1


class StreamInfo(NamedTuple):
    """A stream that the store knows: its name, its number, and the epoch of its latest run."""

    name: str
    id: int
    last_epoch: int


class Reader:
    """A snapshot: what is written meanwhile does not show. Made by `FrameStore.read`, valid inside its block."""

    def __init__(self, transaction: Any, tables: dict[str, Any], runs: dict[str, RunTables]) -> None:
        self._transaction = transaction
        self._tables = tables
        self._runs = runs

    def cursor(self, table: str) -> Any:
        """An LMDB cursor over one table."""
        return self._transaction.cursor(self._tables[table])

    def get(self, table: str, key: bytes) -> bytes | None:
        """The value under one key, or None; also where a store of an earlier version lacks the table."""
        if table not in self._tables:
            return None
        value: bytes | None = self._transaction.get(key, db=self._tables[table])
        return value

    def entries(self, table: str) -> int:
        """How many entries a table has."""
        return int(self._transaction.stat(self._tables[table])["entries"])

    # Streams and runs

    def streams(self) -> list[StreamInfo]:
        """All streams, by name."""
        return [StreamInfo(key.decode(), *RUN_KEY.unpack(value)) for key, value in self.cursor("streams").iternext()]

    def stream(self, name: str) -> StreamInfo | None:
        """The stream of that name, or None."""
        value = self.get("streams", name.encode()) if name else None
        return None if value is None else StreamInfo(name, *RUN_KEY.unpack(value))

    def run(self, stream: int, epoch: int) -> RunTables | None:
        """The names of the run that recorded this stream in this epoch, or None when it left no manifest."""
        run_id = self.run_id(stream, epoch)
        if run_id is None:
            return None
        if run_id not in self._runs:
            self._runs[run_id] = parse_run(self._manifest(run_id))
        return self._runs[run_id]

    def run_id(self, stream: int, epoch: int) -> str | None:
        """Which run recorded this stream in this epoch, or None when it left no manifest."""
        raw_id = self.get("runs", run_key(stream, epoch))
        return raw_id.decode() if raw_id else None

    def epoch(self, stream: int, epoch: int) -> RunEpoch | None:
        """What began this epoch, and when; None when its run left no manifest."""
        tables = self.run(stream, epoch)
        if tables is None:
            return None
        text = self.get("epochs", run_key(stream, epoch))
        return tables.begun_with(stream, epoch) if text is None else parse_epoch(text)

    def begun_epochs(self, stream: int) -> Iterator[int]:
        """Every epoch that a run of this stream began, newest first; with or without frames."""
        cursor = self.cursor("runs")
        found = cursor.prev() if cursor.set_range(run_key(stream + 1, 0)) else cursor.last()
        while found and cursor.key() >= run_key(stream, 0):
            yield RUN_KEY.unpack(cursor.key())[1]
            found = cursor.prev()

    def epochs_of_run(self, stream: int, newest: int) -> Iterator[int]:
        """The epoch `newest` of a stream and the earlier ones of the same run, newest first.

        Those of other runs lie between them when two runs of one stream went on at the same time.
        """
        run_id = self.get("runs", run_key(stream, newest))
        tables = self.run(stream, newest)
        first = newest if tables is None else tables.by_id[stream].epoch
        yield newest
        cursor = self.cursor("runs")
        found = cursor.set_range(run_key(stream, newest)) and cursor.prev()
        while found and cursor.key() >= run_key(stream, first):
            if cursor.value() == run_id:
                yield RUN_KEY.unpack(cursor.key())[1]
            found = cursor.prev()

    def manifest_text(self, stream: int, epoch: int) -> bytes | None:
        """The run's manifest as JSON, or None."""
        run_id = self.run_id(stream, epoch)
        return None if run_id is None else self._manifest(run_id)

    def _manifest(self, run_id: str) -> bytes:
        text = self.get("manifests", run_id.encode())
        if text is None:
            raise FrameStoreDamaged(f"the manifest of run {run_id} is missing")
        return text

    def epochs(self, stream: int) -> list[int]:
        """Epochs in which this stream has records, oldest first."""
        found: list[int] = []
        cursor = self.cursor("records")
        key = run_key(stream, 0)
        while cursor.set_range(key):
            at, epoch = RUN_KEY.unpack_from(cursor.key())
            if at != stream:
                break
            found.append(epoch)
            key = run_key(stream, epoch + 1)
        return found

    def newest_epoch(self, stream: int) -> int | None:
        """The latest epoch in which this stream has records or lost frames, or None when it has none."""
        newest = [e for e in (self._newest("records", stream), self._newest("lost", stream)) if e is not None]
        return max(newest, default=None)

    def _newest(self, table: str, stream: int) -> int | None:
        cursor = self.cursor(table)
        found = cursor.prev() if cursor.set_range(run_key(stream + 1, 0)) else cursor.last()
        if not found:
            return None
        at, epoch = RUN_KEY.unpack_from(cursor.key())
        return int(epoch) if at == stream else None

    def counters(self, stream: int, epoch: int) -> StreamCounters | None:
        """What the run counted, or None when it never said."""
        raw = self.get("counters", run_key(stream, epoch))
        return None if raw is None else StreamCounters.from_bytes(raw)

    # Records

    def records(self, stream: int, epoch: int, source_index: int) -> list[StoredRecord]:
        """All records of one frame, by hop; empty when there is none."""
        prefix = frame_key(stream, epoch, source_index)
        cursor = self.cursor("records")
        found: list[StoredRecord] = []
        if cursor.set_range(prefix):
            for key, value in cursor:
                if not key.startswith(prefix):
                    break
                found.append(_record(key, value))
        return found

    def frames(
        self, stream: int, epoch: int, start: int = 0, stop: int = 2**64 - 1, *, newest_first: bool = False
    ) -> Iterator[list[StoredRecord]]:
        """The records of each frame with `start` <= source index <= `stop`, frame by frame."""
        cursor = self.cursor("records")
        prefix = run_key(stream, epoch)
        if newest_first:
            end = after(frame_key(stream, epoch, stop))
            found = cursor.prev() if end is not None and cursor.set_range(end) else cursor.last()
            step: Callable[[], bool] = cursor.prev
        else:
            found = cursor.set_range(frame_key(stream, epoch, start))
            step = cursor.next
        frame: list[StoredRecord] = []
        while found:
            key = cursor.key()
            if not key.startswith(prefix):
                break
            record = _record(key, cursor.value())
            if not start <= record.source_index <= stop:
                break
            if frame and frame[0].source_index != record.source_index:
                yield frame[::-1] if newest_first else frame
                frame = []
            frame.append(record)
            found = step()
        if frame:
            yield frame[::-1] if newest_first else frame

    def raw_records(self, stream: int, epoch: int) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of all records of one stream in one epoch, in order, undecoded."""
        cursor = self.cursor("records")
        prefix = run_key(stream, epoch)
        if cursor.set_range(prefix):
            for key, value in cursor:
                if not key.startswith(prefix):
                    return
                yield key, value

    def stored(self, stream: int, epoch: int, start: int, most: int) -> tuple[list[bytes], list[bytes]]:
        """Keys and values of records from the source index `start` on, undecoded: whole frames, about `most` records.

        More when one frame has more; both are empty when there is none.
        """
        cursor = self.cursor("records")
        if not cursor.set_range(frame_key(stream, epoch, start)):
            return [], []
        items = cursor.iternext()
        found = list(islice(items, most))
        last = found[-1][0][: FRAME_KEY.size]
        found += takewhile(lambda item: item[0].startswith(last), items)
        keys, values = [key for key, _ in found], [value for _, value in found]
        end = bisect_left(keys, after(run_key(stream, epoch)) or keys[-1] + b"\0")
        return keys[:end], values[:end]

    def ends(self, stream: int, epoch: int, start: int = 0) -> tuple[StoredRecord, int] | None:
        """The first record from the source index `start` on, and the last source index; None when there is none."""
        cursor = self.cursor("records")
        prefix = run_key(stream, epoch)
        if not cursor.set_range(frame_key(stream, epoch, start)) or not cursor.key().startswith(prefix):
            return None
        first = _record(cursor.key(), cursor.value())
        end = after(prefix)
        if end is not None and cursor.set_range(end):
            cursor.prev()
        else:
            cursor.last()
        return first, int(RECORD_KEY.unpack(cursor.key())[2])

    def runs(self) -> list[tuple[int, int]]:
        """Stream and epoch of everything that stored a manifest."""
        return [RUN_KEY.unpack(key) for key in self.cursor("runs").iternext(values=False)]

    # What retention took

    def mark(self, stream: int, epoch: int) -> Mark:
        """How far this stream was thinned out in this epoch."""
        return parse_mark(self.get("meta", mark_key(stream, epoch)))

    def rules(self) -> Rules | None:
        """By what frames were thinned out last, or None when they never were."""
        return parse_rules(self.get("meta", RULES_KEY))

    def keep_ranges(self) -> list[KeepRange]:
        """Times whose frames are kept."""
        return list(keep_ranges(self.cursor("meta")))

    # The PTS index

    def time_bases(self, stream: int, epoch: int, origin: int) -> list[tuple[int, int]]:
        """Time bases with entries in the index, by numerator and denominator."""
        cursor = self.cursor("index")
        found: list[tuple[int, int]] = []
        key: bytes | None = INDEX_KEY.pack(stream, epoch, origin, 0, 0, 0)
        while key is not None and cursor.set_range(key):
            entry = parse_index_key(cursor.key())
            if entry[:3] != (stream, epoch, origin):
                break
            time_base = (entry.time_base_num, entry.time_base_den)
            found.append(time_base)
            key = after(index_key(stream, epoch, origin, time_base, _LARGEST))
        return found

    def source_index(self, stream: int, epoch: int, origin: int, time_base: tuple[int, int], pts: int) -> int | None:
        """The frame that has exactly this PTS in exactly this time base, or None."""
        if not -(2**63) <= pts < 2**63:
            return None
        value = self.get("index", index_key(stream, epoch, origin, time_base, pts))
        return None if value is None else int(INDEX_VALUE.unpack(value)[0])

    def around(
        self, stream: int, epoch: int, origin: int, time_base: tuple[int, int], pts: int
    ) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
        """The entries (PTS, source index) before and at or after `pts` in one time base; None where there is none."""
        pts = min(max(pts, -(2**63)), _LARGEST)
        wanted = (stream, epoch, origin, *time_base)

        def entry() -> tuple[int, int] | None:
            at = parse_index_key(cursor.key())
            return (at.pts, int(INDEX_VALUE.unpack(cursor.value())[0])) if at[:5] == wanted else None

        cursor = self.cursor("index")
        following = None
        if cursor.set_range(index_key(stream, epoch, origin, time_base, pts)):
            following = entry()
            moved = cursor.prev()
        else:
            moved = cursor.last()
        return (entry() if moved else None), following

    # Lost frames and lineage

    def lost(self, stream: int, epoch: int) -> Iterator[dict[str, Any]]:
        """The lost frames of one stream in one epoch, by source index (those without one last)."""
        cursor = self.cursor("lost")
        prefix = run_key(stream, epoch)
        if cursor.set_range(prefix):
            for key, value in cursor:
                if not key.startswith(prefix):
                    return
                yield json.loads(value)

    def parents(self, stream: int, epoch: int, source_index: int) -> dict[str, tuple[int, ...]]:
        """Hop -> the source indices that this frame was made of, where that is not just its own."""
        cursor = self.cursor("lineage")
        prefix = frame_key(stream, epoch, source_index)
        found: dict[str, tuple[int, ...]] = {}
        if cursor.set_range(prefix):
            for key, value in cursor:
                if not key.startswith(prefix):
                    break
                found[key[len(prefix) :].decode()] = struct.unpack(f"<{len(value) // 8}Q", value)
        return found


def _record(key: bytes, value: bytes) -> StoredRecord:
    try:
        return parse_record(key, value)
    except struct.error:
        raise FrameStoreDamaged(
            f"a record has {len(key)} and {len(value)} bytes instead of {RECORD_KEY.size} and 100"
        ) from None
