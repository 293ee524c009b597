"""What a run has counted so far, per stream: over the whole run, and in each of its latest epochs.

A source may break off for days: of epochs long past, what was stored stays, and nothing is kept in memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from observatory.frames.counters import StreamCounters
from observatory.frames.ingest import Records, by_run
from observatory.frames.latency import Histogram, WholeFrames
from observatory.model.manifest import StreamEntry
from observatory.model.record import RecordFlag

KEPT_EPOCHS = 64  # per stream; late records of earlier ones count for the run only
MOST_EPOCHS = 4 * KEPT_EPOCHS  # while the store fails, so that they could not be written
MOST_STARTS = 4096  # how many epochs back a source index is found in its own
SETTLED_SECONDS = 10.0  # after its end the frames of an epoch are through, and it counts as finished

Key = tuple[int, int]
"""Stream and epoch."""


@dataclass(slots=True)
class Tally:
    """Counts of one stream, in one epoch or over the run. `dropped` records could not be stored."""

    records: int = 0
    incomplete: int = 0
    dropped: int = 0
    lost: int = 0
    seen: int = 0
    complete: int = 0
    latency: Histogram = field(default_factory=Histogram)


class Tallies:
    """The counts of one run. For one thread at a time."""

    def __init__(self, streams: Sequence[StreamEntry]) -> None:
        self.totals: dict[int, Tally] = {s.id: Tally() for s in streams}
        self._epochs: dict[int, dict[int, Tally]] = {s.id: {s.epoch: Tally()} for s in streams}  # oldest first
        self._starts: dict[int, list[Key]] = {s.id: [(0, s.epoch)] for s in streams}  # first source index, epoch
        self._ended: dict[Key, float] = {}  # when a newer one began
        self._changed: set[Key] = {(s.id, s.epoch) for s in streams}

    # Epochs

    def begin(self, stream: int, epoch: int, source_index: int, now: float) -> None:
        """A new epoch begins with this source index; `now` is in seconds of any clock that rises."""
        self._ended[stream, self.newest(stream)] = now
        epochs, starts = self._epochs[stream], self._starts[stream]
        epochs[epoch] = Tally()
        self._changed.add((stream, epoch))
        starts.append((max(source_index, starts[-1][0]), epoch))
        del starts[:-MOST_STARTS]
        self._forget(stream, MOST_EPOCHS)

    def renumber(self, stream: int, old: int, new: int) -> None:
        """An epoch gets another number."""
        self._epochs[stream] = {new if e == old else e: tally for e, tally in self._epochs[stream].items()}
        self._starts[stream] = [(first, new if e == old else e) for first, e in self._starts[stream]]
        if (stream, old) in self._ended:
            self._ended[stream, new] = self._ended.pop((stream, old))
        self._changed = {(s, new if (s, e) == (stream, old) else e) for s, e in self._changed}

    def newest(self, stream: int) -> int:
        """The latest epoch of a stream."""
        return self._starts[stream][-1][1]

    def epoch_of(self, stream: int, source_index: int | None) -> int:
        """The epoch that a source index lies in; the newest for one that is not known."""
        starts = self._starts[stream]
        if source_index is None:
            return starts[-1][1]
        return starts[max(0, bisect_right(starts, source_index, key=lambda start: start[0]) - 1)][1]

    # Counting

    def records(self, records: Records, sign: int = 1) -> None:
        """Records were stored; -1: they were not, after all."""
        for key, count in _per_epoch(records):
            for tally in self._of(key):
                tally.records += sign * count

    def records_dropped(self, records: Records) -> None:
        """Records could not be stored and are no longer kept."""
        for key, count in _per_epoch(records):
            for tally in self._of(key):
                tally.dropped += count

    def batch(self, records: Records, whole: WholeFrames, seen: Iterable[tuple[Key, int]]) -> None:
        """A batch of complete records: the frames that it made whole, and how many showed for the first time."""
        for key, count in _per_epoch(records[records["flags"] & RecordFlag.INCOMPLETE != 0]):
            for tally in self._of(key):
                tally.incomplete += count
        for key, count in seen:
            for tally in self._of(key):
                tally.seen += count
        for key, rows in by_run(whole.stream, whole.epoch):
            for tally in self._of(key):
                tally.complete += len(whole.latency_ns[rows])
                tally.latency.add(whole.latency_ns[rows])

    def lost(self, stream: int, epoch: int, count: int) -> None:
        """Frames were listed as lost."""
        for tally in self._of((stream, epoch)):
            tally.lost += count

    def _of(self, key: Key) -> Iterator[Tally]:
        """The tally of the run and, while it is kept, that of the epoch."""
        yield self.totals[key[0]]
        if (tally := self._epochs[key[0]].get(key[1])) is not None:
            self._changed.add(key)
            yield tally

    # Storing

    def due(
        self, now: float, *, finished: bool, events_lost: Callable[[int], int], unmatched: int
    ) -> dict[Key, StreamCounters]:
        """Counters of every epoch that has others than were stored last. `events_lost` is by stream."""
        for key, since in self._ended.items():
            if now - since >= SETTLED_SECONDS:
                self._changed.add(key)
        keys = {(s, e) for s, epochs in self._epochs.items() for e in epochs} if finished else self._changed
        newest = {(stream, self.newest(stream)) for stream in self._epochs}  # events are lost without any record
        return {
            key: _counters(
                self._epochs[key[0]][key[1]],
                finished=finished or self._settled(key, now),
                events_lost=events_lost(key[0]),
                unmatched=unmatched,
            )
            for key in sorted(keys | newest)
            if key[1] in self._epochs[key[0]]
        }

    def stored(self, keys: Iterable[Key], now: float) -> None:
        """These counters are in the store: what will hardly change any more is forgotten."""
        self._changed -= set(keys)
        for key in [key for key in self._ended if self._settled(key, now)]:
            del self._ended[key]
        for stream in self._epochs:
            self._forget(stream, KEPT_EPOCHS)

    def _settled(self, key: Key, now: float) -> bool:
        if key in self._ended:
            return now - self._ended[key] >= SETTLED_SECONDS
        return key[1] != self.newest(key[0])

    def _forget(self, stream: int, most: int) -> None:
        epochs = self._epochs[stream]
        for epoch in list(epochs)[: max(0, len(epochs) - most)]:
            if most < MOST_EPOCHS and ((stream, epoch) in self._ended or (stream, epoch) in self._changed):
                return  # not written yet, or not for the last time
            del epochs[epoch]
            self._ended.pop((stream, epoch), None)
            self._changed.discard((stream, epoch))


def _per_epoch(records: Records) -> Iterator[tuple[Key, int]]:
    """How many of the records each (stream, epoch) has."""
    return ((key, int(np.count_nonzero(rows))) for key, rows in by_run(records["stream"], records["epoch"]))


def _counters(tally: Tally, *, finished: bool, events_lost: int, unmatched: int) -> StreamCounters:
    latency = tally.latency
    return StreamCounters(
        records=tally.records,
        incomplete_records=tally.incomplete,
        frames=tally.complete,
        frames_seen=tally.seen,
        frames_lost=tally.lost,
        events_lost=events_lost,
        unmatched=unmatched,
        records_dropped=tally.dropped,
        finished=finished,
        latency_p50_seconds=latency.quantile(0.5),
        latency_p99_seconds=latency.quantile(0.99),
        latency_max_seconds=latency.largest_ns / 1e9 if latency.count else None,
        latency_histogram=latency.sparse(),
    )
