"""Ports of RDMA cards, InfiniBand's and RoCE's: state, rate, and counters by the names that each driver gives them.

    class/infiniband/*/ports/*/{state,rate,link_layer,counters/*,counters_ext/*,hw_counters/*}

A read of one of mlx5's hw_counters makes the driver ask the card for all of them, at most once in `lifespan`
milliseconds. What two files of a port count alike is added up.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from observatory.model.observation import Address, AddressKind, Observation, Seen
from observatory.receivers.errors import ReceiverFailed, ReceiverUnavailable
from observatory.receivers.polled_files import FolderWatch, PolledFile, PolledFiles
from observatory.receivers.protocol import ReceiverContext
from observatory.receivers.rdma_counters import (
    HARDWARE_COUNTERS,
    PORT_COUNTERS,
    SUMMED_COUNTERS,
    Counter,
)
from observatory.topology.importers.sysfs.nics import infiniband_bytes_per_second
from observatory.topology.importers.sysfs.tree import SysfsTree

BASE = "class/infiniband"
_RESCAN_SECONDS = 2.0
_STATE = re.compile(rb"\d+: (\w+)\Z")
_LANES = re.compile(r"\((\d{1,2})X ")


@dataclass(slots=True)
class _File:
    """A file, what it stays at when it is full, and the longer counter to read then."""

    file: PolledFile
    stuck_at: float | None = None
    longer: PolledFile | None = None

    def count(self) -> float | None:
        count = self.file.count()
        if count is None or count != self.stuck_at:
            return count
        return None if self.longer is None else self.longer.count()


@dataclass(slots=True)
class _Series:
    """What one series is made of: files that are added up."""

    metric: str
    attributes: Mapping[str, str]
    unit: float
    files: list[_File] = field(default_factory=list)

    def value(self) -> float | None:
        """Their sum; None where one of them does not tell."""
        total = 0.0
        for file in self.files:
            count = file.count()
            if count is None:
                return None
            total += count
        return total * self.unit


@dataclass(slots=True)
class _Port:
    subject: Address
    state: PolledFile
    rate: PolledFile
    link_layer: str | None
    series: list[_Series]


class Infiniband:
    """The RDMA ports of one machine."""

    name: ClassVar[str] = "infiniband"
    period_seconds: ClassVar[float] = 0.25

    def __init__(self) -> None:
        self._files: PolledFiles | None = None
        self._ports: list[_Port] = []
        self._gone: dict[str, Address] = {}

    async def open(self, context: ReceiverContext) -> None:
        """Find the ports."""
        self._context = context
        self._folder = context.root / "sys" / BASE
        self._watch = FolderWatch([self._folder], _RESCAN_SECONDS)
        self._scan()
        if not self._ports:
            raise ReceiverUnavailable(
                f"{self._folder} shows no RDMA port", mend="load the card's RDMA driver (mlx5_ib, bnxt_re, irdma, ...)"
            )

    async def poll(self) -> Sequence[Seen]:
        """Every port's state, rate and counters."""
        if self._watch.has_changed():
            before = {port.subject.key: port.subject for port in self._ports} | self._gone
            self._scan()
            here = {port.subject.key for port in self._ports}
            self._gone = {key: subject for key, subject in before.items() if key not in here}
        if not self._ports:
            raise ReceiverFailed(f"{self._folder} shows no RDMA port any more")
        seen: list[Seen] = []
        for port in self._ports:
            self._link(port, seen)
            for series in port.series:
                value = series.value()
                seen.append(
                    Observation(port.subject, series.metric, value, time.monotonic_ns(), self.name, series.attributes)
                )
        now_ns = time.monotonic_ns()
        seen += [Observation(subject, "hw.network.up", 0.0, now_ns, self.name) for subject in self._gone.values()]
        return seen

    async def close(self) -> None:
        """Close the files."""
        if self._files is not None:
            self._files.close()
            self._files = None
        self._ports = []

    def _scan(self) -> None:
        if self._files is not None:
            self._files.close()
        files = self._files = PolledFiles(self._context.root)
        tree = SysfsTree(self._context.root / "sys")
        self._ports = [
            _port(tree, files, self._context.node, card, number)
            for card in tree.names(BASE)
            for number in tree.numbered(f"{BASE}/{card}/ports", "")
        ]

    def _link(self, port: _Port, seen: list[Seen]) -> None:
        state = port.state.read()
        rate = port.rate.read()
        now_ns = time.monotonic_ns()
        told = None if state is None else _STATE.match(state)
        if state != b"":
            up = None if told is None else float(told[1] == b"ACTIVE")
            seen.append(Observation(port.subject, "hw.network.up", up, now_ns, self.name))
        if rate == b"":
            return
        text = "" if rate is None else rate.decode("ascii", "replace")
        limit = rate_of(text, port.link_layer)
        seen.append(Observation(port.subject, "hw.network.bandwidth.limit", limit, now_ns, self.name))
        lanes = _LANES.search(text)
        if port.link_layer == "InfiniBand":  # of Ethernet's the kernel makes the lanes up
            width = None if lanes is None or limit is None else float(lanes[1])
            seen.append(Observation(port.subject, "link.width", width, now_ns, self.name))


def rate_of(text: str, link_layer: str | None) -> float | None:
    """Bytes per second in one direction of `400 Gb/sec (4X NDR)`; None for no cable and for any other text."""
    try:
        return infiniband_bytes_per_second(text, link_layer)
    except ValueError:
        return None


def _port(tree: SysfsTree, files: PolledFiles, node: str, card: str, number: int) -> _Port:
    folder = f"{BASE}/{card}/ports/{number}"
    return _Port(
        subject=Address(node, AddressKind.PORT, f"{card}/{number}"),
        state=files.file(f"sys/{folder}/state"),
        rate=files.file(f"sys/{folder}/rate"),
        link_layer=tree.text(f"{folder}/link_layer"),
        series=_series(tree, files, folder),
    )


def _series(tree: SysfsTree, files: PolledFiles, folder: str) -> list[_Series]:
    found: dict[tuple[str, str], _Series] = {}
    longer = tree.names(f"{folder}/counters_ext")
    for name in tree.names(f"{folder}/counters"):
        counter = PORT_COUNTERS.get(name)
        if counter is not None:
            extended = f"{name}_64" if f"{name}_64" in longer else None
            _into(found, counter).files.append(
                _File(
                    files.file(f"sys/{folder}/counters/{name}"),
                    counter.stuck_at,
                    None if extended is None else files.file(f"sys/{folder}/counters_ext/{extended}"),
                )
            )
    told = set(found)  # what is counted here is not counted again there
    names = tree.names(f"{folder}/hw_counters")
    for name in names:
        counter = HARDWARE_COUNTERS.get(name)
        if counter is not None and _key(counter) not in told:
            _into(found, counter).files.append(_File(files.file(f"sys/{folder}/hw_counters/{name}")))
    for counter, parts in SUMMED_COUNTERS:
        paths = [f"sys/{folder}/hw_counters/{name}" for name in parts if name in names]
        if paths and _key(counter) not in found:
            _into(found, counter).files.extend(_File(files.file(path)) for path in paths)
    return list(found.values())


def _into(found: dict[tuple[str, str], _Series], counter: Counter) -> _Series:
    return found.setdefault(_key(counter), _Series(counter.metric, counter.attributes, counter.unit))


def _key(counter: Counter) -> tuple[str, str]:
    return counter.metric, next(iter(counter.attributes.values()))
