"""Look-ups: a frame by PTS in any time base, by source index, or a list. Needs neither NumPy nor Pydantic.

A PTS leads to a source index, and that to all hops of the frame. PTS are compared as points in time, exactly: 1 at 1/25
is 512 at 1/12800. What was asked in no time base is in the source stream's. Without an epoch, the newest that has
frames is meant; without a stream, the only one there is.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple, NoReturn

from observatory.frames.errors import FrameStoreDamaged, NoFrameStore, NoSuchFrame, NoSuchStream
from observatory.frames.keys import LOST_KEY, ORIGIN_HOP, ORIGIN_SOURCE, StoredRecord, frame_key
from observatory.frames.reader import Reader
from observatory.frames.runs import RunTables
from observatory.frames.store import FrameStore
from observatory.frames.views import Frame, build_frame

TimeBase = tuple[int, int]
"""Seconds per tick: numerator and denominator."""


class Target(NamedTuple):
    """One stream in one epoch."""

    name: str
    stream: int
    epoch: int
    tables: RunTables


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
        pts: in ticks of `time_base`.
        stream: its name; None: the only one.
        time_base: seconds per tick; None: the source stream's.
        epoch: the run; None: the newest that has frames.

    Raises:
        NoSuchStream: no such stream or epoch, or several streams and none named.
        NoSuchFrame: no frame has that PTS; it names the nearest, and why the frame was lost if it was.
    """
    with store.read() as reader:
        target = resolve(reader, stream, epoch)
        base = time_base or target.tables.stream(target.stream, target.epoch).time_base
        index = match(reader, target.stream, target.epoch, pts, base, rebased=time_base is not None)
        if index is None:
            _not_found(reader, target, pts, base, explicit=time_base is not None)
        return _frame(reader, target, index)


def find_source_index(
    store: FrameStore, source_index: int, *, stream: str | None = None, epoch: int | None = None
) -> Frame:
    """The frame with that source index. Raises as `find` does."""
    with store.read() as reader:
        target = resolve(reader, stream, epoch)
        if not 0 <= source_index < 2**64 - 1 or not reader.records(target.stream, target.epoch, source_index):
            _no_index(reader, target, source_index)
        return _frame(reader, target, source_index)


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
        target = resolve(reader, stream, epoch)
        bounds = (first or 0, 2**64 - 1 if last is None else last)
        newest = first is None
        groups = reader.frames(target.stream, target.epoch, *bounds, newest_first=newest)
        frames = [_built(reader, target, records) for records in islice(groups, limit)]
        return frames[::-1] if newest else frames


def lost_frames(
    store: FrameStore, *, stream: str | None = None, epoch: int | None = None, limit: int = 100
) -> list[dict[str, Any]]:
    """The lost frames of a stream, as in `LostFrame`. Raises NoSuchStream."""
    with store.read() as reader:
        target = resolve(reader, stream, epoch)
        return list(islice(reader.lost(target.stream, target.epoch), limit))


