"""The disk budget of a frame store: what goes when even what should be kept is too much, and runs that are empty.

What counts are the pages in use: LMDB reuses free ones, so that its file stays at the most that was ever in use. The
order is: frames kept as one in N, then slow, lost and incident ones, then entries of lost frames, then frames that are
younger than `keep_all_seconds`; each time the oldest first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from observatory.frames.judging import Verdict
from observatory.frames.keys import frame_key, run_key
from observatory.frames.marks import KeepRange, Mark, mark_key, parse_mark
from observatory.frames.policy import RetentionPolicy
from observatory.frames.pruning import Advance, Changed, delete_range, end_of
from observatory.frames.reader import Reader
from observatory.frames.store import FrameStore
from observatory.frames.thinning import Tally, judged_from, last_event_seconds, remove
from observatory.model.kinds import UNKNOWN_U64
from observatory.model.manifest import ClockAnchor

TRIM_TO = 0.95
"""Once over the budget, the store is brought down to this share of it."""

TRIM_RECORDS = 1024
"""Records that are looked at before it is another run's turn: so closely the order is the oldest first."""

LOST_AT_ONCE = 1000
FORGOTTEN_SECONDS = 86_400.0
"""After so long without a record, an empty run that never said it finished is taken for killed."""

_LAST = int(UNKNOWN_U64)


class _Pass(NamedTuple):
    """One kind of frames to give up. `first`: from which source index on they may be; `end`: before which."""

    words: str
    first: Callable[[Mark], int]
    end: Callable[[Mark], int]
    doomed: Callable[[Verdict], npt.NDArray[np.bool_]]
    advance: Advance


def _without_samples(mark: Mark, upto: int) -> Mark:
    return mark._replace(sampled_from=max(mark.sampled_from, upto))


def _without_special(mark: Mark, upto: int) -> Mark:
    return _without_samples(mark, upto)._replace(special_from=max(mark.special_from, upto))


def _without_any(mark: Mark, upto: int) -> Mark:
    return _without_special(mark, upto)._replace(decided=max(mark.decided, upto))


_SAMPLED = _Pass("one in N", lambda m: m.sampled_from, lambda m: m.decided, lambda v: ~v.special, _without_samples)
_SPECIAL = _Pass(
    "slow, lost and incident frames",
    lambda m: m.special_from,
    lambda m: m.decided,
    lambda v: np.ones_like(v.special),
    _without_special,
)
_RECENT = _Pass(
    "frames younger than keep_all_seconds", lambda m: m.decided, lambda _: _LAST, lambda v: v.complete, _without_any
)


def trim(
    store: FrameStore, policy: RetentionPolicy, now: ClockAnchor, tally: Tally, stop: Callable[[], bool]
) -> str | None:
    """Bring the store below its budget. Returns what went, in words; None when it is not above it.

    Raises:
        FrameStoreError: the store fails.
    """
    budget = policy.disk_budget_bytes
    if budget is None or store.usage_bytes[0] <= budget:
        return None
    enough = int(budget * TRIM_TO)
    went: list[str] = []
    for kind in (_SAMPLED, _SPECIAL, None, _RECENT):
        before = tally.trimmed, tally.lost_trimmed
        if kind is None:
            _give_up_lost(store, enough, tally, stop)
        else:
            _give_up(store, kind, policy, now, enough, tally, stop)
        if tally.trimmed > before[0] and kind is not None:
            went.append(f"{tally.trimmed - before[0]} of {kind.words}")
        if tally.lost_trimmed > before[1]:
            went.append(f"{tally.lost_trimmed - before[1]} entries of lost frames")
        if stop() or store.usage_bytes[0] <= enough:
            break
    words = f"the disk budget of {budget / 1e9:.3g} GB is used up: {', '.join(went) or 'nothing could be'} deleted"
    return words.replace("of one in N", f"frames kept as one in {policy.keep_one_in}")


def _give_up(
    store: FrameStore,
    kind: _Pass,
    policy: RetentionPolicy,
    now: ClockAnchor,
    enough: int,
    tally: Tally,
    stop: Callable[[], bool],
) -> None:
    """Delete frames of this kind, the oldest first, until the store uses no more than `enough` bytes."""
    with store.read() as reader:
        heads = [head for stream, epoch in reader.runs() for head in _head(reader, kind, stream, epoch)]
    heapq.heapify(heads)
    while heads and not stop() and store.usage_bytes[0] > enough:
        _, stream, epoch = heapq.heappop(heads)
        with store.read() as reader:
            mark = reader.mark(stream, epoch)
            judged = judged_from(reader, stream, epoch, kind.first(mark), policy, now, TRIM_RECORDS)
        if judged is None:
            continue
        verdict = judged.verdict
        count = int(np.searchsorted(verdict.index, np.uint64(kind.end(mark))))
        if kind is _RECENT and not verdict.complete[:count].all():
            count = int(np.flatnonzero(~verdict.complete[:count])[0])  # the first that may be in flight
        if not count:
            continue
        doomed = kind.doomed(verdict)[:count]
        try:
            remove(store, judged, count, doomed, kind.advance, now)
        except Changed:
            continue  # the next sweep goes on
        tally.records += int(verdict.counts[:count].sum())
        tally.trimmed += int(doomed.sum())
        with store.read() as reader:
            for head in _head(reader, kind, stream, epoch):
                heapq.heappush(heads, head)


