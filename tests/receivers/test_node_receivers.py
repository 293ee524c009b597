"""Interfaces, NUMA memory and pressure."""

from __future__ import annotations

from pathlib import Path

import pytest

from observatory.receivers import interfaces
from observatory.receivers.errors import ReceiverUnavailable
from observatory.receivers.interfaces import Interfaces
from observatory.receivers.numa import Numa
from observatory.receivers.pressure import Pressure
from tests.receivers.looking import look
from tests.topology.sysfs_trees import MachineTree, write

PSI = "some avg10=12.50 avg60=1.00 avg300=0.25 total=2500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1"


def interface(root: Path, name: str, *, virtual: bool = False, **files: str) -> Path:
    place = f"devices/virtual/net/{name}" if virtual else f"devices/pci0000:00/0000:00:03.0/net/{name}"
    folder = root / "sys" / place
    for file, text in files.items():
        write(folder / file.replace("statistics_", "statistics/"), text)
    link = root / f"sys/class/net/{name}"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(f"../../{place}")
    return folder


def test_interfaces(tmp_path: Path) -> None:
    eth0 = interface(
        tmp_path,
        "eth0",
        operstate="up",
        speed="25000",
        carrier_down_count="2",
        statistics_rx_bytes="1000",
        statistics_tx_bytes="2000",
        statistics_rx_crc_errors="3",
    )
    interface(tmp_path, "eth1", operstate="unknown", carrier="1", speed="-1")
    interface(tmp_path, "eth2", operstate="down", speed="25000")
    interface(tmp_path, "lo", virtual=True, operstate="unknown", carrier="1", statistics_rx_bytes="5")
    interface(tmp_path, "cali0", virtual=True, operstate="up", speed="10000")
    first, second = look(Interfaces, tmp_path, lambda: write(eth0 / "operstate", "lowerlayerdown"))
    assert first == {
        ("eth0", "hw.network.up"): 1.0,
        ("eth0", "hw.network.bandwidth.limit"): 25e9 / 8,
        ("eth0", "hw.network.io receive"): 1000.0,
        ("eth0", "hw.network.io transmit"): 2000.0,
        ("eth0", "link.errors crc"): 3.0,
        ("eth0", "link.errors link_downed"): 2.0,
        ("eth1", "hw.network.up"): 1.0,
        ("eth1", "hw.network.bandwidth.limit"): None,
        ("eth2", "hw.network.up"): 0.0,
        ("eth2", "hw.network.bandwidth.limit"): None,
        ("lo", "hw.network.up"): 1.0,
        ("lo", "hw.network.io receive"): 5.0,
    }
    assert second["eth0", "hw.network.up"] == 0.0
    (with_all,) = look(Interfaces, tmp_path, options={"virtual": "yes"})
    assert with_all["cali0", "hw.network.bandwidth.limit"] == 10e9 / 8


def test_an_interface_that_is_renamed_is_down_for_a_while_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("eth0", "eth1"):
        interface(tmp_path, name, operstate="up", carrier="1")

    def renamed() -> None:
        (tmp_path / "sys/class/net/eth1").rename(tmp_path / "sys/class/net/ens3")

    def a_minute_later() -> None:
        monkeypatch.setattr(interfaces, "_GONE_SECONDS", 0.0)

    def rescan(receiver: object) -> None:
        assert isinstance(receiver, Interfaces)
        receiver._watch._due = 0.0

    looks = look(Interfaces, tmp_path, renamed, a_minute_later, lambda: None, again=rescan)
    states = [{key: value for (key, metric), value in told.items() if metric == "hw.network.up"} for told in looks]
    assert states == [
        {"eth0": 1.0, "eth1": 1.0},
        {"eth0": 1.0, "ens3": 1.0, "eth1": 0.0},
        {"eth0": 1.0, "ens3": 1.0},
        {"eth0": 1.0, "ens3": 1.0},
    ]


def test_numa_memory(tmp_path: Path) -> None:
    tree = MachineTree(tmp_path / "sys", sockets=2)
    write(
        tree.root / "devices/system/node/node1/meminfo",
        "Node 1 MemTotal:       1000 kB\nNode 1 MemFree:         250 kB\nNode 1 MemUsed:  750 kB",
    )
    write(tree.root / "devices/system/node/node1/numastat", "numa_hit 10\nnuma_miss 2\nlocal_node 9\nodd 5")
    (told,) = look(Numa, tmp_path)
    assert {metric: value for (key, metric), value in told.items() if key == "1"} == {
        "numa.memory.limit": 1024000.0,
        "numa.memory.free": 256000.0,
        "numa.allocations hit": 10.0,
        "numa.allocations miss": 2.0,
        "numa.allocations local": 9.0,
    }
    assert told["0", "numa.memory.free"] is None  # its meminfo does not tell


def test_pressure_of_the_machine_and_of_a_control_group(tmp_path: Path) -> None:
    write(tmp_path / "proc/pressure/memory", PSI)
    write(tmp_path / "sys/fs/cgroup/job.slice/io.pressure", PSI)
    (told,) = look(Pressure, tmp_path, options={"cgroup": "/job.slice"})
    assert told["", "node.pressure memory some 10s"] == 0.125
    assert told["", "node.pressure memory some 60s"] == 0.01
    assert told["", "node.pressure memory some 300s"] == 0.0025
    assert told["", "node.stalled memory some"] == 2.5
    assert told["", "node.stalled memory full"] == 1e-6
    assert told["", "node.stalled io /job.slice some"] == 2.5
    assert len(told) == 16


@pytest.mark.parametrize("cgroup", ["../../../etc", "/../.."])
def test_a_control_group_lies_in_its_tree(tmp_path: Path, cgroup: str) -> None:
    write(tmp_path / "proc/pressure/memory", PSI)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    with pytest.raises(ReceiverUnavailable, match="is no control group"):
        look(Pressure, tmp_path, options={"cgroup": cgroup})


@pytest.mark.parametrize("make", [Interfaces, Numa, Pressure])
def test_a_machine_without_says_why(tmp_path: Path, make: type[Interfaces | Numa | Pressure]) -> None:
    with pytest.raises(ReceiverUnavailable) as failure:
        look(make, tmp_path)
    assert failure.value.mend


def test_this_machine() -> None:
    (told,) = look(Interfaces, Path("/"))
    assert told["lo", "hw.network.up"] == 1.0
    received = told["lo", "hw.network.io receive"]
    assert received is not None
    assert received >= 0
