"""`ibnetdiscover`, with `-p` (a line for every port) and without (a file of nodes, each with its ports below it).

Switch  36 "S-7cfe9003009ce5b0"         # "ib-i1l1s01" enhanced port 0 lid 1719 lmc 0
[10]    "H-7cfe9003003b4bde"[1](7cfe9003003b4bde)     # "o0001 HCA-1" lid 134 4xEDR
Ca      1 "H-7cfe9003003b4bde"          # "o0001 HCA-1"
[1](7cfe9003003b4bde)   "S-7cfe9003009ce5b0"[10]      # lid 134 lmc 0 "ib-i1l1s01" lid 1719 4xEDR
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from observatory.model.topology import Topology
from observatory.topology.importers.infiniband import Cable, End, Fabric, guid_text, lanes_of
from observatory.topology.importers.source import Format, Source

_PORT = re.compile(
    r"(CA|SW|RT)\s+(\d{1,6})\s+(\d{1,3})\s+(0x[0-9a-fA-F]{1,16})\s+(\d{1,2}x)\s+(\S{1,8})"
    r"(?:\s+-\s+(CA|SW|RT)\s+(\d{1,6})\s+(\d{1,3})\s+(0x[0-9a-fA-F]{1,16})\s+\(\s*'(.{0,64}?)'\s+-\s+'(.{0,64}?)'\s*\)"
    r"|\s+'(.{0,64}?)')\s*\Z"
)
_NODE = re.compile(r'(Switch|Ca|Rt)\s+(\d{1,4})\s+"([SHR])-([0-9a-fA-F]{16})"\s*(?:#\s*"(.{0,64}?)")?')
_BELOW = re.compile(
    r'\[(\d{1,3})\](?:\([0-9a-fA-F]{1,16}\))?\s+"([SHR])-([0-9a-fA-F]{16})"\[(\d{1,3})\](?:\([0-9a-fA-F]{1,16}\))?(.*)'
)
_SPEED = re.compile(r"\b(\d{1,2}x)([A-Z]{2,4}\d{0,2})\b")
_QUOTED = re.compile(r'"(.{0,64}?)"')
_KINDS = {"S": "SW", "H": "CA", "R": "RT", "Switch": "SW", "Ca": "CA", "Rt": "RT"}


def _recognise(source: Source) -> bool:
    lines = source.head.split("\n")[:2000]
    return any(_PORT.match(line) or _NODE.match(line) for line in lines)


def _read(source: Source) -> Topology:
    fabric = Fabric(source, "ibnetdiscover")
    ports = any(_PORT.match(line) for line in source.lines)
    fabric.add(_port_lines(source) if ports else _nodes(source, fabric))
    return fabric.topology()


def _port_lines(source: Source) -> Iterator[Cable]:
    for number, line in enumerate(source.lines, 1):
        match = _PORT.match(line)
        if match is None:
            if line.startswith(("CA ", "SW ", "RT ")):
                source.fail("has a port that makes no sense", number, "give the whole output of ibnetdiscover -p")
            continue
        own = match[11] if match[7] else match[13]
        a = End(match[1], guid_text(match[4]), int(match[3]), own)
        b = End(match[7], guid_text(match[10]), int(match[9]), match[12]) if match[7] else None
        yield Cable(a, b, lanes_of(match[5]), None if match[6] == "???" else match[6], number)


def _nodes(source: Source, fabric: Fabric) -> Iterator[Cable]:
    """The whole-fabric form. Descriptions are told where a node is, and again where it is the other end."""
    names = {match[4]: match[5] or "" for line in source.lines if (match := _NODE.match(line))}
    here: End | None = None
    for number, line in enumerate(source.lines, 1):
        if match := _NODE.match(line):
            here = End(_KINDS[match[1]], guid_text(match[4]), None, match[5] or "")
            if here.kind == "CA":
                fabric.card(here.name, here.guid, None)
        elif here is not None and (match := _BELOW.match(line)):
            comment = match[5].partition("#")[2]
            speed = _SPEED.search(comment)
            quoted = _QUOTED.search(comment)
            name = names.get(match[3]) or (quoted[1] if quoted else "")
            a = End(here.kind, here.guid, int(match[1]), here.name)
            b = End(_KINDS[match[2]], guid_text(match[3]), int(match[4]), name)
            yield Cable(a, b, lanes_of(speed[1]) if speed else None, speed[2] if speed else None, number)


FORMAT = Format(name="ibnetdiscover", title="ibnetdiscover (-p, too)", recognise=_recognise, read=_read)
