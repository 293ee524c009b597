"""Coded sound on the port of a source: described once, then passed on packet by packet."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dataplane._ring import Descriptor
from dataplane.operators.base import Context, SlotClass
from dataplane.operators.decoding import Sound
from dataplane.operators.frames import KEY_FRAME
from observatory.model.event import UNKNOWN_I64
from observatory.model.media import CodecParameters, PayloadKind

KIB = 1024
AUDIO_SLOTS = (SlotClass(4 * KIB, 128), SlotClass(64 * KIB, 16), SlotClass(1024 * KIB, 4))


def describe_sound(streams: Iterable[CodecParameters], context: Context) -> None:
    """Publish what a muxer has to know of each stream."""
    for parameters in streams:
        said = parameters.model_dump_json(exclude_none=True).encode()
        with context.acquire(len(said), "audio") as slot:
            slot.array[: len(said)] = np.frombuffer(said, np.uint8)
            place = parameters.stream_index
            slot.publish(Descriptor(payload_kind=PayloadKind.CODEC_PARAMETERS, stream_index=place), len(said))


def publish_sound(sound: Sound, context: Context) -> None:
    """Publish one packet."""
    packet = sound.packet
    size = packet.size
    if size > AUDIO_SLOTS[-1].slot_bytes:
        context.warn(f"audio packets of more than {AUDIO_SLOTS[-1].slot_bytes} bytes are left out")
        return
    time_base = packet.time_base
    with context.acquire(size, "audio") as slot:
        slot.array[:size] = np.frombuffer(memoryview(packet), np.uint8)
        slot.publish(
            Descriptor(
                payload_kind=PayloadKind.AUDIO_PACKET,
                stream_index=sound.place,
                pts=_known(packet.pts),
                dts=_known(packet.dts),
                duration=_known(packet.duration),
                time_base=(time_base.numerator, time_base.denominator),
                flags=KEY_FRAME if packet.is_keyframe else 0,
            ),
            size,
        )


def _known(time: int | None) -> int:
    return UNKNOWN_I64 if time is None else time
