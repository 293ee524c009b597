"""What the pages show live: the platform's snapshot once a second, and the last minutes of every stream."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from dashboards.api import Api
from dashboards.errors import DashboardError
from observatory.model.status import PipelineStatus, Snapshot, StreamStatus

PERIOD_SECONDS = 1.0
KEEP_SECONDS = 300.0

Key = tuple[str, str, str]
"""Pipeline, run and stream: a pipeline that was submitted again begins a new series."""


@dataclass(slots=True)
class Series:
    """One stream over the last minutes: samples of equal length, unknown values None. Times are Unix seconds."""

    times: deque[float] = field(default_factory=deque)
    frames_per_second: deque[float | None] = field(default_factory=deque)
    p50_seconds: deque[float | None] = field(default_factory=deque)
    p99_seconds: deque[float | None] = field(default_factory=deque)

    def add(self, now: float, stream: StreamStatus, live: bool) -> None:
        """Append a sample and forget those that are too old. A stream that runs no more has a gap, not a zero."""
        self.times.append(now)
        self.frames_per_second.append(stream.frames_per_second if live else None)
        self.p50_seconds.append(stream.recent_p50_seconds if live else None)
        self.p99_seconds.append(stream.recent_p99_seconds if live else None)
        while self.times[0] < now - KEEP_SECONDS:
            for column in (self.times, self.frames_per_second, self.p50_seconds, self.p99_seconds):
                column.popleft()


@dataclass(frozen=True, slots=True)
class Moment:
    """What was known at one tick. After a failure `snapshot` is the last that was had, `error` says what is wrong."""

    number: int
    unix_seconds: float
    snapshot: Snapshot | None
    error: DashboardError | None


class Feed:
    """Asks once a second for everybody, so that ten browsers cost the platform no more than one."""

    def __init__(self, api: Api, period_seconds: float = PERIOD_SECONDS) -> None:
        self._api = api
        self._period_seconds = period_seconds
        self._series: dict[Key, Series] = {}
        self._changed = asyncio.Event()
        self.moment = Moment(0, time.time(), None, None)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.tick()
            await asyncio.sleep(self._period_seconds)

    async def tick(self) -> Moment:
        """Ask once, and wake everybody who waits."""
        error = None
        snapshot = self.moment.snapshot
        try:
            snapshot = await self._api.snapshot()
        except DashboardError as refusal:
            error = refusal
        if snapshot is not None and error is None:
            self._remember(snapshot)
        self.moment = Moment(self.moment.number + 1, time.time(), snapshot, error)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        return self.moment

    async def newest(self) -> Moment:
        """What is known now; asks when nobody has yet."""
        return self.moment if self.moment.number else await self.tick()

    async def after(self, number: int) -> Moment:
        """The newest moment later than that one. Who comes late misses those between."""
        while self.moment.number <= number:
            await self._changed.wait()
        return self.moment

    def series(self, pipeline: PipelineStatus) -> dict[str, Series]:
        """By stream, in the order of the snapshot."""
        found = {stream.stream: self._series.get(_key(pipeline, stream.stream)) for stream in pipeline.streams}
        return {name: series for name, series in found.items() if series is not None}

    def _remember(self, snapshot: Snapshot) -> None:
        present = set(_keys(snapshot.pipelines))
        for gone in self._series.keys() - present:
            del self._series[gone]
        for pipeline in snapshot.pipelines:
            live = pipeline.state in ("running", "draining")
            for stream in pipeline.streams:
                series = self._series.setdefault(_key(pipeline, stream.stream), Series())
                series.add(snapshot.unix_seconds, stream, live)


def _keys(pipelines: Iterable[PipelineStatus]) -> Iterable[Key]:
    return (_key(pipeline, stream.stream) for pipeline in pipelines for stream in pipeline.streams)


def _key(pipeline: PipelineStatus, stream: str) -> Key:
    return (pipeline.name, pipeline.run_id or "", stream)
