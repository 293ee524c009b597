"""One small file of each format: recognised by what is in it, read, and what it does not tell left unknown."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from observatory.model.device import DeviceKind, EngineKind
from observatory.model.link import BandwidthSource, Link, LinkKind, LinkState
from observatory.model.topology import Topology
from observatory.topology.importers.recognise import format_of, formats, read_file
from observatory.topology.importers.source import open_source
from tests.topology.facts import check

FIXTURES = Path(__file__).parent / "fixtures"
FACTS: dict[str, dict[str, Any]] = yaml.safe_load((FIXTURES / "facts.yaml").read_text())


def read(name: str) -> Topology:
    return read_file(str(FIXTURES / name))


def link(topology: Topology, a: str, b: str) -> Link:
    found = [x for x in topology.links if {x.a, x.b} == {a, b}]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("name", FACTS)
def test_what_a_file_says(name: str) -> None:
    check(read(name), FACTS[name])


def test_every_format_has_a_file_and_no_file_goes_without_facts() -> None:
    files = {p.name for p in FIXTURES.iterdir()} - {"facts.yaml"}
    assert files == set(FACTS)
    found = [format_of(open_source(FIXTURES / name)) for name in files]
    assert {f.name for f in found if f is not None} == {f.name for f in formats()}


def test_names_of_files_do_not_matter(tmp_path: Path) -> None:
    for name, facts in FACTS.items():
        copy = tmp_path / "x"
        shutil.copy(FIXTURES / name, copy)
        check(read_file(str(copy)), facts)


def test_windows_and_web_pages(tmp_path: Path) -> None:
    """What a Windows shell makes of a redirection, and what copying from a page does to spaces."""
    text = (FIXTURES / "nvidia_smi_topo.txt").read_text()
    for data in (
        text.replace("\n", "\r\n").encode("utf-16"),
        text.replace("\n", "\r\n").encode("utf-8-sig"),
        text.replace(" ", "\N{NO-BREAK SPACE}").encode(),
    ):
        (tmp_path / "x").write_bytes(data)
        check(read_file(str(tmp_path / "x")), FACTS["nvidia_smi_topo.txt"])


def test_nccl_links() -> None:
    topology = read("nccl.xml")
    second = link(topology, "n0/gpu1", "n0/pcie0")  # `16 GT/s` by 8
    assert (second.speed, second.width) == ("16.0 GT/s", 8)
    assert second.bandwidth_bytes_per_second == pytest.approx(15.754e9, rel=1e-4)
    assert second.bandwidth_source is BandwidthSource.NEGOTIATED
    for name in ("n0/gpu0", "n0/nic0"):  # nothing, and `Unknown speed` of 255 lanes
        nothing = link(topology, name, "n0/pcie0")
        assert (nothing.speed, nothing.width, nothing.bandwidth_bytes_per_second) == (None, None, None)
        assert nothing.bandwidth_source is None
    switched = link(topology, "n0/gpu1", "n0/nvswitch0")
    assert (switched.count, switched.bandwidth_bytes_per_second) == (10, 250e9)
    assert switched.bandwidth_source is BandwidthSource.DATA_SHEET
    chip = link(topology, "n0/gpu0", "n0/cpu0")
    assert (chip.kind, chip.bandwidth_bytes_per_second) == (LinkKind.C2C, 80e9)
    assert chip.bandwidth_source is BandwidthSource.STATED
    assert "interfaces made by software, left out: docker0" in topology.warnings


def test_nccl_devices() -> None:
    topology = read("nccl.xml")
    first = topology.device("n0/gpu0")  # `dev` counts, not the order in the file
    assert first is not None
    assert (first.pci_bus_id, first.name, first.pci_id) == ("0000:0c:00.0", "H100", "10de:2330")
    assert first.engine(EngineKind.ENCODE) is None
    assert [e.count for e in first.engines if e.kind is EngineKind.DECODE] == [7]
    (card,) = topology.devices_of(DeviceKind.NIC)
    assert card.ports[0].guid == "946dae030050709a"  # turned round


def test_inactive_nvlinks() -> None:
    topology = read("nvidia_smi_nvlink.txt")
    (told,) = topology.links
    assert (told.count, told.width, told.best_width, told.state) == (2, 2, 3, LinkState.DEGRADED)
    assert (told.speed, told.bandwidth_bytes_per_second) == ("25 GB/s", 50e9)
    assert any("MIG mode" in w for w in topology.warnings)


def test_where_cards_hang_in_a_matrix() -> None:
    topology = read("nvidia_smi_topo.txt")
    assert link(topology, "n0/gpu0", "n0/pcie0").kind is LinkKind.PCIE
    assert link(topology, "n0/nic0", "n0/pcie0").bandwidth_bytes_per_second is None
    assert [d.cpus for d in topology.devices_of(DeviceKind.CPU)] == [tuple(range(8)), tuple(range(8, 16))]
    card = topology.device("n0/nic0")
    assert card is not None
    assert (card.os_names, card.numa_node) == (("mlx5_0",), 0)


def test_distances_between_numa_nodes() -> None:
    for name, far in (("hwloc_v1.xml", 21), ("hwloc_v2.xml", 32), ("hwloc_v3.xml", 32)):
        topology = read(name)
        assert [n.distances for n in topology.numa_nodes] == [{0: 10, 1: far}, {0: far, 1: 10}]
        assert [x.numa_distance for x in topology.links if x.kind is LinkKind.UPI] == [far]


def test_hwloc_says_how_fast_a_card_is_linked() -> None:
    topology = read("hwloc_v2.xml")
    card = next(d for d in topology.devices if d.pci_bus_id == "0000:01:00.0")
    (own,) = [x for x in topology.links if x.a == card.id and x.kind is LinkKind.PCIE]
    assert own.bandwidth_bytes_per_second == 15.753846e9
    assert (own.speed, own.width, own.bandwidth_source) == (None, None, BandwidthSource.STATED)
    disk = next(d for d in topology.devices_of(DeviceKind.STORAGE))
    assert (disk.capacity_bytes, disk.os_names) == (1048576 * 1024, ("nvme0n1",))


def test_domains_of_more_than_sixteen_bits() -> None:
    (card,) = read("sysfs.ttar").devices_of(DeviceKind.NIC)
    assert (card.pci_bus_id, card.numa_node) == ("10000:01:00.0", None)


def test_parallel_cables_are_one_link() -> None:
    topology = read("ibnetdiscover_p.txt")
    trunk = link(topology, "fabric/leaf_one", "fabric/spine")
    assert (trunk.count, trunk.speed, trunk.width) == (2, "NDR", 4)
    assert trunk.bandwidth_bytes_per_second == 100e9
    cable = link(topology, "gpu2/nic0", "fabric/leaf_one")
    assert cable.bandwidth_bytes_per_second == 25e9
    (port,) = topology.devices[0].ports
    assert (port.guid, port.bytes_per_second, port.state) == ("946dae030050709a", 50e9, LinkState.UP)


def test_rates_of_lanes() -> None:
    """EDR, FDR and QDR carry 100, 54.5 and 32 Gb/s on four lanes."""
    info, found = read("iblinkinfo.txt"), read("ibnetdiscover.txt")
    rates = [x.bandwidth_bytes_per_second for x in (*info.links, *found.links)]
    assert rates == [pytest.approx(r * 1e9 / 8) for r in (100, 54.54545454545, 100, 32)]


def test_a_speed_without_a_unit_is_kept_as_it_is() -> None:
    topology = read("slurm.conf")
    assert {x.speed for x in topology.links if "tux" in x.a} == {"100", None}
    assert {x.bandwidth_bytes_per_second for x in topology.links} == {None}


def test_a_rack_is_that_of_its_block() -> None:
    topology = read("kubernetes.yaml")
    names = {v.id for v in topology.vertices}
    assert {"fabric/b1.r1", "fabric/b2.r1"} <= names
    assert link(topology, "gpu2/host", "fabric/s0").kind is LinkKind.NETWORK
    assert any("otherwise than by name" in w and "cpu" in w for w in topology.warnings)


def test_memory_on_the_cxl_bus() -> None:
    first, second = read("cxl_list.txt").devices_of(DeviceKind.CXL_MEMORY)
    assert (first.pci_bus_id, first.numa_node, second.pci_bus_id, second.numa_node) == ("0000:35:00.0", None, None, 1)


def test_iblinkinfo_on_one_line_each(tmp_path: Path) -> None:
    """Switches that share one description are told apart; what is a card is known without headers."""
    (tmp_path / "x").write_text(
        '0x248a07030017b128 "     thing4 HCA-1"  612  1[  ] ==( 4X 25.78 Gbps Active/  LinkUp)==>'
        '  0xec0d9a030002b810  496  20[  ] "SwitchIB Mellanox Technologies" ( )\n'
        '0x248a07030017b12c "     thing3 HCA-1"  532  1[  ] ==( 4X 10.0 Gbps (FDR10) Active/  LinkUp)==>'
        '  0xec0d9a030002b811  497  19[  ] "SwitchIB Mellanox Technologies" ( Could be FDR)\n'
        '0xec0d9a030002b810 "SwitchIB Mellanox Technologies"  496  9[  ] ==(  Down/ Polling)==>    [  ] "" ( )\n'
        '0xec0d9a030002b810 "SwitchIB Mellanox Technologies"  496  20[  ] ==( 4X 25.78 Gbps Active/  LinkUp)==>'
        '  0x248a07030017b128  612  1[  ] "thing4 HCA-1" ( )\n'
        '0xec0d9a030002b810 "SwitchIB Mellanox Technologies"  496  1[  ] ==( 4X 25.78 Gbps Active/  LinkUp)==>'
        '  0xec0d9a030002b811  497  1[  ] "SwitchIB Mellanox Technologies" ( )\n'
    )
    topology = read_file(str(tmp_path / "x"))
    assert [n.hostname for n in topology.nodes] == ["thing4", "thing3"]
    assert len(topology.vertices) == 2
    assert sorted(x.bandwidth_bytes_per_second or 0 for x in topology.links) == [5e9, 12.5e9, 12.5e9]
    assert [x.speed for x in topology.links] == ["EDR", "FDR10", "EDR"]


def test_cards_alone_with_the_lids_of_their_switch(tmp_path: Path) -> None:
    (tmp_path / "x").write_text(
        "CA: teaker-4 HCA-1:\n"
        "      0xf45214030091b9f1      1    1[  ] ==( 4X          10.0 Gbps Active/  LinkUp)==>       2    9[  ] "
        '"Infiniscale-IV Mellanox Technologies" ( )\n'
        "CA: teaker-5 HCA-1:\n"
        "      0xf45214030091baa1     12    1[  ] ==( 4X          10.0 Gbps Active/  LinkUp)==>       2    7[  ] "
        '"Infiniscale-IV Mellanox Technologies" ( )\n'
    )
    topology = read_file(str(tmp_path / "x"))
    assert [v.name for v in topology.vertices] == ["Infiniscale-IV Mellanox Technologies"]
    assert [x.bandwidth_bytes_per_second for x in topology.links] == [4e9, 4e9]


def test_what_kubectl_prints_as_json(tmp_path: Path) -> None:
    levels = {"network.topology.nvidia.com/leaf": "l1", "network.topology.nvidia.com/spine": "s1"}
    labels = {**levels, "nvidia.com/gpu.count": "8"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "labels": labels}}
    for kind in ("List", "NodeList"):
        (tmp_path / "x").write_text(json.dumps({"apiVersion": "v1", "kind": kind, "items": [node]}))
        topology = read_file(str(tmp_path / "x"))
        assert [n.hostname for n in topology.nodes] == ["a"]
        assert len(topology.devices_of(DeviceKind.GPU)) == 8
        assert {(x.a, x.b) for x in topology.links} == {("fabric/s1.l1", "fabric/s1"), ("a/host", "fabric/s1.l1")}
