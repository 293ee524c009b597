"""What a look-up answers: one frame's life with its names resolved. Plain classes, so that they load in no time.

`Frame.view()` gives the same as the shared `FrameView` model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from observatory.frames.keys import StoredRecord
from observatory.frames.runs import RunEpoch, RunHop, RunTables
from observatory.frames.stamps import TimeBase, shifted
from observatory.model.kinds import UNKNOWN_I64, UNKNOWN_U32, EventKind, RecordFlag

if TYPE_CHECKING:
    from observatory.model.record import FrameView


@dataclass(frozen=True, slots=True)
class Hop:
    """One record with its names. Times are CLOCK_MONOTONIC nanoseconds; what is not known is None.

    `pts` is that of the job: within an epoch, `Frame.pts_offset` later than the source's own.
    """

    edge: str
    producer_device: str | None
    consumer_device: str | None
    producer_real_device: str | None
    consumer_real_device: str | None
    bytes: int | None
    slot: int | None
    pts: int | None
    time_base: str | None
    events: dict[str, int | None]
    incomplete: bool
    dropped: bool
    parents: tuple[int, ...]
    link: dict[str, Any] | None = None  # as RunHop has it

    def as_dict(self) -> dict[str, Any]:
        """As it appears in `--json` output."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame over all its hops, in the order of the DAG.

    `end_to_end_seconds` is from the first launch to the last release; None while a hop lacks one of them. `missing` are
    edges that the run has and this frame left no record on: it is still on its way, or a filter left it out.
    `began_unix_seconds` is its first event on the wall clock, by the reading of both clocks with which its epoch began.
    `pts` is the source's own; in the job it was `pts_offset` ticks of the stream's time base later.
    """

    stream: str
    epoch: int
    source_index: int
    pts: int | None
    time_base: str | None
    end_to_end_seconds: float | None
    began_unix_seconds: float | None
    hops: tuple[Hop, ...]
    missing: tuple[str, ...]
    lost: tuple[dict[str, Any], ...]
    pts_offset: int = 0
    epoch_reason: str | None = None  # None: the epoch began with the run

    @property
    def state(self) -> str:
        """`complete`, `dropped` (by an edge's policy), `lost`, `incomplete` (an event is missing) or `partial`."""
        if any(h.dropped for h in self.hops):
            return "dropped"
        if self.lost:
            return "lost"
        if any(h.incomplete for h in self.hops):
            return "incomplete"
        return "partial" if self.missing or not self.hops else "complete"

    def as_dict(self) -> dict[str, Any]:
        """As it appears in `--json` output of `frames find`."""
        return {**self._head(), "missing": list(self.missing), "hops": [hop.as_dict() for hop in self.hops]}

    def as_row(self) -> dict[str, Any]:
        """As it appears in lists: the same without the hops, but with their number."""
        return {**self._head(), "missing": list(self.missing), "hop_count": len(self.hops)}

    def _head(self) -> dict[str, Any]:
        return {
            "stream": self.stream,
            "epoch": self.epoch,
            "epoch_reason": self.epoch_reason,
            "source_index": self.source_index,
            "pts": self.pts,
            "pts_offset": self.pts_offset,
            "time_base": self.time_base,
            "end_to_end_seconds": self.end_to_end_seconds,
            "began_unix_seconds": self.began_unix_seconds,
            "state": self.state,
            "lost": list(self.lost),
        }

    def view(self) -> FrameView:
        """The same as the shared model (which takes a while to import)."""
        from observatory.model.record import FrameView, HopView

        names = HopView.model_fields
        hops = tuple(HopView(**{n: v for n, v in hop.as_dict().items() if n in names}) for hop in self.hops)
        return FrameView(
            stream=self.stream,
            epoch=self.epoch,
            source_index=self.source_index,
            pts=self.pts,
            time_base=self.time_base,
            end_to_end_seconds=self.end_to_end_seconds,
            hops=hops,
        )


def build_frame(
    tables: RunTables,
    began: RunEpoch,
    records: Sequence[StoredRecord],
    *,
    source_index: int | None = None,
    lost: Sequence[dict[str, Any]] = (),
    parents: dict[str, tuple[int, ...]] | None = None,
) -> Frame:
    """The frame that these records (all of one frame, possibly none) are about; `began` is their stream and epoch."""
    entry = tables.by_id[began.stream]
    by_hop = {record.hop: record for record in records}
    expected = tables.hops_of(began.stream)
    known = {hop.index for hop in expected}
    hops = [(hop, by_hop[hop.index]) for hop in expected if hop.index in by_hop]
    # Records of a hop that carries another stream: they are shown, after the stream's own.
    hops += [(tables.hops[i], by_hop[i]) for i in sorted(by_hop) if i not in known and i < len(tables.hops)]
    at_source = [r for hop, r in hops if hop.producer == entry.source_operator and r.pts != UNKNOWN_I64]
    with_pts = at_source or [r for _, r in hops if r.pts != UNKNOWN_I64]
    named = with_pts[0] if with_pts else None
    pts, base = (None, None) if named is None else _own_stamp(named, began.pts_offset, entry.time_base)
    first = min((ns for r in records for ns in r.times_ns if ns != UNKNOWN_I64), default=None)
    return Frame(
        stream=entry.name,
        epoch=began.epoch,
        source_index=records[0].source_index if records else source_index or 0,
        pts=pts,
        time_base=base,
        end_to_end_seconds=end_to_end(records),
        began_unix_seconds=None if first is None else (first + began.realtime_offset_ns) / 1e9,
        hops=tuple(
            _hop(tables, hop, record, (parents or {}).get(hop.edge, (record.source_index,))) for hop, record in hops
        ),
        missing=tuple(hop.edge for hop in expected if hop.index not in by_hop),
        lost=tuple(lost),
        pts_offset=began.pts_offset,
        epoch_reason=began.reason,
    )


def end_to_end(records: Sequence[StoredRecord]) -> float | None:
    """Seconds from the first launch to the last release over these records, without those of dropped frames.

    None when a hop's launch or release is not known: the last release could be that one.
    """
    first = last = None
    for record in records:
        if record.flags & RecordFlag.DROPPED:
            continue
        launch = record.time(EventKind.PRODUCER_KERNEL_LAUNCH)
        release = record.time(EventKind.SLOT_RELEASE)
        if release is None or launch is None:
            return None
        first = launch if first is None else min(first, launch)
        last = release if last is None else max(last, release)
    return None if first is None or last is None else (last - first) / 1e9


def _hop(tables: RunTables, hop: RunHop, record: StoredRecord, parents: tuple[int, ...]) -> Hop:
    return Hop(
        edge=hop.edge,
        producer_device=tables.device(record.producer_device),
        consumer_device=tables.device(record.consumer_device),
        producer_real_device=tables.device(record.producer_real_device),
        consumer_real_device=tables.device(record.consumer_real_device),
        bytes=None if record.bytes == UNKNOWN_U32 else record.bytes,
        slot=None if record.slot == UNKNOWN_U32 else record.slot,
        pts=None if record.pts == UNKNOWN_I64 else record.pts,
        time_base=_time_base(record),
        events={kind.name: record.time(kind) for kind in EventKind},
        incomplete=bool(record.flags & RecordFlag.INCOMPLETE),
        dropped=bool(record.flags & RecordFlag.DROPPED),
        parents=parents,
        link=hop.link,
    )


def _own_stamp(record: StoredRecord, offset: int, offset_base: TimeBase) -> tuple[int, str | None]:
    """A record's PTS as the source's input has it, with its time base."""
    if not record.time_base_num or not record.time_base_den:
        return record.pts, None
    pts, base = shifted(record.pts, (record.time_base_num, record.time_base_den), -offset, offset_base)
    return pts, f"{base[0]}/{base[1]}"


def _time_base(record: StoredRecord) -> str | None:
    if not record.time_base_num or not record.time_base_den:
        return None
    return f"{record.time_base_num}/{record.time_base_den}"
