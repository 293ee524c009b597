"""The incident watch: what receivers see goes in, incidents that opened, changed or closed come out.

    watch = IncidentWatch(PlainSubjects())
    for incident in watch.see(batch, now_ns): ...

Time is given in, so that the same observations always make the same incidents. Call `see` with an empty batch now and
then, at least once a second: silence is noticed only while somebody looks, and a longer gap is our own pause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from observatory.anomalies.detectors.base import Detector
from observatory.anomalies.detectors.error_counts import ErrorCounts
from observatory.anomalies.detectors.events import Events
from observatory.anomalies.detectors.nvlink import NvlinkDegraded
from observatory.anomalies.detectors.pcie import PcieDowntrained
from observatory.anomalies.detectors.ports import Ports
from observatory.anomalies.detectors.pressure import MemoryPressure
from observatory.anomalies.detectors.status import Status
from observatory.anomalies.detectors.telemetry import Telemetry
from observatory.anomalies.detectors.throttling import Throttling
from observatory.anomalies.finding import Finding
from observatory.anomalies.guards import is_blank, why_impossible
from observatory.anomalies.ledger import Ledger
from observatory.anomalies.settings import WatchSettings
from observatory.anomalies.subjects import PlainSubjects, Subjects
from observatory.model.incident import Incident
from observatory.model.observation import Address, AddressKind, HardwareEvent, Observation, Seen

_SIGNS_OF_LIFE = ("hw.gpu.", "gpu.", "hw.temperature", "hw.power")
_NVLINK_METRICS = frozenset({"link.width", "link.width.best", "link.speed", "link.speed.best"})
_PORTS = frozenset({AddressKind.PORT, AddressKind.INTERFACE})
"""Their lanes are the cable's: not those of the card's bus, though both are told of the card."""

_NVLINK_KINDS = (":nvlink", ":xgmi", ":c2c")

_JUDGED_BY = frozenset(
    {
        "link.width.best", "link.speed.best", "link.bandwidth.best", "hw.gpu.utilization", "hw.gpu.io", "hw.network.io",
        "link.io", "link.throughput", "link.utilization", "hw.network.packets",
    }
)  # fmt: skip
_JUDGED_LAST = frozenset({"link.width", "gpu.clock"})  # by speed and by the reasons

MOST_SUBJECTS = 100_000

Observe = Callable[[str, Observation, float, list[Finding]], None]
Hear = Callable[[str, HardwareEvent, list[Finding]], None]


class IncidentWatch:
    """Feeds detectors and keeps the incidents that they find.

    Args:
        subjects: which thing of the topology an address means (`observatory.anomalies.subjects`).
        settings: thresholds and times.
        unix_at_zero: Unix time at which the monotonic clock was 0, for the times that people read.
    """

    def __init__(
        self, subjects: Subjects | None = None, settings: WatchSettings | None = None, unix_at_zero: float = 0.0
    ) -> None:
        self.settings = settings or WatchSettings()
        self.subjects = subjects or PlainSubjects()
        self.seen_count = 0
        self.unheard_count = 0  # observations of subjects beyond MOST_SUBJECTS
        self._telemetry = Telemetry(self.settings, self.subjects)
        self._ledger = Ledger(self.settings, self.subjects, unix_at_zero)
        kinds: tuple[type[Detector], ...] = (
            PcieDowntrained, NvlinkDegraded, Ports, ErrorCounts, Events, Throttling, MemoryPressure, Status,
        )  # fmt: skip
        self._detectors: tuple[Detector, ...] = tuple(kind(self.settings, self.subjects) for kind in kinds)
        self._observers: dict[str, tuple[Observe, ...]] = {}
        self._hearers: dict[str, tuple[Hear, ...]] = {}
        self._names: dict[Address, str] = {}
        self._nodes: dict[str, str] = {}
        for detector in self._detectors:
            for metric in detector.metrics:
                self._observers[metric] = (*self._observers.get(metric, ()), detector.observe)
            for kind in detector.events:
                self._hearers[kind] = (*self._hearers.get(kind, ()), detector.hear)
        self._of_nvlink = self._without(PcieDowntrained)
        self._of_pcie = self._without(NvlinkDegraded)

    def _without(self, kind: type[Detector]) -> dict[str, tuple[Observe, ...]]:
        return {
            metric: tuple(
                detector.observe
                for detector in self._detectors
                if metric in detector.metrics and not isinstance(detector, kind)
            )
            for metric in _NVLINK_METRICS
        }

    @property
    def open(self) -> list[Incident]:
        """All incidents that are open, worst first."""
        ledger = self._ledger
        found = [case.incident(ledger.unix_at_zero, self.settings) for case in ledger.open.values()]
        return sorted(found, key=lambda i: (("critical", "warning", "info").index(i.severity), i.kind, i.subject))

    def see(self, batch: Sequence[Seen], now_ns: int) -> list[Incident]:
        """Take in what was seen; every incident that opened, changed or closed, as it is now."""
        findings: list[Finding] = []
        sources: set[tuple[str, str]] = set()
        lasting = self._ledger.lasting
        names = self._names
        for seen in _in_order(batch):
            name = names.get(seen.subject) or self._name(seen)
            if not name:
                continue
            if isinstance(seen, HardwareEvent):
                for hear in self._hearers.get(seen.kind, ()):
                    hear(name, seen, findings)
                continue
            sources.add((seen.subject.node, seen.source))
            value = seen.value
            if value is None or is_blank(value):
                continue
            why = why_impossible(seen.metric, value)
            if why is not None:
                self._telemetry.refused(name, seen, why, findings)
                continue
            for observe in self._observers_of(name, seen):
                observe(name, seen, value, findings)
            if lasting and name in lasting and seen.metric.startswith(_SIGNS_OF_LIFE):
                self._ledger.alive(name, now_ns)
        self.seen_count += len(batch)
        self._telemetry.heard(sources, now_ns)
        for detector in (*self._detectors, self._telemetry):
            detector.settle(now_ns, findings)
        self._ledger.take_all(findings, now_ns)
        return self._ledger.settle(now_ns, self._is_silent)

    def _observers_of(self, name: str, seen: Observation) -> Iterable[Observe]:
        if seen.metric in _NVLINK_METRICS:
            if seen.subject.kind in _PORTS:
                return ()
            is_nvlink = seen.subject.kind is AddressKind.NVLINK or name.endswith(_NVLINK_KINDS)
            return (self._of_nvlink if is_nvlink else self._of_pcie)[seen.metric]
        return self._observers.get(seen.metric, ())

    def _name(self, seen: Seen) -> str:
        """The subject's name; empty where too many were told of: some source makes them up."""
        address = seen.subject
        if len(self._names) >= MOST_SUBJECTS:
            self.unheard_count += 1
            return ""
        name = self._names[address] = self.subjects.name(address, seen.attributes)
        self._nodes[name] = self._nodes[self.subjects.link(name)] = address.node
        self._ledger.know(name)
        return name

    def _is_silent(self, subject: str, source: str) -> bool:
        return self._telemetry.is_silent(self._nodes.get(subject, ""), source)


def _in_order(batch: Sequence[Seen]) -> Iterable[Seen]:
    """What other values are judged by comes first, whatever the order in which a source tells it."""
    first: list[Seen] = []
    then: list[Seen] = []
    last: list[Seen] = []
    for seen in batch:
        if isinstance(seen, HardwareEvent):
            then.append(seen)
        elif seen.metric in _JUDGED_BY:
            first.append(seen)
        elif seen.metric in _JUDGED_LAST:
            last.append(seen)
        else:
            then.append(seen)
    return first + then + last
