"""Incidents as others want them: a JSON document, OpenTelemetry log records, Prometheus samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from observatory.anomalies.kinds import KINDS
from observatory.model.incident import Incident, IncidentState, Severity

EVENT_NAME = "hw.incident"

_SEVERITY_NUMBERS = {Severity.INFO: 9, Severity.WARNING: 13, Severity.CRITICAL: 17}
_HW_STATES = {Severity.INFO: "ok", Severity.WARNING: "degraded", Severity.CRITICAL: "failed"}

Sample = tuple[tuple[str, ...], float]
Attribute = str | int | float | bool | Sequence[str]


@dataclass(frozen=True, slots=True)
class IncidentRecord:
    """An incident as an OpenTelemetry log record (specification "Logs Data Model"): an event with a name.

    `severity_number` is 9 (INFO), 13 (WARN) or 17 (ERROR). Times are Unix nanoseconds; `time_unix_ns` is when it opened
    or, of a closed one, when it closed.
    """

    time_unix_ns: int
    observed_unix_ns: int
    severity_number: int
    severity_text: str
    body: str
    attributes: dict[str, Attribute]
    event_name: str = EVENT_NAME


@dataclass(slots=True)
class IncidentCounts:
    """How many incidents were opened since the start, by kind and severity. Feed it all that the watch gives."""

    opened: Counter[tuple[str, str]] = field(default_factory=Counter)
    _known: set[str] = field(default_factory=set)

    def note(self, changed: Iterable[Incident]) -> None:
        """Count those that were not heard of before, and forget those that are closed."""
        for incident in changed:
            if incident.id not in self._known and incident.state is IncidentState.OPEN:
                self._known.add(incident.id)
                self.opened[incident.kind, incident.severity.value] += 1
            elif incident.state is IncidentState.CLOSED:
                self._known.discard(incident.id)


def incidents_document(incidents: Iterable[Incident]) -> dict[str, Any]:
    """The `incidents` document: counts by severity and every incident with all its fields."""
    listed = list(incidents)
    severities = Counter(incident.severity.value for incident in listed if incident.state is IncidentState.OPEN)
    return {
        "open": {severity.value: severities.get(severity.value, 0) for severity in Severity},
        "incidents": [incident.model_dump(mode="json") for incident in listed],
    }


def log_record(incident: Incident, observed_unix_ns: int) -> IncidentRecord:
    """The record of an incident that opened, changed or closed. `hw.id` and `hw.state` are OpenTelemetry's names."""
    at = incident.closed_at if incident.closed_at is not None else incident.opened_at
    attributes: dict[str, Attribute] = {
        "hw.id": incident.subject,
        "hw.state": "ok" if incident.state is IncidentState.CLOSED else _HW_STATES[incident.severity],
        "incident.id": incident.id,
        "incident.kind": incident.kind,
        "incident.state": incident.state.value,
        "incident.severity": incident.severity.value,
        "incident.confidence": incident.confidence,
        "incident.sources": list(incident.sources),
        "incident.flaps": incident.flaps,
        "incident.evidence": [evidence.words for evidence in incident.evidence],
    }
    if incident.affected:
        attributes["incident.affected"] = list(incident.affected)
    if incident.mend:
        attributes["incident.mend"] = incident.mend
    return IncidentRecord(
        time_unix_ns=int(at * 1e9),
        observed_unix_ns=observed_unix_ns,
        severity_number=_SEVERITY_NUMBERS[incident.severity],
        severity_text={"critical": "ERROR", "warning": "WARN", "info": "INFO"}[incident.severity.value],
        body=f"{KINDS[incident.kind].meaning} {incident.subject}: {incident.words}",
        attributes=attributes,
    )


def open_samples(incidents: Iterable[Incident]) -> list[Sample]:
    """For a gauge with the labels kind, subject, severity: 1 for each open incident."""
    return [((i.kind, i.subject, i.severity.value), 1.0) for i in incidents if i.state is IncidentState.OPEN]


def confidence_samples(incidents: Iterable[Incident]) -> list[Sample]:
    """For a gauge with the labels kind, subject: how sure each open incident is, 0 to 1."""
    return [((i.kind, i.subject), i.confidence) for i in incidents if i.state is IncidentState.OPEN]


def opened_samples(counts: IncidentCounts) -> list[Sample]:
    """For a counter with the labels kind, severity: incidents opened since the start."""
    return [(labels, float(count)) for labels, count in sorted(counts.opened.items())]
