"""Incidents as a JSON document, as the command line and the HTTP API give them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from observatory.model.incident import Incident, IncidentState, Severity


def incidents_document(incidents: Iterable[Incident]) -> dict[str, Any]:
    """The `incidents` document: counts by severity of those that are open, and every incident with all its fields."""
    listed = list(incidents)
    severities = Counter(incident.severity for incident in listed if incident.state is IncidentState.OPEN)
    return {
        "open": {severity.value: severities.get(severity, 0) for severity in Severity},
        "incidents": [incident.model_dump(mode="json") for incident in listed],
    }
