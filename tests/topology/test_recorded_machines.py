"""The live machine and machines recorded by others: what we read of them is what lstopo reads."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from observatory.model.device import DeviceKind
from observatory.model.link import LinkState
from observatory.model.topology import Topology, VertexKind
from observatory.topology.domains import Domains
from observatory.topology.errors import MachineUnreadable
from observatory.topology.importers.real import read_machine
from tests.topology.lstopo import Lstopo, lstopo
from tests.topology.sysfs_trees import DATA, MachineTree, recorded

TREES = (
    "2pa-pcidomain32bits",
    "32em64t-2n8c+dax+nvme+mic+dimms",
    "40intel64-2g2n4c+pcilocality",
    "fakepcilocalities",
    "nvidia-dgx-gb10",
)


Machine = Callable[[str], tuple[Topology, Lstopo]]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """Topology and lstopo's view by name; `live` is this machine. Each is unpacked and read once."""
    return functools.cache(lambda name: _both(name, tmp_path_factory))


def _both(name: str, folders: pytest.TempPathFactory) -> tuple[Topology, Lstopo]:
    if name == "live":
        return read_machine(Path("/sys")), lstopo(None)
    root = recorded(f"hwloc-sysfs/{name}.tar.bz2", folders.mktemp("recorded"))
    return read_machine(root / "sys"), lstopo(root)


each_machine = pytest.mark.parametrize("name", ["live", *TREES])


def test_every_recorded_tree_is_tried() -> None:
    if not DATA.exists():
        pytest.skip("../shared/data is not there")
    assert {p.name.removesuffix(".tar.bz2") for p in (DATA / "hwloc-sysfs").glob("*.tar.bz2")} == set(TREES)


@each_machine
def test_sockets_cores_and_threads(name: str, machine: Machine) -> None:
    ours, theirs = machine(name)
    sockets: dict[int, set[int]] = {}
    domains = Domains(ours)
    for device in ours.devices_of(DeviceKind.CPU):
        socket = domains.of(device.id, "Socket")
        assert socket is not None
        sockets.setdefault(int(socket.removeprefix("n0/socket")), set()).update(device.cpus or ())
    assert sockets == theirs.packages
    assert {c for cpus in sockets.values() for c in cpus} == theirs.cpus
    assert sum(d.engines[0].count for d in ours.devices_of(DeviceKind.CPU)) == theirs.cores


@each_machine
def test_numa_nodes(name: str, machine: Machine) -> None:
    ours, theirs = machine(name)
    assert {n.number: n.memory_bytes for n in ours.numa_nodes} == theirs.numa_memory
    if len(ours.numa_nodes) > 1:
        assert [n.distances[m.number] for n in ours.numa_nodes for m in ours.numa_nodes] == theirs.distances


@each_machine
def test_caches(name: str, machine: Machine) -> None:
    ours, theirs = machine(name)
    assert Counter((c.label, c.size_bytes, c.cpus) for c in ours.caches) == Counter(theirs.caches)


@each_machine
def test_pci_functions_and_what_each_hangs_on(name: str, machine: Machine) -> None:
    ours, theirs = machine(name)
    # It leaves out domains of more than 16 bits, and a bridge that firmware gave no buses.
    unseen = {"0000:00:11.0"} if name.startswith("32em64t") else set()
    short = [f for f in ours.pci_functions if len(f.bus_id.partition(":")[0]) == 4]
    seen = {f.bus_id: f for f in short if f.bus_id not in unseen}
    assert {b: ((f.class_code or "")[:4], f.pci_id) for b, f in seen.items()} == theirs.functions
    assert {b: f.parent for b, f in seen.items()} == theirs.parents


@each_machine
def test_sockets_of_pci_functions(name: str, machine: Machine) -> None:
    """A host bridge is in the same socket, or of no known one. With one socket, hwloc draws it beside; it is in it."""
    ours, theirs = machine(name)
    hosts = {v.name: v.id for v in ours.vertices if v.kind is VertexKind.HOST_BRIDGE}
    sockets = {link.a: link.b for link in ours.links if link.b.startswith("n0/socket")}
    for function in ours.pci_functions:
        theirs_in = theirs.sockets_of_functions.get(function.bus_id)
        ours_in = sockets.get(hosts[function.host_bridge])
        if len(theirs.packages) == 1:
            assert ours_in is not None
        elif function.bus_id in theirs.functions and name != "2pa-pcidomain32bits":
            assert ours_in == (None if theirs_in is None else f"n0/socket{theirs_in}"), function.bus_id


@each_machine
def test_link_speeds(name: str, machine: Machine) -> None:
    """It has GB/s after the encoding, of what the function itself says."""
    ours, theirs = machine(name)
    shown = {f.shown_as: f.bus_id for f in ours.pci_functions if f.shown_as}
    for link in ours.links:
        bus_id = shown.get(link.a)
        if bus_id in theirs.speeds and link.bandwidth_bytes_per_second is not None:
            assert link.bandwidth_bytes_per_second / 1e9 == pytest.approx(theirs.speeds[bus_id], rel=1e-4)
    if name == "40intel64-2g2n4c+pcilocality":
        assert sum(speed > 0 for speed in theirs.speeds.values()) == 3
        assert sum(link.bandwidth_bytes_per_second is not None for link in ours.links) == 3


