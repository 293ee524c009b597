"""Outputs of InfiniBand's tools: ibstatus, perfquery, ibswinfo; ethtool; and single files of a port in /sys."""

from __future__ import annotations

import re

from observatory.anomalies.recorded.health_dumps import state_of
from observatory.anomalies.recorded.recording import LookMaker, Recording, bytes_of_rate, float_of, one_look
from observatory.model.observation import AddressKind

_PORT, _DEVICE, _INTERFACE = AddressKind.PORT, AddressKind.DEVICE, AddressKind.INTERFACE

_IBSTATUS = re.compile(r"^Infiniband device '([\w.-]+)' port (\d+) status:", re.MULTILINE)
_PERFQUERY = re.compile(r"^# Port.*[Cc]ounters: Lid (\d+) port (\d+)", re.MULTILINE)
_COUNTER = re.compile(r"^(\w+):\.*(\d+)$", re.MULTILINE)
_IBSWINFO = re.compile(r"^GUID\s+\|\s+(0x[0-9a-f]+)", re.MULTILINE)
_ETHTOOL = re.compile(r"^Settings for ([\w.-]+):", re.MULTILINE)
_SINGLE = re.compile(r"\s*(?:\d+: (?:\w+|<\w+>)|[\d.]+ Gb/sec \(\d+X \w+\))\s*")
_LONGEST_SINGLE = 100
_MARKS = (("Infiniband device", _IBSTATUS), ("# Port", _PERFQUERY), ("GUID", _IBSWINFO), ("Settings for", _ETHTOOL))
_PACKETS = {"PortXmitPkts": "transmit", "PortRcvPkts": "receive"}
_NO_ERRORS = re.compile(r"Select|Data$|Pkts$|Wait$|CapMask")


def is_infiniband(text: str) -> bool:
    """Whether it is any of these outputs."""
    if any(mark in text and pattern.search(text) is not None for mark, pattern in _MARKS):
        return True
    return len(text) < _LONGEST_SINGLE and _SINGLE.fullmatch(text) is not None


def read_infiniband(text: str, node: str, name: str) -> Recording:
    """What it tells; `name` is the file's, which is all that says what a single file of /sys is of."""
    if _IBSTATUS.search(text):
        return one_look("ibstatus", [_ibstatus(text, node)])
    if _PERFQUERY.search(text):
        return one_look("perfquery", [_perfquery(text, node)])
    if _IBSWINFO.search(text):
        return one_look("ibswinfo", [_ibswinfo(text, node)])
    if _ETHTOOL.search(text):
        return one_look("ethtool", [_ethtool(text, node)])
    return one_look("file of a port", [_single(text, node, name)])


def _parts(pattern: re.Pattern[str], text: str) -> list[tuple[re.Match[str], str]]:
    marks = list(pattern.finditer(text))
    starts = [*(mark.start() for mark in marks), len(text)]
    return [(mark, text[mark.end() : end]) for mark, end in zip(marks, starts[1:], strict=True)]


def _value(text: str, field: str) -> str:
    match = re.search(rf"^[ \t]*{re.escape(field)}[ \t]*[:|][ \t]*(.*)$", text, re.MULTILINE)
    return "" if match is None else match[1].strip()


def _ibstatus(text: str, node: str) -> LookMaker:
    look = LookMaker(node, "ibstatus")
    for mark, part in _parts(_IBSTATUS, text):
        key = f"{mark[1]}/{mark[2]}"
        look.add(_PORT, key, "hw.network.up", state_of(_value(part, "state")))
        look.add(_PORT, key, "hw.network.bandwidth.limit", bytes_of_rate(_value(part, "rate")))
    return look


def _perfquery(text: str, node: str) -> LookMaker:
    """Counts since they were cleared: one look alone tells of no trouble."""
    look = LookMaker(node, "perfquery")
    for mark, part in _parts(_PERFQUERY, text):
        key = f"lid{mark[1]}/{mark[2]}"
        for counter in _COUNTER.finditer(part):
            name, value = counter[1], float_of(counter[2])
            if name in _PACKETS:
                look.add(_PORT, key, "hw.network.packets", value, network__io__direction=_PACKETS[name])
            elif _NO_ERRORS.search(name) is None:
                look.add(_PORT, key, "link.errors", value, error__type=name)
    return look


def _ibswinfo(text: str, node: str) -> LookMaker:
    """States of power supplies and fans; an empty field is not known."""
    look = LookMaker(node, "ibswinfo")
    guid = _IBSWINFO.search(text)
    switch = guid[1] if guid is not None else "switch"
    supplies = _parts(re.compile(r"^PSU(\d+) status", re.MULTILINE), text.partition("\ntemperature")[0])
    for mark, part in supplies:
        block = "PSU status" + part.partition("\n---")[0]
        _status(look, f"{switch}/psu{mark[1]}", [_value(block, f) for f in ("PSU status", "DC power", "fan status")])
    below = text.rpartition("\nPSU")[2].partition("\n---")[2]
    _status(look, f"{switch}/fans", [_value(below, "fan status")])
    return look


def _status(look: LookMaker, key: str, states: list[str]) -> None:
    told = [state for state in states if state]
    if "ERROR" in told:
        look.add(_DEVICE, key, "hw.status", 1.0, hw__state="failed")
    elif told and all(state == "OK" for state in told):
        look.add(_DEVICE, key, "hw.status", 1.0, hw__state="ok")


def _ethtool(text: str, node: str) -> LookMaker:
    look = LookMaker(node, "ethtool")
    for mark, part in _parts(_ETHTOOL, text):
        up = {"yes": 1.0, "no": 0.0}.get(_value(part, "Link detected"))
        look.add(_INTERFACE, mark[1], "hw.network.up", up)
        look.add(_INTERFACE, mark[1], "hw.network.bandwidth.limit", float_of(_value(part, "Speed"), 1e6 / 8))
    return look


def _single(text: str, node: str, name: str) -> LookMaker:
    look = LookMaker(node, "sysfs")
    if "Gb/sec" in text:
        look.add(_PORT, "port/1", "hw.network.bandwidth.limit", bytes_of_rate(text))
    elif "phys" not in name:
        look.add(_PORT, "port/1", "hw.network.up", state_of(text))
    return look
