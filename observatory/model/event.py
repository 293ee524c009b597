"""Frame events: one point in a frame's life, as every tracer yields it (mirror of dataplane/abi/event.h)."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

UNKNOWN_I64 = -(2**63)
UNKNOWN_U64 = 2**64 - 1
UNKNOWN_U32 = 2**32 - 1
UNKNOWN_U16 = 2**16 - 1


class EventKind(IntEnum):
    """In the order of a frame's life on one hop; the index into a record's `times_ns`."""

    DMA_BUF_ALLOC = 0
    PRODUCER_KERNEL_LAUNCH = 1
    FENCE_SIGNAL = 2
    LINK_START = 3
    LINK_END = 4
    CONSUMER_WAIT_FENCE = 5
    CONSUMER_KERNEL_LAUNCH = 6
    SLOT_RELEASE = 7


PRODUCER_KINDS = (EventKind.DMA_BUF_ALLOC, EventKind.PRODUCER_KERNEL_LAUNCH, EventKind.FENCE_SIGNAL)

EVENT_DTYPE = np.dtype(
    [
        ("time_ns", "<i8"),
        ("source_index", "<u8"),
        ("pts", "<i8"),
        ("time_base_num", "<u4"),
        ("time_base_den", "<u4"),
        ("stream", "<u4"),
        ("epoch", "<u4"),
        ("place", "<u4"),
        ("slot", "<u4"),
        ("bytes", "<u4"),
        ("kind", "<u2"),
        ("device", "<u2"),
        ("reserved", "<u8"),
    ]
)
"""Structured dtype of `struct mo_frame_event`, 64 bytes."""
