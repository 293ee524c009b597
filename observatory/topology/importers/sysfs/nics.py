"""Network cards: functions of class network, and whatever else has network interfaces or InfiniBand ports.

    class/net/*/{type,speed,operstate,carrier}, class/infiniband/*/ports/*/{rate,state,link_layer}

One port is told once: an InfiniBand port's IP interface (`ib0`) and a RoCE port's InfiniBand face (`mlx5_0/1` beside
`eth0`) are names of the same cage.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from observatory.model.device import Port
from observatory.model.link import LinkState
from observatory.topology.importers.sysfs.names import OsName, entries
from observatory.topology.importers.sysfs.tree import SysfsTree

_ETHERNET = 1  # ARPHRD_ETHER, ARPHRD_INFINIBAND of linux/if_arp.h
_INFINIBAND = 32
_UNKNOWN_SPEED = 0xFFFFFFFF  # SPEED_UNKNOWN is -1; old kernels wrote it without its sign

_OPERSTATES = {
    "up": LinkState.UP,
    "down": LinkState.DOWN,
    "lowerlayerdown": LinkState.DOWN,
    "notpresent": LinkState.DOWN,
}
_RATE = re.compile(r"(\d{1,5}(?:\.\d{1,3})?) Gb/sec(?: \((\d{1,2})X(?: ([A-Z0-9 ]+))?\))?\Z")
_STATE = re.compile(r"\d+: ([A-Z_]+)\Z")
_CODED_8B10B = frozenset({"SDR", "DDR", "QDR"})
_CODED_64B66B_RAW = "FDR"


def infiniband_bytes_per_second(rate: str, link_layer: str | None) -> float | None:
    """Payload bytes per second and direction in `100 Gb/sec (4X EDR)`; None for a rate of 0 (no cable).

    Linux writes the signalling rate of SDR, DDR, QDR (8b/10b: 8 bits in 10) and FDR (64b/66b), and the data rate of
    FDR10, EDR and faster: drivers/infiniband/core/sysfs.c, rate_show; InfiniBand Architecture Specification vol. 2,
    rel. 1.4, table of link speeds. On Ethernet the word in brackets is a formality and the rate is the Ethernet's.

    Raises:
        ValueError: the text has another form.
    """
    match = _RATE.match(rate)
    if match is None:
        raise ValueError(f"{rate!r} is no rate of an InfiniBand port")
    bits = float(match[1]) * 1e9
    speed = match[3] or ("SDR" if match[2] else None)  # kernels say no word for SDR: `10 Gb/sec (4X)`
    if link_layer == "InfiniBand" and speed in _CODED_8B10B:
        bits *= 8 / 10
    elif link_layer == "InfiniBand" and speed == _CODED_64B66B_RAW:
        bits *= 64 / 66
    return bits / 8 if bits else None


def read_net(tree: SysfsTree) -> list[OsName]:
    """Network interfaces of hardware."""
    return [
        e for e in entries(tree, "class/net") if not e.is_software and (e.bus_id or e.folder.startswith("devices/"))
    ]


def read_infiniband(tree: SysfsTree) -> list[OsName]:
    """InfiniBand devices of hardware, RoCE and others of their kind too."""
    return [e for e in entries(tree, "class/infiniband") if not e.is_software]


def ports_of(tree: SysfsTree, net: list[OsName], infiniband: list[OsName]) -> tuple[Port, ...]:
    """The ports of one card that has these interfaces and InfiniBand devices."""
    interfaces = {entry.name: tree.integer(f"{entry.folder}/type") for entry in net}
    verbs = [port for device in infiniband for port in _infiniband_ports(tree, device)]
    has_infiniband = any(port.link_layer == "infiniband" for port in verbs)
    has_ethernet = any(kind == _ETHERNET for kind in interfaces.values())
    ports = [p for p in verbs if not (p.link_layer == "ethernet" and has_ethernet)]
    ports += [
        _interface(tree, entry, interfaces[entry.name])
        for entry in net
        if not (interfaces[entry.name] == _INFINIBAND and has_infiniband)
    ]
    return tuple(ports)


def _interface(tree: SysfsTree, entry: OsName, kind: int | None) -> Port:
    speed = tree.integer(f"{entry.folder}/speed")  # Mb/s
    known = speed is not None and 0 < speed < _UNKNOWN_SPEED
    state = _OPERSTATES.get(tree.text(f"{entry.folder}/operstate") or "", LinkState.UNKNOWN)
    if state is LinkState.UNKNOWN and tree.integer(f"{entry.folder}/carrier") == 1:
        state = LinkState.UP  # drivers that never say more than `unknown` still know of a cable
    return Port(
        name=entry.name,
        link_layer={_ETHERNET: "ethernet", _INFINIBAND: "infiniband"}.get(kind or 0),
        bytes_per_second=speed * 1e6 / 8 if known and speed is not None else None,
        state=state,
    )


def _infiniband_ports(tree: SysfsTree, device: OsName) -> Iterator[Port]:
    for number in tree.names(f"{device.folder}/ports"):
        folder = f"{device.folder}/ports/{number}"
        layer = tree.text(f"{folder}/link_layer")
        state = _STATE.match(tree.text(f"{folder}/state") or "")
        yield Port(
            name=f"{device.name}/{number}",
            link_layer=layer.lower() if layer else None,
            bytes_per_second=tree.parsed(f"{folder}/rate", partial(infiniband_bytes_per_second, link_layer=layer)),
            # A port that is INIT or ARMED has a cable and no data yet.
            state=LinkState.UNKNOWN if state is None else LinkState.UP if state[1] == "ACTIVE" else LinkState.DOWN,
        )
