"""The emulated machine's /sys while it runs: link widths and speeds, PCI Express errors, ports and their counters.

Files are written over in place, in one go and never shorter, so that a reader that keeps them open reads the old value
or the new one. Written is only what has changed; a machine on which nothing happens costs a look at its links.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from chaos.machine.device_state import MachineDevices, PortNow
from chaos.machine.link_state import LinkNow, MachineLinks
from chaos.machine.memory import MachineMemory
from chaos.machine.pci_tree import Function
from chaos.machine.plan import MachinePlan, speed_of
from chaos.machine.ports import Interface, RdmaPort, interfaces, rdma_ports
from chaos.machine.sysfs_tree import SysfsTreeWriter, padded
from observatory.model.device import Device, DeviceKind
from observatory.model.link import LinkKind, LinkState

PACKET_BYTES = 4096
"""Of RDMA: how counters of bytes become packets."""
_WORD_BYTES = 4  # InfiniBand counts words
_WIRES = frozenset({LinkKind.RDMA, LinkKind.ETHERNET, LinkKind.NETWORK})
_NOTHING = "63", "Unknown"  # what the kernel reads from a device that does not answer: all ones

_CORRECTABLE = ("RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr", "CorrIntErr", "HeaderOF")
_UNCORRECTABLE = (
    "Undefined",
    "DLP",
    "SDES",
    "TLP",
    "FCP",
    "CmpltTO",
    "CmpltAbrt",
    "UnxCmplt",
    "RxOF",
    "MalfTLP",
    "ECRC",
    "UnsupReq",
    "ACSViol",
    "UncorrIntErr",
    "BlockedTLP",
    "AtomicOpBlocked",
    "TLPBlockedErr",
    "PoisonTLPBlocked",
)
_ERROR_FILES: Mapping[str, tuple[str, tuple[str, ...], str, str]] = {
    "correctable": ("aer_dev_correctable", _CORRECTABLE, "BadDLLP", "TOTAL_ERR_COR"),
    "nonfatal": ("aer_dev_nonfatal", _UNCORRECTABLE, "CmpltTO", "TOTAL_ERR_NONFATAL"),
    "fatal": ("aer_dev_fatal", _UNCORRECTABLE, "DLP", "TOTAL_ERR_FATAL"),
}
"""File, its lines in the kernel's order, the one that counts ours, and the last. Kernel documentation, aer_stats."""
_ROOT_FILES = {
    "correctable": "aer_rootport_total_err_cor",
    "nonfatal": "aer_rootport_total_err_nonfatal",
    "fatal": "aer_rootport_total_err_fatal",
}


@dataclass(frozen=True, slots=True)
class _Card:
    """A network card, and the link whose traffic its ports carry: the cable, else the bus."""

    device: Device
    folder: Path
    link_id: str | None
    toward_b: bool  # what goes out of the ports
    interfaces: tuple[Interface, ...]
    rdma: tuple[RdmaPort, ...]


