"""Look-ups: a frame by PTS in any time base, by source index, or a list. Needs neither NumPy nor Pydantic.

A PTS leads to a source index, and that to all hops of the frame. PTS are compared as points in time, exactly: 1 at 1/25
is 512 at 1/12800. What was asked in no time base is in the source stream's. Without an epoch, the newest run that has
frames is meant: its newest epoch first, then, epoch by epoch, the earlier ones. Without a stream, the only one.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from observatory.frames.absent import refuse_index, refuse_pts
from observatory.frames.keys import StoredRecord
from observatory.frames.reader import Reader
from observatory.frames.stamps import TimeBase
from observatory.frames.store import FrameStore
from observatory.frames.targets import Target, lost_at, match, resolve, targets
from observatory.frames.views import Frame, build_frame

__all__ = [
    "Target",
    "TimeBase",
    "find",
    "find_source_index",
    "list_epochs",
    "list_frames",
    "lost_frames",
    "match",
    "resolve",
    "targets",
]

MOST_NEIGHBOURS = 1000
"""Epochs in which the nearest frames are looked for when there is none with a PTS: the newest of the run."""


def find(
    store: FrameStore,
    pts: int,
    *,
    stream: str | None = None,
    time_base: TimeBase | None = None,
    epoch: int | None = None,
) -> Frame:
    """The frame with that PTS, over all its hops.

    Args:
        store: where to look.
        pts: in ticks of `time_base`, as the source's input has it.
        stream: its name; None: the only one.
        time_base: seconds per tick; None: the source stream's.
        epoch: only this one; None: the newest that has such a frame, of the newest run that has frames.

    Raises:
        NoSuchStream: no such stream or epoch, or several streams and none named.
        NoSuchFrame: no frame has that PTS; it names the nearest, and why the frame was lost if it was.
    """
    with store.read() as reader:
        newest = resolve(reader, stream, epoch)
        base = time_base or newest.time_base
        for target in targets(reader, newest, epoch):
            index = match(reader, target, pts, base, rebased=time_base is not None)
            if index is not None:
                return _frame(reader, target, index)
        among = list(islice(targets(reader, newest, epoch), MOST_NEIGHBOURS))
        refuse_pts(reader, among, pts, base, explicit=time_base is not None)


def find_source_index(
    store: FrameStore, source_index: int, *, stream: str | None = None, epoch: int | None = None
) -> Frame:
    """The frame with that source index. Raises as `find` does."""
    with store.read() as reader:
        among = list(targets(reader, resolve(reader, stream, epoch), epoch))
        if 0 <= source_index < 2**64 - 1:
            for target in among:
                if reader.records(target.stream, target.epoch, source_index):
                    return _frame(reader, target, source_index)
        refuse_index(reader, among, source_index)


def list_frames(
    store: FrameStore,
    *,
    stream: str | None = None,
    epoch: int | None = None,
    first: int | None = None,
    last: int | None = None,
    limit: int = 20,
) -> list[Frame]:
    """Frames by source index, ascending: from `first` to `last`, at most `limit`; without `first`, the latest of them.

    Raises:
        NoSuchStream: no such stream or epoch, or several streams and none named.
    """
    with store.read() as reader:
        bounds = (first or 0, 2**64 - 1 if last is None else last)
        newest = first is None
        among: Iterable[Target] = targets(reader, resolve(reader, stream, epoch), epoch)
        groups = (
            (target, records)
            for target in (among if newest else reversed(list(among)))
            for records in reader.frames(target.stream, target.epoch, *bounds, newest_first=newest)
        )
        frames = [_built(reader, target, records) for target, records in islice(groups, limit)]
        return frames[::-1] if newest else frames


def lost_frames(
    store: FrameStore, *, stream: str | None = None, epoch: int | None = None, limit: int = 100
) -> list[dict[str, Any]]:
    """The lost frames of a stream, oldest first: as in `LostFrame`, but with the source's own PTS.

    Raises:
        NoSuchStream: no such stream or epoch, or several streams and none named.
    """
    with store.read() as reader:
        among = list(targets(reader, resolve(reader, stream, epoch), epoch))
        every = (t.own_loss(entry) for t in reversed(among) for entry in reader.lost(t.stream, t.epoch))
        return list(islice(every, limit))


def list_epochs(store: FrameStore, *, stream: str | None = None, limit: int = 20) -> list[dict[str, Any]]:
    """The latest epochs of a stream, of all its runs, oldest first; those without a frame, too.

    `reason` is None where a run began; `frames` (seen on at least one hop) is None when its run never said.

    Raises:
        NoSuchStream: no such stream, or several streams and none named.
    """
    with store.read() as reader:
        stream_id = resolve(reader, stream, None).stream
        found = []
        for number in islice(reader.begun_epochs(stream_id), limit):
            began, counters = reader.epoch(stream_id, number), reader.counters(stream_id, number)
            if began is not None:
                found.append(
                    {
                        "epoch": number,
                        "run_id": reader.run_id(stream_id, number),
                        "reason": began.reason,
                        "began_unix_seconds": began.began_realtime_ns / 1e9,
                        "pts_offset": began.pts_offset,
                        "first_source_index": began.source_index,
                        "frames": None if counters is None else counters.frames_seen,
                    }
                )
        return found[::-1]


def _frame(reader: Reader, target: Target, index: int) -> Frame:
    return _built(reader, target, reader.records(target.stream, target.epoch, index), index)


def _built(reader: Reader, target: Target, records: list[StoredRecord], index: int | None = None) -> Frame:
    at = records[0].source_index if records else index or 0
    return build_frame(
        target.tables,
        target.began,
        records,
        source_index=at,
        lost=list(lost_at(reader, target, at)),
        parents=reader.parents(target.stream, target.epoch, at),
    )
