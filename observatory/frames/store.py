"""The frame store: every record of every run, in LMDB under `<state>/frames/`.

Several processes may have it open at once: writers take turns (LMDB's lock), readers never wait and never block. Each
commit is flushed to the disk, its meta page with the next one: a power cut may cost the last commit and what the
collector had not committed yet, never what came before; the death of a process costs only what was not committed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from observatory.frames.counters import StreamCounters
from observatory.frames.environment import MAP_BYTES, Environment, acquire, release
from observatory.frames.errors import FrameStoreError, NoSuchStream
from observatory.frames.keys import LOST_KEY, RUN_KEY, after, frame_key, run_key
from observatory.frames.reader import Reader, StreamInfo
from observatory.frames.runs import RunTables, parse_run
from observatory.model.kinds import UNKNOWN_U64

if TYPE_CHECKING:
    from observatory.frames.ingest import Indexer, Records
    from observatory.model.manifest import EpochEntry, RunManifest
    from observatory.model.record import Lineage, LostFrame

__all__ = ["FrameStore", "StreamInfo", "StreamRun"]

T = TypeVar("T")


class StreamRun(NamedTuple):
    """What `begin_run` gives a stream: its number in this store, for ever, and the epoch of the new run."""

    name: str
    id: int
    epoch: int


class FrameStore:
    """Open it with `FrameStore.open`; close it, or use it as a context manager. Any thread may read; one may append."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._runs: dict[str, RunTables] = {}
        self._indexers: dict[str, Indexer] = {}  # by run
        self._run_ids: dict[tuple[int, int], str] = {}  # by stream and epoch
        self._begun: set[tuple[int, int]] = set()
        self._closed = False

    @classmethod
    def open(cls, state: Path, *, write: bool = False, map_bytes: int = MAP_BYTES) -> FrameStore:
        """Open the store under the state directory `state`; writers create it.

        Args:
            state: the state directory; the store is its folder `frames`.
            write: whether runs will be recorded; False never creates anything.
            map_bytes: address space to reserve (bytes); grows when needed.

        Raises:
            NoFrameStore: there is none yet, and `write` is False.
            FrameStoreVersion, FrameStoreDamaged, FrameStoreFull, FrameStoreError: see `observatory.frames.errors`.
        """
        environment = acquire(Path(state) / "frames", write=write, map_bytes=map_bytes)
        try:
            if write:
                environment.add_tables()
        except BaseException:
            release(environment)
            raise
        return cls(environment)

    def close(self) -> None:
        """Give the store back; a second call does nothing."""
        if not self._closed:
            self._closed = True
            release(self._environment)

    def __enter__(self) -> FrameStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def folder(self) -> Path:
        """Where the files are."""
        return self._environment.folder

    @property
    def size_bytes(self) -> int:
        """Bytes that the database takes on the disk."""
        return (self.folder / "data.mdb").stat().st_blocks * 512

    @property
    def usage_bytes(self) -> tuple[int, int]:
        """(Bytes of the pages in use, bytes of the file): see `Environment.usage`."""
        self._refuse_closed()
        return self._environment.usage()

    @property
    def begun_here(self) -> frozenset[tuple[int, int]]:
        """(stream, epoch) of every run whose manifest was stored through this object: it may be recording still."""
        return frozenset(self._begun)

    def change(self, work: Callable[[Any, Mapping[str, Any]], T]) -> T:
        """Run `work(transaction, tables)` in one write transaction: all of it is stored, or (it raises) nothing.

        `work` may run twice; every other writer waits for it.

        Raises:
            FrameStoreFull, FrameStoreError: nothing was stored.
        """
        return self._write(lambda transaction: work(transaction, self._environment.tables))

    @contextmanager
    def read(self) -> Iterator[Reader]:
        """One consistent snapshot for any number of look-ups. Keep it short: it holds back the reuse of free pages."""
        self._refuse_closed()
        with self._environment.read() as transaction:
            yield Reader(transaction, self._environment.tables, self._runs)

    # Runs

    def begin_run(self, names: Sequence[str]) -> list[StreamRun]:
        """A number and a new epoch for each stream, in one transaction: runs that start together get different ones.

        Raises:
            FrameStoreFull: nothing was given out.
            ValueError: names are not unique, or empty.
        """
        if not names or len(set(names)) != len(names) or not all(names):
            raise ValueError("a run needs streams with names, each once")

        def work(transaction: Any) -> list[StreamRun]:
            streams, meta = self._table("streams"), self._table("meta")
            runs: list[StreamRun] = []
            for name in names:
                known = transaction.get(name.encode(), db=streams)
                if known is None:
                    stream, epoch = int(transaction.get(b"next_stream", b"1", db=meta)), 1
                    transaction.put(b"next_stream", b"%d" % (stream + 1), db=meta)
                else:
                    stream, last = RUN_KEY.unpack(known)
                    epoch = last + 1
                transaction.put(name.encode(), RUN_KEY.pack(stream, epoch), db=streams)
                runs.append(StreamRun(name, stream, epoch))
            return runs

        return self._write(work)

    def save_manifest(self, manifest: RunManifest) -> None:
        """Store what a run was; before its first record. Storing it again replaces it (devices or hops were added)."""
        text = manifest.model_dump_json().encode()
        tables = parse_run(text)

        def work(transaction: Any) -> None:
            transaction.put(manifest.run_id.encode(), text, db=self._table("manifests"))
            for stream in manifest.streams:
                key = run_key(stream.id, stream.epoch)
                transaction.put(key, manifest.run_id.encode(), db=self._table("runs"))

        self._write(work)
        self._runs[manifest.run_id] = tables
        self._forget_indexers()
        self._begun.update((stream.id, stream.epoch) for stream in manifest.streams)

    def begin_epoch(self, run_id: str, name: str, entry: EpochEntry) -> EpochEntry:
        """Give a stream of a run that goes on a further epoch, and store what began it: all or nothing.

        Args:
            run_id: the run; its manifest is stored.
            name: the stream's name.
            entry: what is known of the epoch. The number it gets is `entry.epoch` or, when the stream has got there
                already (a run that goes on at the same time began epochs too), the next one that is free.

        Returns:
            The entry as stored, with its number.

        Raises:
            FrameStoreFull: nothing was given out.
            NoSuchStream: no run of that stream was ever begun.
        """

        def work(transaction: Any) -> EpochEntry:
            streams = self._table("streams")
            known = transaction.get(name.encode(), db=streams)
            if known is None:
                raise NoSuchStream(f"there is no stream {name}", mend="call begin_run first")
            stream, last = RUN_KEY.unpack(known)
            stored = entry.model_copy(update={"stream": stream, "epoch": max(last + 1, entry.epoch)})
            key = run_key(stream, stored.epoch)
            transaction.put(name.encode(), key, db=streams)
            transaction.put(key, run_id.encode(), db=self._table("runs"))
            transaction.put(key, stored.model_dump_json().encode(), db=self._table("epochs"))
            return stored

        stored = self._write(work)
        self._begun.add((stored.stream, stored.epoch))
        return stored

    def manifest(self, stream: int, epoch: int) -> RunManifest:
        """The manifest of the run that recorded this stream in this epoch.

        Raises:
            NoSuchStream: there is none.
        """
        from observatory.model.manifest import RunManifest

        with self.read() as reader:
            text = reader.manifest_text(stream, epoch)
        if text is None:
            raise NoSuchStream(f"stream {stream} has no run of epoch {epoch}")
        return RunManifest.model_validate_json(text)

    # Records

    def append(self, records: Records, counters: Mapping[tuple[int, int], StreamCounters] | None = None) -> int:
        """Store records (RECORD_DTYPE, in any order) and, with them, counters: all or nothing.

        A record that was there already (same stream, epoch, source index and hop) is replaced.

        Returns:
            How many records were stored. Those of hops that the manifest does not have are left out, and those that
            come so late that the rest of their frame, or all of their epoch, is not kept any more (see `retention`).

        Raises:
            FrameStoreFull: the disk is full; nothing of this call is stored, everything before it is.
            NoSuchStream: records of a run that never stored its manifest.
        """
        from observatory.frames.ingest import record_pairs, sort_records
        from observatory.frames.late import without_late

        kept = [(indexer, group) for indexer, group in self._by_run(sort_records(records)) if len(group)]
        entries = list(chain.from_iterable(indexer.pairs(group) for indexer, group in kept))

        def work(transaction: Any) -> int:
            records_cursor = transaction.cursor(self._table("records"))
            groups, own = without_late(transaction, self._environment.tables, [group for _, group in kept], entries)
            for group in groups:
                records_cursor.putmulti(record_pairs(group))
            if own:
                transaction.cursor(self._table("index")).putmulti(own)
            for (stream, epoch), counts in (counters or {}).items():
                key = run_key(stream, epoch)
                if (stream, epoch) not in self._begun or transaction.get(key, db=self._table("runs")):
                    transaction.put(key, counts.to_bytes(), db=self._table("counters"))
            return sum(len(group) for group in groups)

        try:
            return self._write(work)
        except FrameStoreError:
            self._forget_indexers()  # they remember entries that were not stored
            raise

    def add_lost(self, stream: int, epoch: int, frames: Sequence[LostFrame]) -> None:
        """List frames that did not come through, and why.

        Raises:
            FrameStoreFull: none of them was stored.
        """
        if not frames:
            return

        def work(transaction: Any) -> None:
            cursor = transaction.cursor(self._table("lost"))
            for frame in frames:
                index = UNKNOWN_U64 if frame.source_index is None else frame.source_index
                prefix = frame_key(stream, epoch, index)
                end = after(prefix)
                found = cursor.prev() if end is not None and cursor.set_range(end) else cursor.last()
                number = 0
                if found and cursor.key().startswith(prefix):
                    number = LOST_KEY.unpack(cursor.key())[3] + 1
                cursor.put(LOST_KEY.pack(stream, epoch, index, number), frame.model_dump_json().encode())

        self._write(work)

    def add_lineage(self, stream: int, epoch: int, lineages: Sequence[Lineage]) -> None:
        """Note frames that were made of other source indices than their own.

        Raises:
            FrameStoreFull: none of them was stored.
        """

        def work(transaction: Any) -> None:
            for lineage in lineages:
                key = frame_key(stream, epoch, lineage.source_index) + lineage.hop.encode()
                value = struct.pack(f"<{len(lineage.parents)}Q", *lineage.parents)
                transaction.put(key, value, db=self._table("lineage"))

        if lineages:
            self._write(work)

    def put_counters(self, counters: Mapping[tuple[int, int], StreamCounters]) -> None:
        """Store counters by (stream, epoch), replacing what was there.

        Raises:
            FrameStoreFull: none of them was stored.
        """

        def work(transaction: Any) -> None:
            for (stream, epoch), counts in counters.items():
                transaction.put(run_key(stream, epoch), counts.to_bytes(), db=self._table("counters"))

        self._write(work)

    def _table(self, name: str) -> Any:
        return self._environment.tables[name]

    def _refuse_closed(self) -> None:
        if self._closed:
            raise FrameStoreError("the frame store was closed", file=str(self.folder))

    def _write(self, work: Callable[[Any], T]) -> T:
        self._refuse_closed()
        return self._environment.write(work)

    def _forget_indexers(self) -> None:
        self._indexers.clear()
        self._run_ids.clear()

    def _indexer(self, stream: int, epoch: int) -> Indexer | None:
        """What indexes the records of that run; None when it began here, but retention has forgotten this epoch."""
        from observatory.frames.ingest import Indexer

        run_id = self._run_ids.get((stream, epoch))
        indexer = None if run_id is None else self._indexers.get(run_id)
        if indexer is None:
            with self.read() as reader:
                tables = reader.run(stream, epoch)
            if tables is None:
                if (stream, epoch) in self._begun:
                    return None
                raise NoSuchStream(
                    f"records of stream {stream}, epoch {epoch}: their run has not stored its manifest",
                    mend="call save_manifest before the first append",
                )
            self._run_ids[stream, epoch] = tables.run_id
            # All epochs of a run share one: it remembers source indices, and those go on.
            indexer = self._indexers.get(tables.run_id)
            if indexer is None:
                indexer = self._indexers[tables.run_id] = Indexer(tables)
            indexer.admit(stream, epoch)
        return indexer

    def _by_run(self, records: Records) -> Iterator[tuple[Indexer, Records]]:
        """Sorted records, run by run (almost always there is one), without those that their run does not know."""
        while len(records):
            stream, epoch = int(records["stream"][0]), int(records["epoch"][0])
            indexer = self._indexer(stream, epoch)
            if indexer is None:
                records = records[(records["stream"] != stream) | (records["epoch"] != epoch)]
            else:
                own, records = indexer.split(records)
                yield indexer, own
