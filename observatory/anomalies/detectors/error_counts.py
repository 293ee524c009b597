"""Error counters that grow too fast: memory, PCI Express, RDMA, ports, NVLink.

A first look says nothing (the count may be of years), nor does a counter that was reset. What counts is growth within a
window; a family of errors is judged together per subject and source.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar

from observatory.anomalies.counters import Counters
from observatory.anomalies.detectors.base import Detector
from observatory.anomalies.error_types import ErrorFamily, family_of
from observatory.anomalies.finding import Finding
from observatory.anomalies.settings import SECOND_NS, WatchSettings
from observatory.anomalies.subjects import Subjects
from observatory.model.incident import Severity
from observatory.model.observation import HardwareEvent, Observation


@dataclass(slots=True)
class _Window:
    """Growth of the counters of one family on one subject as one source sees them."""

    subject: str
    source: str
    family: ErrorFamily
    grown: deque[tuple[int, float]] = field(default_factory=deque)
    total: float = 0.0
    last: Observation | HardwareEvent | None = None
    names: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Limit:
    """When growth within the window is too much. `share` is of the packets in the same time, where they are told."""

    kind: str
    window_seconds: float
    errors: float
    share: float | None = None
    momentary: bool = False
    severity: Severity | None = None


def _limits(settings: WatchSettings) -> dict[ErrorFamily, _Limit]:
    minute = settings.window_seconds / 60
    return {
        ErrorFamily.ECC_UNCORRECTABLE: _Limit("ecc_uncorrectable", settings.window_seconds, 1, momentary=True),
        ErrorFamily.ECC_CORRECTABLE: _Limit(
            "ecc_surge", settings.window_seconds, settings.ecc_corrected_per_minute * minute
        ),
        ErrorFamily.MEMORY_UNCORRECTABLE: _Limit("memory_poison", settings.window_seconds, 1, momentary=True),
        ErrorFamily.MEMORY_CORRECTABLE: _Limit(
            "memory_error_surge", settings.window_seconds, settings.memory_corrected_per_minute * minute
        ),
        ErrorFamily.AER_FATAL: _Limit("aer_fatal", settings.window_seconds, 1, momentary=True),
        ErrorFamily.AER_NONFATAL: _Limit(
            "aer_fatal", settings.window_seconds, 1, momentary=True, severity=Severity.WARNING
        ),
        ErrorFamily.AER_CORRECTABLE: _Limit(
            "aer_storm", settings.window_seconds, settings.aer_corrected_per_minute * minute
        ),
        ErrorFamily.RDMA_LOSS: _Limit(
            "rdma_loss", settings.rdma_window_seconds, settings.rdma_least_errors, settings.rdma_loss_share
        ),
        ErrorFamily.PORT_ERROR: _Limit(
            "port_errors", settings.window_seconds, settings.port_errors_per_minute * minute
        ),
        ErrorFamily.LINK_DOWNED: _Limit("link_flapping", settings.window_seconds, 1, momentary=True),
        ErrorFamily.NVLINK_ERROR: _Limit(
            "nvlink_errors", settings.window_seconds, settings.nvlink_errors_per_minute * minute
        ),
        ErrorFamily.NVLINK_FATAL: _Limit("nvlink_errors", settings.window_seconds, 1, momentary=True),
        ErrorFamily.ROW_REMAP: _Limit("row_remap_pending", settings.window_seconds, 1, momentary=True),
    }


class ErrorCounts(Detector):
    """Judges `hw.errors` and `link.errors`, and counts corrected errors that a log tells one by one."""

    metrics: ClassVar[tuple[str, ...]] = ("hw.errors", "link.errors", "hw.network.packets")
    events: ClassVar[tuple[str, ...]] = ("aer", "edac", "mce", "gpu_ras")

    def __init__(self, settings: WatchSettings, subjects: Subjects) -> None:
        super().__init__(settings, subjects)
        self._counters = Counters(settings.most_errors_per_second)
        self._packets = Counters(most_per_second=1e12)
        self._packet_windows: dict[str, deque[tuple[int, float]]] = {}
        self._windows: dict[tuple[str, str, ErrorFamily], _Window] = {}
        self._limits = _limits(settings)
        self._dirty: set[tuple[str, str, ErrorFamily]] = set()

    def observe(self, subject: str, seen: Observation, value: float, out: list[Finding]) -> None:
        """A counter of errors or packets."""
        attributes = seen.attributes
        if seen.metric == "hw.network.packets":
            direction = attributes.get("network.io.direction")
            grew = self._packets.grew((seen.subject, seen.source, direction), value, seen.at_ns)
            if grew is not None and grew[0] > 0:
                packets = self._packet_windows.setdefault(subject, deque())
                packets.append((seen.at_ns, grew[0]))
                _forget(packets, seen.at_ns - int(self.settings.rdma_window_seconds * SECOND_NS))
            return
        name = attributes.get("error.type", "")
        # By address: several links of a bundle have counters of their own, and one subject.
        grew = self._counters.grew((seen.subject, seen.source, seen.metric, name), value, seen.at_ns)
        if grew is None or grew[0] <= 0:
            return
        self._grow(subject, seen, family_of(seen.metric, name, seen.subject.kind), name, grew[0])

    def hear(self, subject: str, event: HardwareEvent, out: list[Finding]) -> None:
        """Corrected errors in a log, whose number the line may give; the others are judged as events."""
        family = _corrected_in_log(event)
        if family is None or event.attributes.get("report") in ("root_port", "total"):
            return
        count = event.attributes.get("count", "1")
        self._grow(subject, event, family, event.kind, float(count) if count.isdecimal() and len(count) < 10 else 1.0)

    def _grow(
        self, subject: str, seen: Observation | HardwareEvent, family: ErrorFamily, name: str, errors: float
    ) -> None:
        if family is ErrorFamily.OTHER:
            return
        key = (subject, seen.source, family)
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = _Window(subject, seen.source, family)
        window.grown.append((seen.at_ns, errors))
        window.total += errors
        window.last = seen
        window.names[name] = window.names.get(name, 0.0) + errors
        self._dirty.add(key)

    def settle(self, now_ns: int, out: list[Finding]) -> None:
        """Judge the windows in which something happened, until they are empty again."""
        quiet = []
        for key in self._dirty:
            window = self._windows[key]
            self._judge(window, now_ns, out)
            if not window.grown:
                quiet.append(key)
        for key in quiet:
            self._dirty.discard(key)
            del self._windows[key]

    def _judge(self, window: _Window, now_ns: int, out: list[Finding]) -> None:
        limit = self._limits[window.family]
        fresh = window.last
        window.last = None
        since = now_ns - int(limit.window_seconds * SECOND_NS)
        while window.grown and window.grown[0][0] <= since:
            window.total -= window.grown.popleft()[1]
        bad = bool(window.grown) and window.total >= limit.errors
        share = None
        if bad and limit.share is not None and (packets := self._packets_since(window.subject, since)) > 0:
            share = window.total / packets
            bad = share >= limit.share
        if limit.momentary:
            if bad and fresh is not None:
                out.append(self._finding(window, limit, fresh, now_ns, True, share))
            return
        at = fresh if fresh is not None else None
        self._say(out, self._finding(window, limit, at, now_ns, bad, share))

    def _packets_since(self, subject: str, since: int) -> float:
        packets = self._packet_windows.get(subject)
        if not packets:
            return 0.0
        _forget(packets, since)
        return sum(count for _, count in packets)

    def _finding(
        self, window: _Window, limit: _Limit, fresh: Observation | HardwareEvent | None, now_ns: int, bad: bool,
        share: float | None,
    ) -> Finding:  # fmt: skip
        metric = fresh.metric if isinstance(fresh, Observation) else None
        return Finding(
            limit.kind, window.subject, window.source, now_ns if fresh is None else fresh.at_ns, bad,
            _words(window, limit, share) if bad else "", metric, window.total if bad else None, None,
            severity=limit.severity, trust=0.8, momentary=limit.momentary,
        )  # fmt: skip


def _forget(grown: deque[tuple[int, float]], since: int) -> None:
    while grown and grown[0][0] <= since:
        grown.popleft()


def _corrected_in_log(event: HardwareEvent) -> ErrorFamily | None:
    if event.kind == "aer" and event.code == "corrected":
        return ErrorFamily.AER_CORRECTABLE
    if event.kind == "edac" and event.code == "ce":
        return ErrorFamily.MEMORY_CORRECTABLE
    if event.kind == "gpu_ras" and event.code == "ce":
        return ErrorFamily.ECC_CORRECTABLE
    return None


def _words(window: _Window, limit: _Limit, share: float | None) -> str:
    names = ", ".join(sorted(name for name in window.names if name)[:4])
    of_packets = "" if share is None else f", {share:.2%} of the packets"
    errors = "1 error" if window.total == 1 else f"{window.total:.0f} errors"
    return f"{errors} in {limit.window_seconds:.0f} s ({names}){of_packets}"