def resolve(reader: Reader, stream: str | None, epoch: int | None) -> Target:
    """The stream and epoch that are meant.

    Raises:
        NoSuchStream: see `find`.
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
    return Target(stream, number, newest, tables)


def match(reader: Reader, stream: int, epoch: int, pts: int, base: TimeBase, *, rebased: bool) -> int | None:
    """The source index of the frame at that point in time, or None.

    A PTS that an operator changed on the way is only looked at when `rebased`: first the one written in exactly this
    time base (as copied from an output file), then the source's, then any other.
    """
    sources = reader.time_bases(stream, epoch, ORIGIN_SOURCE)
    if rebased and base not in sources:
        index = reader.source_index(stream, epoch, ORIGIN_HOP, base, pts)
        if index is not None:
            return index
    for origin in (ORIGIN_SOURCE, ORIGIN_HOP) if rebased else (ORIGIN_SOURCE,):
        for other in sources if origin == ORIGIN_SOURCE else reader.time_bases(stream, epoch, origin):
            ticks, rest = divmod(pts * base[0] * other[1], base[1] * other[0])
            if not rest:
                index = reader.source_index(stream, epoch, origin, other, ticks)
                if index is not None:
                    return index
    return None


def _frame(reader: Reader, target: Target, index: int) -> Frame:
    return _built(reader, target, reader.records(target.stream, target.epoch, index), index)


def _built(reader: Reader, target: Target, records: list[StoredRecord], index: int | None = None) -> Frame:
    at = records[0].source_index if records else index or 0
    return build_frame(
        target.tables,
        target.stream,
        target.epoch,
        records,
        source_index=at,
        lost=list(_lost_at(reader, target, at)),
        parents=reader.parents(target.stream, target.epoch, at),
    )


def _lost_at(reader: Reader, target: Target, index: int) -> Iterator[dict[str, Any]]:
    import json

    prefix = frame_key(target.stream, target.epoch, index)
    cursor = reader.cursor("lost")
    if cursor.set_range(prefix):
        for key, value in cursor:
            if len(key) != LOST_KEY.size or not key.startswith(prefix):
                return
            yield json.loads(value)


def _not_found(reader: Reader, target: Target, pts: int, base: TimeBase, *, explicit: bool) -> NoReturn:
    """Raise NoSuchFrame with everything that helps."""
    stream, epoch = target.stream, target.epoch
    nearest = _neighbours(reader, target, pts, base)
    lost = next((entry for entry in reader.lost(stream, epoch) if _same_time(entry, pts, base)), None)
    place = f"stream {target.name}, epoch {epoch}"
    asked = f"PTS {pts} (time base {base[0]}/{base[1]})"
    if lost is not None:
        message = f"{place}: the frame with {asked} was lost in {lost['operator']}: {lost['reason']}"
    else:
        message = f"{place}: no frame has {asked}"
    hints: list[str] = []
    if nearest:
        hints.append("the nearest: " + " and ".join(_nearest_words(n, base) for n in nearest))
    if not explicit:
        for other in reader.time_bases(stream, epoch, ORIGIN_HOP):
            if reader.source_index(stream, epoch, ORIGIN_HOP, other, pts) is not None:
                hints.append(f"a later hop has it in its own time base: --time-base {other[0]}/{other[1]}")
                break
    for earlier in reversed(reader.epochs(stream)):
        if earlier != epoch and match(reader, stream, earlier, pts, base, rebased=explicit) is not None:
            hints.append(f"epoch {earlier} has it: --epoch {earlier}")
            break
    raise NoSuchFrame(message, nearest=tuple(nearest), lost=lost, mend="; ".join(hints) or None)


def _neighbours(reader: Reader, target: Target, pts: int, base: TimeBase) -> list[dict[str, Any]]:
    """The frames just before and just after that point in time, as far as there are any."""
    before: tuple[int, int, TimeBase] | None = None
    after: tuple[int, int, TimeBase] | None = None
    for other in reader.time_bases(target.stream, target.epoch, ORIGIN_SOURCE):
        ticks = -(-pts * base[0] * other[1] // (base[1] * other[0]))  # rounded up
        low, high = reader.around(target.stream, target.epoch, ORIGIN_SOURCE, other, ticks)
        if low and (before is None or _later(low[0], other, before[0], before[2])):
            before = (*low, other)
        if high and (after is None or _later(after[0], after[2], high[0], other)):
            after = (*high, other)
    found = []
    for entry in (before, after):
        if entry is not None:
            ticks, index, other = entry
            asked, rest = divmod(ticks * other[0] * base[1], other[1] * base[0])
            if not rest:  # say it in the time base that was asked in
                ticks, other = asked, base
            found.append({"pts": ticks, "time_base": f"{other[0]}/{other[1]}", "source_index": index})
    return found


def _later(pts: int, base: TimeBase, than: int, than_base: TimeBase) -> bool:
    return pts * base[0] * than_base[1] > than * than_base[0] * base[1]


def _same_time(lost: dict[str, Any], pts: int, base: TimeBase) -> bool:
    other = lost.get("time_base")
    if lost.get("pts") is None or not other:
        return False
    return bool(lost["pts"] * other["num"] * base[1] == pts * base[0] * other["den"])


def _nearest_words(entry: dict[str, Any], base: TimeBase) -> str:
    own = "" if entry["time_base"] == f"{base[0]}/{base[1]}" else f" (time base {entry['time_base']})"
    return f"PTS {entry['pts']}{own}"


def _no_index(reader: Reader, target: Target, index: int) -> NoReturn:
    known = 0 <= index < 2**64 - 1
    lost = next(_lost_at(reader, target, index), None) if known else None
    place = f"stream {target.name}, epoch {target.epoch}"
    if lost is not None:
        message = f"{place}: the frame with source index {index} was lost in {lost['operator']}: {lost['reason']}"
    else:
        message = f"{place}: no frame has source index {index}"
    nearest = []
    bounded = min(max(index, 0), 2**64 - 2)
    for newest_first, start, stop in ((True, 0, bounded), (False, bounded, 2**64 - 2)):
        records = next(reader.frames(target.stream, target.epoch, start, stop, newest_first=newest_first), None)
        if records:
            frame = _built(reader, target, records)
            nearest.append({"pts": frame.pts, "time_base": frame.time_base, "source_index": frame.source_index})
    mend = "the nearest: " + " and ".join(f"source index {n['source_index']}" for n in nearest) if nearest else None
    raise NoSuchFrame(message, nearest=tuple(nearest), lost=lost, mend=mend)


def _some(names: Any, most: int = 12) -> str:
    words = [str(name) for name in names]
    return ", ".join(words[:most]) + (f", ... ({len(words)} in all)" if len(words) > most else "")


def _meant(name: str, known: list[str]) -> str:
    import difflib

    inputs = [k for k in known if k.startswith(f"{name}/")]
    if inputs:
        return f"it has several inputs, each a stream: {_some(inputs)}"
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"known: {_some(known)}"
