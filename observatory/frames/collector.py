"""The collector of one run: event rings in, frame records out, into the store. Tracing never makes a frame wait.

It drains every ring a few times per second, lets the native assembler make records of the events, and commits them in
batches. When the store fails (a full disk, say) the job goes on: the error is kept and shown, what does not fit into
memory meanwhile is counted as dropped, and storing is tried again every few seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dataplane._ring import Assembler
from observatory.frames.collected import CollectorSnapshot, StreamSnapshot
from observatory.frames.counters import StreamCounters
from observatory.frames.ingest import Records, sort_records
from observatory.frames.latency import FrameTracker, Histogram, WholeFrames
from observatory.frames.recent import RecentLatency
from observatory.frames.runs import parse_run
from observatory.frames.store import FrameStore
from observatory.frames.tallies import Tallies
from observatory.model.errors import MediaObservatoryError
from observatory.model.manifest import EpochEntry, RunManifest, StreamEntry
from observatory.model.record import RECORD_DTYPE

if TYPE_CHECKING:
    from observatory.model.record import Lineage, LostFrame

DRAIN_LIMIT = 65536  # events per call
COUNTERS_SECONDS = 1.0
RETRY_SECONDS = 2.0
RATE_SECONDS = 2.0

_NOTHING = np.zeros(0, RECORD_DTYPE)


class EventSource(Protocol):
    """Where events come from: an event ring, or what has the face of one."""

    def drain(self, limit: int = ...) -> Any:
        """The next events, at most so many (EVENT_DTYPE); none when it is empty."""

    @property
    def lost(self) -> int:
        """Events that it could not take."""


class Collector:
    """Collects one run. Call `start` and `stop`, or `poll` and `finish` yourself; any thread may call anything.

    Args:
        manifest: the run; saved in the store already (`save_manifest`).
        rings: the event rings of its processes; `add_ring` takes more.
        store: where records go, open for writing; its owner closes it.
        expect_link: per hop, whether LINK_START and LINK_END will come; empty when no hop crosses a link.
        poll_seconds: pause between two drains (20 to 50 ms are sensible).
        commit_seconds: at the latest so long after it was complete, a record is in the store.
        commit_records: commit sooner when so many wait.
        keep_records: how many records are kept in memory while the store fails.
        observers: called in the collecting thread with every batch of this run's complete records (RECORD_DTYPE).
        frame_observers: called there, after these, with the frames that the batch made complete.
    """

    def __init__(
        self,
        manifest: RunManifest,
        rings: Sequence[EventSource],
        store: FrameStore,
        *,
        expect_link: Sequence[bool] = (),
        poll_seconds: float = 0.05,
        commit_seconds: float = 0.25,
        commit_records: int = 32768,
        keep_records: int = 262144,
        observers: Sequence[Callable[[Records], None]] = (),
        frame_observers: Sequence[Callable[[WholeFrames], None]] = (),
    ) -> None:
        self._store = store
        self._observers = tuple(observers)
        self._frame_observers = tuple(frame_observers)
        self._run_id = manifest.run_id
        self._streams = manifest.streams
        self._poll_seconds = poll_seconds
        self._commit_seconds = commit_seconds
        self._commit_records = commit_records
        self._keep_records = keep_records
        self._hops = {hop.edge.name: number for number, hop in enumerate(manifest.hops)}
        port_hops: list[list[int]] = [[] for _ in manifest.ports]
        for number, hop in enumerate(manifest.hops):
            port_hops[hop.port].append(number)
        devices = [
            (h.producer_device, h.consumer_device, h.producer_real_device, h.consumer_real_device)
            for h in manifest.hops
        ]
        self._lock = threading.RLock()  # rings, assembler, records not yet in a batch
        self._assembler = Assembler(port_hops, devices, list(expect_link))
        self._rings: list[tuple[EventSource, int | None]] = [(ring, None) for ring in rings]
        self._gone_lost: dict[int | None, int] = {}  # events lost in rings that were removed
        self._fresh: list[Records] = []
        self._fresh_count = 0

        self._commit_lock = threading.RLock()  # everything below; never taken while holding _lock
        self._tracker = FrameTracker(parse_run(manifest.model_dump_json()))
        self._tallies = Tallies(manifest.streams)
        began = time.monotonic()
        self._recent = {s.id: RecentLatency(self._tallies.totals[s.id].latency, began) for s in manifest.streams}
        self._strangers = 0  # records whose events carried a stream or epoch of another run
        self._unstored: list[EpochEntry] = []  # epochs that the store could not take
        self._renumbered: dict[tuple[int, int], int] = {}  # stream, epoch as the source has it -> as it is stored
        self._unsaved: list[Records] = []
        self._unsaved_count = 0
        self._error: str | None = None
        self._finished = False
        now = time.monotonic()
        self._committed_at = self._counted_at = self._retry_at = now
        self._rate: list[tuple[float, int]] = [(now, 0)]
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    # Rings

    def add_ring(self, ring: EventSource, stream: int | None = None) -> None:
        """Drain this ring from now on.

        `stream` is the id of the stream whose operators write to it, None when it is several: events that it loses
        are then counted for each of them.
        """
        with self._lock:
            self._rings.append((ring, stream))

    def remove_ring(self, ring: EventSource) -> None:
        """Drain a ring a last time (its process has ended) and forget it. Its owner closes it."""
        with self._lock:
            for entry in self._rings:
                if entry[0] is ring:
                    self._drain(ring)
                    self._gone_lost[entry[1]] = self._gone_lost.get(entry[1], 0) + ring.lost
                    self._rings.remove(entry)
                    return

    # Epochs

    def add_epoch(self, entry: EpochEntry, *, stored: bool = True, stored_as: int | None = None) -> None:
        """A stream of this run begins a further epoch. To be called before the source learns its number.

        Args:
            entry: the epoch, as `FrameStore.begin_epoch` gave it.
            stored: False when the store could not take it: that is tried again before its first records are stored.
                When another run has got its number by then, it is stored under another one.
            stored_as: the number under which the store has it, where that is not the one that the source was given.
        """
        with self._commit_lock:
            self._tracker.add_epoch(entry.stream, entry.epoch)
            self._tallies.begin(entry.stream, entry.epoch, entry.source_index, time.monotonic())
            if not stored:
                self._unstored.append(entry)
            elif stored_as is not None and stored_as != entry.epoch:
                self._renumbered[entry.stream, entry.epoch] = stored_as
                self._tallies.renumber(entry.stream, entry.epoch, stored_as)

    def dropped(self, edge: str, source_indices: Sequence[int]) -> None:
        """Close the records of frames that `edge` (its name) dropped before its consumer. KeyError: no such edge."""
        with self._lock:
            self._take(self._assembler.drop(self._hops[edge], source_indices))

    def lost(self, frames: Sequence[tuple[StreamEntry, LostFrame]]) -> None:
        """List frames that did not come through, in the epoch that their source index lies in (unknown: the newest).

        When the store fails, they are only counted.
        """
        with self._commit_lock:
            self._try(self._store_epochs)
            groups: dict[tuple[int, int], list[LostFrame]] = {}
            for stream, frame in frames:
                epoch = self._tallies.epoch_of(stream.id, frame.source_index)
                groups.setdefault((stream.id, epoch), []).append(frame)
            for (number, epoch), own in groups.items():
                self._tallies.lost(number, epoch, len(own))
                self._try(partial(self._store.add_lost, number, epoch, own))

    def lineage(self, stream: StreamEntry, lineages: Sequence[Lineage]) -> None:
        """Note frames of a stream that were made of other source indices than their own."""
        with self._commit_lock:
            self._try(self._store_epochs)
            groups: dict[int, list[Lineage]] = {}
            for lineage in lineages:
                groups.setdefault(self._tallies.epoch_of(stream.id, lineage.source_index), []).append(lineage)
            for epoch, own in groups.items():
                self._try(partial(self._store.add_lineage, stream.id, epoch, own))

    # Work

    def poll(self) -> int:
        """Drain all rings, and commit when it is time. Returns the number of records that became complete.

        Raises nothing when the store fails: see `snapshot().error`.
        """
        with self._lock:
            before = self._fresh_count
            for ring, _ in self._rings:
                self._drain(ring)
            count = self._fresh_count
        now = time.monotonic()
        full = count >= self._commit_records
        late = count > 0 and now - self._committed_at >= self._commit_seconds
        again = self._unsaved_count > 0 and now >= self._retry_at
        if full or late or again:
            self._commit(now)
        return count - before

    def finish(self) -> CollectorSnapshot:
        """Drain the rings a last time, close what is open (flag INCOMPLETE), store all of it and say "finished"."""
        with self._lock:
            for ring, _ in self._rings:
                self._drain(ring)
            self._take(self._assembler.flush())
        with self._commit_lock:
            self._finished = True
            self._retry_at = 0.0
            self._commit(time.monotonic())
        return self.snapshot()

    def start(self) -> None:
        """Collect in a thread of its own until `stop`."""
        self._thread = threading.Thread(target=self.run, name="frame-collector", daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Poll until `stop` is called; what goes wrong is kept for `snapshot` and never raised."""
        while not self._stop.wait(self._poll_seconds):
            try:
                self.poll()
            except Exception as error:  # a job goes on without its records
                self._note(error)

    def stop(self, lost: Sequence[tuple[StreamEntry, LostFrame]] = ()) -> CollectorSnapshot:
        """End the thread, list lost frames, then `finish`. To be called after the last traced process has ended."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.lost(lost)
        return self.finish()

    def snapshot(self) -> CollectorSnapshot:
        """How the run is doing, now."""
        with self._lock:
            lost = sum(ring.lost for ring, _ in self._rings) + sum(self._gone_lost.values())
            unmatched = self._assembler.unmatched_events
            fresh = self._fresh_count
        with self._commit_lock:
            whole = Histogram()
            for tally in self._tallies.totals.values():
                whole.merge(tally.latency)
            then, records_then = self._rate[0]
            tallies = self._tallies.totals.values()
            total = sum(tally.records for tally in tallies)
            elapsed = time.monotonic() - then
            return CollectorSnapshot(
                streams=tuple(self._stream_snapshot(s) for s in self._streams),
                frames=sum(tally.complete for tally in tallies),
                latency_p50_seconds=whole.quantile(0.5),
                latency_p99_seconds=whole.quantile(0.99),
                records=total,
                records_per_second=(total - records_then) / elapsed if elapsed > 0 else 0.0,
                records_pending=fresh + self._unsaved_count,
                records_dropped=sum(tally.dropped for tally in tallies),
                incomplete_records=sum(tally.incomplete for tally in tallies),
                events_lost=lost,
                unmatched_events=unmatched + self._strangers,
                error=self._error,
            )

    def _stream_snapshot(self, stream: StreamEntry) -> StreamSnapshot:
        tally = self._tallies.totals[stream.id]
        histogram = tally.latency
        self._recent[stream.id].note(time.monotonic())
        recent = self._recent[stream.id].histogram()
        return StreamSnapshot(
            name=stream.name,
            id=stream.id,
            epoch=self._tallies.newest(stream.id),
            frames=tally.complete,
            frames_seen=tally.seen,
            frames_lost=tally.lost,
            latency_p50_seconds=histogram.quantile(0.5),
            latency_p99_seconds=histogram.quantile(0.99),
            latency_max_seconds=histogram.largest_ns / 1e9 if histogram.count else None,
            recent_p50_seconds=recent.quantile(0.5),
            recent_p99_seconds=recent.quantile(0.99),
        )

    def _drain(self, ring: EventSource) -> None:
        while len(events := ring.drain(DRAIN_LIMIT)):
            self._take(self._assembler.feed(events))
            if len(events) < DRAIN_LIMIT:
                return

    def _take(self, records: Records) -> None:
        if len(records):
            self._fresh.append(records)
            self._fresh_count += len(records)

    def _commit(self, now: float) -> None:
        with self._lock:
            fresh, self._fresh, self._fresh_count = self._fresh, [], 0
        with self._commit_lock:
            self._committed_at = now
            if fresh:
                every = np.concatenate(fresh)
                own = self._tracker.own(every)
                self._strangers += len(every) - int(own.sum())
                batch = sort_records(self._with_stored_epochs(every if own.all() else every[own]))
                whole = self._tracker.add(batch)
                self._tallies.batch(batch, whole, self._tracker.take_seen())
                for observe in self._observers:
                    observe(batch)
                for observe_frames in self._frame_observers:
                    observe_frames(whole)
                for recent in self._recent.values():
                    recent.note(now)
                self._unsaved.append(batch)
                self._unsaved_count += len(batch)
            if now >= self._retry_at:
                self._save(now)
            self._shed()

    def _save(self, now: float) -> None:
        due = self._finished or now - self._counted_at >= COUNTERS_SECONDS
        if not self._try(self._store_epochs):
            self._retry_at = now + RETRY_SECONDS
            return
        records = self._unsaved[0] if len(self._unsaved) == 1 else np.concatenate(self._unsaved or [_NOTHING])
        self._tallies.records(records)
        counters = self._counters(now) if due else None
        if not self._try(partial(self._store.append, records, counters)):
            self._tallies.records(records, -1)
            self._retry_at = now + RETRY_SECONDS
            return
        self._unsaved, self._unsaved_count, self._error = [], 0, None
        if counters is not None:
            self._counted_at = now
            self._tallies.stored(counters, now)
        self._rate.append((now, sum(tally.records for tally in self._tallies.totals.values())))
        while len(self._rate) > 2 and now - self._rate[1][0] > RATE_SECONDS:
            del self._rate[0]

    def _shed(self) -> None:
        """Forget the oldest batches when more wait than may be kept."""
        while self._unsaved_count > self._keep_records:
            batch = self._unsaved.pop(0)
            self._unsaved_count -= len(batch)
            self._tallies.records_dropped(batch)

    def _store_epochs(self) -> None:
        """Give the store the epochs that it could not take when they began. Raises FrameStoreError."""
        while self._unstored:
            entry = self._unstored[0]
            name = next(stream.name for stream in self._streams if stream.id == entry.stream)
            stored = self._store.begin_epoch(self._run_id, name, entry)
            del self._unstored[0]
            if stored.epoch != entry.epoch:  # another run of that stream was quicker
                self._renumbered[entry.stream, entry.epoch] = stored.epoch
                self._tallies.renumber(entry.stream, entry.epoch, stored.epoch)
                self._unsaved = [self._with_stored_epochs(batch) for batch in self._unsaved]

    def _with_stored_epochs(self, records: Records) -> Records:
        for (stream, epoch), stored in self._renumbered.items():
            records["epoch"][(records["stream"] == stream) & (records["epoch"] == epoch)] = stored
        return records

    def _try(self, work: Callable[[], object]) -> bool:
        """Whether the store took it; what it said otherwise is kept."""
        try:
            work()
        except MediaObservatoryError as error:
            self._note(error)
            return False
        return True

    def _counters(self, now: float) -> dict[tuple[int, int], StreamCounters]:
        with self._lock:
            lost = dict(self._gone_lost)
            for ring, stream in self._rings:
                lost[stream] = lost.get(stream, 0) + ring.lost
            unmatched = self._assembler.unmatched_events + self._strangers
        return self._tallies.due(
            now,
            finished=self._finished,
            events_lost=lambda stream: lost.get(stream, 0) + lost.get(None, 0),
            unmatched=unmatched,
        )

    def _note(self, error: Exception) -> None:
        self._error = str(error) if isinstance(error, MediaObservatoryError) else f"{type(error).__name__}: {error}"
