"""Our own topology files: what is read, the shipped one, and that every mistake names file, line and mend."""

from __future__ import annotations

from pathlib import Path

import pytest

from observatory.model.cost import CostParameters
from observatory.model.device import DeviceKind, EngineKind
from observatory.model.link import LinkKind, LinkState
from observatory.topology.domains import Domains
from observatory.topology.errors import BadTopology
from observatory.topology.importers.own_yaml import read_topology
from observatory.topology.load import load_topology, shipped_names
from observatory.topology.paths import PathFinder

SMALL = """\
apiVersion: media.observatory/v1
kind: Topology
metadata: {name: small, provenance: measurement}
spec:
  nodes: [n0]
  devices:
    - {id: n0/cpu0, name: a Xeon, numa_node: 0, memory_bytes: 64e9, engines: {compute: 8}, cpus: "0-3,8"}
    - id: n0/gpu0
      engines: {encode: {count: 2, sessions: 3}}
  vertices:
    - {id: n0/sw, kind: pcie_switch}
  links:
    - {a: n0/cpu0, b: n0/sw, kind: pcie, width: 16, speed: 32.0 GT/s, bandwidth_bytes_per_second: 6.3e10,
       latency_seconds: 1e-7, state: up}
    - {a: n0/gpu0, b: n0/sw, kind: pcie}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "t.yaml"
    path.write_text(text)
    return path


def test_every_field_is_read(tmp_path: Path) -> None:
    topology = read_topology(written(tmp_path, SMALL))
    assert (topology.name, topology.provenance) == ("small", "measurement")
    cpu, gpu = topology.devices
    assert (cpu.kind, cpu.node, cpu.memory_bytes, cpu.cpus) == (DeviceKind.CPU, "n0", 64_000_000_000, (0, 1, 2, 3, 8))
    encode = gpu.engine(EngineKind.ENCODE)
    assert encode is not None
    assert (encode.count, encode.sessions) == (2, 3)
    first, second = topology.links
    assert (first.width, first.speed, first.bandwidth_bytes_per_second) == (16, "32.0 GT/s", 63e9)
    assert first.state is LinkState.UP
    assert (second.bandwidth_bytes_per_second, second.latency_seconds, second.width) == (None, None, None)


def test_what_this_machine_has_may_be_described_too(tmp_path: Path) -> None:
    text = SMALL.replace(
        "  vertices:\n",
        "    - {id: n0/storage0, capacity_bytes: 2e12}\n"
        "  vertices:\n"
        "    - {id: n0/rootport0, kind: root_port}\n"
        "    - {id: n0/controller0, kind: storage_controller}\n",
    )
    text += (
        "    - {a: n0/storage0, b: n0/controller0, kind: storage}\n"
        "    - {a: n0/controller0, b: n0/rootport0, kind: pcie, width: 4, best_width: 8, speed: 8.0 GT/s,"
        " best_speed: 16.0 GT/s, state: degraded}\n"
    )
    topology = read_topology(written(tmp_path, text))
    disk = topology.device("n0/storage0")
    assert disk is not None
    assert (disk.kind, disk.capacity_bytes, disk.memory_bytes) == (DeviceKind.STORAGE, 2_000_000_000_000, None)
    *_, cable, link = topology.links
    assert (cable.kind, link.best_width, link.best_speed) == (LinkKind.STORAGE, 8, "16.0 GT/s")


BAD = {
    "unknown end": ("b: n0/sw, kind: pcie}", "b: n0/wx, kind: pcie}", 15, "no 'n0/wx'", "did you mean n0/sw?"),
    "loop": ("a: n0/gpu0, b: n0/sw, kind", "a: n0/gpu0, b: n0/gpu0, kind", 15, "goes nowhere", "two ends"),
    "twice": ("id: n0/gpu0\n", "id: n0/cpu0\n", 8, "twice, first on line 7", "unique"),
    "node": ("id: n0/gpu0\n", "id: n1/gpu0\n", 8, "no node 'n1'", "known: n0"),
    "kind": ("id: n0/gpu0\n", "id: n0/gpo0\n", 8, "no kind 'gpo'", "did you mean gpu?"),
    "id": ("id: n0/gpu0\n", "id: gpu0\n", 8, "'gpu0'", "form"),
    "engine": ("{encode:", "{encod:", 9, "'encod'", "did you mean encode?"),
    "link kind": ("kind: pcie}", "kind: pci}", 15, "'pci'", "did you mean pcie?"),
    "link key": ("width: 16", "widht: 16", 13, "widht", "did you mean width?"),
    "bandwidth": ("6.3e10", "0", 13, "greater than 0", None),
    "cpus": ('"0-3,8"', '"3-0"', 7, "runs backwards", "0-3,8"),
    "memory": ("64e9", "64.5", 7, "whole number", None),
    "state": ("state: up", "state: upp", 14, "'upp'", "did you mean up?"),
    "twin": (
        "    - {a: n0/gpu0, b: n0/sw, kind: pcie}",
        "    - {a: n0/sw, b: n0/cpu0, kind: pcie}",
        15,
        "first on line 13",
        "count: 2",
    ),
    "pipeline": ("kind: Topology", "kind: MediaPipeline", 2, "is a pipeline", "kind: Topology"),
    "node name": ("nodes: [n0]", "nodes: [n/0]", 5, "no name for a node", "n0"),
    "list": (SMALL, "- 1\n", 1, "no topology", "apiVersion"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_names_file_line_and_mend(case: str, tmp_path: Path) -> None:
    old, new, line, words, mend = BAD[case]
    assert old in SMALL
    path = written(tmp_path, SMALL.replace(old, new))
    with pytest.raises(BadTopology) as caught:
        read_topology(path)
    error = caught.value
    assert (error.file, error.exit_code) == (str(path), 2)
    assert words in error.message
    assert mend is None or mend in (error.mend or "")
    assert error.line == line


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_topologies_are_read(name: str) -> None:
    topology = load_topology(name)
    assert topology.name == name
    assert topology.provenance == "description"
    finder = PathFinder(topology, CostParameters())
    assert all(finder.best(a.id, b.id, 2**20).seconds is not None for a in topology.devices for b in topology.devices)


def test_the_eight_gpu_node_is_what_its_data_sheets_say() -> None:
    topology = load_topology()
    gpus = topology.devices_of(DeviceKind.GPU)
    assert len(gpus) == 8
    for gpu in gpus:
        assert gpu.engine(EngineKind.ENCODE) is None
        assert (gpu.memory_bytes, gpu.engine(EngineKind.DECODE)) == (80_000_000_000, gpu.engines[1])
        assert gpu.engines[1].count == 7
    assert len(topology.devices_of(DeviceKind.VPU)) == 2
    assert all(v.engine(EngineKind.ENCODE) for v in topology.devices_of(DeviceKind.VPU))
    assert sum(c.engines[0].count for c in topology.devices_of(DeviceKind.CPU)) == 112
    kinds = [link.kind for link in topology.links]
    assert (kinds.count(LinkKind.NVLINK), kinds.count(LinkKind.UPI)) == (8, 1)
    domains = Domains(topology)
    assert {domains.of(g.id, "NVLink_Domain") for g in gpus} == {"n0/nvswitch0"}
    assert [domains.of(g.id, "Socket") for g in gpus] == ["n0/socket0"] * 4 + ["n0/socket1"] * 4
    assert [domains.of(g.id, "PCIe_Switch") for g in gpus] == [f"n0/pcie{i // 2}" for i in range(8)]
    assert domains.of("n0/vpu1", "NUMA_Node") == "n0/numa1"
    assert domains.of("n0/cpu0", "NVLink_Domain") is None
    assert domains.of("n0/cpu0", "CXL_Memory_Node") is None
    assert domains.of("n0/nic1", "Device_Kind") == "nic"
    assert domains.names("Socket") == ("n0/socket0", "n0/socket1")


def test_a_topology_by_name(tmp_path: Path) -> None:
    with pytest.raises(BadTopology) as caught:
        load_topology("two-socket-8gpus")
    assert caught.value.mend == "did you mean two-socket-8gpu?"
    assert load_topology(str(written(tmp_path, SMALL))).name == "small"
