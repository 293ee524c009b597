"""Coded packets: from slots, as libav's muxers want them."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from av.bitstream import BitStreamFilterContext
from av.packet import Packet
from av.stream import Stream

from dataplane.operators.frames import KEY_FRAME
from dataplane.operators.journal import Record
from observatory.model.event import UNKNOWN_I64
from observatory.model.media import CodecParameters

if TYPE_CHECKING:
    from dataplane._ring import Descriptor, ReadLease


IN_BAND = frozenset({"h264", "hevc"})
"""Codecs whose parameters can be written before a key frame."""


def packet_of(frame: ReadLease, descriptor: Descriptor) -> Packet[Stream]:
    """A libav packet with a copy of the payload and the descriptor's times."""
    payload = frame.array
    packet: Packet[Stream] = Packet(payload.size)
    np.copyto(np.frombuffer(memoryview(packet), np.uint8), payload)
    packet.pts = None if descriptor.pts == UNKNOWN_I64 else descriptor.pts
    packet.dts = None if descriptor.dts == UNKNOWN_I64 else descriptor.dts
    packet.duration = max(0, descriptor.duration)
    packet.time_base = Fraction(*descriptor.time_base)
    packet.is_keyframe = bool(descriptor.flags & KEY_FRAME)
    return packet


def packet_from(record: Record) -> Packet[Stream]:
    """The same packet, out of a journal."""
    packet: Packet[Stream] = Packet(record.payload)
    packet.pts, packet.dts = record.pts, record.dts
    packet.duration = record.duration
    packet.time_base = Fraction(*record.time_base)
    packet.is_keyframe = record.key_frame
    return packet


def adts_remover(said: CodecParameters, stream: Stream) -> BitStreamFilterContext | None:
    """A filter for AAC that carries a header on every packet, as MPEG-TS has it; None where none is needed.

    libavformat takes them off for plain MP4 alone, not for fragments.
    """
    if said.codec != "aac" or said.extradata_hex:
        return None
    return BitStreamFilterContext("aac_adtstoasc", stream)


def move_by(packet: Packet[Stream], ticks: int) -> None:
    """Let all its times be later."""
    packet.pts = None if packet.pts is None else packet.pts + ticks
    packet.dts = None if packet.dts is None else packet.dts + ticks


def move_behind(packet: Packet[Stream], lowest: int) -> bool:
    """Move a packet that libavformat would refuse to `lowest` ticks, and say whether that was necessary."""
    if packet.dts is None or packet.dts >= lowest:
        return False
    packet.dts = lowest
    packet.pts = lowest if packet.pts is None else max(packet.pts, lowest)
    return True


def before_key_frame(packet: Packet[Stream], said: CodecParameters) -> Packet[Stream]:
    """The same packet with its parameter sets before it, where a codec has them in the stream (Annex B)."""
    extradata = bytes.fromhex(said.extradata_hex)
    if said.codec not in IN_BAND or not extradata.startswith((b"\0\0\1", b"\0\0\0\1")):
        return packet
    whole: Packet[Stream] = Packet(extradata + bytes(packet))
    whole.pts, whole.dts, whole.duration = packet.pts, packet.dts, packet.duration
    whole.time_base, whole.is_keyframe = packet.time_base, packet.is_keyframe
    return whole
