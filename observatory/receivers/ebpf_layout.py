"""What the maps of bpf/links.bpf.c hold, as NumPy reads it, and what their histogram of round trips means."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

NAME_BYTES = 16
MAX_INTERFACES = 512
MAX_PEERS = 4096
BUCKETS = 128

_NAME = ("name", f"S{NAME_BYTES}")

INTERFACE = np.dtype("<u4")
TRAFFIC = np.dtype(
    [_NAME, ("sent_bytes", "<u8"), ("sent_packets", "<u8"), ("received_bytes", "<u8"), ("received_packets", "<u8")]
)
ROUND_TRIPS = np.dtype([_NAME, ("retransmitted_segments", "<u8"), ("buckets", "<u8", (BUCKETS,))])
PEER = np.dtype([("interface", "<u4"), ("family", "<u4"), ("address", "V16")])
WAY = np.dtype([_NAME, ("samples", "<u8"), ("sum_us", "<u8"), ("retransmitted_segments", "<u8")])
INTERRUPTS = np.dtype(
    [
        *((name, "<u8") for name in ("irq_began", "irq_ns", "irqs")),
        *((name, "<u8") for name in ("softirq_began", "softirq_ns", "softirqs", "irq_ns_then")),
    ]
)


def bucket_bounds_us() -> npt.NDArray[np.float64]:
    """Where each bucket of round trips begins, microseconds: exact to 7, then four to a doubling."""
    numbers = np.arange(BUCKETS)
    exponents = np.maximum(numbers // 4 - 1, 0)
    return np.where(numbers < 4, numbers, (4 + numbers % 4) * 2.0**exponents).astype(np.float64)


_BEGINS = bucket_bounds_us()
_MIDDLES = np.append((_BEGINS[:-1] + np.maximum(_BEGINS[1:] - 1, _BEGINS[:-1])) / 2, _BEGINS[-1])


def quantile_seconds(buckets: npt.NDArray[np.uint64], quantile: float) -> float | None:
    """The middle of the bucket that holds this quantile, seconds: at most an eighth off. None: nothing was counted."""
    cumulated = np.cumsum(buckets.astype(np.float64))
    if cumulated[-1] == 0:
        return None
    at = int(np.searchsorted(cumulated, quantile * cumulated[-1], side="left"))
    return float(_MIDDLES[at]) / 1e6
