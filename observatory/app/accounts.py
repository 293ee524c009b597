"""What the workers of a job said: losses, drops, outputs, warnings. Bounded, so that a job may go on for ever.

Every lost or dropped frame is handed on for the frame store; only the first of each stream are kept for the summary.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dataplane.pool import PoolUse
from observatory.app.summary import Loss, Output
from observatory.app.typed import TypedPipeline
from observatory.model.manifest import EpochEntry, RunManifest, StreamEntry
from observatory.model.record import LostFrame

MOST_LISTED = 10_000  # lost frames of a stream in the summary; the frame store has them all
MOST_WARNINGS = 200
_INSTEAD = {"none": "; 4 KiB pages are used", "thp": "; transparent ones are used", "hugetlb": ""}


@dataclass(slots=True)
class StreamAccount:
    """One source's losses so far. `listed` are the first of them, with the source's own PTS.

    `pts_offset`: what the source adds to its own time stamps in the epoch that it is in.
    """

    waiting: bool = False  # its input has gone away
    epochs: int = 0  # begun while the run went on
    pts_offset: int = 0
    lost: int = 0
    dropped: int = 0
    listed: list[Loss] = field(default_factory=list)


class Accounts:
    """The books of one job. Used by the thread that polls its supervisor."""

    def __init__(self, typed: TypedPipeline, on_warning: Callable[[str], None]) -> None:
        self._typed = typed
        self._on_warning = on_warning
        self.streams: dict[str, StreamAccount] = {source: StreamAccount() for source in typed.probes}
        self.outputs: list[tuple[str, Output]] = []
        self.written: dict[str, int] = {}  # edge into a sink -> frames
        self.warnings: list[str] = []
        self.pools: dict[tuple[str, str], PoolUse] = {}  # operator, port -> as its worker last said
        self._pool_notes: set[str] = set()
        self._fresh: list[tuple[str, LostFrame]] = []  # source, frame: not handed on yet

    def lost(self, operator: str, message: dict[str, Any], manifest: RunManifest) -> str:
        """A worker said that a frame will not come; the name of its stream."""
        source = self._typed.operators[operator].sources[0]
        entry = next(s for s in manifest.streams if s.source_operator == source)
        frame = LostFrame(
            source_index=message["source_index"],
            pts=message["pts"],
            time_base=entry.time_base,
            operator=operator,
            reason=message["reason"],
        )
        self.streams[source].lost += 1
        self._list(source, frame)
        return entry.name

    def epoch(self, source: str, entry: EpochEntry) -> None:
        """A source began another epoch."""
        account = self.streams[source]
        account.epochs += 1
        account.pts_offset = entry.pts_offset

    def dropped(self, edge: str, source_indices: list[int]) -> None:
        """An edge's policy dropped frames."""
        source = self.source_of(edge)
        self.streams[source].dropped += len(source_indices)
        self._list_on(edge, source_indices, f"dropped on {edge}: its consumer was slower (drop_oldest)")

    def perished(self, edge: str, source_indices: list[int]) -> None:
        """What the consumer of an edge held died with it."""
        self.streams[self.source_of(edge)].lost += len(source_indices)
        self._list_on(edge, source_indices, f"held on {edge} by its consumer when that died (drop_oldest)")

    def _list_on(self, edge: str, source_indices: list[int], reason: str) -> None:
        producer, _, _ = edge.partition("->")
        source = self.source_of(edge)
        for index in source_indices:
            frame = LostFrame(source_index=index, pts=None, time_base=None, operator=producer, reason=reason)
            self._list(source, frame)

    def _list(self, source: str, frame: LostFrame) -> None:
        self._fresh.append((source, frame))
        listed = self.streams[source].listed
        if len(listed) < MOST_LISTED:
            pts = None if frame.pts is None else frame.pts - self.streams[source].pts_offset
            listed.append(Loss(pts=pts, source_index=frame.source_index, operator=frame.operator, reason=frame.reason))

    def take_lost(self, manifest: RunManifest) -> list[tuple[StreamEntry, LostFrame]]:
        """Lost and dropped frames since the last call, with their streams."""
        streams = {s.source_operator: s for s in manifest.streams}
        fresh, self._fresh = self._fresh, []
        return [(streams[source], frame) for source, frame in fresh]

    def output(self, operator: str, message: dict[str, Any]) -> None:
        """A sink finished a file; one that died right after saying so is succeeded by one that says it again."""
        if any((by, made.path) == (operator, message["path"]) for by, made in self.outputs):
            return
        self.outputs.append((operator, Output(path=message["path"], frames=message["frames"])))
        for edge, frames in message["by_edge"].items():
            self.written[edge] = self.written.get(edge, 0) + frames

    def pool(self, operator: str, message: dict[str, Any]) -> None:
        """A worker said how a pool of its is used. What it could not have as asked for is said once for all workers."""
        self.pools[operator, message["port"]] = PoolUse.model_validate(message["use"])
        for pages, note in message["notes"]:
            kind = re.sub(r"\(.*?\)|\d+", "", note)
            if kind not in self._pool_notes:
                self._pool_notes.add(kind)
                instead = "" if "2 MB" not in note else _INSTEAD[pages]
                self.warn(f"frame pools: {note}{instead}")

    def warn(self, words: str) -> None:
        """Keep a warning and pass it on."""
        if len(self.warnings) < MOST_WARNINGS:
            self.warnings.append(words)
        self._on_warning(words)

    def warn_of_losses(self, events_lost: int) -> None:
        """At the end: what did not come through."""
        if lost := sum(account.lost for account in self.streams.values()):
            first = next(loss for a in self.streams.values() for loss in a.listed if a.lost)
            self.warn(f"{lost} frames lost; the first: {first.operator}: {first.reason}")
        if dropped := sum(account.dropped for account in self.streams.values()):
            self.warn(f"{dropped} frames dropped by the policy drop_oldest")
        if events_lost:
            self.warn(f"{events_lost} events lost: some frame records are incomplete")

    @property
    def all_lost(self) -> int:
        """Frames lost and dropped, of all streams."""
        return sum(account.lost + account.dropped for account in self.streams.values())

    def frames_written(self, source: str) -> int:
        """Frames of a source in finished outputs: of the one that has the fewest."""
        return min((n for edge, n in self.written.items() if self.source_of(edge) == source), default=0)

    def source_of(self, edge: str) -> str:
        """The source operator that an edge's frames come from."""
        producer, _, _ = edge.partition("->")
        return self._typed.operators[producer].sources[0]
