"""Health dumps of machines: files of /sys with what was in them, or what `ip` and `ethtool` said; and manifests.

The form is that of GPU cluster monitoring (facebookresearch/gcm, health_checks): one JSON object. A manifest says what
every machine of one type should have: its values are the best ones, from the source `manifest`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from observatory.anomalies.detectors.pcie import EXPECTED
from observatory.anomalies.recorded.recording import (
    LookMaker,
    Recording,
    bytes_of_rate,
    float_of,
    one_look,
    transfers_of_speed,
)
from observatory.model.observation import AddressKind

_MEGABIT = 1e6 / 8
_LINK = re.compile(r"/sys/.*/([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])/current_link_(speed|width)$")
_PORT = re.compile(r"/sys/.*/([0-9a-f:.]{10,16})/infiniband/([\w-]+)/ports/(\d+)/(state|rate)$")
_NET = re.compile(r"/sys/.*/([0-9a-f:.]{10,16})/net/([\w.-]+)/operstate$")
_PCI, _INTERFACE, _RDMA = AddressKind.PCI, AddressKind.INTERFACE, AddressKind.PORT


def is_manifest(document: object) -> bool:
    """Whether it says what a type of machine should have."""
    return isinstance(document, dict) and isinstance(document.get("pci"), dict) and "zone_geom" in document


def is_dump(document: object) -> bool:
    """Whether it holds files of /sys, or what `ip` says of interfaces."""
    if not isinstance(document, dict) or not document:
        return False
    return "intf_status" in document or all(isinstance(k, str) and k.startswith("/sys/") for k in document)


def read_manifest(document: Mapping[str, Any], node: str) -> Recording:
    """The best of every link and port that the manifest lists. Bonds are left out: they are what their members are."""
    look = LookMaker(node, EXPECTED)
    for key, card in _entries(document.get("pci")):
        look.add(_PCI, key, "link.width.best", float_of(str(card.get("link_width", ""))))
        speeds = [transfers_of_speed(str(speed)) for speed in card.get("link_speed") or ()]
        look.add(_PCI, key, "link.speed.best", min((s for s in speeds if s is not None), default=None))
    for _, port in _entries(document.get("eth")):
        if port.get("phys"):
            rate = float_of(str(port.get("speed", "")), _MEGABIT)
            look.add(_INTERFACE, str(port.get("netdev", "")), "link.bandwidth.best", rate)
    fabric = document.get("ib")
    if isinstance(fabric, dict):
        rate = bytes_of_rate(str(fabric.get("link_rate", "")))
        for name, port in _entries(fabric.get("interfaces")):
            look.add(_RDMA, f"{port.get('mlx', '')}/1", "link.bandwidth.best", rate)
            look.add(_INTERFACE, name, "link.bandwidth.best", rate)
    return one_look("manifest", [look])


def read_dump(document: Mapping[str, Any], node: str) -> Recording:
    """What the machine had."""
    look = LookMaker(node, "recorded")
    recording = one_look("health dump", [look])
    ports: dict[str, str] = {}
    nets: list[tuple[str, str]] = []
    for path, text in document.items():
        if not isinstance(text, str):
            continue
        link, port, net = _LINK.match(path), _PORT.match(path), _NET.match(path)
        if link is not None:
            value = transfers_of_speed(text) if link[2] == "speed" else float_of(text)
            look.add(_PCI, link[1], f"link.{link[2]}", value)
        elif port is not None:
            _port(look, port, text)
            ports[port[1]] = f"{port[2]}/{port[3]}"
        elif net is not None:
            up = {"up": 1.0, "down": 0.0}.get(text.strip())
            look.add(_INTERFACE, net[2], "hw.network.up", up)
            nets.append((net[1], net[2]))
    for card, name in nets:
        if card in ports:
            recording.owners[f"{node}:interface:{name}"] = f"{node}:port:{ports[card]}"
    _interfaces(look, document)
    return recording


def _port(look: LookMaker, port: re.Match[str], text: str) -> None:
    key = f"{port[2]}/{port[3]}"
    if port[4] == "rate":
        look.add(_RDMA, key, "hw.network.bandwidth.limit", bytes_of_rate(text))
    else:
        look.add(_RDMA, key, "hw.network.up", state_of(text))


def state_of(text: str) -> float | None:
    """1 for `4: ACTIVE`, 0 for any other state that is told, None for none (`0: <unknown>`)."""
    word = text.partition(":")[2].strip()
    if not word or word.startswith("<"):
        return None
    return 1.0 if word.startswith("ACTIVE") else 0.0


def _interfaces(look: LookMaker, document: Mapping[str, Any]) -> None:
    told = document.get("intf_status")
    if not isinstance(told, list):
        return
    seen = set()
    for interface in told:
        if not isinstance(interface, dict) or "MASTER" in (interface.get("flags") or ()):
            continue
        name = str(interface.get("ifname", ""))
        seen.add(name)
        look.add(_INTERFACE, name, "hw.network.up", {"UP": 1.0, "DOWN": 0.0}.get(str(interface.get("operstate"))))
    for name, speed in _items(document.get("link_speed")):
        if name in seen:
            look.add(_INTERFACE, name, "hw.network.bandwidth.limit", float_of(str(speed), _MEGABIT))
    for name, _ in _items(document.get("phys_macaddr")):
        if name not in seen:  # the card is there, its interface is not
            look.add(_INTERFACE, name, "hw.network.up", 0.0)


def _items(table: object) -> list[tuple[str, Any]]:
    return [(str(name), value) for name, value in table.items()] if isinstance(table, dict) else []


def _entries(table: object) -> list[tuple[str, dict[str, Any]]]:
    return [(name, value) for name, value in _items(table) if isinstance(value, dict)]
