"""What to say when there is no such frame: the nearest that exist, why it was lost, where else it may be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from observatory.frames.errors import NoSuchFrame
from observatory.frames.keys import ORIGIN_HOP, ORIGIN_SOURCE
from observatory.frames.reader import Reader
from observatory.frames.stamps import TimeBase, later
from observatory.frames.targets import Target, lost_at, match, target_of
from observatory.model.kinds import UNKNOWN_I64


def refuse_pts(reader: Reader, among: Sequence[Target], pts: int, base: TimeBase, *, explicit: bool) -> NoReturn:
    """Raise NoSuchFrame with everything that helps.

    Args:
        reader: where was searched.
        among: the epochs that were, newest first.
        pts: what was asked for, the source's own.
        base: its time base.
        explicit: whether that was named, and not just the source's.
    """
    stream = among[0].stream
    nearest = _neighbours(reader, among, pts, base)
    losses = (target.own_loss(entry) for target in among for entry in reader.lost(stream, target.epoch))
    lost = next((entry for entry in losses if _same_time(entry, pts, base)), None)
    rules: str | None = None
    asked = f"PTS {pts} (time base {base[0]}/{base[1]})"
    if lost is not None:
        message = f"{_place(among)}: the frame with {asked} was lost in {lost['operator']}: {lost['reason']}"
    elif (rules := _thinned_out(reader, among, nearest, pts, base)) is not None:
        message = f"{_place(among)}: no frame that is kept has {asked} ({rules})"
    else:
        message = f"{_place(among)}: no frame has {asked}"
    hints: list[str] = []
    if nearest:
        words = [_nearest_words(n, base, with_epoch=len(among) > 1) for n in nearest]
        hints.append("the nearest: " + " and ".join(words))
    if not explicit and (other := _on_a_later_hop(reader, among, pts)) is not None:
        hints.append(f"a later hop has it in its own time base: --time-base {other[0]}/{other[1]}")
    elsewhere = _in_another_epoch(reader, among, pts, base, rebased=explicit)
    if elsewhere is not None:
        hints.append(f"epoch {elsewhere} has it: --epoch {elsewhere}")
    raise NoSuchFrame(
        message, nearest=tuple(nearest), lost=lost, not_kept=rules is not None, mend="; ".join(hints) or None
    )


def refuse_index(reader: Reader, among: Sequence[Target], index: int) -> NoReturn:
    """Raise NoSuchFrame for a source index that none of these epochs (newest first) has a record of."""
    known = 0 <= index < 2**64 - 1
    losses = (entry for target in among for entry in lost_at(reader, target, index))
    lost = next(losses, None) if known else None
    rules: str | None = None
    if lost is not None:
        words = f"the frame with source index {index} was lost in {lost['operator']}: {lost['reason']}"
    elif known and any(_passed(reader, target, index) for target in among):
        rules = _rules(reader)
        words = f"the frame with source index {index} is not kept any more ({rules})"
    else:
        words = f"no frame has source index {index}"
    bounded = min(max(index, 0), 2**64 - 2)
    below = _first_frame(reader, among, 0, bounded, newest_first=True)
    above = _first_frame(reader, among[::-1], bounded, 2**64 - 2, newest_first=False)
    nearest = [entry for entry in (below, above) if entry is not None]
    mend = "the nearest: " + " and ".join(f"source index {n['source_index']}" for n in nearest) if nearest else None
    raise NoSuchFrame(
        f"{_place(among)}: {words}", nearest=tuple(nearest), lost=lost, not_kept=rules is not None, mend=mend
    )


def _place(among: Sequence[Target]) -> str:
    """Where was searched, in words."""
    name, newest, oldest = among[0].name, among[0].epoch, among[-1].epoch
    return f"stream {name}, " + (f"epoch {newest}" if len(among) == 1 else f"epochs {oldest} to {newest}")


def _passed(reader: Reader, target: Target, index: int) -> bool:
    """Whether retention has decided about this source index, in the epoch that it was in."""
    return target.began.source_index <= index < reader.mark(target.stream, target.epoch).decided


def _thinned_out(
    reader: Reader, among: Sequence[Target], nearest: Sequence[dict[str, Any]], pts: int, base: TimeBase
) -> str | None:
    """The rules of retention, where they may have taken frames between the `nearest` (in time); else None."""
    first, stop = 0, 2**64 - 1
    for entry in nearest:
        num, den = map(int, entry["time_base"].split("/"))
        if later(pts, base, entry["pts"], (num, den)):
            first = entry["source_index"] + 1
        else:
            stop = entry["source_index"]
    missing = range(first, stop)
    for target in among:
        within = range(max(missing.start, target.began.source_index), missing.stop)
        if within and _passed(reader, target, within.start):
            return _rules(reader)
    return None


def _rules(reader: Reader) -> str:
    rules = reader.rules()
    if rules is None:
        return "retention took it"
    seconds, one_in = rules
    age = f"{seconds / 60:g} minutes" if seconds >= 60 else f"{seconds:g} s"
    return f"of those older than {age}, 1 in {one_in} is kept, and the slow and the lost ones"


def _on_a_later_hop(reader: Reader, among: Sequence[Target], pts: int) -> TimeBase | None:
    for target in among:
        for other in reader.time_bases(target.stream, target.epoch, ORIGIN_HOP):
            if reader.source_index(target.stream, target.epoch, ORIGIN_HOP, other, pts) is not None:
                return other
    return None


def _in_another_epoch(
    reader: Reader, among: Sequence[Target], pts: int, base: TimeBase, *, rebased: bool
) -> int | None:
    """The newest epoch that was not searched and has it."""
    searched = {target.epoch for target in among}
    name, stream = among[0].name, among[0].stream
    for number in reversed(reader.epochs(stream)):
        tables = None if number in searched else reader.run(stream, number)
        if tables is not None:
            target = target_of(reader, name, stream, number, tables)
            if match(reader, target, pts, base, rebased=rebased) is not None:
                return number
    return None


class _Neighbour(NamedTuple):
    pts: int  # the source's own
    base: TimeBase
    source_index: int
    epoch: int

    def as_dict(self, asked: TimeBase) -> dict[str, Any]:
        """In the time base that was asked in, where that is possible."""
        ticks, rest = divmod(self.pts * self.base[0] * asked[1], self.base[1] * asked[0])
        pts, base = (self.pts, self.base) if rest else (ticks, asked)
        return {
            "pts": pts,
            "time_base": f"{base[0]}/{base[1]}",
            "source_index": self.source_index,
            "epoch": self.epoch,
        }


def _neighbours(reader: Reader, among: Sequence[Target], pts: int, base: TimeBase) -> list[dict[str, Any]]:
    """The frames just before and just after that point in time, as far as there are any."""
    before: _Neighbour | None = None
    after: _Neighbour | None = None
    for target in among:
        inside, inside_base = target.in_job(pts, base)
        for other in reader.time_bases(target.stream, target.epoch, ORIGIN_SOURCE):
            ticks = -(-inside * inside_base[0] * other[1] // (inside_base[1] * other[0]))  # rounded up
            low, high = reader.around(target.stream, target.epoch, ORIGIN_SOURCE, other, ticks)
            if low:
                one = _Neighbour(*target.own(low[0], other), low[1], target.epoch)
                if before is None or later(one.pts, one.base, before.pts, before.base):
                    before = one
            if high:
                one = _Neighbour(*target.own(high[0], other), high[1], target.epoch)
                if after is None or later(after.pts, after.base, one.pts, one.base):
                    after = one
    return [entry.as_dict(base) for entry in (before, after) if entry is not None]


def _first_frame(
    reader: Reader, among: Sequence[Target], start: int, stop: int, *, newest_first: bool
) -> dict[str, Any] | None:
    """The first frame found between two source indices, as `nearest` has it."""
    for target in among:
        records = next(reader.frames(target.stream, target.epoch, start, stop, newest_first=newest_first), None)
        if not records:
            continue
        source = target.tables.by_id[target.stream].source_operator
        stamped = [r for r in records if r.pts != UNKNOWN_I64 and r.time_base_num and r.time_base_den]
        hops = target.tables.hops
        at_source = [r for r in stamped if r.hop < len(hops) and hops[r.hop].producer == source]
        found: dict[str, Any] = {"pts": None, "time_base": None}
        for record in (at_source or stamped)[:1]:
            pts, base = target.own(record.pts, (record.time_base_num, record.time_base_den))
            found = {"pts": pts, "time_base": f"{base[0]}/{base[1]}"}
        return {**found, "source_index": records[0].source_index, "epoch": target.epoch}
    return None


def _same_time(lost: dict[str, Any], pts: int, base: TimeBase) -> bool:
    other = lost.get("time_base")
    if lost.get("pts") is None or not other:
        return False
    return bool(lost["pts"] * other["num"] * base[1] == pts * base[0] * other["den"])


def _nearest_words(entry: dict[str, Any], base: TimeBase, *, with_epoch: bool) -> str:
    own = "" if entry["time_base"] == f"{base[0]}/{base[1]}" else f" (time base {entry['time_base']})"
    return f"PTS {entry['pts']}{own}" + (f" in epoch {entry['epoch']}" if with_epoch else "")
