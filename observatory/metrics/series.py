"""Everything counted of one pipeline, over all its runs: a pipeline that is submitted again goes on counting."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from observatory.metrics import families as f
from observatory.metrics.families import Family
from observatory.metrics.histograms import Histograms, HistogramSnapshot, Ints

Labels = tuple[str, ...]
Sample = tuple[Labels, float, float | None]
"""Label values, value, unix time of a counter's beginning."""

HISTOGRAMS = (f.FRAME_LATENCY, f.SLOT_TURNAROUND, f.FENCE_WAIT, f.HOP_LATENCY, f.DMA_MAP)
HOP_HISTOGRAMS = (f.SLOT_TURNAROUND, f.FENCE_WAIT, f.HOP_LATENCY)
HOP_COUNTERS = (f.HOP_RECORDS, f.HOP_INCOMPLETE, f.HOP_BYTES)


@dataclass(slots=True)
class Counter:
    """A count that goes up only, also when what it is read from begins anew at 0."""

    created: float
    base: float = 0
    last: float = 0
    source: object = None

    @property
    def value(self) -> float:
        """The count so far."""
        return self.base + self.last

    def add(self, count: float) -> None:
        """Count more."""
        self.base += count

    def follow(self, total: float, source: object = None) -> None:
        """What `source` counts since it began stands at `total`; another source than before began at 0.

        A lower total of the same source is a reading that is not exact (CPU time), not a new beginning.
        """
        if source != self.source:
            self.base, self.last, self.source = self.value, 0, source
        self.last = max(self.last, total)


@dataclass(frozen=True, slots=True)
class PipelineSnapshot:
    """The series of one pipeline at one moment."""

    histograms: dict[str, HistogramSnapshot]
    simple: dict[str, list[Sample]]


class PipelineSeries:
    """The series of one pipeline. `lock` guards all of it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = threading.Lock()
        self.run_id: str | None = None  # the newest run
        self.running: str | None = None  # the same, while it goes on
        self.histograms = {family.name: Histograms(family) for family in HISTOGRAMS}
        self.hop_counts: Ints = np.zeros((len(HOP_COUNTERS), 0), np.int64)
        self._hops: dict[Labels, float] = {}  # labels -> created; in the order of the rows of HOP_HISTOGRAMS
        self._counters: dict[Family, dict[Labels, Counter]] = {}
        self._gauges: dict[Family, dict[Labels, float]] = {}

    def hop_row(self, stream: str, edge: str, now: float) -> int:
        """The row of an edge in all per-hop arrays."""
        labels = (self.name, stream, edge)
        rows = {self.histograms[family.name].row(labels, stream, now) for family in HOP_HISTOGRAMS}
        if labels not in self._hops:
            self._hops[labels] = now
            self.hop_counts = np.concatenate([self.hop_counts, np.zeros((len(HOP_COUNTERS), 1), np.int64)], axis=1)
        (row,) = rows
        return row

    def counter(self, family: Family, labels: Labels, now: float) -> Counter:
        """The counter of these labels; it appears, at 0, when it is first asked for."""
        return self._counters.setdefault(family, {}).setdefault((self.name, *labels), Counter(now))

    def gauges(self, family: Family, values: Mapping[Labels, float | None]) -> None:
        """All values of a gauge now; None: unknown, no series."""
        self._gauges[family] = {(self.name, *labels): v for labels, v in values.items() if v is not None}

    def set_gauge(self, family: Family, labels: Labels, value: float) -> None:
        """One value of a gauge; the others stay."""
        self._gauges.setdefault(family, {})[self.name, *labels] = value

    def begin(self, run_id: str) -> None:
        """Another run: what it counts begins at 0 and goes on top."""
        self.run_id = self.running = run_id

    def end(self, run_id: str) -> None:
        """A run has ended: what was true of the moment is no more; counts stay."""
        if self.running == run_id:
            self.running = None
            self._gauges.clear()

    def snapshot(self) -> PipelineSnapshot:
        """A copy to render from. The caller holds `lock`."""
        simple: dict[str, list[Sample]] = {
            family.name: [(labels, counter.value, counter.created) for labels, counter in counters.items()]
            for family, counters in self._counters.items()
        }
        for family, gauges in self._gauges.items():
            simple[family.name] = [(labels, value, None) for labels, value in gauges.items()]
        for family, counts in zip(HOP_COUNTERS, self.hop_counts.tolist(), strict=True):
            simple[family.name] = [
                (labels, n, created) for (labels, created), n in zip(self._hops.items(), counts, strict=True)
            ]
        simple[f.FRAMES.name] = list(self.histograms[f.FRAME_LATENCY.name].totals())
        histograms = {name: rows.snapshot() for name, rows in self.histograms.items()}
        return PipelineSnapshot(histograms, simple)
