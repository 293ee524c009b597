"""Incidents as `/metrics` shows them: which are open, and how many there have been."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

from observatory.metrics.exposition import header, simple_lines
from observatory.metrics.families import Family
from observatory.model.incident import Incident, IncidentState

OPEN = Family(
    "observatory_incidents_open",
    "gauge",
    ("kind", "severity", "subject"),
    "Incidents of the hardware that are open now, by what is to blame.",
    note="Gone when the last one of its labels is closed.",
)
ALL = Family(
    "observatory_incidents_total", "counter", ("kind", "severity"), "Incidents of the hardware that were opened."
)
FAMILIES = (OPEN, ALL)


class IncidentSeries:
    """Counts incidents as they are opened and closed. Any thread may call anything.

    Args:
        clock: the wall clock, unix seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[str, Incident] = {}
        self._opened: Counter[tuple[str, str]] = Counter()
        self._created: dict[tuple[str, str], float] = {}

    def see(self, incident: Incident) -> None:
        """An incident as it stands now; the same one may come as often as it changes."""
        with self._lock:
            if incident.state is IncidentState.CLOSED:
                self._open.pop(incident.id, None)
                return
            if incident.id not in self._open:
                labels = incident.kind, str(incident.severity)
                self._opened[labels] += 1
                self._created.setdefault(labels, self._clock())
            self._open[incident.id] = incident

    def render(self, openmetrics: bool) -> str:
        """The text of both families."""
        with self._lock:
            now = Counter((one.kind, str(one.severity), one.subject) for one in self._open.values())
            opened = [(labels, float(count), self._created[labels]) for labels, count in self._opened.items()]
        parts = []
        for family, samples in ((OPEN, [(labels, float(n), None) for labels, n in now.items()]), (ALL, opened)):
            if samples:
                parts.append(header(family, openmetrics) + simple_lines(family, samples, openmetrics))
        return "".join(parts)
