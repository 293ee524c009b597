"""eBPF sampling beside what the kernel's own statistics, `ss` and /proc/softirqs say of the same traffic."""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import re
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from observatory.model.hardware_metrics import METRICS
from observatory.model.observation import AddressKind, Observation
from observatory.receivers import ebpf_layout, ebpf_library, ebpf_links
from observatory.receivers.ebpf_layout import BUCKETS, bucket_bounds_us, quantile_seconds
from observatory.receivers.ebpf_library import BpfObject, counted_costs, library
from observatory.receivers.ebpf_links import PARTS, EbpfLinks, object_path, peer_text
from observatory.receivers.ebpf_probe import program_kinds
from observatory.receivers.errors import ReceiverUnavailable
from observatory.receivers.protocol import Receiver, ReceiverContext
from tests.peers import missing
from tests.receivers.namespaces import Namespace, joined

ROOT = Path(__file__).resolve().parents[2]
Values = dict[tuple[str, str, str], float | None]


@pytest.fixture(scope="module")
def programs() -> None:
    """Skips where the kernel takes no such program, or it was not built; in CI that is a failure."""
    try:
        object_path()
        refused = program_kinds()["tp_btf"]
    except ReceiverUnavailable as error:
        missing(f"{error}; {error.mend}")
    if refused:
        missing(refused)


@pytest.fixture(scope="module")
def sides(programs: None) -> Iterator[tuple[Namespace, Namespace]]:
    with joined() as both:
        yield both


@contextmanager
def receiver(**options: str) -> Iterator[EbpfLinks]:
    made = EbpfLinks()
    assert isinstance(made, Receiver)
    try:
        asyncio.run(made.open(ReceiverContext("n0", options=options)))
        yield made
    finally:
        asyncio.run(made.close())


def values(made: EbpfLinks) -> Values:
    """By interface (or processor), metric, and the values of its attributes."""
    found: Values = {}
    for one in asyncio.run(made.poll()):
        assert isinstance(one, Observation)
        assert one.subject.node == "n0"
        assert one.source == "ebpf-links"
        assert tuple(one.attributes) == METRICS[one.metric].attributes
        key = (one.subject.key, one.metric, " ".join(one.attributes.values()))
        assert key not in found
        found[key] = one.value
    return found


@contextmanager
def connection(near: Namespace, far: Namespace) -> Iterator[tuple[socket.socket, socket.socket]]:
    """(Client in `near`, its connection in `far`)."""
    listener = far.inside(lambda: socket.create_server((far.address, 0)))
    with listener:
        client = near.inside(lambda: socket.create_connection(listener.getsockname(), timeout=30))
        accepted, _ = listener.accept()
    with client, accepted:
        yield client, accepted


def transfer(client: socket.socket, accepted: socket.socket, size: int) -> None:
    """Send so many bytes, and return when they were received and acknowledged."""

    def receive() -> None:
        left = size
        while left:
            left -= len(accepted.recv(min(left, 1 << 20)))

    reader = threading.Thread(target=receive)
    reader.start()
    client.sendall(bytes(size))
    reader.join()
    until(lambda: unacknowledged(client) == 0)


def unacknowledged(client: socket.socket) -> int:
    return int(struct.unpack("i", fcntl.ioctl(client, termios.TIOCOUTQ, bytes(4)))[0])


