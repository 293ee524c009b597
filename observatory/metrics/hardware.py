"""The latest value of every hardware series, for `/metrics` and for whoever exports it elsewhere."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from observatory.metrics.exposition import escape, header
from observatory.metrics.families import Family
from observatory.metrics.hardware_names import family_of, label_name
from observatory.model.hardware_metrics import METRICS, Metric
from observatory.model.observation import Address, AddressKind, Observation, Seen

MAX_SERIES = 200_000
"""More are not taken: a source that invents names must not take the memory of the platform."""

FORGET_PERIODS = 10
"""A series that nobody has seen for so many times `stale_seconds` is forgotten."""

Resolver = Callable[[Address], tuple[str, str] | None]
"""What an address is in the topology: (`device`, `n0/gpu3`); None: not known."""


@dataclass(frozen=True, slots=True)
class Series:
    """One series and its latest value, in the metric's unit. `place` is what the subject is in the topology."""

    metric: Metric
    subject: Address
    place: tuple[str, str] | None
    attributes: tuple[tuple[str, str], ...]
    source: str
    value: float
    at_ns: int  # CLOCK_MONOTONIC


@dataclass(frozen=True, slots=True)
class _Key:
    subject: Address
    attributes: tuple[tuple[str, str], ...]  # sorted
    source: str


@dataclass(slots=True)
class _Rows:
    """The series of one metric: what is scraped stands in columns, as rendering them costs least so."""

    metric: Metric
    family: Family
    keys: list[_Key] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)  # a new line, name and labels
    values: list[float | None] = field(default_factory=list)
    times: list[int] = field(default_factory=list)

    def lines(self, oldest: int) -> list[str]:
        """What to join: texts and values in turns, of those that are known and not older."""
        texts: list[str] = self.texts
        values: list[float | None] = self.values
        if None in values or min(self.times) < oldest:
            shown = [at for at, then in enumerate(self.times) if then >= oldest and values[at] is not None]
            texts, values = [texts[at] for at in shown], [values[at] for at in shown]
        lines = [""] * (2 * len(texts))
        lines[::2] = texts
        lines[1::2] = map(repr, values)
        return lines

    def keep(self, kept: list[int]) -> None:
        """Forget all others."""
        self.keys = [self.keys[at] for at in kept]
        self.texts = [self.texts[at] for at in kept]
        self.values = [self.values[at] for at in kept]
        self.times = [self.times[at] for at in kept]


