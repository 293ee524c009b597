"""Functions on the PCI buses: where each hangs, what it is, and whether it is a bridge or a virtual function.

    bus/pci/devices/*/{class,vendor,device,numa_node,local_cpulist,physfn,config}   and the links of `pcie_link`

The tree is in the path that a function's link leads to: `devices/pci0000:40/0000:40:03.0/0000:43:00.0` is a function
on a bridge on the host bridge `pci0000:40`. Domains have 4 digits, or more: those behind a VMD controller begin at
`10000`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from observatory.topology.importers.sysfs.pcie_link import LinkEnd, read_link_end
from observatory.topology.importers.sysfs.tree import SysfsTree

BASE = "bus/pci/devices"
BUS_ID = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])\Z")
_HOST_BRIDGE = re.compile(r"pci([0-9a-f]{4,8}:[0-9a-f]{2})\Z")

_CONFIG_BYTES = 256
_CAPABILITIES_POINTER = 0x34
_STATUS = 0x06
_STATUS_HAS_CAPABILITIES = 0x10
_PCI_EXPRESS_CAPABILITY = 0x10
_BRIDGE_CLASS = "0604"
_SUBTRACTIVE_BRIDGE = "060401"  # to a conventional bus, always


class PortType(Enum):
    """What kind of bridge a function is."""

    ROOT_PORT = 4
    UPSTREAM_PORT = 5
    DOWNSTREAM_PORT = 6
    BRIDGE = 7


_PORT_TYPES = frozenset(t.value for t in PortType)


@dataclass(slots=True)
class Function:
    """One function as read. `folder` is its path below the root; `number` orders functions as buses are numbered."""

    bus_id: str
    number: tuple[int, ...]
    folder: str
    parent: str | None
    host_bridge: str | None
    class_code: str | None
    pci_id: str | None
    numa_node: int | None
    local_cpus: tuple[int, ...] | None
    physical_function: str | None
    link: LinkEnd
    port_type: PortType | None = None
    os_names: list[str] = field(default_factory=list)

    @property
    def is_bridge(self) -> bool:
        """Whether there is a bus behind it."""
        return self.class_code is not None and self.class_code.startswith(_BRIDGE_CLASS)


def bus_number(bus_id: str) -> tuple[int, ...] | None:
    """Domain, bus, device and function of `10000:e1:00.0`; None when it is no bus id."""
    match = BUS_ID.match(bus_id)
    return tuple(int(part, 16) for part in match.groups()) if match else None


def bus_id_in(path: str) -> str | None:
    """The PCI function that a path leads through last: that a disk, network interface or card hangs on."""
    return next((part for part in reversed(path.split("/")) if BUS_ID.match(part)), None)


def read_functions(tree: SysfsTree) -> dict[str, Function]:
    """All functions by bus id, in bus order; empty for a machine (or container) that shows no PCI."""
    found: dict[str, Function] = {}
    for name in tree.names(BASE):
        number = bus_number(name)
        folder = tree.real(f"{BASE}/{name}")
        if number is None:
            tree.warn(f"{BASE}/{name}", "makes no sense: it is no PCI bus id")
        elif folder is None:
            tree.warn(f"{BASE}/{name}", "leads nowhere")
        else:
            found[name] = _function(tree, name, number, folder)
    found = dict(sorted(found.items(), key=lambda item: item[1].number))
    for function in found.values():
        if function.physical_function not in found:
            function.physical_function = None  # given to this machine without its card: it is the card
        if function.parent not in found:
            function.parent = None
    for function in found.values():
        if function.is_bridge:
            function.port_type = parse_port_type(tree.raw(f"{function.folder}/config", _CONFIG_BYTES) or b"")
    name_the_ports(found)
    return found


def parse_port_type(config: bytes) -> PortType | None:
    """What kind of bridge a configuration space says it is; None when the part of it that says so is not there.

    Only root may read more than the first 64 bytes. PCI Express Base Specification 5.0, 7.5.3: the PCI Express
    capability's second word has the type in bits 7:4. A bridge without that capability is one of conventional PCI.
    """
    if len(config) < _CONFIG_BYTES or config[:2] in (b"\0\0", b"\xff\xff"):
        return None
    if not config[_STATUS] & _STATUS_HAS_CAPABILITIES:
        return PortType.BRIDGE
    at = config[_CAPABILITIES_POINTER] & 0xFC
    seen: set[int] = set()
    while at >= 0x40 and at not in seen:
        seen.add(at)
        if config[at] == _PCI_EXPRESS_CAPABILITY:
            kind = config[at + 2] >> 4
            return PortType(kind) if kind in _PORT_TYPES else PortType.BRIDGE
        at = config[at + 1] & 0xFC
    return PortType.BRIDGE


def _function(tree: SysfsTree, bus_id: str, number: tuple[int, ...], folder: str) -> Function:
    above = folder.split("/")[:-1]
    hosts = [part for part in above if _HOST_BRIDGE.match(part)]
    below_host = above[above.index(hosts[-1]) + 1 :] if hosts else above
    code = tree.hexadecimal(f"{folder}/class")
    vendor, device = (tree.hexadecimal(f"{folder}/{name}") for name in ("vendor", "device"))
    numa_node = tree.integer(f"{folder}/numa_node")
    physical = tree.real(f"{folder}/physfn")
    return Function(
        bus_id=bus_id,
        number=number,
        folder=folder,
        parent=next((part for part in reversed(below_host) if BUS_ID.match(part)), None),
        host_bridge=hosts[-1] if hosts else None,
        class_code=None if code is None or code >= 1 << 24 else f"{code:06x}",
        pci_id=None if vendor is None or device is None else f"{vendor & 0xFFFF:04x}:{device & 0xFFFF:04x}",
        numa_node=None if numa_node is None or numa_node < 0 else numa_node,
        local_cpus=tree.cpus(folder, "local_cpulist", "local_cpus"),
        physical_function=None if physical is None else bus_id_in(physical),
        link=read_link_end(tree, folder),
    )


def name_the_ports(functions: Mapping[str, Function]) -> None:
    """Root ports, switches' ports and other bridges where their capability does not tell: by where they are.

    Right below a host bridge is a root port. A bridge with bridges below it is a switch's upstream port, those below it
    are the downstream ports; any other is a bridge to a conventional bus.
    """
    bridges = {f.bus_id: f for f in functions.values() if f.is_bridge}
    with_bridges_below = {f.parent for f in bridges.values()}
    for bridge in sorted(bridges.values(), key=lambda b: b.folder.count("/")):  # from the top, as it takes from above
        if bridge.port_type is None:
            above = None if bridge.parent is None else functions[bridge.parent].port_type
            if bridge.class_code == _SUBTRACTIVE_BRIDGE:
                bridge.port_type = PortType.BRIDGE
            elif bridge.parent is None:
                bridge.port_type = PortType.ROOT_PORT
            elif above is PortType.UPSTREAM_PORT:
                bridge.port_type = PortType.DOWNSTREAM_PORT
            else:
                bridge.port_type = PortType.UPSTREAM_PORT if bridge.bus_id in with_bridges_below else PortType.BRIDGE
