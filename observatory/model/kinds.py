"""The enumerations and "unknown" values of frame events and records, apart from NumPy.

A look-up needs these names and nothing else of `event` and `record`, and a command that answers in a tenth of a second
cannot afford to import NumPy. Both modules export them too.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

UNKNOWN_I64 = -(2**63)
UNKNOWN_U64 = 2**64 - 1
UNKNOWN_U32 = 2**32 - 1
UNKNOWN_U16 = 2**16 - 1

RECORD_VERSION = 1


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


class RecordFlag(IntFlag):
    """Mirror of `enum mo_record_flags`."""

    INCOMPLETE = 1
    LINEAGE = 2
    DROPPED = 4
    KEY_FRAME = 8