@each_machine
def test_disks(name: str, machine: Machine) -> None:
    ours, theirs = machine(name)
    disks = {d.os_names[0]: d for d in ours.devices_of(DeviceKind.STORAGE) if d.os_names}
    assert disks.keys() == theirs.disks.keys()
    for disk, (bus_id, size) in theirs.disks.items():
        assert abs((disks[disk].capacity_bytes or 0) - size) < 1024, disk  # it counts whole KiB
        if bus_id is not None:
            assert disks[disk].pci_bus_id == bus_id


@each_machine
def test_network_interfaces(name: str, machine: Machine) -> None:
    ours, theirs = machine(name)
    cards = {n: d.pci_bus_id for d in ours.devices_of(DeviceKind.NIC) for n in d.os_names}
    expected = theirs.interfaces | theirs.fabrics
    hardware = {n: b for n, b in expected.items() if b is not None}
    assert {n: b for n, b in cards.items() if b is not None} == hardware


def test_a_domain_of_more_than_sixteen_bits(machine: Machine) -> None:
    ours, _ = machine("2pa-pcidomain32bits")
    assert [f.bus_id for f in ours.pci_functions][-2:] == ["10000:00:00.0", "10000:00:04.0"]
    disk = next(d for d in ours.devices if d.os_names == ("vda",))
    assert (disk.pci_bus_id, disk.numa_node, disk.capacity_bytes) == ("10000:00:04.0", None, 41943040 * 512)


def test_infiniband_of_a_recorded_machine(machine: Machine) -> None:
    ours, _ = machine("32em64t-2n8c+dax+nvme+mic+dimms")
    card = next(d for d in ours.devices if "mlx4_0" in d.os_names)
    assert (card.id, card.numa_node, card.pci_bus_id) == ("n0/nic2", 1, "0000:82:00.0")
    (port,) = card.ports  # `ib0` is the same port
    assert (port.name, port.link_layer, port.state) == ("mlx4_0/1", "infiniband", LinkState.UP)
    assert port.bytes_per_second == pytest.approx(56e9 * 64 / 66 / 8)


def test_eight_cards_of_an_h100_node(tmp_path: Path) -> None:
    tree = MachineTree(tmp_path / "sys")
    cards = recorded("sysfs-ib/gpud_sys-class-infiniband-h100.tar.gz", tmp_path / "recorded")
    (tree.root / "class").mkdir()
    cards.rename(tree.root / "class/infiniband")
    ports = [p for d in read_machine(tree.root).devices_of(DeviceKind.NIC) for p in d.ports]
    assert len(ports) == 9
    assert {p.bytes_per_second for p in ports if p.link_layer == "infiniband"} == {50e9}  # NDR: 400 Gb/s of data
    assert [(p.name, p.bytes_per_second) for p in ports if p.link_layer == "ethernet"] == [("mlx5_bond_0/1", 25e9)]


def test_a_tree_of_network_cards_only_is_refused(tmp_path: Path) -> None:
    cards = recorded("sysfs-ib/gpud_sys-class-infiniband-h100.tar.gz", tmp_path)
    with pytest.raises(MachineUnreadable, match="shows no processors"):
        read_machine(cards)


def test_the_tree_of_prometheus_node_exporter(tmp_path: Path) -> None:
    root = recorded("node-exporter/sys.ttar", tmp_path)
    ours = read_machine(root / "sys")
    assert [len(d.cpus or ()) for d in ours.devices_of(DeviceKind.CPU)] == [2, 2]
    disk = next(d for d in ours.devices if d.pci_bus_id == "0000:01:00.0")
    assert disk.kind is DeviceKind.STORAGE
    link = next(link for link in ours.links if link.a == disk.id)
    # The disk can do 16.0 GT/s x4, its port 8.0 GT/s x8: together 8.0 GT/s x4, which is what they run at.
    assert (link.width, link.speed, link.best_width, link.best_speed) == (4, "8.0 GT/s", 4, "8.0 GT/s")
    assert link.state is LinkState.UP
    assert link.bandwidth_bytes_per_second == pytest.approx(3.938e9, rel=1e-3)
    card = next(d for d in ours.devices if d.pci_bus_id == "0000:45:00.0")
    assert (card.kind, card.pci_id) == (DeviceKind.NIC, "8086:1521")


def test_the_tree_of_prometheus_procfs(tmp_path: Path) -> None:
    root = recorded("sysfs-ib/procfs_fixtures.ttar", tmp_path)
    ours = read_machine(root / "sys")
    rates = {p.name: p.bytes_per_second for d in ours.devices for p in d.ports}
    assert rates["mlx4_0/1"] == 4e9  # `40 Gb/sec (4X QDR)` carries 32 Gb/s
    assert rates["hfi1_0/1"] == 12.5e9  # `100 Gb/sec (4X EDR)`
    assert any(w.startswith("the kernel shows") or "NUMA" in w for w in ours.warnings)
