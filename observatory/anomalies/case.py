"""One incident while it lives: who says what, since when, how often it came back."""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass, field

from observatory.anomalies.evidence import EvidenceLog
from observatory.anomalies.finding import Finding
from observatory.anomalies.kinds import EVENT_HOLD_SECONDS, IncidentKind, kind_named
from observatory.anomalies.settings import SECOND_NS, WatchSettings
from observatory.model.incident import Evidence, Incident, IncidentState, Severity

_RANK = {Severity.INFO: 0, Severity.WARNING: 1, Severity.CRITICAL: 2}
_MOST_OF_ONE_SOURCE = 0.95
_MOST = 0.99
_SAME_NS = SECOND_NS  # what two sources tell within this time happened once
_TOLD_WELL_NS = 5 * SECOND_NS  # what is closed sooner is told once: closed
_HELD = 0.5  # of the confidence where all sources that said so are silent

LASTING = frozenset({"gpu_lost", "device_lost"})
"""Kinds that silence does not end: only the hardware's own signs of life do."""


@dataclass(slots=True)
class Case:
    """The state of one incident. `votes` are the states that sources assert now, by kind and source."""

    subject: str
    opened_ns: int
    kind: IncidentKind
    severity: Severity
    words: str = ""
    mend: str = ""
    votes: dict[tuple[str, str], Finding] = field(default_factory=dict)
    trusts: dict[str, float] = field(default_factory=dict)
    evidence: EvidenceLog = field(default_factory=EvidenceLog)
    absorbed: dict[tuple[str, str, str], Finding] = field(default_factory=dict)
    affected: set[str] = field(default_factory=set)
    event_ns: int | None = None
    quiet_ns: int | None = None  # since when no source asserts a state
    clear_ns: int | None = None  # since when it is over, but for its hold
    closed_ns: int | None = None
    flap_ns: deque[int] = field(default_factory=deque)
    flaps: int = 0
    blamed: bool = False
    held: bool = False
    merged_into: str | None = None

    def assert_bad(self, finding: Finding, now_ns: int, settings: WatchSettings) -> bool:
        """Take a bad verdict in. Whether the incident looks different now."""
        changed = finding.source not in self.trusts or not self.evidence
        came_back = self._came_back(finding, now_ns)
        if finding.momentary:
            self.event_ns = now_ns
            changed |= self._worsen(finding)
        else:
            changed |= (finding.kind, finding.source) not in self.votes
            self.votes[finding.kind, finding.source] = finding
            self.quiet_ns = None
            changed |= self._weigh()
        if self.closed_ns is not None and finding.momentary:
            self.quiet_ns = None  # that was when it was over the time before
        if came_back:
            self._flap(now_ns, settings)
            changed = True
        self.clear_ns = self.closed_ns = None
        before = self.trusts.get(finding.source, 0.0)
        self.trusts[finding.source] = max(before, finding.trust) if finding.momentary else finding.trust
        changed |= self.trusts[finding.source] != before
        changed |= not self.affected.issuperset(finding.affected)
        self.affected.update(finding.affected)
        is_new = self._keep(finding, settings)
        return changed or (is_new and _is_event(finding))

    def _came_back(self, finding: Finding, now_ns: int) -> bool:
        """Whether it was over, or happens once more; what is told twice of one moment happened once."""
        if self.closed_ns is not None:
            return True
        if self.votes:
            return False
        if not finding.momentary and self.quiet_ns is not None:
            return self.quiet_ns < now_ns
        return self.event_ns is not None and now_ns - self.event_ns > _SAME_NS

    def _worsen(self, finding: Finding) -> bool:
        """What happened once is not undone: it can only make it worse."""
        severity = finding.severity or kind_named(finding.kind).severity
        if self.words and _RANK[severity] < _RANK[self.severity]:
            return False
        if self.words and self.severity is severity and _is_event(finding):
            return False  # what comes after an error that is as bad mostly follows from it
        return self._show(finding)

    def _weigh(self) -> bool:
        """The incident is what is worst of all that is asserted now."""
        worst = max(
            self.votes.values(), key=lambda f: (_RANK[f.severity or kind_named(f.kind).severity], f.at_ns, f.source)
        )
        return self._worsen(worst) if self.event_ns is not None else self._show(worst)

    def _show(self, finding: Finding) -> bool:
        before = (self.kind.name, self.severity, self.words)
        self.kind = kind_named(finding.kind)
        self.severity = finding.severity or self.kind.severity
        self.words, self.mend = finding.words or self.kind.meaning, finding.mend or self.kind.mend
        return before != (self.kind.name, self.severity, self.words)

    @property
    def is_bad(self) -> bool:
        """Whether somebody says now that it is."""
        return bool(self.votes or self.absorbed)

    @property
    def well_ns(self) -> int | None:
        """Since when it is known to be well; None: it is bad, or an event told of it, which tells no end."""
        if self.is_bad or self.closed_ns is not None:
            return None
        if self.event_ns is None:
            return self.quiet_ns if self.clear_ns is None else self.clear_ns
        if self.quiet_ns is None or self.kind.name in LASTING:
            return None
        return max(self.quiet_ns, self.event_ns)

    @property
    def last_bad_ns(self) -> int:
        """When it was seen to be bad last, where it is not so now."""
        return max(ns for ns in (self.opened_ns, self.event_ns, self.well_ns) if ns is not None)

    @property
    def asserted_until_ns(self) -> int | None:
        """Since when nobody asserts it itself, whatever it absorbed; None while somebody does."""
        if self.votes or (self.event_ns is not None and self.kind.name in LASTING):
            return None
        return max(ns for ns in (self.opened_ns, self.event_ns, self.quiet_ns, self.clear_ns) if ns is not None)

    def assert_good(self, finding: Finding, now_ns: int, settings: WatchSettings) -> bool:
        """A source takes its verdict back. Whether the incident looks different now."""
        if self.votes.pop((finding.kind, finding.source), None) is None:
            return False
        if self.votes:
            return self._weigh()
        self.quiet_ns = now_ns
        if self.event_ns is None and not self.absorbed and self.clear_ns is None:
            self.clear_ns = now_ns
        return self.is_worth_telling_well(settings)

    def is_worth_telling_well(self, settings: WatchSettings) -> bool:
        """Whether it is well, and will be held so long that people wonder."""
        return self.well_ns is not None and self.hold_ns(settings) >= _TOLD_WELL_NS

    def _flap(self, now_ns: int, settings: WatchSettings) -> None:
        self.flaps += 1
        self.flap_ns.append(now_ns)
        since = now_ns - int(settings.flap_window_seconds * SECOND_NS)
        while self.flap_ns and self.flap_ns[0] < since:
            self.flap_ns.popleft()

    def _keep(self, finding: Finding, settings: WatchSettings) -> bool:
        evidence = Evidence(
            at_ns=finding.at_ns, source=finding.source, subject=finding.subject,
            words=finding.words or kind_named(finding.kind).meaning, metric=finding.metric,
            value=finding.value, expected=finding.expected,
        )  # fmt: skip
        return self.evidence.keep(evidence, settings.evidence_kept)

    def corroborate(self, finding: Finding, settings: WatchSettings) -> None:
        """What is seen besides of the same trouble: it speaks for the incident, and does not prolong it."""
        self.trusts[finding.source] = max(self.trusts.get(finding.source, 0.0), finding.trust)
        self._keep(finding, settings)

    def corroborate_by(self, other: Case, settings: WatchSettings) -> None:
        """All that speaks for another incident speaks for this one."""
        for source, trust in other.trusts.items():
            self.trusts[source] = max(trust, self.trusts.get(source, 0.0))
        self.evidence.join(other.evidence, settings.evidence_kept)

    def hold_ns(self, settings: WatchSettings) -> int:
        """How long it must be over before it is closed."""
        seconds = self.kind.hold_seconds
        if len(self.flap_ns) >= settings.flaps_to_dampen - 1:
            seconds = max(seconds, settings.damped_hold_seconds)
        return int(seconds * SECOND_NS)

    def over_ns(self, now_ns: int, settings: WatchSettings) -> int | None:
        """When it is over for good, as far as is known now: after its hold, or after silence of that length."""
        if self.votes or self.absorbed:
            return None
        if self.event_ns is not None:
            if self.kind.name in LASTING:
                return None
            silent_ns = self.event_ns + max(self.hold_ns(settings), self._silence_ns())
            return silent_ns if self.quiet_ns is None else max(silent_ns, self.quiet_ns + self.hold_ns(settings))
        if self.clear_ns is None:
            self.clear_ns = now_ns
        return self.clear_ns + self.hold_ns(settings)

    def _silence_ns(self) -> int:
        return int(max(self.kind.hold_seconds, min(EVENT_HOLD_SECONDS, 10.0)) * SECOND_NS)

    def confidence(self) -> float:
        """That of all sources together, as if each erred by itself; one source alone is never believed fully."""
        doubt = 1.0
        for trust in self.trusts.values():
            doubt *= 1.0 - trust
        most = _MOST if len(self.trusts) > 1 else _MOST_OF_ONE_SOURCE
        return round(min(1.0 - doubt, most) * (_HELD if self.held else 1.0), 4)

    def _watched(self, settings: WatchSettings) -> str:
        """That it is well again and only held, in words; empty where it is not."""
        well_ns = self.well_ns
        over_ns = None if well_ns is None else self.over_ns(well_ns, settings)
        if well_ns is None or over_ns is None:
            return ""
        return f"; well again since, closed after {(over_ns - well_ns) / 1e9:.0f} s without it"

    def incident(self, unix_at_zero: float, settings: WatchSettings) -> Incident:
        """The incident as others see it. `unix_at_zero` is the Unix time at which the monotonic clock was 0."""
        opened_at = unix_at_zero + self.opened_ns / 1e9
        well_ns = self.well_ns
        flapping = f"; it came back {self.flaps} times" if self.flaps > 1 else ""
        part = f"; part of {self.merged_into}" if self.merged_into else ""
        return Incident(
            id=incident_id(self.kind.group or self.kind.name, self.subject, opened_at),
            kind=self.kind.name,
            subject=self.subject,
            severity=self.severity,
            state=IncidentState.OPEN if self.closed_ns is None else IncidentState.CLOSED,
            words=f"{self.words}{flapping}{self._watched(settings)}{part}",
            confidence=self.confidence(),
            sources=tuple(sorted(self.trusts)),
            affected=tuple(sorted(self.affected)),
            evidence=tuple(self.evidence.shown()),
            opened_at=opened_at,
            closed_at=None if self.closed_ns is None else unix_at_zero + self.closed_ns / 1e9,
            well_since=None if well_ns is None else unix_at_zero + well_ns / 1e9,
            noticed_ns=self.opened_ns,
            flaps=self.flaps,
            mend=self.mend or None,
        )


def _is_event(finding: Finding) -> bool:
    """Whether words tell of it, and no count that goes on."""
    return finding.momentary and finding.metric is None


def incident_id(group: str, subject: str, opened_at: float) -> str:
    """A short name that is the same wherever the same incident is computed."""
    digest = hashlib.sha256(f"{group} {subject} {opened_at:.6f}".encode()).hexdigest()
    return f"inc-{digest[:12]}"
