"""Hardware series as OpenTelemetry's metrics data, ready for an OTLP exporter.

Built from the latest values directly, and not through the SDK's observable instruments: those stamp points with the
time of the export instead of that of the observation, know one resource instead of one per machine, and go on telling
of series that are gone. Attributes follow the semantic conventions for hardware
(https://opentelemetry.io/docs/specs/semconv/hardware/common/).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from observatory.metrics.hardware import Series
from observatory.model.device import DeviceKind
from observatory.model.hardware_metrics import Instrument
from observatory.model.hardware_metrics import Metric as HardwareMetric
from observatory.model.observation import Address, AddressKind

SCOPE = "observatory.hardware"
SERVICE = "media-observatory"

_TYPES_BY_ADDRESS = {
    AddressKind.GPU: "gpu",
    AddressKind.PORT: "network",
    AddressKind.INTERFACE: "network",
    AddressKind.CPU: "cpu",
    AddressKind.MEMORY: "memory",
}
_TYPES_BY_DEVICE = {
    DeviceKind.GPU: "gpu",
    DeviceKind.NIC: "network",
    DeviceKind.CPU: "cpu",
    DeviceKind.CXL_MEMORY: "memory",
}
_WHOLE_ATTRIBUTES = frozenset({"cpu.logical_number"})

AttributeValue = str | int


def resource_of(node: str, version: str) -> Resource:
    """A machine that was observed. `node` is its name in the topology."""
    return Resource({"service.name": SERVICE, "service.version": version, "host.name": node})


def hardware_type(subject: Address, place: tuple[str, str] | None, metric: str) -> str | None:
    """`hw.type` of the semantic conventions; None where they have no word for it, or it is not known."""
    if place is not None and place[0] == "device":
        kind = place[1].rpartition("/")[2].rstrip("0123456789")
        return next((word for device, word in _TYPES_BY_DEVICE.items() if device == kind), None)
    return "gpu" if metric.startswith("hw.gpu.") else _TYPES_BY_ADDRESS.get(subject.kind)


def attributes_of(series: Series) -> dict[str, AttributeValue]:
    """What tells a point's series apart, besides the machine."""
    subject, place = series.subject, series.place
    found: dict[str, AttributeValue] = {
        name: int(value) if name in _WHOLE_ATTRIBUTES and value.isdecimal() else value
        for name, value in series.attributes
    }
    if subject.kind is not AddressKind.NODE:
        found["hw.id"] = str(subject) if place is None else place[1]
        found["hw.name"] = subject.key
        found["hw.parent"] = subject.node
        if word := hardware_type(subject, place, series.metric.name):
            found["hw.type"] = word
    found["observatory.source"] = series.source
    return found


class MetricsEncoder:
    """Makes metrics data of series, remembering since when each counter counts.

    Args:
        version: of this software.
        realtime_offset_ns: what to add to CLOCK_MONOTONIC for Unix time, asked at every call of `encode`.
    """

    def __init__(self, version: str, realtime_offset_ns: Callable[[], int]) -> None:
        self._version = version
        self._realtime_offset_ns = realtime_offset_ns
        self._counters: dict[tuple[object, ...], tuple[int, int, float]] = {}  # start, time and value of the last point

    def encode(self, all_series: Iterable[Series]) -> MetricsData:
        """One resource per machine, one metric per name."""
        offset = self._realtime_offset_ns()
        points: dict[str, dict[str, list[NumberDataPoint]]] = {}
        metrics: dict[str, HardwareMetric] = {}
        for series in all_series:
            name, node = series.metric.name, series.subject.node
            metrics[name] = series.metric
            point = self._point(series, offset)
            points.setdefault(node, {}).setdefault(name, []).append(point)
        scope = InstrumentationScope(SCOPE, self._version)
        return MetricsData(
            [
                ResourceMetrics(
                    resource_of(node, self._version),
                    [ScopeMetrics(scope, [_metric(metrics[name], found) for name, found in by_name.items()], "")],
                    "",
                )
                for node, by_name in points.items()
            ]
        )

    def forget_all_but(self, count: int) -> None:
        """Of about so many series there are counters: when most are of others that are gone, begin anew with all."""
        if len(self._counters) > 2 * count + 1000:
            self._counters.clear()

    def _point(self, series: Series, offset: int) -> NumberDataPoint:
        at = series.at_ns + offset
        attributes = attributes_of(series)
        if series.metric.instrument is Instrument.GAUGE:
            return NumberDataPoint(attributes, 0, at, float(series.value))
        key = (series.subject, series.metric.name, series.source, series.attributes)
        # A counter that began who knows when starts at its first point; one that fell was reset after its last.
        start, last_at, last = self._counters.get(key, (at, at, series.value))
        if series.value < last:
            start = last_at
        self._counters[key] = start, at, series.value
        counted = series.metric.unit == "By" or series.metric.unit.startswith("{")
        return NumberDataPoint(attributes, start, at, int(series.value) if counted else float(series.value))


def _metric(metric: HardwareMetric, points: list[NumberDataPoint]) -> Metric:
    if metric.instrument is Instrument.GAUGE:
        data: Gauge | Sum = Gauge(points)
    else:
        data = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
    return Metric(metric.name, metric.help, metric.unit, data)
