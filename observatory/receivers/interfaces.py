"""Network interfaces: whether they are up, how fast, what crossed them and what went wrong.

    class/net/*/{operstate,carrier,speed,carrier_down_count,statistics/*}

Interfaces of hardware and `lo`; with the option `virtual` = `yes` those of software too (bridges, tunnels, containers'
ends), of which a machine may have hundreds. The speed is that of the cable, in Mb/s; a driver that does not know
answers -1, an old one 4294967295, and one without a cable with an error. One that is removed is told as down for a
minute and then no more: it may have another name now, or be another namespace's. Statistics: Linux,
Documentation/networking/statistics.rst (struct rtnl_link_stats64).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from observatory.model.observation import Address, AddressKind, Observation, Seen
from observatory.receivers.errors import ReceiverFailed, ReceiverUnavailable
from observatory.receivers.polled_files import FolderWatch, PolledFile, PolledFiles
from observatory.receivers.protocol import ReceiverContext
from observatory.topology.importers.sysfs.names import entries
from observatory.topology.importers.sysfs.tree import SysfsTree

BASE = "class/net"
_RESCAN_SECONDS = 2.0
_GONE_SECONDS = 60.0
_MOST_GONE = 1024
_UNKNOWN_SPEED = float(0xFFFFFFFF)
_MEGABIT_BYTES = 1e6 / 8
_RECEIVE, _TRANSMIT = {"network.io.direction": "receive"}, {"network.io.direction": "transmit"}

_STATISTICS: dict[str, tuple[str, dict[str, str]]] = {
    "statistics/rx_bytes": ("hw.network.io", _RECEIVE),
    "statistics/tx_bytes": ("hw.network.io", _TRANSMIT),
    "statistics/rx_packets": ("hw.network.packets", _RECEIVE),
    "statistics/tx_packets": ("hw.network.packets", _TRANSMIT),
    "statistics/rx_errors": ("link.errors", {"error.type": "receive"}),
    "statistics/tx_errors": ("link.errors", {"error.type": "transmit"}),
    "statistics/rx_dropped": ("link.errors", {"error.type": "receive_discard"}),
    "statistics/tx_dropped": ("link.errors", {"error.type": "transmit_discard"}),
    "statistics/rx_missed_errors": ("link.errors", {"error.type": "out_of_buffer"}),
    "statistics/rx_crc_errors": ("link.errors", {"error.type": "crc"}),
    "statistics/tx_carrier_errors": ("link.errors", {"error.type": "carrier"}),
    "carrier_down_count": ("link.errors", {"error.type": "link_downed"}),
}
ERROR_TYPES = tuple(told["error.type"] for _, told in _STATISTICS.values() if "error.type" in told)
"""The values of `error.type` of an interface. CRC errors are among those received, and counted there too."""


@dataclass(slots=True)
class _Interface:
    subject: Address
    operstate: PolledFile
    carrier: PolledFile
    speed: PolledFile
    counters: list[tuple[PolledFile, str, dict[str, str]]]
    is_loopback: bool


class Interfaces:
    """The network interfaces of one machine."""

    name: ClassVar[str] = "interfaces"
    period_seconds: ClassVar[float] = 0.25

    def __init__(self) -> None:
        self._files: PolledFiles | None = None
        self._interfaces: list[_Interface] = []
        self._gone: dict[str, tuple[Address, float]] = {}  # and since when

    async def open(self, context: ReceiverContext) -> None:
        """Find the interfaces."""
        self._context = context
        self._folder = context.root / "sys" / BASE
        self._watch = FolderWatch([self._folder], _RESCAN_SECONDS)
        self._scan()
        if not self._interfaces:
            raise ReceiverUnavailable(f"{self._folder} shows no network interface", mend="mount sysfs")

    async def poll(self) -> Sequence[Seen]:
        """Every interface's state, speed and counters."""
        if self._watch.has_changed():
            self._rescan()
        if not self._interfaces:
            raise ReceiverFailed(f"{self._folder} shows no network interface any more")
        seen: list[Seen] = []
        for interface in self._interfaces:
            self._link(interface, seen)
            for file, metric, attributes in interface.counters:
                value = file.count()
                seen.append(Observation(interface.subject, metric, value, time.monotonic_ns(), self.name, attributes))
        since = time.monotonic() - _GONE_SECONDS
        self._gone = {key: gone for key, gone in self._gone.items() if gone[1] > since}
        now_ns = time.monotonic_ns()
        seen += [Observation(subject, "hw.network.up", 0.0, now_ns, self.name) for subject, _ in self._gone.values()]
        return seen

    async def close(self) -> None:
        """Close the files."""
        if self._files is not None:
            self._files.close()
            self._files = None
        self._interfaces = []

    def _rescan(self) -> None:
        before = {interface.subject.key: interface.subject for interface in self._interfaces}
        self._scan()
        here = {interface.subject.key for interface in self._interfaces}
        self._gone = {key: gone for key, gone in self._gone.items() if key not in here}
        now = time.monotonic()
        for key, subject in before.items():
            if key not in here and len(self._gone) < _MOST_GONE:
                self._gone[key] = subject, now

    def _scan(self) -> None:
        if self._files is not None:
            self._files.close()
        files = self._files = PolledFiles(self._context.root)
        tree = SysfsTree(self._context.root / "sys")
        of_software = self._context.options.get("virtual") == "yes"
        self._interfaces = [
            _interface(files, tree, self._context.node, entry.name, entry.folder)
            for entry in entries(tree, BASE)
            if entry.name == "lo" or of_software or not entry.is_software
        ]

    def _link(self, interface: _Interface, seen: list[Seen]) -> None:
        up = _up(interface.operstate.read(), interface.carrier)
        speed = None if up == 0.0 else interface.speed.count()
        now_ns = time.monotonic_ns()
        seen.append(Observation(interface.subject, "hw.network.up", up, now_ns, self.name))
        if not interface.is_loopback:
            known = speed is not None and 0 < speed < _UNKNOWN_SPEED
            limit = speed * _MEGABIT_BYTES if known and speed is not None else None
            seen.append(Observation(interface.subject, "hw.network.bandwidth.limit", limit, now_ns, self.name))


def _up(operstate: bytes | None, carrier: PolledFile) -> float | None:
    """1 or 0 by operstate (Documentation/networking/operstates.rst); where a driver knows none, by its carrier."""
    if operstate == b"up":
        return 1.0
    if operstate in (b"down", b"lowerlayerdown", b"notpresent"):
        return 0.0
    return carrier.count()


def _interface(files: PolledFiles, tree: SysfsTree, node: str, name: str, folder: str) -> _Interface:
    there = {*tree.names(folder), *(f"statistics/{n}" for n in tree.names(f"{folder}/statistics"))}
    return _Interface(
        subject=Address(node, AddressKind.INTERFACE, name),
        operstate=files.file(f"sys/{folder}/operstate"),
        carrier=files.file(f"sys/{folder}/carrier"),
        speed=files.file(f"sys/{folder}/speed"),
        counters=[
            (files.file(f"sys/{folder}/{file}"), metric, attributes)
            for file, (metric, attributes) in _STATISTICS.items()
            if file in there
        ],
        is_loopback=name == "lo",
    )
