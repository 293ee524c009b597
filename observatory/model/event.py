"""Frame events: one point in a frame's life, as every tracer yields it (mirror of dataplane/abi/event.h)."""

from __future__ import annotations

import numpy as np

from observatory.model.kinds import (
    PRODUCER_KINDS,
    UNKNOWN_I64,
    UNKNOWN_U16,
    UNKNOWN_U32,
    UNKNOWN_U64,
    EventKind,
)

__all__ = [
    "EVENT_DTYPE",
    "PRODUCER_KINDS",
    "UNKNOWN_I64",
    "UNKNOWN_U16",
    "UNKNOWN_U32",
    "UNKNOWN_U64",
    "EventKind",
]

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
