"""The frame store and the audit store as JSON documents, read by this process itself.

A store that is not there yet is an empty answer. Every method may run in any thread, and does not return quickly.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from observatory.frames import lookup
from observatory.frames.errors import NoFrameStore, NoSuchFrame
from observatory.frames.reader import Reader, StreamInfo
from observatory.frames.store import FrameStore

MOST_EPOCHS = 100


class FrameReading:
    """The frame store of one state directory, kept open; opened again when it was made anew. `close` it."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._lock = threading.Lock()
        self._store: FrameStore | None = None
        self._inode: tuple[int, int] | None = None
        self._users = 0
        self._closed = False

    def close(self) -> None:
        """Give the store back, as soon as nobody reads: a map must not go away under a reader."""
        with self._lock:
            self._closed = True
            self._let_go()

    @contextmanager
    def _open(self) -> Iterator[FrameStore]:
        """The store.

        Raises:
            NoFrameStore: nothing was ever recorded.
        """
        with self._lock:
            inode = self._found()
            if inode != self._inode:
                self._let_go()
            if self._store is None:
                self._store = FrameStore.open(self._state)
                self._inode = inode
            store = self._store
            self._users += 1
        try:
            yield store
        finally:
            with self._lock:
                self._users -= 1
                if self._closed:
                    self._let_go()

    def _let_go(self) -> None:
        if self._store is not None and not self._users:
            self._store.close()
            self._store = None

    def _found(self) -> tuple[int, int] | None:
        try:
            status = (self._state / "frames" / "data.mdb").stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def streams(self) -> dict[str, Any]:
        """All streams, by name, and their epochs, newest first."""
        with suppress(NoFrameStore), self._open() as store, store.read() as reader:
            return {"streams": [_stream(reader, info) for info in reader.streams()]}
        return {"streams": []}

    def frames(self, stream: str | None, epoch: int | None, limit: int, before: int | None) -> dict[str, Any]:
        """A page of frames, newest first. Raises NoSuchStream."""
        last = None if before is None else before - 1
        with suppress(NoFrameStore), self._open() as store:
            with store.read() as reader:
                target = lookup.resolve(reader, stream, epoch)
            found = []
            if last is None or last >= 0:
                found = lookup.list_frames(store, stream=target.name, epoch=epoch, last=last, limit=limit)
            lost = lookup.lost_frames(store, stream=target.name, epoch=epoch, limit=limit)
            more = found[0].source_index if len(found) == limit and found[0].source_index > 0 else None
            return {
                "stream": target.name,
                "epoch": target.epoch,
                "frames": [frame.as_row() for frame in reversed(found)],
                "lost": lost,
                "next_before": more,
            }
        return {"stream": stream, "epoch": epoch, "frames": [], "lost": [], "next_before": None}

    def find(
        self,
        stream: str | None,
        epoch: int | None,
        pts: int | None,
        time_base: tuple[int, int] | None,
        source_index: int | None,
    ) -> dict[str, Any]:
        """One frame over all its hops, by PTS or by source index.

        Raises:
            NoSuchFrame: there is none, or no store; the nearest are named.
            NoSuchStream: no such stream or epoch.
        """
        try:
            with self._open() as store:
                if pts is not None:
                    return lookup.find(store, pts, stream=stream, time_base=time_base, epoch=epoch).as_dict()
                return lookup.find_source_index(store, source_index or 0, stream=stream, epoch=epoch).as_dict()
        except NoFrameStore:
            raise NoSuchFrame("no frames were recorded yet", mend="wait until a pipeline has passed some") from None

    def slowest(self, stream: str | None, epoch: int | None, count: int) -> bytes:
        """The frames that took longest. Raises NoSuchStream."""
        from observatory.frames import summary

        with suppress(NoFrameStore), self._open() as store:
            found = summary.slowest(store, count, stream=stream, epoch=epoch)
            return dumped({"frames": [frame.as_row() for frame in found]})
        return dumped({"frames": []})

    def stats(self, stream: str | None, epoch: int | None) -> bytes:
        """Where the time goes, hop by hop. Raises NoSuchStream."""
        from observatory.frames import summary

        with suppress(NoFrameStore), self._open() as store:
            return dumped({"streams": [s.as_dict() for s in summary.stats(store, stream=stream, epoch=epoch)]})
        return dumped({"streams": []})


def _stream(reader: Reader, info: StreamInfo) -> dict[str, Any]:
    begun = islice(reader.begun_epochs(info.id), MOST_EPOCHS)
    return {
        "stream": info.name,
        "newest_epoch": reader.newest_epoch(info.id),
        "epochs": [_epoch(reader, info.id, epoch) for epoch in begun],
    }


def _epoch(reader: Reader, stream: int, epoch: int) -> dict[str, Any]:
    """As `lookup.list_epochs` has it, and what the run says of the stream."""
    tables, began = reader.run(stream, epoch), reader.epoch(stream, epoch)
    counters = reader.counters(stream, epoch)
    source = None if tables is None else tables.by_id[stream]
    return {
        "epoch": epoch,
        "run_id": reader.run_id(stream, epoch),
        "pipeline": tables and tables.pipeline,
        "input": source and source.input,
        "time_base": source and "/".join(map(str, source.time_base)),
        "reason": began and began.reason,
        "began_unix_seconds": began and began.began_realtime_ns / 1e9,
        "pts_offset": began and began.pts_offset,
        "first_source_index": began and began.source_index,
        "frames": counters and counters.frames_seen,
        "finished": bool(counters and counters.finished),
    }


def dumped(document: Any) -> bytes:
    """A JSON document, written without spaces. NaN and infinity are refused: they are not JSON."""
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