class LatestValues:
    """The latest value of every series. Any thread may call anything.

    Series of a source that says nothing for `stale_seconds` are not shown: what is not known has no series. Two sources
    that see the same thing are two series.

    Args:
        stale_seconds: after so long without a new value; longer than the slowest receiver's period.
        resolve: what an address is in the topology.
        clock_ns: CLOCK_MONOTONIC.
    """

    def __init__(
        self,
        stale_seconds: float = 60.0,
        resolve: Resolver = lambda _: None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._stale_ns = round(stale_seconds * 1e9)
        self._resolve = resolve
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._rows: dict[str, _Rows] = {}
        self._places: dict[tuple[str, ...], tuple[_Rows, int]] = {}
        self._swept_ns = clock_ns()
        self._refused = 0

    @property
    def refused(self) -> int:
        """Observations that were not taken: of a metric that is none of ours, or of one series too many."""
        return self._refused

    def see(self, batch: Iterable[Seen]) -> None:
        """Take over what a receiver saw; events are none of this class's business."""
        places, isfinite = self._places, math.isfinite
        with self._lock:
            for one in batch:
                if not isinstance(one, Observation):
                    continue
                subject, value = one.subject, one.value
                # As the source says it, in its order: found without sorting what comes again and again.
                said: tuple[str, ...] = (subject.node, subject.kind, subject.key, one.metric, one.source)
                attributes = one.attributes
                if attributes:
                    for pair in attributes.items():
                        said += pair
                place = places.get(said)
                if place is None:
                    place = self._place(said, one)
                    if place is None:
                        self._refused += 1
                        continue
                rows, at = place
                rows.values[at] = value if value is not None and isfinite(value) else None
                rows.times[at] = one.at_ns

    def _place(self, said: tuple[str, ...], one: Observation) -> tuple[_Rows, int] | None:
        metric = METRICS.get(one.metric)
        if metric is None or len(self._places) >= MAX_SERIES:
            return None
        rows = self._rows.get(metric.name)
        if rows is None:
            rows = self._rows[metric.name] = _Rows(metric, family_of(metric))
        key = _Key(one.subject, tuple(sorted(one.attributes.items())), one.source)
        in_order = (*said[:5], *(word for pair in key.attributes for word in pair))
        place = self._places.get(in_order)
        if place is None:
            rows.keys.append(key)
            rows.texts.append(_text(rows.family, key, self._resolve(key.subject)))
            rows.values.append(None)
            rows.times.append(one.at_ns)
            place = self._places[in_order] = (rows, len(rows.keys) - 1)
        self._places[said] = place
        return place

    def resolve_with(self, resolve: Resolver) -> None:
        """The topology is another one now."""
        with self._lock:
            self._resolve = resolve
            for rows in self._rows.values():
                rows.texts = [_text(rows.family, key, resolve(key.subject)) for key in rows.keys]

    def render(self, openmetrics: bool) -> str:
        """All series as text, without an end mark."""
        with self._lock:
            oldest = self._sweep()
            parts = []
            for name in sorted(self._rows):
                rows = self._rows[name]
                lines = rows.lines(oldest)
                if lines:
                    parts.append(header(rows.family, openmetrics).rstrip("\n"))
                    parts += lines
                    parts.append("\n")
        return "".join(parts)

    def series(self) -> list[Series]:
        """All series that have a value now."""
        with self._lock:
            oldest = self._sweep()
            return list(self._each(oldest))

    def _each(self, oldest: int) -> Iterator[Series]:
        resolved: dict[Address, tuple[str, str] | None] = {}
        for rows in self._rows.values():
            for key, value, at in zip(rows.keys, rows.values, rows.times, strict=True):
                if value is None or at < oldest:
                    continue
                if key.subject not in resolved:
                    resolved[key.subject] = self._resolve(key.subject)
                place = resolved[key.subject]
                yield Series(rows.metric, key.subject, place, key.attributes, key.source, value, at)

    def _sweep(self) -> int:
        """Forget what is long gone; the time before which values are stale."""
        now = self._clock_ns()
        if now - self._swept_ns > self._stale_ns:
            self._swept_ns = now
            limit = now - FORGET_PERIODS * self._stale_ns
            if any(at < limit for rows in self._rows.values() for at in rows.times):
                self._forget(limit)
        return now - self._stale_ns

    def _forget(self, limit: int) -> None:
        self._places.clear()  # found again by what comes next
        for name, rows in list(self._rows.items()):
            kept = [at for at, then in enumerate(rows.times) if then >= limit]
            if not kept:
                del self._rows[name]
                continue
            rows.keep(kept)
            for at, key in enumerate(rows.keys):
                subject = key.subject
                words = (word for pair in key.attributes for word in pair)
                self._places[subject.node, subject.kind, subject.key, name, key.source, *words] = rows, at


def _text(family: Family, key: _Key, place: tuple[str, str] | None) -> str:
    subject = key.subject
    labels = {"node": subject.node}
    if subject.kind is not AddressKind.NODE:
        labels[str(subject.kind)] = subject.key
    if place is not None:
        labels[str(place[0])] = place[1]
    labels |= {label_name(name): value for name, value in key.attributes}
    labels["source"] = key.source
    pairs = ",".join([f'{name}="{escape(value)}"' for name, value in labels.items()])
    return f"\n{family.name}{{{pairs}}} "
