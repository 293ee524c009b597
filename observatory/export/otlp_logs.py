"""Incidents as OpenTelemetry's log records: events with a name, a severity, attributes, and the evidence in the body.

Data model: https://opentelemetry.io/docs/specs/otel/logs/data-model/. The SDK calls its classes for logs unstable
(`_logs`): they are used in this module only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from observatory.model.incident import Evidence, Incident, IncidentState, Severity

SCOPE = "observatory.incidents"
OPENED, CLOSED = "observatory.incident.opened", "observatory.incident.closed"

SEVERITIES: Mapping[Severity, SeverityNumber] = {
    Severity.INFO: SeverityNumber.INFO,
    Severity.WARNING: SeverityNumber.WARN,
    Severity.CRITICAL: SeverityNumber.ERROR,
}
"""Of incidents that are open; that one is closed is of INFO."""

Value = str | int | float | Sequence[str]


def incident_record(incident: Incident, resource: Resource, version: str, observed_ns: int) -> ReadableLogRecord:
    """One record of what an incident is now. `observed_ns` is Unix time."""
    closed = incident.state is IncidentState.CLOSED
    happened = incident.opened_at if not closed or incident.closed_at is None else incident.closed_at
    record = LogRecord(
        timestamp=round(happened * 1e9),
        observed_timestamp=observed_ns,
        severity_text=str(incident.severity),
        severity_number=SeverityNumber.INFO if closed else SEVERITIES[incident.severity],
        event_name=CLOSED if closed else OPENED,
        attributes=_attributes(incident),
        body={
            "words": incident.words,
            **({} if incident.mend is None else {"mend": incident.mend}),
            "evidence": [_evidence(one) for one in incident.evidence],
        },
    )
    return ReadableLogRecord(record, resource, InstrumentationScope(SCOPE, version))


def _attributes(incident: Incident) -> dict[str, Value]:
    return {
        "hw.id": incident.subject,
        "incident.id": incident.id,
        "incident.kind": incident.kind,
        "incident.state": str(incident.state),
        "incident.confidence": incident.confidence,
        "incident.sources": incident.sources,
        "incident.affected": incident.affected,
        "incident.flaps": incident.flaps,
    }


def _evidence(one: Evidence) -> dict[str, str | int | float]:
    """Without what is not known."""
    return one.model_dump(exclude_none=True)
