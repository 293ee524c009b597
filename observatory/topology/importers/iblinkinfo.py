"""`iblinkinfo`: nodes with their ports below them, or with `-l` one line for each link.

    Switch: 0x7cfe9003009ce5b0 ib-i1l1s01:
        1719   10[  ] ==( 4X      25.78125 Gbps Active/  LinkUp)==>     134    1[  ] "o0001 HCA-1" ( )
        1719   11[  ] ==(                Down/ Polling)==>             [  ] "" ( )
    CA: o0001 HCA-1:
      0x7cfe9003003b4bde    134    1[  ] ==( 4X      25.78125 Gbps Active/  LinkUp)==>    1719   10[  ] "ib-i1l1s01" ( )

The rate is the signalling rate of one lane. The other end is told by LID and description only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from observatory.model.topology import Topology
from observatory.topology.importers.infiniband import Cable, End, Fabric, guid_text, lane_speed, lanes_of
from observatory.topology.importers.source import Format, Source

_HEADER = re.compile(r"(CA|Switch|Router|RT|SW):\s+(?:(0x[0-9a-fA-F]{1,16})\s+)?(.{0,64}?):\s*\Z")
_PORT = re.compile(
    r"\s*(?:(0x[0-9a-fA-F]{1,16})\s+)?(?:\"\s*(?P<own>.{0,64}?)\"\s+)?(?P<lid>\d{1,6})\s+(?P<port>\d{1,3})\[..\]\s+"
    r"==\(\s*(?:(?P<lanes>\d{1,2}X)\s+(?P<speed>[\d.]{1,10})\s+Gbps\s+)?(?P<state>\w+)\s*/\s*(?P<physical>\w+)\s*\)==>\s+"
    r"(?:(?P<guid>0x[0-9a-fA-F]{1,16})\s+)?(?:(?P<olid>\d{1,6})\s+(?P<oport>\d{1,3}))?\[..\]\s+\"(?P<name>.{0,64}?)\"\s*\((?P<note>.*)\)\s*\Z"
)


def _recognise(source: Source) -> bool:
    return "==(" in source.head and ")==>" in source.head


def _read(source: Source) -> Topology:
    fabric = Fabric(source, "iblinkinfo")
    fabric.add(_cables(source, fabric))
    return fabric.topology()


def _cables(source: Source, fabric: Fabric) -> Iterator[Cable]:
    switches = {m[3].strip() for line in source.lines if (m := _HEADER.match(line)) and m[1] in ("Switch", "SW")}
    guids = {m[3].strip(): m[2] for line in source.lines if (m := _HEADER.match(line)) and m[2]}
    ports = _port_guids(source)
    kind, guid, name = "SW", "", ""
    for number, line in enumerate(source.lines, 1):
        if header := _HEADER.match(line):
            kind = "SW" if header[1] in ("Switch", "SW") else "CA"
            guid, name = header[2] or "", header[3]
            continue
        if "==(" not in line:
            continue
        match = _PORT.match(line)
        if match is None:
            source.fail("has a port that makes no sense", number, "give the whole output of iblinkinfo")
        own = match["own"] if match["own"] is not None else name
        here = "CA" if match["own"] is not None and own.strip() not in switches and switches else kind
        a = End(here, guid_text(match[1] or guid), int(match["port"]), own)
        speed = lane_speed(match["speed"]) if match["speed"] else None
        if match["speed"] and speed is None:
            fabric.build.warn("speeds that InfiniBand does not have", f"{match['speed']} Gbps on line {number}")
        up = match["olid"] is not None and match["name"].strip() != ""
        other = None
        if up:
            told = match["name"].strip()
            is_switch = told in switches or (here == "CA" and not switches)
            other_guid = match["guid"] or guids.get(told) or ports.get((told, match["oport"]), "")
            other = End("SW" if is_switch or here == "CA" else "CA", guid_text(other_guid), int(match["oport"]), told)
        yield Cable(a, other, lanes_of(match["lanes"]) if match["lanes"] else None, speed, number)


def _port_guids(source: Source) -> dict[tuple[str, str], str]:
    """Description and port -> GUID, of the cards whose own ports are told."""
    found: dict[tuple[str, str], str] = {}
    name = ""
    for line in source.lines:
        if header := _HEADER.match(line):
            name = header[3].strip()
        elif "==(" in line and (match := _PORT.match(line)) and match[1]:
            own = match["own"].strip() if match["own"] is not None else name
            found.setdefault((own, match["port"]), match[1])
    return found


FORMAT = Format(name="iblinkinfo", title="iblinkinfo", recognise=_recognise, read=_read)