def until(what: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_traffic_is_what_the_interface_counts(sides: tuple[Namespace, Namespace]) -> None:
    near, far = sides
    size = 20_000_000
    with receiver(parts="traffic", namespace=near.file) as made, connection(near, far) as (client, accepted):
        began = time.monotonic()
        first = values(made)
        before = near.statistics()
        transfer(client, accepted, size)
        transfer(accepted, client, size // 10)
        seen, took = values(made), time.monotonic() - began
        after = near.statistics()
    assert {key[0] for key in seen} == {near.interface}
    for direction, way in (("transmit", "tx"), ("receive", "rx")):
        for metric, what in (("link.io", "bytes"), ("hw.network.packets", "packets")):
            key = (near.interface, metric, direction)
            counted = (seen[key] or 0) - (first[key] or 0)
            assert counted == pytest.approx(after[f"{way}_{what}"] - before[f"{way}_{what}"], rel=0.001)
        rate = seen[near.interface, "link.throughput", direction]
        sent = (seen[near.interface, "link.io", direction] or 0) - (first[near.interface, "link.io", direction] or 0)
        assert rate is not None
        assert rate >= sent / took
    assert (seen[near.interface, "link.io", "transmit"] or 0) > size
    assert not any(metric == "link.throughput" for _, metric, _ in first)  # one look makes no rate


def test_round_trips_are_those_that_ss_tells(sides: tuple[Namespace, Namespace]) -> None:
    """A peer that has nothing to say acknowledges after 40 ms: a round trip that no load of this machine makes."""
    near, far = sides
    with (
        receiver(parts="tcp", namespace=near.file) as made,
        receiver(parts="tcp", namespace=far.file) as other,
        connection(near, far) as (client, accepted),
    ):
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(40):
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
            if number == 34:
                values(made)
            client.sendall(b"x")
            accepted.recv(1)
            until(lambda: unacknowledged(client) == 0)
        told = near.inside(lambda: ss(client))
        seen, idle = values(made), values(other)
        assert values(made)[near.interface, "link.latency", "0.5"] is None  # nothing since
    assert told > 0.01
    assert seen[near.interface, "peer.round_trip", far.address] == pytest.approx(told, rel=0.25)
    for quantile in ("0.5", "0.99"):
        assert seen[near.interface, "link.latency", quantile] == pytest.approx(told / 2, rel=0.4)
    # The other end sent nothing, and so knows nothing of the way.
    assert (far.interface, "peer.round_trip", near.address) not in idle


def ss(client: socket.socket) -> float:
    """The smoothed round trip of a connection, seconds, as iproute2 reads it."""
    port = client.getsockname()[1]
    said = subprocess.run(["ss", "-tinH", "sport", f"= :{port}"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\brtt:([\d.]+)/", said)
    assert found is not None, said
    return float(found[1]) / 1e3


def test_retransmissions_are_those_that_the_kernel_counts(sides: tuple[Namespace, Namespace]) -> None:
    near, far = sides
    with receiver(parts="tcp", namespace=near.file) as made, connection(near, far) as (client, accepted):
        before = near.statistics()["retransmitted"]
        with far.losing(0.05):
            transfer(client, accepted, 600_000)
        seen = values(made)
        again = near.statistics()["retransmitted"] - before
    assert again > 0
    assert seen[near.interface, "link.errors", "tcp_retransmit"] == again
    assert seen[near.interface, "peer.retransmissions", far.address] == again


def test_interrupts_are_those_that_the_kernel_counts(programs: None) -> None:
    before_open = softirqs()
    began = time.monotonic()
    with receiver(parts="interrupts") as made:
        opened = softirqs()
        loopback_datagrams(20_000)
        before_poll = softirqs()
        seen = values(made)
        after_poll = softirqs()
        took = time.monotonic() - began
    handled = sum(v or 0 for (_, metric, mode), v in seen.items() if metric == "node.cpu.interrupts" and "soft" in mode)
    assert before_poll - opened <= handled <= after_poll - before_open
    times = {mode: value for (_, metric, mode), value in seen.items() if metric == "node.cpu.time"}
    assert any(mode.startswith("softirq ") for mode in times)
    for value in times.values():
        assert value is not None
        assert 0 < value < took
    # A datagram to oneself is received in a soft interrupt, which takes no less than half a microsecond.
    assert sum(value or 0 for mode, value in times.items() if mode.startswith("softirq ")) > 0.01


def softirqs() -> int:
    return sum(int(count) for line in Path("/proc/softirqs").read_text().splitlines()[1:] for count in line.split()[1:])


def loopback_datagrams(count: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        for _ in range(count):
            one.sendto(b"x", one.getsockname())
            one.recv(16)


def test_only_the_parts_that_are_asked_for_are_in_the_kernel(programs: None) -> None:
    for part, names in PARTS.items():
        loaded = BpfObject(object_path(), frozenset(names))
        try:
            with counted_costs():
                loopback_datagrams(2000)
                costs = loaded.costs()
        finally:
            loaded.close()
        assert set(costs) == set(names)
        if part == "traffic":
            assert costs["on_sent"].runs >= 2000
            assert costs["on_sent"].nanoseconds > 0
        assert loaded.costs() == {}


def test_nothing_is_left_of_a_killed_process(programs: None) -> None:
    script = (
        "import asyncio, sys\n"
        "from observatory.receivers.ebpf_links import EbpfLinks\n"
        "from observatory.receivers.protocol import ReceiverContext\n"
        "receiver = EbpfLinks()\n"
        "asyncio.run(receiver.open(ReceiverContext('n0')))\n"
        "print('open', flush=True)\n"
        "sys.stdin.read()\n"
    )
    before = programs_in_the_kernel()
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        here = programs_in_the_kernel() - before
        assert len(here) >= 8
        child.kill()
    # Another test's programs may have come meanwhile, but none of that process may stay.
    until(lambda: not here & programs_in_the_kernel())


def programs_in_the_kernel() -> set[int]:
    found: set[int] = set()
    number = ctypes.c_uint32(0)
    while library().bpf_prog_get_next_id(number.value, ctypes.byref(number)) == 0:
        found.add(number.value)
    return found


def test_buckets_are_exact_to_seven_and_then_four_to_a_doubling() -> None:
    assert bucket_bounds_us()[:17].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32]
    counts = np.zeros(BUCKETS, np.uint64)
    assert quantile_seconds(counts, 0.5) is None
    counts[[5, 12]] = 99, 1  # 5 us; 16 to 19 us
    assert quantile_seconds(counts, 0.5) == pytest.approx(5e-6)
    assert quantile_seconds(counts, 0.999) == pytest.approx(17.5e-6)


def test_addresses_are_written_as_people_do() -> None:
    assert peer_text(socket.AF_INET, bytes([192, 0, 2, 1]) + bytes(12)) == "192.0.2.1"
    assert peer_text(socket.AF_INET6, socket.inet_pton(socket.AF_INET6, "2001:db8::1")) == "2001:db8::1"
    assert peer_text(socket.AF_INET6, socket.inet_pton(socket.AF_INET6, "::ffff:192.0.2.1")) == "192.0.2.1"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"parts": "traffic,taffic"}, "parts cannot be taffic"),
        ({"parts": ","}, "parts cannot be nothing"),
        ({"peers": "many"}, "peers is 'many'"),
        ({"peers": "5000"}, "peers is '5000'"),
        ({"namespace": "/run/netns/none-of-that-name"}, "there is no network namespace"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], words: str) -> None:
    with pytest.raises(ReceiverUnavailable, match=words), receiver(**options):
        pass


def test_what_is_missing_is_named_with_the_mend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ebpf_links, "OBJECT", "other.bpf.o")
    with pytest.raises(ReceiverUnavailable, match="was not built") as unbuilt:
        object_path()
    assert unbuilt.value.mend is not None
    assert "clang" in unbuilt.value.mend
    monkeypatch.setattr(ebpf_library, "LIBRARY", "libbpf.so.0.none")
    library.cache_clear()
    try:
        with pytest.raises(ReceiverUnavailable, match="does not load") as absent:
            library()
        assert absent.value.mend == "apt-get install libbpf1"
    finally:
        library.cache_clear()


