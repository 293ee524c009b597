"""Where a look-up looks: one stream, in one epoch or in all epochs of a run, and which frame a PTS leads to there.

A PTS is the source's own, as its input says it: where an epoch added an offset to that (see `stamps`), it is added here
as well. One that an operator changed on the way is looked up as it is on that hop.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from observatory.frames.errors import FrameStoreDamaged, NoFrameStore, NoSuchStream
from observatory.frames.keys import LOST_KEY, ORIGIN_HOP, ORIGIN_SOURCE, frame_key
from observatory.frames.reader import Reader
from observatory.frames.runs import RunEpoch, RunTables
from observatory.frames.stamps import TimeBase, shifted


class Target(NamedTuple):
    """One stream in one epoch."""

    name: str
    stream: int
    epoch: int
    tables: RunTables
    began: RunEpoch

    @property
    def time_base(self) -> TimeBase:
        """The source's."""
        return self.tables.by_id[self.stream].time_base

    def in_job(self, pts: int, base: TimeBase) -> tuple[int, TimeBase]:
        """A time stamp of the source's own as it is in the job."""
        return shifted(pts, base, self.began.pts_offset, self.time_base)

    def own(self, pts: int, base: TimeBase) -> tuple[int, TimeBase]:
        """Inverse of `in_job`."""
        return shifted(pts, base, -self.began.pts_offset, self.time_base)

    def own_loss(self, entry: dict[str, Any]) -> dict[str, Any]:
        """A stored LostFrame with the source's own PTS instead of the job's."""
        base = entry.get("time_base")
        if entry.get("pts") is None or not base or not self.began.pts_offset:
            return entry
        pts, (num, den) = self.own(entry["pts"], (base["num"], base["den"]))
        return {**entry, "pts": pts, "time_base": {"num": num, "den": den}}


def resolve(reader: Reader, stream: str | None, epoch: int | None) -> Target:
    """The stream and epoch that are meant; without an epoch, the newest with frames: `targets` gives the others.

    Raises:
        NoSuchStream: no such stream or epoch, or several streams and none named.
        NoFrameStore: nothing was ever recorded.
    """
    info = reader.stream(stream) if stream is not None else None
    if info is None:
        known = [i.name for i in reader.streams()]
        if not known:
            raise NoFrameStore("no frames were recorded yet", mend="start `observatory run` first")
        if stream is not None:
            raise NoSuchStream(f"there is no stream {stream}", mend=_meant(stream, known))
        if len(known) > 1:
            raise NoSuchStream(
                f"there are {len(known)} streams, and none was named", mend=f"name one with --stream: {_some(known)}"
            )
        info = reader.streams()[0]
    number, stream = info.id, info.name
    newest = reader.newest_epoch(number) if epoch is None else epoch
    if newest is None:
        raise NoSuchStream(f"stream {stream} has no frames yet", mend="wait until its run has passed some")
    tables = reader.run(number, newest)
    if tables is None:
        epochs = reader.epochs(number)
        if newest in epochs:
            raise FrameStoreDamaged(f"the manifest of stream {stream}, epoch {newest}, is missing")
        raise NoSuchStream(f"stream {stream} has no epoch {newest}", mend=f"its epochs with frames: {_some(epochs)}")
    return target_of(reader, stream, number, newest, tables)


def targets(reader: Reader, newest: Target, epoch: int | None) -> Iterator[Target]:
    """Where to look: the one epoch that was asked for, or (None) all of the run that `newest` is of, newest first."""
    yield newest
    if epoch is None:
        for number in islice(reader.epochs_of_run(newest.stream, newest.epoch), 1, None):
            yield target_of(reader, newest.name, newest.stream, number, newest.tables)


def target_of(reader: Reader, name: str, stream: int, epoch: int, tables: RunTables) -> Target:
    """One epoch of a stream whose run is known."""
    return Target(name, stream, epoch, tables, reader.epoch(stream, epoch) or tables.begun_with(stream, epoch))


def match(reader: Reader, target: Target, pts: int, base: TimeBase, *, rebased: bool) -> int | None:
    """The source index of the frame at that point in time (the source's own), or None.

    A PTS that an operator changed on the way is only looked at when `rebased`: first the one written in exactly this
    time base (as copied from an output file), then the source's, then any other.
    """
    stream, epoch = target.stream, target.epoch
    sources = reader.time_bases(stream, epoch, ORIGIN_SOURCE)
    if rebased and base not in sources:
        index = reader.source_index(stream, epoch, ORIGIN_HOP, base, pts)
        if index is not None:
            return index
    index = _index_at(reader, target, ORIGIN_SOURCE, sources, *target.in_job(pts, base))
    if index is None and rebased:
        index = _index_at(reader, target, ORIGIN_HOP, reader.time_bases(stream, epoch, ORIGIN_HOP), pts, base)
    return index


def _index_at(
    reader: Reader, target: Target, origin: int, bases: Sequence[TimeBase], pts: int, base: TimeBase
) -> int | None:
    for other in bases:
        ticks, rest = divmod(pts * base[0] * other[1], base[1] * other[0])
        if not rest:
            index = reader.source_index(target.stream, target.epoch, origin, other, ticks)
            if index is not None:
                return index
    return None


def lost_at(reader: Reader, target: Target, index: int) -> Iterator[dict[str, Any]]:
    """What the table of lost frames says of one source index, with the source's own PTS."""
    prefix = frame_key(target.stream, target.epoch, index)
    cursor = reader.cursor("lost")
    if cursor.set_range(prefix):
        for key, value in cursor:
            if len(key) != LOST_KEY.size or not key.startswith(prefix):
                return
            yield target.own_loss(json.loads(value))


def _some(names: Sequence[Any], most: int = 12) -> str:
    words = [str(name) for name in names]
    return ", ".join(words[:most]) + (f", ... ({len(words)} in all)" if len(words) > most else "")


def _meant(name: str, known: list[str]) -> str:
    import difflib

    inputs = [k for k in known if k.startswith(f"{name}/")]
    if inputs:
        return f"it has several inputs, each a stream: {_some(inputs)}"
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"known: {_some(known)}"
