"""PCI buses of made-up machines: the tree, links now and at best, virtual functions, what firmware gets wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from observatory.model.device import Device, DeviceKind
from observatory.model.link import Link, LinkKind, LinkState
from observatory.model.topology import Topology
from observatory.topology.domains import Domains
from observatory.topology.importers.real import read_machine
from tests.topology.sysfs_trees import MachineTree, write

HOST = "pci0000:00"
GEN4 = ("16.0 GT/s PCIe", "16")


@pytest.fixture
def tree(tmp_path: Path) -> MachineTree:
    return MachineTree(tmp_path)


def read(tree: MachineTree, **more: list[Path]) -> Topology:
    return read_machine(tree.root, pci_databases=more.get("pci_databases", []))


def the(topology: Topology, kind: DeviceKind) -> Device:
    (device,) = topology.devices_of(kind)
    return device


def link_of(topology: Topology, name: str) -> Link:
    (link,) = [link for link in topology.links if link.a == name]
    return link


def test_a_card_in_a_root_port(tree: MachineTree) -> None:
    tree.bridge(f"{HOST}/0000:00:01.0", best=GEN4, now=GEN4)
    tree.function(f"{HOST}/0000:00:01.0/0000:01:00.0", "030200", "10de:20b0", now=GEN4, best=GEN4, numa_node="0")
    topology = read(tree)
    gpu = the(topology, DeviceKind.GPU)
    assert (gpu.id, gpu.name, gpu.pci_id, gpu.pci_bus_id, gpu.numa_node) == (
        "n0/gpu0",
        "10de:20b0",
        "10de:20b0",
        "0000:01:00.0",
        0,
    )
    assert (gpu.memory_bytes, gpu.engines) == (None, ())  # sysfs tells neither
    link = link_of(topology, "n0/gpu0")
    assert (link.b, link.kind, link.width, link.speed, link.state) == (
        "n0/rootport0",
        LinkKind.PCIE,
        16,
        "16.0 GT/s",
        LinkState.UP,
    )
    assert (link.best_width, link.best_speed, link.latency_seconds) == (16, "16.0 GT/s", None)
    assert link.bandwidth_bytes_per_second == pytest.approx(31.508e9, rel=1e-4)
    up = {link.a: link for link in topology.links if link.a in ("n0/rootport0", "n0/hostbridge0")}
    assert [(link.b, link.bandwidth_bytes_per_second) for link in up.values()] == [
        ("n0/hostbridge0", None),
        ("n0/socket0", None),
    ]
    assert Domains(topology).of("n0/gpu0", "Socket") == "n0/socket0"
    assert topology.warnings == ()


def test_a_link_that_came_up_slower_and_narrower(tree: MachineTree) -> None:
    tree.bridge(f"{HOST}/0000:00:01.0", best=("32.0 GT/s PCIe", "16"), now=("8.0 GT/s PCIe", "4"))
    card = f"{HOST}/0000:00:01.0/0000:01:00.0"
    tree.function(card, "030200", "10de:20b0", now=("8.0 GT/s PCIe", "4"), best=GEN4)
    link = link_of(read(tree), "n0/gpu0")
    assert (link.width, link.speed, link.best_width, link.best_speed) == (4, "8.0 GT/s", 16, "16.0 GT/s")
    assert link.state is LinkState.DEGRADED
    assert link.bandwidth_bytes_per_second == pytest.approx(3.938e9, rel=1e-3)  # what it carries now


@pytest.mark.parametrize("now", [None, ("Unknown", "0"), ("Unknown speed", "255"), ("16.0 GT/s PCIe", "0")])
def test_a_link_of_which_nothing_is_told(tree: MachineTree, now: tuple[str, str] | None) -> None:
    tree.function(f"{HOST}/0000:00:02.0", "030000", "8086:56c0", now=now)
    topology = read(tree)
    link = link_of(topology, "n0/gpu0")
    assert (link.width, link.bandwidth_bytes_per_second, link.state) == (None, None, LinkState.UNKNOWN)
    assert topology.warnings == ()


def test_a_switch(tree: MachineTree) -> None:
    """Root port, upstream port, two downstream ports with a GPU each, a third with nothing."""
    upstream = f"{HOST}/0000:00:01.0/0000:01:00.0"
    tree.bridge(f"{HOST}/0000:00:01.0")
    tree.bridge(upstream, now=("16.0 GT/s", "8"), best=GEN4)
    for number in range(3):
        tree.bridge(f"{upstream}/0000:02:0{number}.0", best=GEN4)
    for number in range(2):
        card = f"{upstream}/0000:02:0{number}.0/0000:0{number + 3}:00.0"
        tree.function(card, "030200", "10de:2330", now=GEN4, best=GEN4)
    topology = read(tree)
    (switch,) = [v for v in topology.vertices if v.kind == "pcie_switch"]
    assert (switch.id, switch.pci_bus_id) == ("n0/pcie0", "0000:01:00.0")
    assert switch.ports == ("0000:02:00.0", "0000:02:01.0", "0000:02:02.0")
    up = link_of(topology, "n0/pcie0")
    assert (up.b, up.width, up.best_width, up.state) == ("n0/rootport0", 8, 16, LinkState.DEGRADED)
    domains = Domains(topology)
    assert [domains.of(f"n0/gpu{n}", "PCIe_Switch") for n in range(2)] == ["n0/pcie0", "n0/pcie0"]
    assert [f.shown_as for f in topology.pci_functions if f.bus_id.startswith("0000:02")] == ["n0/pcie0"] * 3


def test_a_bridge_to_conventional_pci_is_no_switch(tree: MachineTree) -> None:
    tree.bridge(f"{HOST}/0000:00:1c.0")
    tree.bridge(f"{HOST}/0000:00:1c.0/0000:04:00.0")
    tree.function(f"{HOST}/0000:00:1c.0/0000:04:00.0/0000:05:00.0", "030000", "1a03:2000")
    topology = read(tree)
    assert [(v.kind, v.pci_bus_id) for v in topology.vertices if v.pci_bus_id] == [
        ("root_port", "0000:00:1c.0"),
        ("pci_bridge", "0000:04:00.0"),
    ]
    assert not topology.devices_of(DeviceKind.GPU)  # a management chip's screen
    assert topology.pci_functions[-1].class_name == "VGA controller"


def test_the_configuration_space_decides_where_it_can_be_read(tree: MachineTree) -> None:
    """By place alone the second bridge would be a switch; its capability says that it leads to conventional PCI."""
    from tests.topology.test_sysfs_parsers import config

    path = f"{HOST}/0000:00:1c.0"
    tree.bridge(path)
    for bus_id, kind in (("0000:01:00.0", 7), ("0000:02:00.0", None)):
        path = f"{path}/{bus_id}"
        (tree.bridge(path) / "config").write_bytes(config(kind))
    tree.function(f"{path}/0000:03:00.0", "020000")
    assert [v.kind for v in read(tree).vertices if v.pci_bus_id] == ["root_port", "pci_bridge", "pci_bridge"]


def test_virtual_functions_belong_to_their_card(tree: MachineTree) -> None:
    tree.bridge(f"{HOST}/0000:00:01.0")
    cards = f"{HOST}/0000:00:01.0"
    physical = tree.function(f"{cards}/0000:01:00.0", "020000", "15b3:101b", now=GEN4, best=GEN4)
    tree.entry("net", "eth0", physical, type="1", speed="100000", operstate="up")
    for number in range(2):
        virtual = tree.function(f"{cards}/0000:01:00.{number + 1}", "020000", "15b3:101c")
        (virtual / "physfn").symlink_to("../0000:01:00.0")
        tree.entry("net", f"eth0v{number}", virtual, type="1")
    topology = read(tree)
    nic = the(topology, DeviceKind.NIC)
    assert nic.virtual_functions == ("0000:01:00.1", "0000:01:00.2")
    assert nic.os_names == ("eth0",)
    assert [p.bytes_per_second for p in nic.ports] == [12.5e9]
    virtual_one = topology.pci_functions[2]
    assert (virtual_one.physical_function, virtual_one.os_names) == ("0000:01:00.0", ("eth0v0",))


def test_a_virtual_function_given_to_this_machine_is_its_card(tree: MachineTree) -> None:
    virtual = tree.function(f"{HOST}/0000:00:05.0", "020000", "15b3:101c")
    (virtual / "physfn").symlink_to("../0000:81:00.0")  # the host's
    assert the(read(tree), DeviceKind.NIC).pci_bus_id == "0000:00:05.0"


def test_a_domain_behind_a_vmd_controller(tree: MachineTree) -> None:
    tree.function(f"{HOST}/0000:00:0e.0", "010400", "8086:28c0", numa_node="0")
    behind = f"{HOST}/0000:00:0e.0/pci10000:e0/10000:e0:06.0"
    tree.bridge(behind)
    disk = tree.function(f"{behind}/10000:e1:00.0", "010802", "144d:a80a", now=("8.0 GT/s PCIe", "4"))
    tree.entry("block", "nvme0n1", disk, "nvme/nvme0", size="1953525168")
    topology = read(tree)
    storage = the(topology, DeviceKind.STORAGE)
    assert (storage.pci_bus_id, storage.numa_node, storage.os_names) == ("10000:e1:00.0", None, ("nvme0n1",))
    assert [v.name for v in topology.vertices if v.kind == "host_bridge"] == ["pci0000:00", "pci10000:e0"]
    assert link_of(topology, "n0/hostbridge1").b == "n0/hostbridge0"
    assert Domains(topology).of(storage.id, "Socket") == "n0/socket0"


def test_sockets_of_buses(tmp_path: Path) -> None:
    """By NUMA node, else by processors; where neither tells and there are two sockets it stays unknown."""
    tree = MachineTree(tmp_path, sockets=2)
    tree.function("pci0000:00/0000:00:00.0", "060000", numa_node="1")
    tree.function("pci0000:40/0000:40:00.0", "060000", local_cpulist="0-1")
    tree.function("pci0000:80/0000:80:00.0", "060000", local_cpulist="0-3")
    topology = read(tree)
    sockets = {link.a: link.b for link in topology.links if "hostbridge" in link.a}
    assert sockets == {"n0/hostbridge0": "n0/socket1", "n0/hostbridge1": "n0/socket0"}
    assert any("does not tell the socket of pci0000:80" in w for w in topology.warnings)


def test_ids_count_in_bus_order(tree: MachineTree) -> None:
    for host, bus_id in (("10000:00", "10000:00:02.0"), ("0000:00", "0000:00:0a.0"), ("0000:00", "0000:00:02.0")):
        tree.function(f"pci{host}/{bus_id}", "030200", "10de:2330")
    gpus = read(tree).devices_of(DeviceKind.GPU)
    assert [(d.id, d.pci_bus_id) for d in gpus] == [
        ("n0/gpu0", "0000:00:02.0"),
        ("n0/gpu1", "0000:00:0a.0"),
        ("n0/gpu2", "10000:00:02.0"),
    ]


def test_names_from_a_database(tree: MachineTree, tmp_path: Path) -> None:
    tree.function(f"{HOST}/0000:00:02.0", "030200", "10de:2330")
    tree.function(f"{HOST}/0000:00:03.0", "030200", "10de:ffff")
    ids = tmp_path / "pci.ids"
    ids.write_text(
        "# a comment\n"
        "1234  Somebody Else\n\t2330  Not this one\n"
        "10de  NVIDIA Corporation\n\t2330  GH100 [H100 SXM5 80GB]\n\t\t10de 16c1  A subsystem\n"
        "C 03  Display controller\n\t02  3D controller\n"
    )
    names = [d.name for d in read(tree, pci_databases=[tmp_path / "none", ids]).devices_of(DeviceKind.GPU)]
    assert names == ["NVIDIA Corporation GH100 [H100 SXM5 80GB]", "10de:ffff"]


def test_garbled_files_are_warnings_by_name(tree: MachineTree) -> None:
    folder = tree.function(f"{HOST}/0000:00:02.0", "030200", "10de:2330", now=("fast", "wide"), numa_node="many")
    (folder / "class").write_bytes(b"\xff\xfe\x00")
    write(folder / "local_cpulist", "3-1")
    write(tree.root / "devices/system/node/node0/distance", "10 ten")
    tree.link("bus/pci/devices/nonsense", folder)
    (tree.root / "bus/pci/devices/0000:00:09.0").symlink_to("../../../devices/gone")
    topology = read(tree)
    said = {w.partition(" ")[0] for w in topology.warnings}
    files = ("class", "numa_node", "local_cpulist", "current_link_speed", "current_link_width")
    assert said == {
        *(f"devices/{HOST}/0000:00:02.0/{file}" for file in files),
        "devices/system/node/node0/distance",
        "bus/pci/devices/nonsense",
        "bus/pci/devices/0000:00:09.0",
    }
    (function,) = topology.pci_functions
    assert (function.class_code, function.numa_node, function.pci_id) == (None, None, "10de:2330")


def test_many_garbled_files_of_one_name_are_counted(tree: MachineTree) -> None:
    for number in range(20):
        tree.function(f"{HOST}/0000:00:{number:02x}.0", "088000", numa_node="?")
    warnings = read(tree).warnings
    assert len(warnings) == 4
    assert warnings[-1] == "17 more files called numa_node: makes no sense"


def test_a_folder_and_a_pipe_in_the_place_of_files(tree: MachineTree) -> None:
    folder = tree.function(f"{HOST}/0000:00:02.0", "030200", "10de:2330")
    (folder / "numa_node").unlink()
    (folder / "numa_node").mkdir()
    os.mkfifo(folder / "max_link_width")
    topology = read(tree)
    assert any("numa_node cannot be read: Is a directory" in w for w in topology.warnings)
    assert the(topology, DeviceKind.GPU).numa_node is None


def test_links_that_lead_out_of_the_tree_are_not_followed(tree: MachineTree, tmp_path: Path) -> None:
    outside = MachineTree(tmp_path / "outside").function("pci0000:00/0000:00:02.0", "030200", "10de:2330")
    inner = MachineTree(tmp_path / "inner")
    (inner.root / "bus/pci/devices").mkdir(parents=True)
    (inner.root / "bus/pci/devices/0000:00:02.0").symlink_to(outside)
    topology = read(inner)
    assert topology.pci_functions == ()
    assert any("0000:00:02.0 leads out of the tree" in w for w in topology.warnings)


def test_a_machine_without_pci(tree: MachineTree) -> None:
    """A container's sysfs, or a board without buses: processors are all there is, and that is no warning."""
    topology = read(tree)
    assert [d.kind for d in topology.devices] == [DeviceKind.CPU]
    assert (topology.pci_functions, topology.warnings) == ((), ())
