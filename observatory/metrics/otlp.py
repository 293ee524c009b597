"""How the export over OTLP stands, as `/metrics` shows it."""

from __future__ import annotations

from collections.abc import Callable

from observatory.export.status import OtlpStatus
from observatory.metrics.exposition import header, simple_lines
from observatory.metrics.families import Family

_SERIES: tuple[tuple[Family, Callable[[OtlpStatus], float]], ...] = (
    (
        Family("observatory_otlp_failing", "gauge", (), "1 while the OpenTelemetry collector takes nothing, else 0."),
        lambda s: float(s.error is not None),
    ),
    (
        Family("observatory_otlp_incidents_waiting", "gauge", (), "Incidents that the collector has not taken yet."),
        lambda s: s.incidents_waiting,
    ),
    (Family("observatory_otlp_requests_total", "counter", (), "Times that something was sent."), lambda s: s.exports),
    (Family("observatory_otlp_failures_total", "counter", (), "Times that it failed."), lambda s: s.failures),
    (
        Family("observatory_otlp_points_total", "counter", (), "Values of the hardware that the collector took."),
        lambda s: s.points_sent,
    ),
    (
        Family("observatory_otlp_points_rejected_total", "counter", (), "Values that the collector did not want."),
        lambda s: s.points_rejected,
    ),
    (
        Family("observatory_otlp_incidents_total", "counter", (), "Incidents that the collector took."),
        lambda s: s.incidents_sent,
    ),
    (
        Family(
            "observatory_otlp_incidents_dropped_total",
            "counter",
            (),
            "Incidents that the collector did not want, or that waited for it behind too many others.",
        ),
        lambda s: s.incidents_dropped,
    ),
)
FAMILIES = tuple(family for family, _ in _SERIES)


class OtlpSeries:
    """The series of an export. Any thread may call anything.

    Args:
        status: how it stands now, as `observatory.export.otlp.OtlpExport.status` says.
    """

    def __init__(self, status: Callable[[], OtlpStatus]) -> None:
        self._status = status

    def render(self, openmetrics: bool) -> str:
        """The text of all families."""
        now = self._status()
        return "".join(
            header(family, openmetrics) + simple_lines(family, [((), read(now), None)], openmetrics)
            for family, read in _SERIES
        )
