"""Records that come after their frame was thinned out: they would make half a frame, which nobody would ever delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from observatory.frames.ingest import Records
from observatory.frames.keys import INDEX_VALUE, frame_key, run_key
from observatory.frames.marks import mark_key, parse_mark

Entries = Sequence[tuple[bytes, bytes]]


def without_late(
    transaction: Any, tables: Mapping[str, Any], groups: Sequence[Records], entries: Entries
) -> tuple[list[Records], Entries]:
    """The records (sorted by key) and index entries that may be stored, in the write transaction that stores them.

    A record is too late when retention has passed its frame and left nothing of it.
    """
    kept: list[Records] = []
    gone: set[tuple[bytes, bytes]] = set()
    for group in groups:
        late = _late(transaction, tables, group)
        gone |= {(run_key(s, e), INDEX_VALUE.pack(i)) for s, e, i in late}
        if late:
            identity = zip(*(group[name].tolist() for name in ("stream", "epoch", "source_index")), strict=True)
            group = group[np.fromiter((frame not in late for frame in identity), bool, len(group))]
        kept.append(group)
    if gone:
        entries = [(key, value) for key, value in entries if (key[:8], value) not in gone]
    return kept, entries


def _late(transaction: Any, tables: Mapping[str, Any], group: Records) -> set[tuple[int, int, int]]:
    late: set[tuple[int, int, int]] = set()
    stream, epoch = group["stream"], group["epoch"]
    starts = np.flatnonzero(np.r_[True, (stream[1:] != stream[:-1]) | (epoch[1:] != epoch[:-1])])
    cursor = transaction.cursor(tables["records"])
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(group)], strict=True):
        number, run = int(stream[start]), int(epoch[start])
        if transaction.get(run_key(number, run), db=tables["runs"]) is None:  # the epoch itself was forgotten
            late |= {(number, run, index) for index in np.unique(group["source_index"][start:end]).tolist()}
            continue
        decided = parse_mark(transaction.get(mark_key(number, run), db=tables["meta"])).decided
        indices: npt.NDArray[np.uint64] = group["source_index"][start:end]
        for index in np.unique(indices[indices < np.uint64(decided)]).tolist():
            prefix = frame_key(number, run, index)
            if not (cursor.set_range(prefix) and cursor.key().startswith(prefix)):
                late.add((number, run, index))
    return late