class SysfsFace:
    """The tree of one machine below `root`, kept as its links and devices are. For one thread at a time."""

    def __init__(
        self, plan: MachinePlan, root: Path, memory: MachineMemory, links: MachineLinks, devices: MachineDevices
    ) -> None:
        self._plan = plan
        self._memory = memory
        self._links = links
        self._devices = devices
        self._written: dict[Path, str] = {}
        self._port_downs: dict[str, tuple[bool, int]] = {}  # of a card: whether it is down, how often it went down
        self._seen: dict[str, object] = {}  # what was last looked at, by bus id or device
        writer = SysfsTreeWriter(plan, root)
        writer.write()
        self._folders = {bus_id: writer.folder(bus_id) for bus_id in plan.tree.functions}
        self._ends = self._link_ends()
        self._cards = [self._card(d, root) for d in plan.topology.devices if _is_card(d, plan.node)]
        for folder in {path.parent for path in self._every_file()}:
            folder.mkdir(parents=True, exist_ok=True)
        self.refresh()

    def _every_file(self) -> list[Path]:
        found: list[Path] = []
        self._go_over(lambda path, _: found.append(path))
        self._seen.clear()
        return found

    def refresh(self) -> None:
        """Write what has changed."""
        self._go_over(self._write)

    def _go_over(self, write: Callable[[Path, str], None]) -> None:
        """Tell `write` every file that may change, and what it says now."""
        changed = False
        for function, above in self._ends:
            assert function.link_id is not None
            now = self._links.now(function.link_id)
            if self._is_news(function.bus_id, now):
                self._bus_link(function, above, now, write)
                changed = True
        if changed:
            self._root_ports(write)
        for card in self._cards:
            self._ports(card, write)

    def _is_news(self, key: str, value: object) -> bool:
        known = self._seen.get(key) == value
        self._seen[key] = value
        return not known

    def _write(self, path: Path, text: str) -> None:
        if self._written.get(path) == text:
            return
        before = self._written.get(path)
        data = padded(text)
        if before is not None:
            data = data.ljust(len(padded(before)))
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(descriptor, data, 0)
        finally:
            os.close(descriptor)
        self._written[path] = text

    # -- PCI Express -------------------------------------------------------------------------------------------------

    def _link_ends(self) -> list[tuple[Function, str | None]]:
        """Functions that have a link upwards, and the port at its upper end."""
        tree = self._plan.tree.functions
        known = [f for f in tree.values() if f.link_id is not None and self._plan.links[f.link_id].width is not None]
        below = Counter(f.parent for f in tree.values())
        # A port that several functions are below is told to have the link of none of them.
        return [(function, function.parent if below[function.parent] == 1 else None) for function in known]

    def _bus_link(
        self, function: Function, above: str | None, now: LinkNow, write: Callable[[Path, str], None]
    ) -> None:
        width, speed = _negotiated(now)
        for bus_id in (function.bus_id, above):
            if bus_id is None:
                continue
            lower = bus_id == function.bus_id
            folder = self._folders[bus_id]
            write(folder / "current_link_width", width if lower or not now.down else "0")
            if speed is not None:
                write(folder / "current_link_speed", speed)
            if now.best_width is not None:
                write(folder / "max_link_width", str(now.best_width))
            if now.best_generation is not None:
                write(folder / "max_link_speed", _speed_text(now.best_generation))
        for kind, (name, lines, counted, total) in _ERROR_FILES.items():
            count = now.errors.get(kind, 0)
            body = [f"{line} {count if line == counted else 0}" for line in lines]
            write(self._folders[function.bus_id] / name, "\n".join([*body, f"{total} {count}"]))

    def _root_ports(self, write: Callable[[Path, str], None]) -> None:
        """They count what all below them report."""
        counts: dict[str, dict[str, int]] = {}
        for function, _ in self._ends:
            assert function.link_id is not None
            root = next((f for f in reversed(list(self._plan.tree.above(function.bus_id)))), None)
            if root is not None and root.is_bridge:
                errors = self._links.now(function.link_id).errors
                here = counts.setdefault(root.bus_id, dict.fromkeys(_ROOT_FILES, 0))
                for kind in _ROOT_FILES:
                    here[kind] += errors.get(kind, 0)
        for bus_id, by_kind in counts.items():
            for kind, name in _ROOT_FILES.items():
                write(self._folders[bus_id] / name, str(by_kind[kind]))

    # -- network cards -----------------------------------------------------------------------------------------------

    def _card(self, device: Device, root: Path) -> _Card:
        wires = [x for x in self._plan.topology.links if device.id in (x.a, x.b) and x.kind in _WIRES]
        function = self._plan.tree.functions.get(device.pci_bus_id or "")
        bus = None if function is None or function.link_id is None else self._plan.links[function.link_id]
        link = wires[0] if wires else bus
        is_first = link is not None and link.a == device.id
        folder = root / "sys/devices/platform" / device.id.rpartition("/")[2]
        return _Card(
            device=device,
            folder=folder if function is None else self._folders[function.bus_id],
            link_id=None if link is None else link.id,
            toward_b=is_first == bool(wires),  # over the bus comes in what goes out of the ports
            interfaces=tuple(interfaces(device)),
            rdma=tuple(rdma_ports(device)),
        )

    def _ports(self, card: _Card, write: Callable[[Path, str], None]) -> None:
        port = self._devices.port(card.device.id)
        wire = None if card.link_id is None else self._links.now(card.link_id)
        is_wire = wire is not None and wire.link.kind in _WIRES
        down = port.down or (wire is not None and is_wire and wire.state is LinkState.DOWN)
        loss = max(port.loss, wire.loss if wire is not None and is_wire else 0.0)
        sent, received = self._memory.carried(card.link_id, card.toward_b)
        downs = self._count_downs(card.device.id, down)
        if not self._is_news(card.device.id, (down, loss, sent, received, port)):
            return
        for interface in card.interfaces:
            _interface(card.folder / "net" / interface.name, interface, (down, downs), (sent, received), port, write)
        for rdma in card.rdma:
            folder = card.folder / "infiniband" / rdma.device / "ports" / rdma.number
            _rdma(folder, rdma, (down, downs), (sent, received), PortNow(down, loss, port.errors), write)

    def _count_downs(self, card: str, down: bool) -> int:
        """How often its ports went down since the machine was made; one that never was up did not."""
        was_down, downs = self._port_downs.get(card, (down, 0))
        downs += down and not was_down
        self._port_downs[card] = (down, downs)
        return downs


