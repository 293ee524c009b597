"""Pieces of files, each made by a libavformat muxer of its own: nothing is carried from one to the next.

So what a muxer holds in memory is never needed again: a file goes on after a death where its last whole piece ended.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import av
import numpy as np
from av.packet import Packet
from av.stream import Stream

from dataplane.operators.containers import MOV_FAMILY, add_coded_stream
from dataplane.operators.packets import adts_remover
from observatory.model.media import CodecParameters

FRAGMENT_OPTIONS = {
    "movflags": "+empty_moov+delay_moov+default_base_moof+frag_discont+skip_trailer+skip_sidx",
    "use_editlist": "0",
    "avoid_negative_ts": "disabled",
}
"""Header and one fragment, whose decoding time is that of its first packet."""


@dataclass(frozen=True, slots=True)
class PieceStream:
    """One stream of a piece; its packets have PTS, DTS and time base, and are used up."""

    number: int
    said: CodecParameters
    packets: Sequence[Packet[Stream]]


def write_piece(container: str, options: Mapping[str, str], streams: Sequence[PieceStream]) -> bytes:
    """A whole file of those packets. Raises what libavformat does."""
    file = io.BytesIO()
    output = av.open(file, "w", format=container, container_options=dict(options))
    ready: list[tuple[float, Packet[Stream]]] = []
    for given in streams:
        stream = add_coded_stream(output, given.said)
        if container in MOV_FAMILY:
            stream.id = given.number + 1
        bare = adts_remover(given.said, stream) if container in MOV_FAMILY else None
        for packet in given.packets if bare is None else [made for one in given.packets for made in bare.filter(one)]:
            packet.stream = stream
            unit = packet.time_base
            ready.append(((packet.dts or 0) * unit.numerator / unit.denominator, packet))
    ready.sort(key=lambda one: one[0])
    output.start_encoding()
    for _, packet in ready:
        output.mux_one(packet)
    output.close()
    return file.getvalue()


def boxes(data: bytes | memoryview, start: int = 0, end: int | None = None) -> Iterator[tuple[str, int, int]]:
    """The boxes of an ISO base media file between two offsets: kind, and where their contents begin and end."""
    last = len(data) if end is None else end
    while start + 8 <= last:
        size, kind = struct.unpack_from(">I4s", data, start)
        head = 8
        if size == 1:
            (size,), head = struct.unpack_from(">Q", data, start + 8), 16
        yield kind.decode("latin-1"), start + head, start + size
        start += max(size, head)


def split_header(data: bytes) -> tuple[bytes, bytes]:
    """Header (ftyp, moov) and media of a fragmented file."""
    cut = max((end for kind, _, end in boxes(data) if kind in ("ftyp", "moov")), default=0)
    return data[:cut], data[cut:]


class ContinuityCounters:
    """Lets the 4-bit counters of an MPEG-TS run on from file to file: libavformat begins each at 0.

    ISO/IEC 13818-1, 2.4.3.3: it counts the packets of a PID that carry a payload, modulo 16. `packet_bytes` is 188, or
    192 where each has a time of arrival before it.
    """

    def __init__(self, packet_bytes: int = 188, seen: Mapping[str, int] | None = None) -> None:
        self._packet = packet_bytes
        self._seen = {int(pid): count for pid, count in (seen or {}).items()}

    def state(self) -> dict[str, int]:
        """By PID, what the next packet with a payload says."""
        return {str(pid): count for pid, count in self._seen.items()}

    def continued(self, data: bytes) -> bytes:
        """The same file, counted on from the one before."""
        whole = np.frombuffer(bytearray(data), np.uint8).reshape(-1, self._packet)
        packets = whole[:, self._packet - 188 :]
        pids = (packets[:, 1].astype(np.int64) & 0x1F) << 8 | packets[:, 2]
        payload = packets[:, 3] & 0x10 != 0
        for pid in np.unique(pids).tolist():
            own = pids == pid
            before = self._seen.get(pid, 0)
            packets[own, 3] = (packets[own, 3] & 0xF0) | ((packets[own, 3] + before) & 0x0F)
            self._seen[pid] = (before + int((own & payload).sum())) % 16
        return whole.tobytes()
