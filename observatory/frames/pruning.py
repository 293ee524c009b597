"""Deleting frames whole: records, their index entries and lineage in one transaction, a bounded time at a time.

Frames are read and judged in a snapshot, and deleted by ranges of keys in a write transaction that holds LMDB's write
lock for about `HOLD_SECONDS`: the collector waits no longer than that. What changed in between is noticed by counting.

What stays is written anew, because LMDB leaves pages a quarter full when single frames are left over: that saves about
half of the disk space.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from observatory.frames.ingest import Records, possible_entries
from observatory.frames.keys import FRAME_KEY, after, frame_key, run_key
from observatory.frames.marks import Mark, mark_key, parse_mark
from observatory.frames.runs import RunTables
from observatory.frames.store import FrameStore

HOLD_SECONDS = 0.01
"""How long one write transaction deletes before it commits."""

YIELD_SECONDS = 0.001
"""Pause between two of them: the lock is not fair, and whoever waits must get it."""

STEP_RECORDS = 1200
"""Records between two looks at the clock: 2 ms, and enough for what stays to fill pages."""

Advance = Callable[[Mark, int], Mark]
"""Takes the stored mark and a source index below which everything is done; returns the mark to store."""


class Changed(Exception):
    """Somebody wrote into the range that was judged: judge it again."""


@dataclass(frozen=True, slots=True)
class Step:
    """Some frames that follow one another, of which some go.

    start, end: keys of the first and after the last of them. records: how many they have. doomed: key prefixes of the
    frames that go, entries: what they may have in the PTS index. upto: the source index below which all is done then.
    """

    start: bytes
    end: bytes
    records: int
    doomed: frozenset[bytes]
    entries: tuple[tuple[bytes, bytes], ...]
    upto: int


def plan(
    records: Records,
    starts: npt.NDArray[np.int64],
    doomed: npt.NDArray[np.bool_],
    tables: RunTables,
    hop_bases: Collection[tuple[int, int]],
) -> list[Step]:
    """How to delete the `doomed` of these frames, in steps.

    Args:
        records: of one stream in one epoch, sorted; every one of them is of a frame that was judged.
        starts: rows at which frames begin.
        doomed: one per frame.
        tables: the run.
        hop_bases: time bases of rebased PTS in the index.
    """
    stream, epoch = int(records["stream"][0]), int(records["epoch"][0])
    index = records["source_index"][starts].tolist()
    rows = np.r_[starts, len(records)]
    goes = doomed.tolist()
    entries: dict[int, list[tuple[bytes, bytes]]] = {}
    for key, value in possible_entries(records[np.repeat(doomed, np.diff(rows))], tables, hop_bases):
        entries.setdefault(int.from_bytes(value, "little"), []).append((key, value))
    steps: list[Step] = []
    frames = max(1, STEP_RECORDS * len(index) // len(records))
    for first in range(0, len(index), frames):
        last = min(first + frames, len(index))
        own = [index[at] for at in range(first, last) if goes[at]]
        steps.append(
            Step(
                start=frame_key(stream, epoch, index[first]),
                end=end_of(stream, epoch, index[last - 1]),
                records=int(rows[last] - rows[first]),
                doomed=frozenset(frame_key(stream, epoch, number) for number in own),
                entries=tuple(entry for number in own for entry in entries.get(number, ())),
                upto=index[last - 1] + 1,
            )
        )
    return steps


def carry_out(store: FrameStore, stream: int, epoch: int, steps: Sequence[Step], advance: Advance, now_ns: int) -> None:
    """Delete step by step, moving the stored mark along.

    Raises:
        Changed: what was judged is not what is stored; everything up to the stored mark is done.
        FrameStoreError: the store fails.
    """
    done = 0
    while done < len(steps):
        todo = steps[done:]

        def work(transaction: Any, tables: Mapping[str, Any], todo: Sequence[Step] = todo) -> int:
            return _delete(transaction, tables, stream, epoch, todo, advance, now_ns)

        done += store.change(work)
        if done < len(steps):
            time.sleep(YIELD_SECONDS)


def _delete(
    transaction: Any,
    tables: Mapping[str, Any],
    stream: int,
    epoch: int,
    steps: Sequence[Step],
    advance: Advance,
    now_ns: int,
) -> int:
    """As many steps as fit into `HOLD_SECONDS`, one at least; returns how many."""
    until = time.perf_counter() + HOLD_SECONDS
    records, index, lineage = (transaction.cursor(tables[name]) for name in ("records", "index", "lineage"))
    own = run_key(stream, epoch)
    with_lineage = lineage.set_range(own) and lineage.key().startswith(own)
    done = 0
    for step in steps:
        if step.doomed:
            if _delete_frames(records, step) != step.records:
                raise Changed
            if with_lineage:
                _delete_frames(lineage, step)
        for key, value in step.entries:
            if index.set_key(key) and index.value() == value:
                index.delete()
        done += 1
        if time.perf_counter() >= until:
            break
    mark = parse_mark(transaction.get(mark_key(stream, epoch), db=tables["meta"]))
    moved = advance(mark, steps[done - 1].upto)._replace(changed_ns=now_ns)
    transaction.put(mark_key(stream, epoch), moved.to_bytes(), db=tables["meta"])
    return done


def _delete_frames(cursor: Any, step: Step) -> int:
    """Delete what belongs to the doomed frames and write the rest anew; returns how many entries there were."""
    doomed, end, width = step.doomed, step.end, FRAME_KEY.size
    kept: list[tuple[bytes, bytes]] = []
    count = 0
    if cursor.set_range(step.start):
        while end > (key := cursor.key()) and key:
            if key[:width] not in doomed:
                kept.append(cursor.item())
            cursor.delete()
            count += 1
    if kept:
        cursor.putmulti(kept)
    return count


def end_of(stream: int, epoch: int, source_index: int) -> bytes:
    """A key after everything that belongs to this frame and before what belongs to the next."""
    return after(frame_key(stream, epoch, source_index)) or b"\xff" * 32


def delete_range(cursor: Any, start: bytes, end: bytes, most: int | None = None) -> int:
    """Delete entries with `start` <= key < `end` of the cursor's table, at most `most`; returns how many."""
    count = 0
    if cursor.set_range(start):
        while count != most and cursor.key() < end and cursor.delete():  # at the end of the table it deletes nothing
            count += 1
    return count