def _head(reader: Reader, kind: _Pass, stream: int, epoch: int) -> Iterator[tuple[float, int, int]]:
    """When the first frame of this kind was (wall clock, seconds), with its run; nothing when there is none."""
    mark = reader.mark(stream, epoch)
    if kind.first(mark) < kind.end(mark):
        ends = reader.ends(stream, epoch, kind.first(mark))
        if ends is not None and ends[0].source_index < kind.end(mark):
            yield last_event_seconds(reader, ends[0]) or 0.0, stream, epoch


def _give_up_lost(store: FrameStore, enough: int, tally: Tally, stop: Callable[[], bool]) -> None:
    """Delete entries of lost frames whose records were decided, or that have no source index: oldest runs first."""
    with store.read() as reader:
        began = {pair: reader.epoch(*pair) for pair in reader.runs()}
    runs = sorted((e.began_realtime_ns, pair) for pair, e in began.items() if e is not None)
    for known in (True, False):
        for _, (stream, epoch) in runs:
            while not stop() and store.usage_bytes[0] > enough:

                def work(
                    transaction: Any, tables: Mapping[str, Any], s: int = stream, e: int = epoch, known: bool = known
                ) -> int:
                    mark = parse_mark(transaction.get(mark_key(s, e), db=tables["meta"]))
                    start = run_key(s, e) if known else frame_key(s, e, _LAST)
                    end = frame_key(s, e, mark.decided) if known else end_of(s, e, _LAST)
                    return delete_range(transaction.cursor(tables["lost"]), start, end, LOST_AT_ONCE)

                count = store.change(work)
                tally.lost_trimmed += count
                if not count:
                    break


def forget_empty_runs(store: FrameStore, policy: RetentionPolicy, now: ClockAnchor, tally: Tally) -> None:
    """Remove runs that have neither records nor lost frames any more, and will not get any.

    Raises:
        FrameStoreError: the store fails.
    """
    with store.read() as reader:
        empty = [pair for pair in reader.runs() if _is_empty(reader, *pair)]
        over = {pair: _is_over(reader, store, policy, now, *pair) for pair in empty}
        unseen = [pair for pair in empty if not over[pair] and not reader.mark(*pair).changed_ns]
    for stream, epoch in (pair for pair in empty if over[pair]):
        tally.runs_removed += store.change(partial(_forget, stream, epoch))
    if unseen:

        def note(transaction: Any, tables: Mapping[str, Any]) -> None:
            for pair in unseen:
                mark = parse_mark(transaction.get(mark_key(*pair), db=tables["meta"]))
                seen = mark._replace(changed_ns=now.realtime_ns)
                transaction.put(mark_key(*pair), seen.to_bytes(), db=tables["meta"])

        store.change(note)


def _is_empty(reader: Reader, stream: int, epoch: int) -> bool:
    prefix = run_key(stream, epoch)
    cursors = (reader.cursor("records"), reader.cursor("lost"))
    return not any(cursor.set_range(prefix) and cursor.key().startswith(prefix) for cursor in cursors)


def _is_over(
    reader: Reader, store: FrameStore, policy: RetentionPolicy, now: ClockAnchor, stream: int, epoch: int
) -> bool:
    """Whether an empty run will get no records any more."""
    counters, began = reader.counters(stream, epoch), reader.epoch(stream, epoch)
    if began is not None and now.realtime_ns - began.began_realtime_ns < policy.keep_all_seconds * 1e9:
        return False
    if counters is not None and counters.finished:
        return True
    changed = reader.mark(stream, epoch).changed_ns
    silent = bool(changed) and now.realtime_ns - changed >= FORGOTTEN_SECONDS * 1e9
    return silent and (stream, epoch) not in store.begun_here


def _forget(stream: int, epoch: int, transaction: Any, tables: Mapping[str, Any]) -> int:
    """Remove everything about one empty run, and its manifest with the last of the run's streams and epochs."""
    key = run_key(stream, epoch)
    records = transaction.cursor(tables["records"])
    if records.set_range(key) and records.key().startswith(key):
        return 0  # it got some after all
    run_id = transaction.get(key, db=tables["runs"])
    for name in ("runs", "epochs", "counters"):
        if name in tables:
            transaction.delete(key, db=tables[name])
    transaction.delete(mark_key(stream, epoch), db=tables["meta"])
    for name in ("index", "lineage", "lost"):
        delete_range(transaction.cursor(tables[name]), key, end_of(stream, epoch, _LAST))
    others = transaction.cursor(tables["runs"]).iternext(keys=False)
    if run_id is not None and all(other != run_id for other in others):
        transaction.delete(run_id, db=tables["manifests"])
    return 1


def forget_ranges(store: FrameStore, oldest_seconds: float | None) -> None:
    """Remove ranges to keep that ended more than a day before the oldest frame there is."""
    if oldest_seconds is None:
        return
    with store.read() as reader:
        old: list[KeepRange] = [r for r in reader.keep_ranges() if r.end_ns < (oldest_seconds - 86_400) * 1e9]
    if old:
        store.change(lambda t, tables: [t.delete(entry.key(), db=tables["meta"]) for entry in old])
