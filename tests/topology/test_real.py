"""This machine from sysfs: made-up trees, and `lscpu` as the judge of the live one."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from observatory.model.cost import CostParameters
from observatory.model.device import EngineKind
from observatory.model.link import LinkKind
from observatory.topology.cpulist import format_cpulist, parse_cpulist
from observatory.topology.domains import Domains
from observatory.topology.errors import MachineUnreadable
from observatory.topology.importers.real import read_machine
from observatory.topology.load import load_topology
from observatory.topology.paths import PathFinder


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def tree(root: Path, *, threads: int = 2) -> Path:
    """Two sockets of four cores with two threads, two NUMA nodes in each, and a fifth node of memory only.

    Numbered as Linux does: first one thread of every core (0-7), then their siblings (8-15); NUMA node n has the cores
    2n and 2n+1.
    """
    cpu = root / "devices/system/cpu"
    total = 8 * threads
    write(cpu / "online", f"0-{total - 1}")
    for number in range(total):
        core = number % 8
        siblings = f"{core},{core + 8}" if threads == 2 else f"{core}"
        topology = cpu / f"cpu{number}" / "topology"
        write(topology / "physical_package_id", str(core // 4))
        write(topology / "core_id", str(core % 4))
        write(topology / "core_cpus_list", siblings)
    node = root / "devices/system/node"
    write(node / "online", "0-4")
    near = {(a, b): 10 if a == b else 12 if a // 2 == b // 2 else 21 for a in range(4) for b in range(4)}
    for number in range(5):
        cores = f"{2 * number}-{2 * number + 1}"
        both = f"{cores},{2 * number + 8}-{2 * number + 9}"
        write(node / f"node{number}/cpulist", "" if number == 4 else both if threads == 2 else cores)
        write(
            node / f"node{number}/meminfo",
            f"Node {number} MemTotal:       {1000 + number} kB\nNode {number} MemFree: 1 kB",
        )
        distances = [near.get((number, b), 28) for b in range(5)]
        distances[number] = 10
        write(node / f"node{number}/distance", " ".join(map(str, distances)))
    return root


def test_two_sockets_with_four_numa_nodes(tmp_path: Path) -> None:
    topology = read_machine(tree(tmp_path))
    assert [d.id for d in topology.devices] == ["n0/cpu0", "n0/cpu1", "n0/cpu2", "n0/cpu3"]
    assert [d.numa_node for d in topology.devices] == [0, 1, 2, 3]
    assert [d.cpus for d in topology.devices][:2] == [(0, 1, 8, 9), (2, 3, 10, 11)]
    assert [d.memory_bytes for d in topology.devices] == [(1000 + n) * 1024 for n in range(4)]
    engines = [d.engine(EngineKind.COMPUTE) for d in topology.devices]
    assert [e.count for e in engines if e] == [2, 2, 2, 2]  # cores, not threads
    domains = Domains(topology)
    assert [domains.of(d.id, "Socket") for d in topology.devices] == ["n0/socket0"] * 2 + ["n0/socket1"] * 2
    between = {(lk.a, lk.b): lk for lk in topology.links if lk.b.startswith("n0/cpu")}
    assert len(between) == 6
    assert (between["n0/cpu0", "n0/cpu1"].kind, between["n0/cpu0", "n0/cpu1"].numa_distance) == (LinkKind.MEMORY, 12)
    assert (between["n0/cpu0", "n0/cpu2"].kind, between["n0/cpu0", "n0/cpu2"].numa_distance) == (LinkKind.UPI, 21)
    assert all(lk.bandwidth_bytes_per_second is None and lk.latency_seconds is None for lk in topology.links)
    assert any("NUMA node 4 has 0.0 GiB but no processors" in w for w in topology.warnings)
    assert any("only relative distances" in w for w in topology.warnings)
    assert PathFinder(topology, CostParameters()).best("n0/cpu0", "n0/cpu3", 1).seconds is None


def test_without_hyperthreads(tmp_path: Path) -> None:
    topology = read_machine(tree(tmp_path, threads=1))
    assert [d.cpus for d in topology.devices] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert all(d.engines[0].count == 2 for d in topology.devices)


def test_offline_processors_are_not_counted(tmp_path: Path) -> None:
    root = tree(tmp_path)
    write(root / "devices/system/cpu/online", "0-2,4-15")
    assert read_machine(root).devices[1].cpus == (2, 10, 11)


def test_a_kernel_without_numa(tmp_path: Path) -> None:
    root = tree(tmp_path)
    shutil.rmtree(root / "devices/system/node")
    topology = read_machine(root)
    assert [d.cpus for d in topology.devices] == [(0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)]
    assert [d.memory_bytes for d in topology.devices] == [None, None]
    assert "shows no NUMA nodes" in topology.warnings[0]


def test_a_numa_node_over_two_sockets(tmp_path: Path) -> None:
    root = tree(tmp_path)
    write(root / "devices/system/node/online", "0")
    write(root / "devices/system/node/node0/cpulist", "0-15")
    topology = read_machine(root)
    assert [(d.numa_node, d.engines[0].count, d.memory_bytes) for d in topology.devices] == [(0, 4, None)] * 2
    assert "spans sockets 0, 1" in topology.warnings[0]


def test_sockets_that_are_not_told(tmp_path: Path) -> None:
    root = tree(tmp_path)
    for number in range(16):
        write(root / f"devices/system/cpu/cpu{number}/topology/physical_package_id", "-1")
    topology = read_machine(root)
    assert [v.id for v in topology.vertices if "socket" in v.id] == ["n0/socket0"]
    assert "does not tell the socket of processors 0-15" in topology.warnings[0]


@pytest.mark.parametrize("text", ["", "0-x", "nonsense"])
def test_a_tree_that_makes_no_sense(text: str, tmp_path: Path) -> None:
    root = tree(tmp_path)
    write(root / "devices/system/cpu/online", text)
    with pytest.raises(MachineUnreadable) as caught:
        read_machine(root)
    assert "SYSFS_ROOT" in (caught.value.mend or "")


def test_no_tree_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYSFS_ROOT", str(tmp_path))
    with pytest.raises(MachineUnreadable):
        load_topology("real")
    monkeypatch.setenv("SYSFS_ROOT", str(tree(tmp_path)))
    assert len(load_topology("real").devices) == 4


@pytest.mark.skipif(shutil.which("lscpu") is None, reason="there is no lscpu")
def test_lscpu_agrees_on_this_machine() -> None:
    shown = json.loads(subprocess.run(["lscpu", "-J"], capture_output=True, text=True, check=True).stdout)

    def flat(entries: list[dict[str, object]]) -> dict[str, str]:
        found: dict[str, str] = {}
        for entry in entries:
            found[str(entry["field"]).rstrip(":")] = str(entry["data"])
            found |= flat(entry.get("children", []))  # type: ignore[arg-type]
        return found

    fields = flat(shown["lscpu"])
    topology = read_machine(Path("/sys"))
    cpus = sorted(c for d in topology.devices for c in d.cpus or ())
    assert tuple(cpus) == parse_cpulist(fields["On-line CPU(s) list"])
    sockets = int(fields["Socket(s)"])
    assert len([v for v in topology.vertices if "/socket" in v.id]) == sockets
    assert sum(d.engines[0].count for d in topology.devices) == sockets * int(fields["Core(s) per socket"])
    for device in topology.devices:
        assert set(device.cpus or ()) <= set(parse_cpulist(fields[f"NUMA node{device.numa_node} CPU(s)"]))
    assert topology.devices[0].name == fields["Model name"]


@pytest.mark.parametrize(
    ("text", "numbers"), [("0-3,8", (0, 1, 2, 3, 8)), ("", ()), ("5\n", (5,)), ("0-1, 3-4", (0, 1, 3, 4))]
)
def test_cpu_lists(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_cpulist(text) == numbers
    assert parse_cpulist(format_cpulist(numbers)) == numbers
