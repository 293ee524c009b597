"""InfiniBand fabrics: `ibnetdiscover` (both of its forms), `iblinkinfo` and `ibstatus`.

    CA   134  1 0x7cfe9003003b4bde 4x EDR - SW  1719 10 0x7cfe9003009ce5b0 ( 'o0001 HCA-1' - 'ib-i1l1s01' )

of `ibnetdiscover -p` is a cable: kind of node, LID, port, port GUID, width, speed; what has no other end is a free
port. Every cable is told from both ends. A node's description is the host's name and that of its card; `Aggregation
Node` is a part of a switch. Rates are data rates (`observatory.model.data_sheets`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from observatory.model.data_sheets import infiniband_lanes_bytes_per_second
from observatory.model.device import DeviceKind, Port
from observatory.model.link import BandwidthSource, LinkKind, LinkState
from observatory.model.topology import Topology, VertexKind
from observatory.topology.importers.building import TopologyBuilder
from observatory.topology.importers.source import Source

_LANE_GIGABITS = {
    "SDR": 2.5,
    "DDR": 5.0,
    "QDR": 10.0,
    "FDR10": 10.3125,
    "FDR": 14.0625,
    "EDR": 25.78125,
    "HDR": 53.125,
    "NDR": 106.25,
    "XDR": 212.5,
}
"""Signalling rates of a lane, as `iblinkinfo` writes them, sometimes rounded."""
_ROUNDED = 0.002

_NOT_A_HOST = re.compile(r"Aggregation Node|^\s*$")
_CARD = re.compile(r"(HCA-\d+|mlx\d+_\w+|hfi\d+_\w+|bnxt_re\w+|mthca\d+|qib\d+|ibp\w+)\Z")
_LANES = (1, 2, 4, 8, 12)


@dataclass(frozen=True, slots=True)
class End:
    """One end of a cable: `CA` or `SW`, GUID (16 digits; None where not told), port, the node's description, LID."""

    kind: str
    guid: str | None
    port: int | None
    name: str
    lid: str | None = None


@dataclass(frozen=True, slots=True)
class Cable:
    """What is between two ends; `b` None: a free port."""

    a: End
    b: End | None
    lanes: int | None
    speed: str | None
    line: int


def lane_speed(text: str) -> str | None:
    """`EDR` for `25.78125` or `25.78`; None for a rate that InfiniBand does not have."""
    try:
        rate = float(text)
    except ValueError:
        return None
    return next((w for w, r in _LANE_GIGABITS.items() if abs(rate - r) <= _ROUNDED * r), None)


def is_card(description: str) -> bool:
    """Whether a node's description ends in the name of a card: `o0001 HCA-1`."""
    return _CARD.match(description.strip().rpartition(" ")[2]) is not None


class Fabric:
    """Puts cables into a topology: cards in hosts, switches, links with their data rates."""

    def __init__(self, source: Source, name: str) -> None:
        self.source = source
        self.build = TopologyBuilder(source, name=name)
        self._ends: dict[str, str] = {}
        self._switches: set[str] = set()
        self._ports: dict[str, list[Port]] = {}
        self._seen: set[frozenset[tuple[str, int | None]]] = set()
        self._free = 0

    def add(self, cables: Iterator[Cable]) -> None:
        """All cables, those told from both ends once."""
        for cable in cables:
            a = self._end(cable.a, cable)
            if cable.b is None:
                self._free += 1
                continue
            b = self._end(cable.b, cable)
            if a is None or b is None or a == b:
                continue
            key = frozenset({(a, cable.a.port), (b, cable.b.port)})
            if key in self._seen:
                continue
            self._seen.add(key)
            rate = None
            if cable.lanes is not None and cable.speed is not None:
                rate = infiniband_lanes_bytes_per_second(cable.lanes, cable.speed)
            if cable.speed is not None and rate is None:
                self.build.warn("speeds that InfiniBand does not have", f"{cable.speed[:20]} on line {cable.line}")
            self.build.parallel_link(
                a,
                b,
                LinkKind.RDMA,
                width=cable.lanes,
                speed=cable.speed,
                bandwidth_bytes_per_second=rate,
                bandwidth_source=None if rate is None else BandwidthSource.NEGOTIATED,
                state=LinkState.UP,
            )
            for end, device in ((cable.a, a), (cable.b, b)):
                self._rate(end, device, rate)

    def topology(self) -> Topology:
        """What was put together."""
        for device, ports in self._ports.items():
            self.build.update(device, ports=tuple(ports))
        if self._free:
            self.build.warn(f"{self._free} ports without a cable are left out")
        if not self.build.devices and not self.build.vertices:
            self.source.fail("names no card and no switch", 1, "give the whole output")
        if not self.build.links:
            self.build.warn("no cable is told of: nothing is linked")
        return self.build.build()

    def card(self, description: str, guid: str | None, port: int | None) -> str | None:
        """The network card of that description; None for what is no host's."""
        if _NOT_A_HOST.search(description):
            self.build.warn("nodes that are no host's, left out", description.strip() or guid or "?")
            return None
        host, _, card = description.strip().rpartition(" ")
        if not host or not _CARD.match(card):
            host, card = description.strip(), ""
        node = self.build.node(host)
        key = f"{node}/{card}" if card else f"{node}/{guid or '?'}"
        if key not in self._ends:
            self._ends[key] = self.build.device(
                node,
                DeviceKind.NIC,
                name=card or None,
                os_names=() if card.startswith("HCA-") or not card else (card,),
            )
            self._ports[self._ends[key]] = []
        device = self._ends[key]
        name = f"{card or 'port'}/{port}" if port is not None else card or "port"
        if all(p.name != name for p in self._ports[device]):
            self._ports[device].append(Port(name=name, link_layer="infiniband", guid=guid))
        return device

    def _end(self, end: End, cable: Cable) -> str | None:
        if end.kind != "SW":
            return self.card(end.name, end.guid, end.port)
        key = f"switch {end.guid or end.lid or end.name}"
        if key not in self._ends:
            name = end.name.strip() or end.guid or "?"
            vertex = self.build.named_vertex("fabric", name, VertexKind.SWITCH)
            if vertex in self._switches:  # another switch of the same description
                vertex = self.build.named_vertex("fabric", f"{name} {end.guid or end.lid}", VertexKind.SWITCH)
            self._switches.add(vertex)
            self._ends[key] = vertex
        return self._ends[key]

    def _rate(self, end: End, device: str, rate: float | None) -> None:
        ports = self._ports.get(device, [])
        for index, port in enumerate(ports):
            if port.guid == end.guid and (end.port is None or port.name.endswith(f"/{end.port}")):
                ports[index] = port.model_copy(update={"bytes_per_second": rate, "state": LinkState.UP})


def guid_text(text: str) -> str | None:
    """16 hexadecimal digits of `0x7cfe...`; None for none or zero."""
    digits = text.lower().removeprefix("0x")
    if not re.fullmatch(r"[0-9a-f]{1,16}", digits) or int(digits, 16) == 0:
        return None
    return digits.zfill(16)


def lanes_of(text: str) -> int | None:
    """The lanes in `4x`; None for a width that InfiniBand does not have."""
    digits = text.rstrip("xX")
    lanes = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 4 else 0
    return lanes if lanes in _LANES else None
