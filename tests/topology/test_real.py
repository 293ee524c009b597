"""This machine from sysfs: made-up trees, and `lscpu` as the judge of the live one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from observatory.model.cost import CostParameters
from observatory.model.device import DeviceKind, EngineKind
from observatory.model.link import LinkKind
from observatory.model.topology import Topology
from observatory.topology.cpulist import format_cpulist, parse_cpulist
from observatory.topology.domains import Domains
from observatory.topology.errors import MachineUnreadable
from observatory.topology.importers.real import read_machine
from observatory.topology.load import load_topology
from observatory.topology.paths import PathFinder
from tests.topology.sysfs_trees import write


def cpus_of(topology: Topology) -> list[tuple[int, ...] | None]:
    return [d.cpus for d in topology.devices_of(DeviceKind.CPU)]


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
    processors = topology.devices_of(DeviceKind.CPU)
    assert [d.id for d in processors] == ["n0/cpu0", "n0/cpu1", "n0/cpu2", "n0/cpu3"]
    assert [d.numa_node for d in processors] == [0, 1, 2, 3]
    assert cpus_of(topology)[:2] == [(0, 1, 8, 9), (2, 3, 10, 11)]
    assert [d.memory_bytes for d in processors] == [(1000 + n) * 1024 for n in range(4)]
    engines = [d.engine(EngineKind.COMPUTE) for d in processors]
    assert [e.count for e in engines if e] == [2, 2, 2, 2]  # cores, not threads
    domains = Domains(topology)
    assert [domains.of(d.id, "Socket") for d in processors] == ["n0/socket0"] * 2 + ["n0/socket1"] * 2
    ids = {d.id for d in processors}
    between = {(lk.a, lk.b): lk for lk in topology.links if {lk.a, lk.b} <= ids}
    assert len(between) == 6
    assert (between["n0/cpu0", "n0/cpu1"].kind, between["n0/cpu0", "n0/cpu1"].numa_distance) == (LinkKind.MEMORY, 12)
    assert (between["n0/cpu0", "n0/cpu2"].kind, between["n0/cpu0", "n0/cpu2"].numa_distance) == (LinkKind.UPI, 21)
    assert all(lk.bandwidth_bytes_per_second is None and lk.latency_seconds is None for lk in topology.links)
    memory = topology.device("n0/cxl_memory0")
    assert memory is not None
    assert (memory.numa_node, memory.memory_bytes, memory.pci_bus_id) == (4, 1004 * 1024, None)
    assert any("NUMA node 4 has memory and no processors: sysfs does not tell whether" in w for w in topology.warnings)
    assert any("only relative distances" in w for w in topology.warnings)
    assert PathFinder(topology, CostParameters()).best("n0/cpu0", "n0/cpu3", 1).seconds is None


def test_without_hyperthreads(tmp_path: Path) -> None:
    topology = read_machine(tree(tmp_path, threads=1))
    assert cpus_of(topology) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert all(d.engines[0].count == 2 for d in topology.devices_of(DeviceKind.CPU))


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


def test_the_memory_of_a_kernel_without_numa(tmp_path: Path) -> None:
    root = tree(tmp_path / "sys")
    shutil.rmtree(root / "devices/system/node")
    write(tmp_path / "proc/meminfo", "MemTotal:       16345300 kB\nMemFree: 1 kB")
    assert [n.memory_bytes for n in read_machine(root).numa_nodes] == [16345300 * 1024]


def test_a_numa_node_over_two_sockets(tmp_path: Path) -> None:
    root = tree(tmp_path)
    write(root / "devices/system/node/online", "0")
    write(root / "devices/system/node/node0/cpulist", "0-15")
    topology = read_machine(root)
    assert [(d.numa_node, d.engines[0].count, d.memory_bytes) for d in topology.devices] == [(0, 4, None)] * 2
    assert "spans sockets 0, 1" in topology.warnings[0]
    assert topology.numa_nodes[0].memory_bytes == 1000 * 1024


def test_a_processor_in_two_numa_nodes(tmp_path: Path) -> None:
    root = tree(tmp_path)
    write(root / "devices/system/node/node1/cpulist", "1-3")
    topology = read_machine(root)
    assert cpus_of(topology)[:2] == [(0, 1, 8, 9, 10, 11), (2, 3)]
    assert "processors 1 are in several NUMA nodes: counted to the first" in topology.warnings


def test_sockets_that_are_not_told(tmp_path: Path) -> None:
    root = tree(tmp_path)
    for number in range(16):
        write(root / f"devices/system/cpu/cpu{number}/topology/physical_package_id", "-1")
    topology = read_machine(root)
    assert [v.id for v in topology.vertices if "socket" in v.id] == ["n0/socket0"]
    assert "does not tell the socket of processors 0-15" in topology.warnings[0]


@pytest.mark.parametrize("text", ["", "0-x", "nonsense", "\0\0", "9-3"])
def test_a_list_of_processors_that_makes_no_sense(text: str, tmp_path: Path) -> None:
    root = tree(tmp_path)
    write(root / "devices/system/cpu/online", text)
    write(root / "devices/system/cpu/cpu15/online", "0")
    topology = read_machine(root)
    assert [len(cpus or ()) for cpus in cpus_of(topology)] == [4, 4, 4, 3]
    assert any(w.startswith("devices/system/cpu/online ") for w in topology.warnings)


def test_no_tree_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYSFS_ROOT", str(tmp_path))
    with pytest.raises(MachineUnreadable) as caught:
        load_topology("real")
    assert "SYSFS_ROOT" in (caught.value.mend or "")
    assert str(tmp_path) in str(caught.value)
    monkeypatch.setenv("SYSFS_ROOT", str(tree(tmp_path)))
    assert len(load_topology("real").devices_of(DeviceKind.CPU)) == 4


def test_dies(tmp_path: Path) -> None:
    root = tree(tmp_path)
    for number in range(16):
        die = number % 4 // 2 if number % 8 < 4 else 0  # the first socket has two dies, the second one
        write(root / f"devices/system/cpu/cpu{number}/topology/die_id", str(die))
    topology = read_machine(root)
    assert [v.id for v in topology.vertices if v.kind == "die"] == ["n0/die0", "n0/die1"]
    below = {(lk.a, lk.b) for lk in topology.links if "die" in lk.a or "die" in lk.b}
    assert below == {
        ("n0/die0", "n0/socket0"),
        ("n0/die1", "n0/socket0"),
        ("n0/cpu0", "n0/die0"),
        ("n0/cpu1", "n0/die1"),
    }
    domains = Domains(topology)
    sockets = [domains.of(d.id, "Socket") for d in topology.devices_of(DeviceKind.CPU)]
    assert sockets == ["n0/socket0"] * 2 + ["n0/socket1"] * 2


def test_caches(tmp_path: Path) -> None:
    """Every thread tells its caches; a pair of threads shares L1 and L2, the socket shares L3."""
    root = tree(tmp_path)
    for number in range(16):
        core, socket = number % 8, number % 8 // 4
        four = f"{4 * socket}-{4 * socket + 3},{4 * socket + 8}-{4 * socket + 11}"
        pair = f"{core},{core + 8}"
        for index, (level, kind, size, shared) in enumerate(
            [
                (1, "Data", "48K", pair),
                (1, "Instruction", "32K", pair),
                (2, "Unified", "2048K", pair),
                (3, "Unified", "36M", four),
            ]
        ):
            folder = root / f"devices/system/cpu/cpu{number}/cache/index{index}"
            write(folder / "level", str(level))
            write(folder / "type", kind)
            write(folder / "size", size)
            write(folder / "shared_cpu_list", shared)
    caches = read_machine(root).caches
    assert [(c.label, c.size_bytes, c.cpus) for c in caches[:3]] == [
        ("L3", 36 << 20, (0, 1, 2, 3, 8, 9, 10, 11)),
        ("L3", 36 << 20, (4, 5, 6, 7, 12, 13, 14, 15)),
        ("L2", 2 << 20, (0, 8)),
    ]
    assert [c.label for c in caches] == ["L3"] * 2 + ["L2"] * 8 + ["L1d"] * 8 + ["L1i"] * 8


def test_masks_in_place_of_lists(tmp_path: Path) -> None:
    """Kernels before 2.6.25 have no lists."""
    root = tree(tmp_path)
    for number, mask in enumerate(("00000303", "00000c0c", "00003030", "0000c0c0")):
        (root / f"devices/system/node/node{number}/cpulist").unlink()
        write(root / f"devices/system/node/node{number}/cpumap", mask)
    assert cpus_of(read_machine(root)) == [(0, 1, 8, 9), (2, 3, 10, 11), (4, 5, 12, 13), (6, 7, 14, 15)]


def test_nothing_of_the_live_machine_is_read_for_a_recorded_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither /proc nor /sys, even where a link in the tree leads there; the tree's own `proc` is."""
    root = tree(tmp_path / "sys")
    target = root / "devices/system/node/node0/meminfo"
    target.unlink()
    target.symlink_to("/sys/devices/system/node/node0/meminfo")
    opened: list[str] = []
    real_open = os.open

    def recording(path: str | Path, *rest: int, **more: int) -> int:
        opened.append(str(path))
        return real_open(path, *rest, **more)

    monkeypatch.setattr("os.open", recording)
    topology = read_machine(root)
    assert opened
    assert all(path.startswith(str(tmp_path)) for path in opened)
    assert topology.devices[0].name is None
    assert topology.devices[0].memory_bytes is None
    assert any(w.startswith("devices/system/node/node0/meminfo cannot be read") for w in topology.warnings)
    (tmp_path / "proc").symlink_to("/proc")
    assert read_machine(root).devices[0].name is None
    (tmp_path / "proc").unlink()
    write(tmp_path / "proc/cpuinfo", "processor\t: 0\nmodel name\t: Recorded CPU  @ 2 GHz")
    assert read_machine(root).devices[0].name == "Recorded CPU  @ 2 GHz"


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
    processors = topology.devices_of(DeviceKind.CPU)
    cpus = sorted(c for d in processors for c in d.cpus or ())
    assert tuple(cpus) == parse_cpulist(fields["On-line CPU(s) list"])
    sockets = int(fields["Socket(s)"])
    assert len([v for v in topology.vertices if "/socket" in v.id]) == sockets
    assert sum(d.engines[0].count for d in processors) == sockets * int(fields["Core(s) per socket"])
    for device in processors:
        assert set(device.cpus or ()) <= set(parse_cpulist(fields[f"NUMA node{device.numa_node} CPU(s)"]))
    assert topology.devices[0].name == fields["Model name"]


@pytest.mark.parametrize(
    ("text", "numbers"), [("0-3,8", (0, 1, 2, 3, 8)), ("", ()), ("5\n", (5,)), ("0-1, 3-4", (0, 1, 3, 4))]
)
def test_cpu_lists(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_cpulist(text) == numbers
    assert parse_cpulist(format_cpulist(numbers)) == numbers
