"""PCI Express links as sysfs shows them: width and speed now and at best, errors, and functions that went away.

    bus/pci/devices/*/{current,max}_link_{speed,width}, aer_dev_{correctable,nonfatal,fatal},
    aer_rootport_total_err_{cor,nonfatal,fatal}

A link is told once, by the function at its lower end; its best is the lesser of both ends'. The kernel reads width and
speed from the device at each look: of one that does not answer any more it reads all ones, so that the width is 63 and
the speed Unknown. A function that is removed is told as down for a minute and then no more: somebody may have taken it
out on purpose. Error counters are the totals of Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from observatory.model.observation import Address, AddressKind, Observation, Seen
from observatory.receivers.errors import ReceiverFailed, ReceiverUnavailable
from observatory.receivers.polled_files import FolderWatch, PolledFile, PolledFiles
from observatory.receivers.protocol import ReceiverContext
from observatory.topology.importers.sysfs.pci import BASE, BUS_ID, PortType, read_functions
from observatory.topology.importers.sysfs.pcie_link import parse_link_speed, parse_link_width
from observatory.topology.importers.sysfs.tree import SysfsTree

_UPPER_ENDS = frozenset({PortType.ROOT_PORT, PortType.DOWNSTREAM_PORT})
_MOST_KNOWN = 256
_RESCAN_SECONDS = 2.0
_BEST_EVERY_SECONDS = 5.0
_MOST_GONE = 1024
_GONE_SECONDS = 60.0
_DEVICE_ERRORS = (
    ("aer_dev_correctable", b"TOTAL_ERR_COR", "aer_corrected"),
    ("aer_dev_nonfatal", b"TOTAL_ERR_NONFATAL", "aer_nonfatal"),
    ("aer_dev_fatal", b"TOTAL_ERR_FATAL", "aer_fatal"),
)
_ROOT_ERRORS = (
    ("aer_rootport_total_err_cor", "aer_root_corrected"),
    ("aer_rootport_total_err_nonfatal", "aer_root_nonfatal"),
    ("aer_rootport_total_err_fatal", "aer_root_fatal"),
)
ERROR_TYPES = (*(kind for _, _, kind in _DEVICE_ERRORS), *(kind for _, kind in _ROOT_ERRORS))
"""The values of `error.type` that this receiver gives. Root ports count what devices below them report."""


@dataclass(slots=True)
class _Function:
    """One function: its files, and what was known of its link. Speeds in T/s."""

    subject: Address
    speed: PolledFile | None = None
    width: PolledFile | None = None
    best_speeds: list[PolledFile] = field(default_factory=list)  # of both ends
    best_widths: list[PolledFile] = field(default_factory=list)
    device_errors: list[tuple[PolledFile, bytes, dict[str, str]]] = field(default_factory=list)
    root_errors: list[tuple[PolledFile, dict[str, str]]] = field(default_factory=list)
    was_up: bool = False


class SysfsPcie:
    """The PCI functions of one machine."""

    name: ClassVar[str] = "sysfs-pcie"
    period_seconds: ClassVar[float] = 0.25

    def __init__(self) -> None:
        self._files: PolledFiles | None = None
        self._functions: list[_Function] = []
        self._gone: dict[str, tuple[Address, float]] = {}  # and since when
        self._best_due = 0.0

    async def open(self, context: ReceiverContext) -> None:
        """Find the functions."""
        self._context = context
        self._folder = context.root / "sys" / BASE
        self._watch = FolderWatch([self._folder], _RESCAN_SECONDS)
        self._scan()
        if not self._functions:
            raise ReceiverUnavailable(
                f"{self._folder} shows no PCI Express link",
                mend="a virtual machine or a container often sees none; on real hardware mount sysfs",
            )

    async def poll(self) -> Sequence[Seen]:
        """Every link's width and speed, and every counter."""
        if self._watch.has_changed():
            self._rescan()
        if not self._functions:
            raise ReceiverFailed(f"{self._folder} shows no PCI Express link any more")
        seen: list[Seen] = []
        with_best = time.monotonic() >= self._best_due
        if with_best:
            self._best_due = time.monotonic() + _BEST_EVERY_SECONDS
        for function in self._functions:
            self._link(function, seen)
            self._errors(function, seen)
            if with_best:
                self._best(function, seen)
        since = time.monotonic() - _GONE_SECONDS
        self._gone = {key: gone for key, gone in self._gone.items() if gone[1] > since}
        now_ns = time.monotonic_ns()
        seen += [Observation(subject, "link.up", 0.0, now_ns, self.name) for subject, _ in self._gone.values()]
        return seen

    async def close(self) -> None:
        """Close the files."""
        if self._files is not None:
            self._files.close()
            self._files = None
        self._functions = []

    # -- finding ---------------------------------------------------------------------------------------------------

    def _rescan(self) -> None:
        before = {function.subject.key: function for function in self._functions}
        self._scan()
        here = {function.subject.key for function in self._functions}
        now = time.monotonic()
        for key, function in before.items():
            if key not in here and function.width is not None and len(self._gone) < _MOST_GONE:
                self._gone[key] = function.subject, now
        self._gone = {key: gone for key, gone in self._gone.items() if key not in here}
        for function in self._functions:
            old = before.get(function.subject.key)
            function.was_up = old is not None and old.was_up
        self._best_due = 0.0

    def _scan(self) -> None:
        if self._files is not None:
            self._files.close()
        files = self._files = PolledFiles(self._context.root)
        tree = SysfsTree(self._context.root / "sys")
        folders: dict[str, str] = {}
        for name in tree.names(BASE):
            real = tree.real(f"{BASE}/{name}") if BUS_ID.match(name) else None
            if real is not None and not (tree.root / real / "physfn").exists():  # a virtual function has no link
                folders[name] = real
        # The link of a root port or a switch's downstream port is the one below it: told by what hangs there.
        upper = {f.bus_id for f in read_functions(tree).values() if f.port_type in _UPPER_ENDS}
        made = (self._function(files, bus_id, folder, bus_id not in upper) for bus_id, folder in folders.items())
        self._functions = [f for f in made if f.width is not None or f.device_errors or f.root_errors]

    def _function(self, files: PolledFiles, bus_id: str, folder: str, is_lower_end: bool) -> _Function:
        found = _Function(Address(self._context.node, AddressKind.PCI, bus_id))
        above = folder.rpartition("/")[0]
        if is_lower_end and BUS_ID.match(above.rpartition("/")[2]):
            found.speed = files.existing(f"sys/{folder}/current_link_speed")
            found.width = files.existing(f"sys/{folder}/current_link_width")
            for end in (folder, above):
                found.best_speeds += _there(files.existing(f"sys/{end}/max_link_speed"))
                found.best_widths += _there(files.existing(f"sys/{end}/max_link_width"))
        for name, total, kind in _DEVICE_ERRORS:
            for file in _there(files.existing(f"sys/{folder}/{name}")):
                found.device_errors.append((file, total, {"error.type": kind}))
        for name, kind in _ROOT_ERRORS:
            for file in _there(files.existing(f"sys/{folder}/{name}")):
                found.root_errors.append((file, {"error.type": kind}))
        return found

    # -- reading ---------------------------------------------------------------------------------------------------

    def _link(self, function: _Function, seen: list[Seen]) -> None:
        if function.width is None:
            return
        lanes, transfers = function.width.read(), None if function.speed is None else function.speed.read()
        if b"" in (lanes, transfers):  # never in sysfs: somebody is writing the file of an emulated tree
            return
        width, speed = _lanes(lanes), _transfers_per_second(transfers)
        at_ns = time.monotonic_ns()
        subject = function.subject
        seen.append(Observation(subject, "link.width", width, at_ns, self.name))
        seen.append(Observation(subject, "link.speed", speed, at_ns, self.name))
        up = width is not None and speed is not None
        if up or function.was_up:
            seen.append(Observation(subject, "link.up", float(up), at_ns, self.name))
            function.was_up = True

    def _best(self, function: _Function, seen: list[Seen]) -> None:
        at_ns = time.monotonic_ns()
        for metric, files, read in (
            ("link.width.best", function.best_widths, _lanes),
            ("link.speed.best", function.best_speeds, _transfers_per_second),
        ):
            if files:
                told = [value for value in (read(file.read()) for file in files) if value is not None]
                seen.append(Observation(function.subject, metric, min(told, default=None), at_ns, self.name))

    def _errors(self, function: _Function, seen: list[Seen]) -> None:
        for file, total, attributes in function.device_errors:
            count = total_of(file.read(), total)
            seen.append(Observation(function.subject, "link.errors", count, time.monotonic_ns(), self.name, attributes))
        for file, attributes in function.root_errors:
            seen.append(
                Observation(function.subject, "link.errors", file.count(), time.monotonic_ns(), self.name, attributes)
            )


def total_of(data: bytes | None, name: bytes) -> float | None:
    """The number after `name` in the last line of a list of counters; None where it is not there."""
    if data is None:
        return None
    last, _, digits = data[data.rfind(b"\n") + 1 :].partition(b" ")
    return float(digits) if last == name and digits.isdigit() and len(digits) <= 20 else None


class _Remembered:
    """Parses each of the few texts that links have once. None: there is no link, or the text is none of a link's."""

    def __init__(self, parse: Callable[[str], float | None], unit: float) -> None:
        self._parse = parse
        self._unit = unit
        self._known: dict[bytes, float | None] = {}

    def __call__(self, data: bytes | None) -> float | None:
        if data is None:
            return None
        if data not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            try:
                value = self._parse(data.decode("ascii", "replace"))
            except ValueError:
                value = None
            self._known[data] = None if value is None else value * self._unit
        return self._known[data]


_lanes = _Remembered(parse_link_width, 1.0)
_transfers_per_second = _Remembered(parse_link_speed, 1e9)


def _there(file: PolledFile | None) -> list[PolledFile]:
    return [] if file is None else [file]
