"""What hardware metrics are called for Prometheus.

OpenTelemetry's rules, so that a value has the same name whether it is scraped here or comes through a collector
(https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/): dots become underscores, the unit
is spelt out at the end unless it is there already, a gauge without a unit is a ratio, a counter ends in `_total`. One
deviation: lanes, a unit in braces, which those rules leave out, are named, too: `link_width_lanes`.
"""

from __future__ import annotations

from collections.abc import Iterable

from observatory.metrics.families import Family
from observatory.model.hardware_metrics import METRICS, Instrument, Metric

_UNITS = {
    "By": "bytes",
    "Cel": "celsius",
    "Hz": "hertz",
    "J": "joules",
    "T": "transfers",
    "V": "volts",
    "W": "watts",
    "s": "seconds",
    "{lane}": "lanes",
}
_PER = {"s": "second", "min": "minute"}

SUBJECT_LABELS = ("node", "<address>", "<place>")
"""Of the machine, of what the source calls the thing, of what it is in the topology: see docs/opentelemetry.md."""


def prometheus_name(metric: Metric) -> str:
    """As samples carry it: `hw.temperature` in `Cel` is `hw_temperature_celsius`.

    Raises KeyError: a unit that has no word yet.
    """
    words = metric.name.replace(".", "_")
    unit = _unit_words(metric)
    if unit and not words.endswith(f"_{unit}"):
        words = f"{words}_{unit}"
    return f"{words}_total" if metric.instrument is Instrument.COUNTER else words


def _unit_words(metric: Metric) -> str:
    unit, _, per = metric.unit.partition("/")
    if unit == "1":
        return "ratio" if metric.instrument is Instrument.GAUGE else ""
    spelt = "" if unit.startswith("{") and unit not in _UNITS else _UNITS[unit]
    return f"{spelt}_per_{_PER[per]}" if per else spelt


def label_name(attribute: str) -> str:
    """Of an OpenTelemetry attribute: `hw.sensor_location` is `hw_sensor_location`."""
    return attribute.replace(".", "_")


def family_of(metric: Metric) -> Family:
    """The same metric as the exposition and the reference have it."""
    labels = (*SUBJECT_LABELS, *(label_name(attribute) for attribute in metric.attributes), "source")
    note = f"`{metric.name}`, {metric.unit}."
    return Family(prometheus_name(metric), metric.instrument.value, labels, metric.help, note=note)


def families(metrics: Iterable[Metric] = METRICS.values()) -> tuple[Family, ...]:
    """Of all hardware metrics."""
    return tuple(family_of(metric) for metric in metrics)
