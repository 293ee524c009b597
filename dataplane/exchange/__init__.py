"""Frames shared between processes that nobody supervises: one publishes at a path, any number subscribe there.

    producer                                                consumer

    with Publisher(path, frame_bytes=size) as out:          with Subscriber(path) as frames:
        with out.acquire() as slot:                             for frame in frames:
            slot.array[:] = picture                                 with frame:
            slot.publish(Descriptor(...), size)                         show(frame.array)

Zero copies, no system call per frame, and nothing that one side does harms the other: docs/sharing-frames.md.
"""

from dataplane._ring import Descriptor, RingEnded, WriteLease
from dataplane.errors import (
    AddressTaken,
    BadAddress,
    BrokenPublisher,
    Dismissed,
    ExchangeError,
    NobodyServes,
    NoRoom,
    OtherVersion,
    Refused,
    TooManyHeld,
)
from dataplane.exchange.frame import Frame
from dataplane.exchange.publisher import Publisher
from dataplane.exchange.roster import ConsumerState, Dismissal
from dataplane.exchange.subscriber import Subscriber
from observatory.model.media import PayloadKind, PixelFormat

__all__ = [
    "AddressTaken",
    "BadAddress",
    "BrokenPublisher",
    "ConsumerState",
    "Descriptor",
    "Dismissal",
    "Dismissed",
    "ExchangeError",
    "Frame",
    "NoRoom",
    "NobodyServes",
    "OtherVersion",
    "PayloadKind",
    "PixelFormat",
    "Publisher",
    "Refused",
    "RingEnded",
    "Subscriber",
    "TooManyHeld",
    "WriteLease",
]
