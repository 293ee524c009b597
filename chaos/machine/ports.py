"""Ports of a network card as the kernel shows them: network interfaces and RDMA devices, and which names are which."""

from __future__ import annotations

import re
from dataclasses import dataclass

from observatory.model.device import Device, DeviceKind, Port
from observatory.model.link import LinkState
from observatory.model.topology import Topology

ETHERNET, INFINIBAND = "ethernet", "infiniband"
_RDMA_NAME = re.compile(r"(mlx[45]_|bnxt_re|irdma|hfi1_|qib|mthca|cxgb4_|efa_|rdmap|rocep|ibp\d|ibs\d|hns_|siw|rxe)")
_GIGABITS = re.compile(r"\b(\d{1,4})G(?:bE|b|bps)?\b")
_LANES = {
    10: "4X SDR",
    20: "4X DDR",
    40: "4X QDR",
    56: "4X FDR",
    100: "4X EDR",
    200: "4X HDR",
    400: "4X NDR",
    800: "4X XDR",
}
_SIGNALLED = {8: 10, 16: 20, 32: 40}
"""Linux writes what is signalled for those with 8b/10b coding: see the importer of `rate`."""


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """One port of an RDMA device: `mlx5_0`, 1."""

    device: str
    number: str
    link_layer: str
    rate: str
    up: bool


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface. `megabits` is -1 where it is not known, as the kernel writes it."""

    name: str
    is_infiniband: bool
    megabits: int
    up: bool


def with_ports(topology: Topology) -> Topology:
    """The topology with an RDMA device for every network card of which neither names nor ports are told.

    Its rate is what the card's name says (`ConnectX-7 400G`), else unknown.
    """
    taken = {name for device in topology.devices for name in device.os_names}
    number = 0
    devices = []
    for device in topology.devices:
        if device.kind is DeviceKind.NIC and not device.ports and not device.os_names:
            while f"mlx5_{number}" in taken:
                number += 1
            name = f"mlx5_{number}"
            number += 1
            match = _GIGABITS.search(device.name or "")
            rate = None if match is None else int(match[1]) * 1e9 / 8
            port = Port(name=f"{name}/1", link_layer=INFINIBAND, bytes_per_second=rate, state=LinkState.UP)
            device = device.model_copy(update={"os_names": (name,), "ports": (port,)})
        devices.append(device)
    return topology.model_copy(update={"devices": tuple(devices)})


def rdma_ports(card: Device) -> list[RdmaPort]:
    """Of the card; one of RoCE has an RDMA port beside its interface."""
    found = [_rdma_port(port, *port.name.split("/", 1)) for port in card.ports if "/" in port.name]
    told = {port.device for port in found}
    for position, name in enumerate(n for n in card.os_names if _RDMA_NAME.match(n) and n not in told):
        beside = [port for port in card.ports if "/" not in port.name]
        port = beside[min(position, len(beside) - 1)] if beside else Port(name=name, link_layer=ETHERNET)
        found.append(_rdma_port(port, name, "1"))
    return found


def _rdma_port(port: Port, device: str, number: str) -> RdmaPort:
    layer = "InfiniBand" if port.link_layer == INFINIBAND else "Ethernet"
    return RdmaPort(device, number, layer, rate_text(port.bytes_per_second, layer), port.state is not LinkState.DOWN)


def rate_text(bytes_per_second: float | None, layer: str) -> str:
    """`400 Gb/sec (4X NDR)`; 0 where it is not known or nothing is plugged in."""
    if bytes_per_second is None:
        return "0 Gb/sec"
    gigabits = bytes_per_second * 8 / 1e9
    if layer == "InfiniBand":
        gigabits = _SIGNALLED.get(round(gigabits), gigabits)
        if abs(gigabits - 56 * 64 / 66) < 0.5:
            gigabits = 56
    lanes = _LANES.get(round(gigabits))
    return f"{gigabits:g} Gb/sec" + ("" if lanes is None else f" ({lanes})")


def interfaces(card: Device) -> list[Interface]:
    """Of the card."""
    told = {port.name: port for port in card.ports if "/" not in port.name}
    infiniband = any(port.link_layer == INFINIBAND for port in card.ports)
    found = []
    for name in dict.fromkeys([*told, *(n for n in card.os_names if not _RDMA_NAME.match(n) and "/" not in n)]):
        port = told.get(name)
        rate = None if port is None else port.bytes_per_second
        found.append(
            Interface(
                name=name,
                is_infiniband=port.link_layer == INFINIBAND if port is not None else infiniband,
                megabits=-1 if rate is None else round(rate * 8 / 1e6),
                up=port is None or port.state is not LinkState.DOWN,
            )
        )
    return found