def test_an_object_that_is_none_is_refused(programs: None, tmp_path: Path) -> None:
    broken = tmp_path / "broken.bpf.o"
    for content in (b"", b"no object at all", object_path().read_bytes()[:2000]):
        broken.write_bytes(content)
        with pytest.raises(ReceiverUnavailable, match=r"broken\.bpf\.o"):
            BpfObject(broken, frozenset())


def test_an_object_of_another_version_is_refused(programs: None) -> None:
    loaded = BpfObject(object_path(), frozenset(PARTS["tcp"]))
    try:
        with pytest.raises(ReceiverUnavailable, match="built from another version"):
            loaded.hash_map("peers", ebpf_layout.PEER, ebpf_layout.TRAFFIC, 8, per_cpu=False)
        with pytest.raises(ReceiverUnavailable, match="has no map nothing"):
            loaded.hash_map("nothing", ebpf_layout.PEER, ebpf_layout.WAY, 8, per_cpu=False)
    finally:
        loaded.close()


def test_whoever_may_not_is_told_the_mend(programs: None) -> None:
    drop = ("setpriv", "--reuid=65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all")
    script = (
        "from observatory.receivers.ebpf_library import BpfObject\n"
        "from observatory.receivers.ebpf_links import PARTS\n"
        "from observatory.receivers.errors import ReceiverUnavailable\n"
        "from pathlib import Path\n"
        "try: BpfObject(Path('/dev/fd/0'), frozenset(PARTS['tcp']))\n"
        "except ReceiverUnavailable as error: print(error.mend)\n"
    )
    with object_path().open("rb") as opened:
        said = subprocess.run(
            [*drop, sys.executable, "-c", script], cwd=ROOT, stdin=opened, capture_output=True, text=True
        )
    if said.returncode != 0:
        pytest.skip("another user may not read this checkout")
    assert said.stdout.strip() == "run as root, or with CAP_BPF and CAP_PERFMON"


def test_interfaces_are_subjects(programs: None) -> None:
    with receiver(parts="traffic") as made:
        loopback_datagrams(10)
        seen = [one for one in asyncio.run(made.poll()) if isinstance(one, Observation)]
    assert {one.subject.kind for one in seen} == {AddressKind.INTERFACE}
    assert "lo" in {one.subject.key for one in seen}
