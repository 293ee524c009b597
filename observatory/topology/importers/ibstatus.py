"""`ibstatus`: the InfiniBand and RoCE ports of one machine, as sysfs tells them.

Infiniband device 'mlx5_ib0' port 1 status:
        default gid:     fe80:0000:0000:0000:0015:5dff:fd33:ff0b
        state:           4: ACTIVE
        rate:            200 Gb/sec (4X HDR)
        link_layer:      InfiniBand
"""

from __future__ import annotations

import re

from observatory.model.device import DeviceKind, Port
from observatory.model.link import LinkState
from observatory.model.topology import Topology
from observatory.topology.importers.building import TopologyBuilder
from observatory.topology.importers.source import Format, Source
from observatory.topology.importers.sysfs.nics import infiniband_bytes_per_second

_DEVICE = re.compile(r"\s*Infiniband device '([\w.-]{1,64})' port (\d{1,3}) status:\s*\Z")
_FIELD = re.compile(r"\s+([a-z_ ]{3,20}):\s+(\S.*?)\s*\Z")


def _read(source: Source) -> Topology:
    found: dict[tuple[str, str], dict[str, str]] = {}
    fields: dict[str, str] = {}
    for line in source.lines:
        if match := _DEVICE.match(line):
            fields = found.setdefault((match[1], match[2]), {})
        elif match := _FIELD.match(line):
            fields[match[1]] = match[2]
    build = TopologyBuilder(source, name="ibstatus")
    node = build.node()
    ports: dict[str, list[Port]] = {}
    for (device, number), told in found.items():
        ports.setdefault(device, []).append(_port(build, f"{device}/{number}", told))
    for device, all_ports in ports.items():
        build.device(node, DeviceKind.NIC, os_names=(device,), ports=tuple(all_ports))
    return build.build()


def _port(build: TopologyBuilder, name: str, told: dict[str, str]) -> Port:
    layer = told.get("link_layer")
    rate = None
    try:
        rate = infiniband_bytes_per_second(told["rate"], layer) if "rate" in told else None
    except ValueError as error:
        build.warn("rates that make no sense", f"{name}: {error}")
    gid = told.get("default gid", "").replace(":", "").lower()
    state = told.get("state", "").partition(":")[2].strip()
    return Port(
        name=name,
        link_layer=layer.lower() if layer else None,
        bytes_per_second=rate,
        guid=gid[16:] if re.fullmatch(r"[0-9a-f]{32}", gid) and layer == "InfiniBand" and int(gid[16:], 16) else None,
        state=LinkState.UNKNOWN if not state else LinkState.UP if state == "ACTIVE" else LinkState.DOWN,
    )


FORMAT = Format(
    name="ibstatus",
    title="ibstatus",
    recognise=lambda source: any(_DEVICE.match(line) for line in source.head.split("\n")[:200]),
    read=_read,
)
