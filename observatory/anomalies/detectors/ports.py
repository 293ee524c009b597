"""Ports and interfaces that are down or slower than they could be.

A port that was never up and of which nobody expects anything is an unused socket, no fault. A port is expected to be up
where it was up before or where its best rate is told. An interface that is down because its port is down adds nothing.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import ClassVar

from observatory.anomalies.detectors.base import Detector, state
from observatory.anomalies.finding import Finding
from observatory.anomalies.settings import SECOND_NS, WatchSettings
from observatory.anomalies.subjects import Subjects
from observatory.model.observation import Address, AddressKind, HardwareEvent, Observation

DOWN, DEGRADED = "link_down", "port_degraded"
_GONE_NS = 60 * SECOND_NS  # without a word of it, while its source tells of others
_GONE_LOOKS = 5
_RATES = ("hw.network.bandwidth.limit", "link.bandwidth")


@dataclass(slots=True)
class _Source:
    """When one source of one machine told of ports last, and in how many batches so far."""

    last_ns: int = 0
    looks: int = 0


@dataclass(slots=True)
class _Told:
    """When a source told of a port last, in which of its batches, and how long after the time before."""

    node: str
    at_ns: int
    look: int
    period_ns: int


class Ports(Detector):
    """Judges `hw.network.up`, `link.up` and the rates of ports."""

    metrics: ClassVar[tuple[str, ...]] = ("hw.network.up", "link.up", "link.bandwidth.best", *_RATES)
    events: ClassVar[tuple[str, ...]] = ("interface", "pcie_link")

    def __init__(self, settings: WatchSettings, subjects: Subjects) -> None:
        super().__init__(settings, subjects)
        self._was_up: dict[str, set[Address]] = {}  # one cable may be told of by several ports and interfaces
        self._best: dict[str, float] = {}
        self._told_best: set[str] = set()
        self._most_seen: dict[tuple[str, str], float] = {}
        self._unexpected: dict[tuple[str, str], Observation] = {}
        self._sources: dict[tuple[str, str], _Source] = defaultdict(_Source)
        self._told: dict[str, dict[str, _Told]] = defaultdict(dict)  # by subject and source
        self._swept_ns = 0
        self._batch: list[tuple[str, Observation]] = []

    def observe(self, subject: str, seen: Observation, value: float, out: list[Finding]) -> None:
        """A state or a rate of a port."""
        if seen.subject.kind is AddressKind.NVLINK:
            return
        if seen.subject.kind is AddressKind.PCI:
            self._card(subject, seen, value, out)
            return
        self._batch.append((subject, seen))
        metric = seen.metric
        if metric == "link.bandwidth.best":
            self._best[subject] = value
            if subject not in self._told_best:
                self._told_best.add(subject)
                self._expect(subject, out)
        elif metric in _RATES:
            self._rate(subject, seen, value, out)
        elif value > 0:
            self._was_up.setdefault(subject, set()).add(seen.subject)
            self._unexpected.pop((subject, seen.source), None)
            if self._is_bad(DOWN, subject, seen.source):
                self._say(out, state(DOWN, subject, seen, False))
        elif seen.subject in self._was_up.get(subject, ()) or subject in self._told_best:
            self._down(subject, seen, out)
        else:
            self._unexpected[subject, seen.source] = seen

    def _card(self, subject: str, seen: Observation, value: float, out: list[Finding]) -> None:
        """A PCI function that was there and is gone: a receiver tells of none that it never saw."""
        if seen.metric == "link.up":
            words = "it does not answer on the bus any more" if value == 0 else ""
            self._say(out, state("device_lost", subject, seen, value == 0, words, expected=1.0, trust=0.85))

    def _expect(self, subject: str, out: list[Finding]) -> None:
        """It is told only now that this port should be up."""
        for (name, _), seen in list(self._unexpected.items()):
            if name == subject:
                self._down(subject, seen, out)

    def _down(self, subject: str, seen: Observation, out: list[Finding]) -> None:
        self._say(out, state(DOWN, subject, seen, True, "the link is down", expected=1.0, trust=0.85))
        self._say(out, state(DEGRADED, subject, seen, False))

    def _rate(self, subject: str, seen: Observation, value: float, out: list[Finding]) -> None:
        if value <= 0:  # a port that is down has no rate
            return
        if subject in self._told_best:
            best = self._best[subject]
        else:  # sources round rates differently: each is compared with itself
            key = (subject, seen.source)
            best = self._most_seen[key] = max(value, self._most_seen.get(key, 0.0))
        bad = value < best * self.settings.width_share
        if not bad and not self._is_bad(DEGRADED, subject, seen.source):
            return
        words = f"{value * 8 / 1e9:g} of {best * 8 / 1e9:g} Gb/s" if bad else ""
        self._say(out, state(DEGRADED, subject, seen, bad, words, expected=best, trust=0.8), value)

    def hear(self, subject: str, event: HardwareEvent, out: list[Finding]) -> None:
        """The kernel says that a link went down or came up."""
        if event.code not in ("up", "down"):
            return
        if event.code == "up":
            self._was_up.setdefault(subject, set()).add(event.subject)
        elif subject not in self._was_up and subject not in self._told_best:
            return
        bad = event.code == "down"
        self._say(out, Finding(DOWN, subject, event.source, event.at_ns, bad, event.text if bad else "", trust=0.85))

    def settle(self, now_ns: int, out: list[Finding]) -> None:
        """What is down and no longer told of, by sources that go on telling of others, was taken away."""
        if not self._batch:
            return
        for node, name in {(seen.subject.node, seen.source) for _, seen in self._batch}:
            source = self._sources[node, name]
            source.last_ns, source.looks = now_ns, source.looks + 1
        for subject, seen in self._batch:
            look = self._sources[seen.subject.node, seen.source].looks
            before = self._told[subject].get(seen.source)
            if before is None or before.at_ns < now_ns:
                period_ns = 0 if before is None else now_ns - before.at_ns
                self._told[subject][seen.source] = _Told(seen.subject.node, now_ns, look, period_ns)
        self._batch.clear()
        if not 0 <= now_ns - self._swept_ns < SECOND_NS:
            self._swept_ns = now_ns
            self._forget_gone(now_ns, out)

    def _forget_gone(self, now_ns: int, out: list[Finding]) -> None:
        votes: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for kind, subject, source in self._said:
            if kind in (DOWN, DEGRADED) and subject in self._told:  # else only events tell of it
                votes[subject].append((kind, source))
        for subject in sorted(votes):
            told = self._told[subject]
            gone = {name for name, last in told.items() if _is_gone(last, self._sources[last.node, name])}
            of_all = len(gone) == len(told)
            for kind, source in sorted(votes[subject]):
                if source in gone or (of_all and source not in told):
                    self._say(out, Finding(kind, subject, source, now_ns, False))
            if of_all:
                del self._told[subject]
                self._was_up.pop(subject, None)


def _is_gone(last: _Told, source: _Source) -> bool:
    silent_ns = source.last_ns - last.at_ns
    return silent_ns >= max(_GONE_NS, _GONE_LOOKS * last.period_ns) and source.looks - last.look >= _GONE_LOOKS
