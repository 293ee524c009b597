"""Load and latency of network links, and what interrupts cost, counted in the kernel by eBPF programs.

Programs and maps: bpf/links.bpf.c. Options:

    parts      any of traffic, tcp, interrupts, with commas; all of them unless said otherwise
    peers      of how many remote addresses, those heard of most since the last look, TCP's round trips are told (32)
    namespace  file of another network namespace to look at, as /run/netns/NAME; unset: this process's own
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from observatory.model.observation import Address, AddressKind, Observation, Seen
from observatory.receivers import ebpf_layout as layout
from observatory.receivers.ebpf_library import BpfObject, HashMap
from observatory.receivers.errors import ReceiverUnavailable
from observatory.receivers.protocol import ReceiverContext

OBJECT = "links.bpf.o"
PARTS: Mapping[str, tuple[str, ...]] = {
    "traffic": ("on_sent", "on_received"),
    "tcp": ("on_tcp_received", "on_retransmit"),
    "interrupts": ("on_irq_entry", "on_irq_exit", "on_softirq_entry", "on_softirq_exit"),
}
QUANTILES = (0.5, 0.99)
DEFAULT_PEERS = 32

_FAMILIES = {int(socket.AF_INET): 4, int(socket.AF_INET6): 16}  # bytes of an address


class EbpfLinks:
    """The receiver `ebpf-links`."""

    name: ClassVar[str] = "ebpf-links"
    period_seconds: ClassVar[float] = 1.0

    def __init__(self) -> None:
        self._loaded: BpfObject | None = None

    async def open(self, context: ReceiverContext) -> None:
        """Load and attach the programs. Raises ReceiverUnavailable: an option is wrong, the programs were not built,
        libbpf is missing, or the kernel refuses them.
        """
        self._node = context.node
        self._parts = _parts(context.options.get("parts"))
        self._most_peers = _whole("peers", context.options.get("peers"), DEFAULT_PEERS)
        namespace = context.options.get("namespace")
        self._foreign = namespace is not None
        self._traffic_before: dict[int, tuple[int, int, int]] = {}
        self._buckets_before: dict[int, npt.NDArray[np.uint64]] = {}
        self._peers_before: dict[bytes, tuple[int, int]] = {}
        programs = frozenset(name for part in self._parts for name in PARTS[part])
        constants = np.array([_namespace_inode(namespace)], "<u4").tobytes()
        self._loaded = await asyncio.to_thread(BpfObject, object_path(), programs, constants)
        maps = self._loaded.hash_map
        self._traffic = maps("traffic", layout.INTERFACE, layout.TRAFFIC, layout.MAX_INTERFACES, per_cpu=True)
        self._round_trips = maps("round_trips", layout.INTERFACE, layout.ROUND_TRIPS, layout.MAX_INTERFACES, False)
        self._peers: HashMap = maps("peers", layout.PEER, layout.WAY, layout.MAX_PEERS, False)

    async def poll(self) -> Sequence[Seen]:
        """Counters since `open`, and rates and latencies since the last call. Raises ReceiverFailed."""
        if self._loaded is None:
            raise ReceiverUnavailable("the receiver is not open")
        now = time.monotonic_ns()
        seen: list[Seen] = []
        names = {} if self._foreign else dict(socket.if_nameindex())
        if "traffic" in self._parts:
            seen += self._seen_traffic(names, now)
        if "tcp" in self._parts:
            seen += self._seen_latencies(names, now)
            seen += self._seen_peers(names, now)
        if "interrupts" in self._parts:
            seen += self._seen_interrupts(self._loaded, now)
        return seen

    async def close(self) -> None:
        """Detach and unload the programs."""
        if self._loaded is not None:
            self._loaded.close()
            self._loaded = None

    def _observed(self, subject: Address, metric: str, value: float | None, now: int, **attributes: str) -> Observation:
        return Observation(
            subject, metric, value, now, self.name, {name.replace("__", "."): v for name, v in attributes.items()}
        )

    def _interface(self, number: int, row: npt.NDArray[Any], names: Mapping[int, str]) -> Address | None:
        """None: it is there no more."""
        if self._foreign:
            name = max(row["name"].tolist()).decode(errors="replace")  # the processor that saw it first wrote it
        else:
            name = names.get(number, "")
        return Address(self._node, AddressKind.INTERFACE, name) if name else None

    def _seen_traffic(self, names: Mapping[int, str], now: int) -> Iterator[Observation]:
        before, self._traffic_before = self._traffic_before, {}
        keys, values = self._traffic.read()
        for number, row in zip(keys.tolist(), values, strict=True):
            address = self._interface(number, row, names)
            if address is None:
                continue
            sent, received = int(row["sent_bytes"].sum()), int(row["received_bytes"].sum())
            self._traffic_before[number] = now, sent, received
            then, *old = before.get(number, (0, 0, 0))
            for at, (direction, total) in enumerate((("transmit", sent), ("receive", received))):
                packets = int(row["sent_packets" if direction == "transmit" else "received_packets"].sum())
                yield self._observed(address, "link.io", total, now, network__io__direction=direction)
                yield self._observed(address, "hw.network.packets", packets, now, network__io__direction=direction)
                if then and total >= old[at]:
                    rate = (total - old[at]) / (now - then) * 1e9
                    yield self._observed(address, "link.throughput", rate, now, network__io__direction=direction)

    def _seen_latencies(self, names: Mapping[int, str], now: int) -> Iterator[Observation]:
        before, self._buckets_before = self._buckets_before, {}
        keys, values = self._round_trips.read()
        for number, row in zip(keys.tolist(), values, strict=True):
            address = self._interface(number, row, names)
            if address is None:
                continue
            counts = row["buckets"][0].copy()
            self._buckets_before[number] = counts
            old = before.get(number)
            fresh = counts if old is None or (counts < old).any() else counts - old
            for quantile in QUANTILES:
                trip = layout.quantile_seconds(fresh, quantile)
                one_way = None if trip is None else trip / 2
                yield self._observed(address, "link.latency", one_way, now, link__latency__quantile=f"{quantile:g}")
            again = int(row["retransmitted_segments"][0])
            yield self._observed(address, "link.errors", again, now, error__type="tcp_retransmit")

    def _seen_peers(self, names: Mapping[int, str], now: int) -> Iterator[Observation]:
        before, self._peers_before = self._peers_before, {}
        keys, values = self._peers.read()
        fresh: list[tuple[int, int, int]] = []  # samples, sum of microseconds, row
        for at, (key, samples, total) in enumerate(
            zip(keys, values["samples"][:, 0].tolist(), values["sum_us"][:, 0].tolist(), strict=True)
        ):
            self._peers_before[key.tobytes()] = samples, total
            old = before.get(key.tobytes(), (0, 0))
            fresh.append((samples - old[0], total - old[1], at) if samples >= old[0] else (samples, total, at))
        for samples, total, at in sorted(fresh, reverse=True)[: self._most_peers]:
            address = self._interface(int(keys[at]["interface"]), values[at], names)
            if address is None:
                continue
            peer = peer_text(int(keys[at]["family"]), keys[at]["address"].tobytes())
            trip = total / samples / 1e6 if samples else None
            yield self._observed(address, "peer.round_trip", trip, now, network__peer__address=peer)
            again = int(values[at]["retransmitted_segments"][0])
            yield self._observed(address, "peer.retransmissions", again, now, network__peer__address=peer)

    def _seen_interrupts(self, loaded: BpfObject, now: int) -> Iterator[Observation]:
        node = Address(self._node, AddressKind.NODE)
        for cpu, row in enumerate(loaded.first_of_array("interrupts", layout.INTERRUPTS)):
            for mode, time_ns, count in (("interrupt", "irq_ns", "irqs"), ("softirq", "softirq_ns", "softirqs")):
                if row[count] == 0:
                    continue  # a processor that is possible and not there, or has had none
                labels = {"cpu__mode": mode, "cpu__logical_number": str(cpu)}
                yield self._observed(node, "node.cpu.time", int(row[time_ns]) / 1e9, now, **labels)
                yield self._observed(node, "node.cpu.interrupts", int(row[count]), now, **labels)


def object_path() -> Path:
    """The compiled programs. Raises ReceiverUnavailable: they were not built."""
    path = files("observatory.receivers") / "bpf" / OBJECT
    if not path.is_file():
        mend = "install clang and libbpf-dev (apt-get install clang libbpf-dev) and start script/bootstrap"
        raise ReceiverUnavailable(f"{OBJECT} was not built", mend=mend)
    return Path(str(path))


def peer_text(family: int, address: bytes) -> str:
    """A remote address as people write it; IPv4 in IPv6 as IPv4."""
    found = ipaddress.ip_address(address[: _FAMILIES[family]])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)


def _parts(text: str | None) -> frozenset[str]:
    wanted = frozenset(PARTS) if text is None else frozenset(word.strip() for word in text.split(",") if word.strip())
    if unknown := sorted(wanted - set(PARTS)) or ([] if wanted else ["nothing"]):
        raise ReceiverUnavailable(f"parts cannot be {', '.join(unknown)}", mend=f"any of {', '.join(PARTS)}")
    return wanted


def _whole(option: str, text: str | None, default: int) -> int:
    if text is None:
        return default
    if not text.isascii() or not text.isdecimal() or int(text[:9]) > layout.MAX_PEERS:
        raise ReceiverUnavailable(f"{option} is {text!r}", mend=f"a whole number up to {layout.MAX_PEERS}")
    return int(text)


def _namespace_inode(namespace: str | None) -> int:
    path = Path("/proc/thread-self/ns/net") if namespace is None else Path(namespace)
    try:
        return path.stat().st_ino
    except OSError as error:
        raise ReceiverUnavailable(f"there is no network namespace {path}: {error.strerror}") from None
