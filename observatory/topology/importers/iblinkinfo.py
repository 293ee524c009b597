"""`iblinkinfo`: nodes with their ports below them, or with `-l` one line for each link.

    Switch: 0x7cfe9003009ce5b0 ib-i1l1s01:
        1719   10[  ] ==( 4X      25.78125 Gbps Active/  LinkUp)==>     134    1[  ] "o0001 HCA-1" ( )
        1719   11[  ] ==(                Down/ Polling)==>             [  ] "" ( )
    CA: o0001 HCA-1:
      0x7cfe9003003b4bde    134    1[  ] ==( 4X      25.78125 Gbps Active/  LinkUp)==>    1719   10[  ] "ib-i1l1s01" ( )

    0x7cfe9003003b4bde "     o0001 HCA-1"    134    1[  ] ==( 4X 10.0 Gbps (FDR10) Active/  LinkUp)==>
        0x7cfe9003009ce5b0  1719   10[  ] "ib-i1l1s01" ( )                               (one line with -l)

The rate is the signalling rate of one lane. Switches often share one description, so nodes are told apart by GUID, or
by LID where that is all that is told of the other end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from observatory.model.topology import Topology
from observatory.topology.importers.infiniband import Cable, End, Fabric, guid_text, is_card, lane_speed, lanes_of
from observatory.topology.importers.source import Format, Source

_HEADER = re.compile(r"(CA|Switch|Router|RT|SW):\s+(?:(0x[0-9a-fA-F]{1,16})\s+)?(.{0,64}?):\s*\Z")
_PORT = re.compile(
    r"\s*(?:(?P<own_guid>0x[0-9a-fA-F]{1,16})\s+)?(?:\"\s*(?P<own>.{0,64}?)\"\s+)?(?P<lid>\d{1,6})\s+(?P<port>\d{1,3})\[.{2}\]\s+"
    r"==\(\s*(?:(?P<lanes>\d{1,2}X)\s+(?P<speed>[\d.]{1,10})\s+Gbps\s+(?:\((?P<word>\w{1,8})\)\s+)?)?"
    r"(?P<state>\w+)\s*/\s*(?P<physical>\w+)\s*\)==>\s+"
    r"(?:(?P<guid>0x[0-9a-fA-F]{1,16})\s+)?(?:(?P<far_lid>\d{1,6})\s+(?P<far_port>\d{1,3}))?\[.{2}\]\s+"
    r"\"\s*(?P<name>.{0,64}?)\s*\"\s*\(.*\)\s*\Z"
)
_MOST_PORTS_OF_A_CARD = 2


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of a port, with the node that it is of."""

    number: int
    kind: str | None  # of the header above; None with -l
    guid: str | None
    name: str
    match: re.Match[str]


def _recognise(source: Source) -> bool:
    return "==(" in source.head and ")==>" in source.head


def _read(source: Source) -> Topology:
    fabric = Fabric(source, "iblinkinfo")
    fabric.add(_cables(fabric, list(_lines(source))))
    return fabric.topology()


def _lines(source: Source) -> Iterator[_Line]:
    kind, guid, name = None, "", ""
    for number, line in enumerate(source.lines, 1):
        if header := _HEADER.match(line):
            kind = "SW" if header[1] in ("Switch", "SW") else "CA"
            guid, name = header[2] or "", header[3].strip()
        elif "==(" in line:
            match = _PORT.match(line)
            if match is None:
                source.fail("has a port that makes no sense", number, "give the whole output of iblinkinfo")
            own = match["own"]
            told = guid_text(match["own_guid"] or guid)
            yield _Line(number, None if own is not None else kind, told, name if own is None else own.strip(), match)


def _cables(fabric: Fabric, lines: list[_Line]) -> Iterator[Cable]:
    guids = {line.match["lid"]: line.guid for line in lines if line.guid}
    switches = _switches(lines)
    for line in lines:
        match = line.match
        speed = match["word"] or (lane_speed(match["speed"]) if match["speed"] else None)
        if match["speed"] and speed is None:
            fabric.build.warn("speeds that InfiniBand does not have", f"{match['speed']} Gbps on line {line.number}")
        a = End("SW" if match["lid"] in switches else "CA", line.guid, int(match["port"]), line.name, match["lid"])
        b = None
        if match["far_lid"] is not None and match["name"]:
            lid = match["far_lid"]
            guid = guid_text(match["guid"]) if match["guid"] else guids.get(lid)
            b = End("SW" if lid in switches else "CA", guid, int(match["far_port"]), match["name"], lid)
        yield Cable(a, b, lanes_of(match["lanes"]) if match["lanes"] else None, speed, line.number)


def _switches(lines: list[_Line]) -> set[str]:
    """LIDs of the switches: where no header tells, what has more ports than a card, or is no card by its description.

    What a card is linked to is a switch, but for two cards back to back.
    """
    kinds = {line.match["lid"]: line.kind for line in lines if line.kind is not None}
    ports: dict[str, set[int]] = {}
    names: dict[str, str] = {}
    for line in lines:
        match = line.match
        ports.setdefault(match["lid"], set()).add(int(match["port"]))
        names[match["lid"]] = line.name
        if match["far_lid"] is not None:
            ports.setdefault(match["far_lid"], set()).add(int(match["far_port"]))
            names.setdefault(match["far_lid"], match["name"])
    many = {lid for lid, used in ports.items() if max(used) > _MOST_PORTS_OF_A_CARD}
    beside_cards = {
        line.match["far_lid"]
        for line in lines
        if line.match["far_lid"] and is_card(line.name) and not is_card(line.match["name"])
    }
    return {
        lid
        for lid, name in names.items()
        if (kinds[lid] == "SW" if lid in kinds else not is_card(name) and (lid in many or lid in beside_cards))
    }


FORMAT = Format(name="iblinkinfo", title="iblinkinfo", recognise=_recognise, read=_read)
