"""Retention: every frame for a while, then the slow, lost and incident ones and one in N, under a disk budget.

A sweep looks only at what became old since the last one: each stream of each epoch has a mark in the store, below which
every frame was decided. A frame goes whole (all hops, its index entries, its lineage) in one transaction or stays
whole, so that a kill at any moment leaves a consistent store.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from observatory.frames.budget import forget_empty_runs, forget_ranges, trim
from observatory.frames.marks import RULES_KEY, KeepRange, Mark, Rules, rules_to_bytes
from observatory.frames.policy import RetentionPolicy
from observatory.frames.pruning import Changed
from observatory.frames.store import FrameStore
from observatory.frames.thinning import Tally, judged_from, last_event_seconds, remove
from observatory.model.manifest import ClockAnchor

__all__ = ["KeepRange", "Retention", "RetentionPolicy", "SweepResult", "now_anchor"]

CHUNK_RECORDS = 4096
"""Records that are judged at a time."""

_TRIES = 5  # when others write into what is being judged


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What one sweep did. `kept` and `deleted` are frames that were decided in it.

    bytes_*: pages in use; file_bytes: of the file, which never shrinks. trimmed: frames that went only because of the
    disk budget, and warning what that broke, in words. oldest_kept_unix_seconds: last event of the oldest frame.
    """

    kept: int
    deleted: int
    trimmed: int
    lost_trimmed: int
    runs_removed: int
    records_examined: int
    bytes_before: int
    bytes_after: int
    file_bytes: int
    oldest_kept_unix_seconds: float | None
    duration_seconds: float
    warning: str | None = None


def now_anchor() -> ClockAnchor:
    """Both clocks, now."""
    return ClockAnchor(monotonic_ns=time.monotonic_ns(), realtime_ns=time.time_ns())


class Retention:
    """Sweeps one store. `policy` may be replaced at any time; one thread sweeps."""

    def __init__(self, store: FrameStore, policy: RetentionPolicy) -> None:
        self.store = store
        self.policy = policy

    def sweep(self, now: ClockAnchor | None = None, *, stop: Callable[[], bool] = lambda: False) -> SweepResult:
        """Delete what has become old enough since the last sweep, and more where the disk budget wants it.

        Args:
            now: both clocks; None: as they are.
            stop: asked between transactions; once it says True the rest is left to the next sweep.

        Raises:
            FrameStoreError: the store fails; what was done until then is done.
        """
        started = time.perf_counter()
        now = now or now_anchor()
        policy, tally = self.policy, Tally()
        before, _ = self.store.usage_bytes
        self._note_rules(policy)
        for stream, epoch in self._undecided():
            self._thin_out(stream, epoch, policy, now, tally, stop)
        warning = trim(self.store, policy, now, tally, stop)
        forget_empty_runs(self.store, policy, now, tally)
        oldest = self._oldest()
        forget_ranges(self.store, oldest)
        after, file_bytes = self.store.usage_bytes
        return SweepResult(
            kept=tally.kept,
            deleted=tally.deleted,
            trimmed=tally.trimmed,
            lost_trimmed=tally.lost_trimmed,
            runs_removed=tally.runs_removed,
            records_examined=tally.records,
            bytes_before=before,
            bytes_after=after,
            file_bytes=file_bytes,
            oldest_kept_unix_seconds=oldest,
            duration_seconds=time.perf_counter() - started,
            warning=warning,
        )

    def keep_range(self, entry: KeepRange) -> None:
        """Keep every frame that was alive in this time, also those that are still to come.

        What an earlier sweep deleted stays deleted: call it within `keep_all_seconds`.

        Raises:
            ValueError: it ends before it starts.
            FrameStoreError: it was not stored.
        """
        if not 0 <= entry.start_ns <= entry.end_ns:
            raise ValueError(f"a range that ends before it starts: {entry}")
        self.store.change(
            lambda transaction, tables: transaction.put(entry.key(), entry.reason.encode(), db=tables["meta"])
        )

    def _note_rules(self, policy: RetentionPolicy) -> None:
        rules = Rules(policy.keep_all_seconds, policy.keep_one_in)
        with self.store.read() as reader:
            known = reader.rules()
        if known != rules:
            self.store.change(lambda t, tables: t.put(RULES_KEY, rules_to_bytes(rules), db=tables["meta"]))

    def _undecided(self) -> list[tuple[int, int]]:
        """Streams and epochs with frames that no sweep has decided: of a store of years there are few."""
        with self.store.read() as reader:
            return [pair for pair in reader.runs() if reader.ends(*pair, reader.mark(*pair).decided) is not None]

    def _thin_out(
        self,
        stream: int,
        epoch: int,
        policy: RetentionPolicy,
        now: ClockAnchor,
        tally: Tally,
        stop: Callable[[], bool],
    ) -> None:
        """Decide what became old in one run since the last sweep."""
        tries = 0
        most = 1  # most often the first frame is young still: then there is nothing to do
        while not stop():
            with self.store.read() as reader:
                start = reader.mark(stream, epoch).decided
                judged = judged_from(reader, stream, epoch, start, policy, now, most)
            if judged is None:
                return
            most = CHUNK_RECORDS
            verdict = judged.verdict
            young = np.flatnonzero(~verdict.settled)
            count = int(young[0]) if len(young) else len(verdict.index)
            if not count:
                return
            keep = (verdict.sampled | verdict.special)[:count]
            try:
                remove(self.store, judged, count, ~keep, decide, now)
            except Changed:
                tries += 1
                if tries >= _TRIES:
                    return  # the next sweep goes on
                continue
            tally.records += int(verdict.counts[:count].sum())
            tally.kept += int(keep.sum())
            tally.deleted += count - int(keep.sum())
            if count < len(verdict.index):
                return

    def _oldest(self) -> float | None:
        oldest: float | None = None
        with self.store.read() as reader:
            for stream, epoch in reader.runs():
                ends = reader.ends(stream, epoch)
                seconds = None if ends is None else last_event_seconds(reader, ends[0])
                if seconds is not None and (oldest is None or seconds < oldest):
                    oldest = seconds
        return oldest


def decide(mark: Mark, upto: int) -> Mark:
    """Everything below `upto` was decided."""
    return mark._replace(decided=max(mark.decided, upto))
