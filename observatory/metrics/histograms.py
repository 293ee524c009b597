"""Histograms of one family, all rows in one array: a batch of any size is counted by a handful of NumPy calls.

Values are whole nanoseconds, so buckets and sums are exact. Each bucket keeps one exemplar, the newest: Prometheus
refuses one that is older than the last it has, and the newest frame is the one still to be found in the store.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from observatory.metrics.exposition import escape, header, histogram_template
from observatory.metrics.families import NS_PER_SECOND, Family
from observatory.model.kinds import UNKNOWN_I64

MOST_EXEMPLAR_CHARACTERS = 128
"""Of an exemplar's label names and values together (OpenMetrics 1.0)."""

MARK_DTYPE = np.dtype(
    [
        ("value_ns", "<i8"),
        ("unix_ns", "<i8"),
        ("pts", "<i8"),
        ("source_index", "<u8"),
        ("epoch", "<u4"),
        ("time_base_num", "<u4"),
        ("time_base_den", "<u4"),
    ]
)
"""What an exemplar is made of; `unix_ns` 0: none yet. An unknown PTS is UNKNOWN_I64."""

Ints = npt.NDArray[np.int64]
Marks = npt.NDArray[np.void]


class Histograms:
    """The rows of one histogram family. Not thread-safe: whoever owns it locks."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.buckets = len(family.bounds_ns) + 1
        self._bounds = np.array(family.bounds_ns, np.int64)
        self._rows: dict[tuple[str, ...], int] = {}
        self._streams: list[str | None] = []
        self._created: list[float] = []
        self._templates: dict[bool, list[str]] = {False: [], True: []}
        self.counts: Ints = np.zeros((0, self.buckets), np.int64)
        self.sums_ns: Ints = np.zeros(0, np.int64)
        self._marks: Marks = np.zeros((0, self.buckets), MARK_DTYPE)

    def row(self, labels: tuple[str, ...], stream: str | None, created: float) -> int:
        """The number of a row, made when it is new; `stream` goes into its exemplars, `created` is unix seconds."""
        known = self._rows.get(labels)
        if known is not None:
            return known
        self._rows[labels] = number = len(self._created)
        self._streams.append(stream)
        self._created.append(created)
        for openmetrics, templates in self._templates.items():
            templates.append(histogram_template(self.family, labels, openmetrics))
        self.counts = np.concatenate([self.counts, np.zeros((1, self.buckets), np.int64)])
        self.sums_ns = np.append(self.sums_ns, np.int64(0))
        self._marks = np.concatenate([self._marks, np.zeros((1, self.buckets), MARK_DTYPE)])
        return number

    def count(self, rows: Ints, values_ns: Ints) -> Ints:
        """Count values (>= 0) in their rows. Returns the cell of each, for `mark`."""
        cells = rows * self.buckets + np.searchsorted(self._bounds, values_ns, side="left")
        self.counts += np.bincount(cells, minlength=self.counts.size).reshape(self.counts.shape)
        # Exact: a batch's sum in a row stays below 2**53 ns, 104 days.
        self.sums_ns += np.bincount(rows, weights=values_ns, minlength=len(self.sums_ns)).astype(np.int64)
        return cells

    def newest(self, cells: Ints) -> tuple[Ints, Ints]:
        """Which cells were touched, and the last position in `cells` that did so."""
        last = np.full(self.counts.size, -1, np.int64)
        last[cells] = np.arange(len(cells))  # of repeated indices the last stays
        touched = np.flatnonzero(last >= 0)
        return touched, last[touched]

    def mark(self, cells: Ints, marks: Marks) -> None:
        """Set the exemplars of these cells (each at most once), where they are not older than what is there."""
        flat = self._marks.reshape(-1)
        newer = marks["unix_ns"] >= flat["unix_ns"][cells]
        flat[cells[newer]] = marks[newer]

    def totals(self) -> Iterable[tuple[tuple[str, ...], int, float]]:
        """Per row: its labels, how many values, unix time of its beginning."""
        return zip(self._rows, self.counts.sum(axis=1).tolist(), self._created, strict=True)

    def snapshot(self) -> HistogramSnapshot:
        """A copy to render from, without a lock."""
        return HistogramSnapshot(self)


class HistogramSnapshot:
    """The state of a family's rows at one moment."""

    def __init__(self, source: Histograms) -> None:
        self._family = source.family
        self._templates = {openmetrics: list(texts) for openmetrics, texts in source._templates.items()}
        self._created = list(source._created)
        self._streams = list(source._streams)
        self._counts = source.counts.copy()
        self._sums_ns = source.sums_ns.copy()
        self._marks = source._marks.copy()

    def lines(self, openmetrics: bool) -> str:
        """All samples, without the family's header."""
        cumulated = self._counts.cumsum(axis=1).tolist()
        sums = (self._sums_ns / NS_PER_SECOND).tolist()
        templates = self._templates[openmetrics]
        if not openmetrics:
            return "".join(
                template % (*buckets, buckets[-1], total)
                for template, buckets, total in zip(templates, cumulated, sums, strict=True)
            )
        exemplars = self._exemplars()
        width = len(self._counts[0]) if len(self._counts) else 0
        parts = []
        for row, (template, buckets, total) in enumerate(zip(templates, cumulated, sums, strict=True)):
            pairs: list[object] = [""] * (2 * width)
            pairs[::2] = buckets
            for bucket, text in exemplars.get(row, ()):
                pairs[2 * bucket + 1] = text
            parts.append(template % (*pairs, buckets[-1], total, self._created[row]))
        return "".join(parts)

    def _exemplars(self) -> dict[int, list[tuple[int, str]]]:
        """Row -> (bucket, text of its exemplar)."""
        found: dict[int, list[tuple[int, str]]] = {}
        rows, buckets = np.nonzero(self._marks["unix_ns"])
        marks = self._marks[rows, buckets].tolist()
        for row, bucket, mark in zip(rows.tolist(), buckets.tolist(), marks, strict=True):
            found.setdefault(row, []).append((bucket, _exemplar_text(self._streams[row], mark)))
        return found


def render_family(family: Family, snapshots: Iterable[HistogramSnapshot], openmetrics: bool) -> str:
    """A whole histogram family: its header and the rows of all snapshots; nothing when there are none."""
    body = "".join(snapshot.lines(openmetrics) for snapshot in snapshots)
    return header(family, openmetrics) + body if body else ""


def _exemplar_text(stream: str | None, mark: tuple[int, ...]) -> str:
    """` # {labels} value timestamp` of one exemplar.

    A frame without a PTS is named by its source index. A stream name that does not fit is left out: the series has it.
    """
    value_ns, unix_ns, pts, source_index, epoch, num, den = mark
    labels = {"epoch": str(epoch)}
    if pts != UNKNOWN_I64:
        labels |= {"pts": str(pts), "time_base": f"{num}/{den}"}
    else:
        labels["source_index"] = str(source_index)
    if stream is not None and sum(map(len, (*labels, *labels.values(), "stream", stream))) <= MOST_EXEMPLAR_CHARACTERS:
        labels["stream"] = stream
    text = ",".join(f'{name}="{escape(value)}"' for name, value in labels.items())
    return f" # {{{text}}} {value_ns / NS_PER_SECOND!r} {unix_ns / NS_PER_SECOND:.3f}"
