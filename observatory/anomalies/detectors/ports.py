"""Ports and interfaces that are down or slower than they could be.

A port that was never up and of which nobody expects anything is an unused socket, no fault. A port is expected to be up
where it was up before or where its best rate is told. An interface that is down because its port is down adds nothing.
"""

from __future__ import annotations

from typing import ClassVar

from observatory.anomalies.detectors.base import Detector, state
from observatory.anomalies.finding import Finding
from observatory.anomalies.settings import WatchSettings
from observatory.anomalies.subjects import Subjects
from observatory.model.observation import Address, AddressKind, HardwareEvent, Observation

DOWN, DEGRADED = "link_down", "port_degraded"
_RATES = ("hw.network.bandwidth.limit", "link.bandwidth")


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

    def observe(self, subject: str, seen: Observation, value: float, out: list[Finding]) -> None:
        """A state or a rate of a port."""
        if seen.subject.kind is AddressKind.NVLINK:
            return
        if seen.subject.kind is AddressKind.PCI:
            self._card(subject, seen, value, out)
            return
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
