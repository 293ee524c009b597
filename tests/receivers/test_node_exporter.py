"""node_exporter as the oracle: on one made-up machine it reads what our receivers read."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from observatory.receivers.endpoint import Endpoint
from observatory.receivers.errors import ReceiverUnavailable
from observatory.receivers.infiniband import Infiniband
from observatory.receivers.interfaces import Interfaces
from observatory.receivers.numa import Numa
from observatory.receivers.pressure import Pressure
from observatory.receivers.protocol import ReceiverContext
from observatory.receivers.sysfs_pcie import SysfsPcie
from tests.peers import peer
from tests.receivers.looking import Told, look, told
from tests.receivers.rdma_trees import add_port, recorded_cards
from tests.receivers.test_endpoint import serving, text
from tests.receivers.test_node_receivers import interface
from tests.receivers.waiting import wait_until
from tests.topology.sysfs_trees import DATA, MachineTree, recorded, write

_PORT = re.compile(r"address=127\.0\.0\.1:(\d+)")
COUNTERS = {
    "port_xmit_data": "1000",
    "port_rcv_data": "2000",
    "port_xmit_packets": "30",
    "port_rcv_packets": "40",
    "symbol_error": "1",
    "link_downed": "2",
    "link_error_recovery": "3",
    "port_rcv_errors": "4",
    "port_xmit_discards": "5",
    "port_rcv_constraint_errors": "6",
    "port_xmit_constraint_errors": "7",
    "local_link_integrity_errors": "8",
    "excessive_buffer_overrun_errors": "9",
    "VL15_dropped": "10",
    "port_rcv_remote_physical_errors": "11",
    "port_rcv_switch_relay_errors": "12",
}
STATISTICS = {
    "rx_bytes": "500", "rx_packets": "5", "rx_errors": "1", "rx_dropped": "2",
    "tx_bytes": "600", "tx_packets": "6", "tx_errors": "3", "tx_dropped": "4", "tx_carrier_errors": "9",
}  # fmt: skip
NET_DEV = "\n".join(
    (
        "Inter-|   Receive                            |  Transmit",
        " face |bytes packets errs drop fifo frame compressed multicast"
        "|bytes packets errs drop fifo colls carrier compressed",
        "  eth0:   500 5 1 2 0 0 0 0 600 6 3 4 0 0 9 0",
    )
)
PSI = "\n".join(
    f"{scope} avg10=1.00 avg60=0.50 avg300=0.25 total={total}"
    for scope, total in (("some", 2500000), ("full", 1000000))
)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    tree = MachineTree(tmp_path / "sys", sockets=2)
    for node in (0, 1):
        write(
            tree.root / f"devices/system/node/node{node}/meminfo",
            f"Node {node} MemTotal:       {1000 + node} kB\nNode {node} MemFree:         {250 + node} kB",
        )
        write(
            tree.root / f"devices/system/node/node{node}/numastat",
            f"numa_hit {10 + node}\nnuma_miss 2\nnuma_foreign 3\ninterleave_hit 4\nlocal_node 5\nother_node 6",
        )
    add_port(tmp_path, "mlx5_0", rate="400 Gb/sec (4X NDR)", counters=COUNTERS, hw_counters={"out_of_sequence": "1"})
    for name in ("board_id", "fw_ver", "hca_type"):
        write(tmp_path / f"sys/class/infiniband/mlx5_0/{name}", "1")
    write(tmp_path / "sys/class/infiniband/mlx5_0/ports/1/phys_state", "5: LinkUp")
    eth0 = interface(tmp_path, "eth0", operstate="up", carrier="1", speed="25000", carrier_down_count="2")
    for name, value in STATISTICS.items():
        write(eth0 / "statistics" / name, value)
    write(tmp_path / "proc/net/dev", NET_DEV)
    for resource in ("cpu", "memory", "io"):
        write(tmp_path / f"proc/pressure/{resource}", PSI)
    return tmp_path


@contextmanager
def node_exporter(root: Path) -> Iterator[str]:
    """It says on its standard error which port it got."""
    command = [
        peer("prometheus-node-exporter"), "--web.listen-address=127.0.0.1:0",
        f"--path.sysfs={root / 'sys'}", f"--path.procfs={root / 'proc'}", "--collector.disable-defaults",
        "--collector.infiniband", "--collector.netclass", "--collector.netdev", "--no-collector.netdev.netlink",
        "--collector.meminfo_numa", "--collector.pressure",
    ]  # fmt: skip
    log = root / "log"
    with log.open("w") as file:
        process = subprocess.Popen(command, stderr=file)
    try:
        wait_until(lambda: _PORT.search(log.read_text()) is not None or process.poll() is not None, "its port")
        found = _PORT.search(log.read_text())
        assert found is not None, log.read_text()
        yield f"http://127.0.0.1:{found[1]}/metrics"
    finally:
        process.kill()
        process.wait()


def scraped(url: str) -> Told:
    async def run() -> Told:
        receiver = Endpoint()
        context = ReceiverContext("n0", options={"url": url})
        for attempt in range(100):  # it names its port before it listens
            try:
                await receiver.open(context)
                break
            except ReceiverUnavailable:
                if attempt == 99:
                    raise
                await asyncio.sleep(0.1)
        try:
            return told(await receiver.poll(), "endpoint")
        finally:
            await receiver.close()

    return asyncio.run(run())


def test_node_exporter_reads_what_our_receivers_read(machine: Path) -> None:
    ours: Told = {}
    for make in (Infiniband, Interfaces, Numa, Pressure):
        (found,) = look(make, machine)
        ours |= found
    with node_exporter(machine) as url:
        theirs = scraped(url)
    both = {key: value for key, value in theirs.items() if key in ours}
    assert both == {key: ours[key] for key in both}
    compared = {(key, metric) for key, metric in both}
    errors = {metric for key, metric in compared if key == "mlx5_0/1" and metric.startswith("link.errors")}
    assert len(errors) >= 11
    assert {
        ("mlx5_0/1", "hw.network.io receive"),
        ("eth0", "hw.network.io transmit"),
        ("1", "numa.memory.free"),
    } <= compared
    assert ("", "node.stalled io full") in compared
    assert len(compared) >= 40
    assert set(theirs) - set(ours) == set()  # what it tells and we know by name, our receivers tell too


def test_what_node_exporter_read_in_its_own_test(tmp_path: Path) -> None:
    """Its published output was made of its published tree: a newer version, which reads PCI devices too."""
    output = DATA / "node-exporter/e2e-output.txt"
    root = recorded("node-exporter/sys.ttar", tmp_path / "pci")
    recorded_cards("node-exporter/sys.ttar", tmp_path / "rdma")
    (ours,) = look(SysfsPcie, root)
    ours |= look(Infiniband, tmp_path / "rdma")[0]
    with serving(text(output.read_text())) as url:
        theirs = scraped(url)
    compared = {
        (key, metric): (ours[key, metric], value)
        for (key, metric), value in theirs.items()
        if (key, metric) in ours and metric != "hw.network.bandwidth.limit"  # theirs is the signalling rate
    }
    assert {key: pair for key, pair in compared.items() if pair[0] != pair[1]} == {}
    assert ("0000:45:00.0", "link.speed") in compared
    assert ("mlx4_0/2", "hw.network.io receive") in compared
    assert len(compared) >= 20
