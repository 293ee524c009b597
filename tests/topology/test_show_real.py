"""`observatory topology show`, `plan` and what they print for a machine read from sysfs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from observatory.app.cli.main import run_cli
from tests.topology.sysfs_trees import MachineTree, write

HOST = "pci0000:00"
GEN4 = ("16.0 GT/s PCIe", "16")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MachineTree:
    """One socket; a GPU whose link is degraded, a network card with virtual functions, disks, a management chip."""
    tree = MachineTree(tmp_path / "sys")
    for cpu in range(2):
        for index, (level, kind, size, shared) in enumerate(
            [(1, "Data", "48K", str(cpu)), (3, "Unified", "32M", "0-1")]
        ):
            folder = tree.root / f"devices/system/cpu/cpu{cpu}/cache/index{index}"
            for name, text in (("level", str(level)), ("type", kind), ("size", size), ("shared_cpu_list", shared)):
                write(folder / name, text)
    tree.bridge(f"{HOST}/0000:00:01.0", best=GEN4)
    tree.function(f"{HOST}/0000:00:01.0/0000:01:00.0", "030200", "10de:20b0", now=("8.0 GT/s PCIe", "8"), best=GEN4)
    tree.bridge(f"{HOST}/0000:00:02.0", best=GEN4)
    nic = tree.function(f"{HOST}/0000:00:02.0/0000:02:00.0", "020000", "15b3:101d", now=GEN4, best=GEN4)
    tree.entry("net", "eth0", nic, type="1", speed="100000", operstate="up")
    virtual = tree.function(f"{HOST}/0000:00:02.0/0000:02:00.1", "020000", "15b3:101e")
    (virtual / "physfn").symlink_to("../0000:02:00.0")
    tree.bridge(f"{HOST}/0000:00:03.0")
    sata = tree.function(f"{HOST}/0000:00:17.0", "010601", "8086:a182")
    disk = tree.entry("block", "sda", sata, "ata1/host1", size="1953525168")
    write(disk / "queue/rotational", "1")
    tree.bridge(f"{HOST}/0000:00:1c.0")
    tree.function(f"{HOST}/0000:00:1c.0/0000:03:00.0", "030000", "1a03:2000")
    for number in range(3):
        tree.function(f"{HOST}/0000:00:1f.{number}", "0c0500", "8086:a1a3")
    monkeypatch.setenv("SYSFS_ROOT", str(tree.root))
    return tree


def test_the_tree(server: MachineTree, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["topology", "show", "--topology", "real"]) == 0
    lines = [line.strip("│├└─ ") for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        f"real from {server.root}",
        "n0",
        "n0/socket0 socket",
        "n0/cpu0 2 cores 1.07 GB numa 0 cpus 0-1",
        "L3 32 MiB (2 threads), 2 x L1d 48 KiB",
        "n0/hostbridge0 host bridge pci0000:00",
        "n0/rootport0 root port 0000:00:01.0",
        "n0/gpu0 10de:20b0 0000:01:00.0 - pcie x8 8.0 GT/s (best x16 16.0 GT/s) 7.88 GB/s DEGRADED",
        "n0/rootport1 root port 0000:00:02.0",
        "n0/nic0 15b3:101d 0000:02:00.0 1 virtual function [eth0 100 Gb/s up]"
        " - pcie x16 16.0 GT/s (its best) 31.5 GB/s",
        "n0/rootport3 root port 0000:00:1c.0",
        "and VGA controller 0000:03:00.0 1a03:2000",
        "n0/controller0 storage controller 8086:a182 0000:00:17.0",
        "n0/storage0 1 TB rotational 0000:00:17.0 [sda]",
        "and 1 port with nothing behind, 3 x SMBus",
    ]


def test_json(server: MachineTree, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["topology", "show", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["sources"] == [str(server.root)]
    gpu = next(d for d in shown["devices"] if d["kind"] == "gpu")
    assert {k: gpu[k] for k in ("id", "node", "name", "numa_node", "pci_bus_id", "memory_bytes")} == {
        "id": "n0/gpu0",
        "node": "n0",
        "name": "10de:20b0",
        "numa_node": None,
        "pci_bus_id": "0000:01:00.0",
        "memory_bytes": None,
    }
    link = next(link for link in shown["links"] if link["a"] == "n0/gpu0")
    assert link["b"] == "n0/rootport0"
    assert {k: link[k] for k in ("kind", "count", "width", "speed", "latency_seconds", "state")} == {
        "kind": "pcie",
        "count": None,
        "width": 8,
        "speed": "8.0 GT/s",
        "latency_seconds": None,
        "state": "degraded",
    }
    untold = next(link for link in shown["links"] if link["a"] == "n0/hostbridge0")
    assert (untold["state"], untold["bandwidth_bytes_per_second"]) == (None, None)
    assert shown["numa_nodes"][0]["memory_bytes"] == 1 << 30
    assert {c["level"] for c in shown["caches"]} == {1, 3}
    assert len(shown["pci_functions"]) == 12
    assert shown["warnings"] == []


def test_operators_are_placed_on_processors_only(
    server: MachineTree, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["plan", "--topology", "real", "--state", str(tmp_path / "state"), "--json"]) == 0
    placement = json.loads(capsys.readouterr().out)["final_placement"]
    assert set(placement.values()) == {"n0/cpu0"}


@pytest.mark.parametrize("device", ["n0/nic0", "n0/storage0", "n0/gpu0"])
def test_an_operator_pinned_to_a_device_that_runs_none(
    server: MachineTree, device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = tmp_path / "pinned.yaml"
    pipeline.write_text(
        "apiVersion: media.observatory/v1\nkind: MediaPipeline\nmetadata: {name: pinned}\nspec:\n  operators:\n"
        f"    - {{name: decode, op: decode, device: {device}}}\n"
        "    - {name: out, op: encode, inputs: [decode], params: {codec: libx264}}\n"
        f"    - {{name: mux, op: mux, inputs: [out], params: {{path: {tmp_path}/out.mp4}}}}\n"
    )
    assert run_cli(["plan", str(pipeline), "--topology", "real", "--state", str(tmp_path / "state")]) != 0
    assert f"{device}: " in capsys.readouterr().err


def test_processors_of_two_dies_are_drawn_each_in_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = MachineTree(tmp_path, sockets=2)
    for cpu in range(4):
        write(tree.root / f"devices/system/cpu/cpu{cpu}/topology/physical_package_id", "0")
        write(tree.root / f"devices/system/cpu/cpu{cpu}/topology/die_id", str(cpu // 2))
    monkeypatch.setenv("SYSFS_ROOT", str(tree.root))
    assert run_cli(["topology", "show"]) == 0
    lines = [line.strip("│├└─ ") for line in capsys.readouterr().out.splitlines()]
    assert [line.split()[0] for line in lines[2:7]] == ["n0/socket0", "n0/die0", "n0/cpu0", "n0/die1", "n0/cpu1"]