def _is_card(device: Device, node: str) -> bool:
    return device.kind is DeviceKind.NIC and device.node == node


def _negotiated(now: LinkNow) -> tuple[str, str | None]:
    if now.down:
        return _NOTHING
    width = "0" if now.width is None else str(now.width)
    return width, None if now.generation is None else _speed_text(now.generation)


def _speed_text(generation: int) -> str:
    return f"{speed_of(generation):.1f} GT/s PCIe"


def _interface(
    folder: Path,
    interface: Interface,
    state: tuple[bool, int],  # down, how often it went down
    carried: tuple[int, int],
    port: PortNow,
    write: Callable[[Path, str], None],
) -> None:
    down, downs = state
    up = interface.up and not down
    write(folder / "operstate", "up" if up else "down")
    write(folder / "carrier", str(int(up)))
    write(folder / "carrier_down_count", str(downs))
    for direction, count in zip(("tx", "rx"), carried, strict=True):
        write(folder / "statistics" / f"{direction}_bytes", str(count))
        write(folder / "statistics" / f"{direction}_packets", str(-(-count // PACKET_BYTES)))
        write(folder / "statistics" / f"{direction}_dropped", "0")
        write(folder / "statistics" / f"{direction}_errors", str(port.errors if direction == "rx" else 0))


def _rdma(
    folder: Path,
    rdma: RdmaPort,
    state: tuple[bool, int],  # down, how often it went down
    carried: tuple[int, int],
    port: PortNow,
    write: Callable[[Path, str], None],
) -> None:
    down, downs = state
    up = rdma.up and not down
    write(folder / "state", "4: ACTIVE" if up else "1: DOWN")
    write(folder / "phys_state", "5: LinkUp" if up else "3: Disabled")
    sent, received = carried
    lost = int(port.loss * (received // PACKET_BYTES))
    counters = {
        "port_xmit_data": sent // _WORD_BYTES,
        "port_rcv_data": received // _WORD_BYTES,
        "port_xmit_packets": -(-sent // PACKET_BYTES),
        "port_rcv_packets": -(-received // PACKET_BYTES),
        "port_rcv_errors": port.errors,
        "port_xmit_discards": 0,
        "symbol_error": 0,
        "link_downed": downs,
        "link_error_recovery": 0,
    }
    hardware = {
        "out_of_sequence": lost,
        "packet_seq_err": int(port.loss * (sent // PACKET_BYTES)),
        "local_ack_timeout_err": 0,
        "duplicate_request": 0,
        "out_of_buffer": 0,
    }
    for name, count in counters.items():
        write(folder / "counters" / name, str(count))
    for name, count in hardware.items():
        write(folder / "hw_counters" / name, str(count))
