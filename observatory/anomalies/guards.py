"""Values that cannot be: what sources give instead of "unknown", and what no hardware can have.

NVML marks an unknown 64-bit value 9223372036854775794, and dcgm-exporter hands that on
(NVIDIA DCGM, dcgm_fields.h: DCGM_INT64_BLANK 0x7ffffffffffffff0 and the values above it).
"""

from __future__ import annotations

import math

from observatory.model.hardware_metrics import METRICS

_BLANK_INT32, _LAST_INT32 = float(0x7FFFFFF0), float(0x7FFFFFFF)
_BLANK_INT64 = 9.2233720368547e18  # a little below 2^63 - 16, whether it comes as an integer or as a float
_ALL_ONES = frozenset({float(0xFFFFFFFF), float(0xFFFFFFFFFFFFFFFF)})

_LARGEST: dict[str, float] = {
    "link.width": 64,
    "link.width.best": 64,
    "link.speed": 1e12,
    "link.speed.best": 1e12,
    "link.bandwidth": 1e14,
    "link.bandwidth.best": 1e14,
    "link.up": 1,
    "hw.network.up": 1,
    "hw.network.bandwidth.limit": 1e13,
    "hw.status": 1,
    "hw.temperature": 1000,
    "hw.power": 1e6,
    "hw.gpu.utilization": 1.01,
    "link.utilization": 1.5,
    "gpu.throttled": 1,
    "gpu.clock": 1e11,
    "node.pressure": 1.01,
}
_MAY_BE_NEGATIVE = frozenset({"hw.temperature"})
COUNTERS = frozenset(name for name, metric in METRICS.items() if metric.instrument == "counter")


def is_blank(value: float | None) -> bool:
    """Whether a value stands for "unknown": none, no number, or one of the blank sentinels."""
    return (
        value is None
        or value != value  # NaN
        or value >= _BLANK_INT64
        or _BLANK_INT32 <= value <= _LAST_INT32
        or value in _ALL_ONES
    )


def why_impossible(metric: str, value: float) -> str | None:
    """Why that value cannot be, in words; None where it can."""
    if math.isinf(value):
        return "is infinite"
    if value < 0 and metric not in _MAY_BE_NEGATIVE:
        return "is negative"
    if value < -300:
        return "is colder than can be"
    largest = _LARGEST.get(metric)
    if largest is not None and value > largest:
        return f"is above what can be ({largest:g})"
    return None
