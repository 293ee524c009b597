"""Names and units of what receivers measure.

`hw.*` are OpenTelemetry's (semantic conventions for hardware, https://opentelemetry.io/docs/specs/semconv/hardware/);
`link.*`, `peer.*`, `gpu.*` and `node.*` are ours where it has none. Units are UCUM's, as OpenTelemetry writes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Instrument(StrEnum):
    """How a value behaves."""

    GAUGE = "gauge"
    COUNTER = "counter"  # only grows, until it is reset or wraps


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `attributes` are the names of those that tell its series apart, besides the subject."""

    name: str
    unit: str
    instrument: Instrument
    help: str
    attributes: tuple[str, ...] = ()


_GAUGE, _COUNTER = Instrument.GAUGE, Instrument.COUNTER

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("hw.status", "1", _GAUGE, "1 where the hardware is in that state, else 0.", ("hw.state",)),
        Metric("hw.errors", "{error}", _COUNTER, "Errors of a device.", ("error.type",)),
        Metric("hw.temperature", "Cel", _GAUGE, "Temperature.", ("hw.sensor_location",)),
        Metric("hw.power", "W", _GAUGE, "Power that a device takes."),
        Metric("hw.energy", "J", _COUNTER, "Energy that a device took."),
        Metric("hw.gpu.utilization", "1", _GAUGE, "Share of time that a GPU's unit worked.", ("hw.gpu.task",)),
        Metric("hw.gpu.memory.limit", "By", _GAUGE, "Memory of a GPU."),
        Metric("hw.gpu.memory.usage", "By", _GAUGE, "Memory of a GPU in use."),
        Metric("hw.gpu.io", "By", _COUNTER, "What a GPU sent and received over PCIe.", ("network.io.direction",)),
        Metric("hw.network.up", "1", _GAUGE, "1 where a port's link is up, else 0."),
        Metric("hw.network.bandwidth.limit", "By/s", _GAUGE, "Rate of a port's link, one direction."),
        Metric("hw.network.io", "By", _COUNTER, "What a port sent and received.", ("network.io.direction",)),
        Metric("hw.network.packets", "{packet}", _COUNTER, "Packets of a port.", ("network.io.direction",)),
        Metric("link.width", "{lane}", _GAUGE, "Lanes in use (NVLink: links that are active)."),
        Metric("link.width.best", "{lane}", _GAUGE, "Lanes that both ends can use."),
        Metric("link.speed", "T/s", _GAUGE, "Transfers per second and lane, as negotiated now."),
        Metric("link.speed.best", "T/s", _GAUGE, "Transfers per second and lane that both ends can do."),
        Metric("link.bandwidth", "By/s", _GAUGE, "Rate of one direction as the source states it."),
        Metric(
            "link.bandwidth.best", "By/s", _GAUGE, "Rate of one direction that both ends can do, as a source states it."
        ),
        Metric("link.up", "1", _GAUGE, "1 where a link carries traffic, else 0."),
        Metric("link.io", "By", _COUNTER, "What crossed a link.", ("network.io.direction",)),
        Metric("link.throughput", "By/s", _GAUGE, "Rate at which bytes cross a link.", ("network.io.direction",)),
        Metric("link.utilization", "1", _GAUGE, "Share of a link's bandwidth in use.", ("network.io.direction",)),
        Metric("link.errors", "{error}", _COUNTER, "Errors of a link.", ("error.type",)),
        Metric("link.latency", "s", _GAUGE, "Time one way, as measured.", ("link.latency.quantile",)),
        Metric("gpu.clock", "Hz", _GAUGE, "Clock of a GPU's unit.", ("gpu.clock.domain",)),
        Metric("gpu.throttled", "1", _GAUGE, "1 where the clock is held back for that reason, else 0.", ("reason",)),
        Metric("receiver.call.duration", "s", _GAUGE, "Time that a call of a source takes.", ("receiver.call",)),
        Metric(
            "node.pressure", "1", _GAUGE, "Share of time that tasks stalled.", ("resource", "scope", "window", "cgroup")
        ),
        Metric("node.stalled", "s", _COUNTER, "Time that tasks stalled.", ("resource", "scope", "cgroup")),
        Metric(
            "peer.round_trip",
            "s",
            _GAUGE,
            "Round trip to a remote address, mean of what TCP smoothed since the last look.",
            ("network.peer.address",),
        ),
        Metric(
            "peer.retransmissions",
            "{segment}",
            _COUNTER,
            "TCP segments sent again to a remote address.",
            ("network.peer.address",),
        ),
        Metric(
            "node.cpu.time",
            "s",
            _COUNTER,
            "Time of processors by what they did.",
            ("cpu.mode", "cpu.logical_number"),
        ),
        Metric(
            "node.cpu.interrupts",
            "{interrupt}",
            _COUNTER,
            "Interrupts that processors handled.",
            ("cpu.mode", "cpu.logical_number"),
        ),
        Metric("numa.memory.free", "By", _GAUGE, "Free memory of a NUMA node."),
        Metric("numa.memory.limit", "By", _GAUGE, "Memory of a NUMA node."),
        Metric("numa.allocations", "{page}", _COUNTER, "Pages by where they were wanted and found.", ("numa.kind",)),
    )
}
"""By name. Receivers may measure nothing else: a test looks."""
