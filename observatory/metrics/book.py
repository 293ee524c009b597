"""The metrics of a platform: every pipeline's series, the platform's own, and the text that `/metrics` serves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import get_args

from prometheus_client import ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics_exposition
from prometheus_client.registry import Collector

from observatory.metrics import families as f
from observatory.metrics.exposition import CLASSIC_TYPE, OPENMETRICS_TYPE, header, simple_lines
from observatory.metrics.families import FAMILIES, Family
from observatory.metrics.histograms import render_family
from observatory.metrics.run import RunMetrics
from observatory.metrics.series import Counter, PipelineSeries, PipelineSnapshot, Sample
from observatory.model.manifest import RunManifest
from observatory.model.status import EdgeStatus, PipelineState, PipelineStatus, Snapshot

KEPT_PIPELINES = 64
"""Pipelines without a run of which the counts are kept; beyond, the one that ended first is forgotten."""

_STATES: tuple[str, ...] = get_args(PipelineState)

Part = Callable[[bool], str]
"""Renders whole families, in OpenMetrics or in the classic format, without an end mark."""


class MetricsBook:
    """All metrics of one platform process. Any thread may call anything.

    Args:
        clock: the wall clock, unix seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._pipelines: dict[str, PipelineSeries] = {}  # the one that ended last comes last
        self._runs: dict[str, RunMetrics] = {}
        self._status: dict[Family, list[Sample]] = {}
        self._web_restarts = Counter(clock())
        self._process = _ProcessMetrics()
        self._parts: list[Part] = []

    def add(self, part: Part) -> None:
        """Show more families, behind the pipelines': those of the hardware, of incidents, of receivers."""
        with self._lock:
            self._parts.append(part)

    def begin(self, manifest: RunManifest) -> RunMetrics:
        """A run begins; its counts go on from those of an earlier run of a pipeline of that name."""
        with self._lock:
            series = self._pipelines.setdefault(manifest.pipeline.name, PipelineSeries(manifest.pipeline.name))
            run = self._runs[manifest.run_id] = RunMetrics(manifest, series, self._clock)
        return run

    def end(self, run_id: str) -> None:
        """A run has ended: its gauges go, its counts stay until too many other pipelines have ended since.

        A second call, or one for a run that never began, does nothing.
        """
        with self._lock:
            run = self._runs.pop(run_id, None)
            if run is None:
                return
            series = run.series
            with series.lock:
                series.end(run_id)
            self._pipelines[series.name] = self._pipelines.pop(series.name)
            ended = [name for name, one in self._pipelines.items() if one.running is None]
            for name in ended[: max(0, len(ended) - KEPT_PIPELINES)]:
                del self._pipelines[name]

    def update(self, snapshot: Snapshot) -> None:
        """Take over what the platform says of itself: states, workers, queues, store. Call it before each `render`."""
        status: dict[Family, list[Sample]] = {}
        # Of pipelines of one name the one submitted last counts: a series must not come twice.
        by_name = {p.name: p for p in sorted(snapshot.pipelines, key=lambda p: p.submitted_unix_seconds)}
        for name, pipeline in by_name.items():
            states = [((name, state), float(pipeline.state == state), None) for state in _STATES]
            status.setdefault(f.PIPELINE_STATE, []).extend(states)
            with self._lock:
                series = self._pipelines.get(name)
            if series is not None:
                with series.lock:
                    self._take_pipeline(series, pipeline)
        store, platform = snapshot.store, snapshot.platform
        for family, value in (
            (f.STORE_DISK, store.disk_bytes),
            (f.STORE_BUDGET, store.budget_bytes),
            (f.STORE_FAILING, int(store.error is not None)),
        ):
            if value is not None:
                status[family] = [((), value, None)]
        status[f.BUILD] = [((platform.version, platform.host), 1, None)]
        with self._lock:
            self._web_restarts.follow(platform.web_restarts)
            status[f.WEB_RESTARTS] = [((), self._web_restarts.value, self._web_restarts.created)]
            self._status = status

    def _take_pipeline(self, series: PipelineSeries, pipeline: PipelineStatus) -> None:
        if pipeline.run_id is None or pipeline.run_id != series.run_id:
            return  # of another run than the one that is counted
        now = self._clock()
        for stream in pipeline.streams:
            series.counter(f.SOURCE_FRAMES, (stream.stream,), now).follow(stream.frames_in, pipeline.run_id)
        workers = [w for w in pipeline.workers if w.shared_by[:1] in ((), (pipeline.name,))]  # shared ones count once
        for worker in workers:
            series.counter(f.WORKER_RESTARTS, (worker.operator,), now).follow(worker.restarts, pipeline.run_id)
            if worker.cpu_seconds is not None:
                series.counter(f.WORKER_CPU, (worker.operator,), now).follow(worker.cpu_seconds, worker.pid)
        for pool in pipeline.pools:
            for outcome, total in pool.allocations.items():
                counter = series.counter(f.POOL_ALLOCATIONS, (pool.operator, pool.port, outcome), now)
                counter.follow(total, (pipeline.run_id, pool.ring))
        if series.running is None:
            return  # what it says of its queues and workers is of the past
        edges: tuple[EdgeStatus, ...] = pipeline.edges
        series.gauges(f.EDGE_QUEUED, {(e.edge,): e.queued for e in edges})
        series.gauges(f.EDGE_HELD, {(e.edge,): e.held for e in edges})
        series.gauges(f.EDGE_SLOTS, {(e.edge,): e.depth for e in edges})
        series.gauges(f.WORKER_MEMORY, {(w.operator,): w.memory_bytes for w in workers})
        series.gauges(f.POOL_BYTES, {(): pipeline.pool_bytes})
        ports = {(p.operator, p.port): p for p in pipeline.pools}
        series.gauges(f.POOL_RESIDENT, {port: pool.resident_bytes for port, pool in ports.items()})
        series.gauges(f.POOL_HIT_RATIO, {port: pool.hit_rate for port, pool in ports.items()})
        wasted: dict[tuple[str, ...], float | None] = {}
        for port, pool in ports.items():
            wasted[*port, "internal"] = pool.internal_fragmentation_bytes
            wasted[*port, "external"] = pool.external_fragmentation_bytes
        series.gauges(f.POOL_FRAGMENTATION, wasted)

    def render(self, openmetrics: bool) -> tuple[bytes, str]:
        """Text and content type: OpenMetrics 1.0 with exemplars, or the classic text format without."""
        with self._lock:
            pipelines, status, more = list(self._pipelines.values()), self._status, list(self._parts)
        snapshots: list[PipelineSnapshot] = []
        for series in pipelines:
            with series.lock:
                snapshots.append(series.snapshot())
        parts: list[str] = []
        for family in FAMILIES:
            if family.kind == "histogram":
                rows = [s.histograms[family.name] for s in snapshots]
                parts.append(render_family(family, rows, openmetrics))
                continue
            samples = [sample for s in snapshots for sample in s.simple.get(family.name, ())]
            samples += status.get(family, ())
            if samples:
                parts.append(header(family, openmetrics) + simple_lines(family, samples, openmetrics))
        parts += [part(openmetrics) for part in more]
        text = "".join(parts).encode()
        return text + self._process.render(openmetrics), OPENMETRICS_TYPE if openmetrics else CLASSIC_TYPE


class _ProcessMetrics(Collector):
    """This process as prometheus-client sees it (`process_*`)."""

    def __init__(self) -> None:
        self._collector = ProcessCollector(registry=None)

    def collect(self) -> Iterable[Metric]:
        """Families of prometheus-client."""
        return self._collector.collect()

    def render(self, openmetrics: bool) -> bytes:
        """The text; in OpenMetrics it ends with the `# EOF` of the whole exposition."""
        if not openmetrics:
            return generate_latest(self)
        text: bytes = openmetrics_exposition.generate_latest(self)  # type: ignore[no-untyped-call]
        return text
