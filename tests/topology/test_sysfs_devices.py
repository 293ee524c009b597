"""Network cards, disks, accelerators and CXL memory of made-up machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from observatory.model.device import Device, DeviceKind, Port
from observatory.model.link import LinkKind, LinkState
from observatory.model.topology import Topology
from observatory.topology.domains import Domains
from observatory.topology.importers.real import read_machine
from tests.topology.sysfs_trees import MachineTree, write

HOST = "pci0000:00"


@pytest.fixture
def tree(tmp_path: Path) -> MachineTree:
    return MachineTree(tmp_path)


def read(tree: MachineTree) -> Topology:
    return read_machine(tree.root, pci_databases=[])


def the(topology: Topology, kind: DeviceKind) -> Device:
    (device,) = topology.devices_of(kind)
    return device


# -- network cards -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "port"),
    [
        ({"speed": "25000", "operstate": "up"}, Port(name="eth0", bytes_per_second=3.125e9, state=LinkState.UP)),
        ({"speed": "-1", "operstate": "down"}, Port(name="eth0", state=LinkState.DOWN)),
        ({"speed": "4294967295", "operstate": "lowerlayerdown"}, Port(name="eth0", state=LinkState.DOWN)),
        ({"operstate": "unknown", "carrier": "1"}, Port(name="eth0", state=LinkState.UP)),
        ({"operstate": "unknown", "carrier": "0"}, Port(name="eth0")),
        ({"speed": "fast"}, Port(name="eth0")),
        ({}, Port(name="eth0")),
    ],
)
def test_an_ethernet_port(tree: MachineTree, files: dict[str, str], port: Port) -> None:
    card = tree.function(f"{HOST}/0000:00:03.0", "020000", "8086:1592")
    tree.entry("net", "eth0", card, type="1", **files)
    assert the(read(tree), DeviceKind.NIC).ports == (port.model_copy(update={"link_layer": "ethernet"}),)


def test_a_virtio_card_and_what_software_made(tree: MachineTree) -> None:
    card = tree.function(f"{HOST}/0000:00:03.0", "020000", "1af4:1041")
    tree.entry("net", "eth0", card, "virtio1", type="1")
    virtual = tree.root / "devices/virtual/net"
    for name in ("lo", "docker0", "bond0"):
        write(virtual / name / "type", "1")
        tree.link(f"class/net/{name}", virtual / name)
    assert the(read(tree), DeviceKind.NIC).os_names == ("eth0",)


def test_a_card_that_no_driver_has(tree: MachineTree) -> None:
    tree.function(f"{HOST}/0000:00:03.0", "020000", "15b3:1021")
    nic = the(read(tree), DeviceKind.NIC)
    assert (nic.id, nic.os_names, nic.ports) == ("n0/nic0", (), ())


def infiniband(card: Path, name: str, layer: str, rate: str, ports: int = 1, state: str = "4: ACTIVE") -> None:
    for number in range(1, ports + 1):
        folder = card / f"infiniband/{name}/ports/{number}"
        write(folder / "link_layer", layer)
        write(folder / "rate", rate)
        write(folder / "state", state)


def test_infiniband_ports_are_told_once(tree: MachineTree) -> None:
    card = tree.function(f"{HOST}/0000:00:03.0", "020700", "15b3:1021")
    infiniband(card, "mlx5_0", "InfiniBand", "400 Gb/sec (4X NDR)", ports=2)
    tree.entry("infiniband", "mlx5_0", card)
    tree.entry("net", "ib0", card, type="32", operstate="up")
    nic = the(read(tree), DeviceKind.NIC)
    assert nic.os_names == ("ib0", "mlx5_0")
    assert [(p.name, p.bytes_per_second) for p in nic.ports] == [("mlx5_0/1", 50e9), ("mlx5_0/2", 50e9)]


def test_roce_ports_are_told_once(tree: MachineTree) -> None:
    card = tree.function(f"{HOST}/0000:00:03.0", "020000", "15b3:101d")
    infiniband(card, "mlx5_0", "Ethernet", "40 Gb/sec (4X QDR)")
    tree.entry("infiniband", "mlx5_0", card)
    tree.entry("net", "eth0", card, type="1", speed="40000", operstate="up")
    nic = the(read(tree), DeviceKind.NIC)
    assert [(p.name, p.link_layer, p.bytes_per_second) for p in nic.ports] == [("eth0", "ethernet", 5e9)]


@pytest.mark.parametrize(
    ("state", "expected"),
    [("1: DOWN", LinkState.DOWN), ("2: INIT", LinkState.DOWN), ("4: ACTIVE", LinkState.UP), ("?", LinkState.UNKNOWN)],
)
def test_states_of_infiniband_ports(tree: MachineTree, state: str, expected: LinkState) -> None:
    card = tree.function(f"{HOST}/0000:00:03.0", "0c0600", "1077:7322")
    infiniband(card, "qib0", "InfiniBand", "0 Gb/sec (4X SDR)", state=state)
    tree.entry("infiniband", "qib0", card)
    (port,) = the(read(tree), DeviceKind.NIC).ports
    assert (port.bytes_per_second, port.state) == (None, expected)


def test_a_network_card_of_the_board(tree: MachineTree) -> None:
    folder = tree.root / "devices/platform/soc/fd580000.ethernet"
    tree.entry("net", "end0", folder, type="1", speed="1000", operstate="up")
    nic = the(read(tree), DeviceKind.NIC)
    assert (nic.pci_bus_id, nic.ports[0].bytes_per_second) == (None, 125e6)


# -- disks -------------------------------------------------------------------------------------------------------------


def test_an_nvme_disk_is_its_function(tree: MachineTree) -> None:
    tree.bridge(f"{HOST}/0000:00:1b.0")
    card = tree.function(
        f"{HOST}/0000:00:1b.0/0000:03:00.0", "010802", "144d:a80a", now=("16.0 GT/s PCIe", "4"), numa_node="0"
    )
    disk = tree.entry("block", "nvme0n1", card, "nvme/nvme0", size="3750748848")
    write(disk / "queue/rotational", "0")
    write(card / "nvme/nvme0/model", "SAMSUNG MZQL21T9HCJR-00A07              ")
    (disk / "device").symlink_to("../../../nvme0")
    topology = read(tree)
    storage = the(topology, DeviceKind.STORAGE)
    assert (storage.id, storage.name) == ("n0/storage0", "SAMSUNG MZQL21T9HCJR-00A07")
    assert (storage.capacity_bytes, storage.memory_bytes) == (3750748848 * 512, None)
    assert (storage.rotational, storage.numa_node, storage.pci_bus_id) == (False, 0, "0000:03:00.0")
    (link,) = [link for link in topology.links if link.a == storage.id]
    assert (link.b, link.kind, link.width) == ("n0/rootport0", LinkKind.PCIE, 4)


def test_disks_behind_a_sata_controller(tree: MachineTree) -> None:
    card = tree.function(f"{HOST}/0000:00:17.0", "010601", "8086:a182")
    for number, letter in enumerate("ab"):
        disk = tree.entry("block", f"sd{letter}", card, f"ata{number}/host{number}", size="1000")
        write(disk / "queue/rotational", str(number))
        write(disk / "device/vendor", "ATA")
        write(disk / "device/model", "ST9250610NS")
        write(disk / f"sd{letter}1/partition", "1")
        tree.link(f"class/block/sd{letter}1", disk / f"sd{letter}1")
    topology = read(tree)
    disks = topology.devices_of(DeviceKind.STORAGE)
    assert [(d.os_names, d.name, d.rotational, d.pci_bus_id) for d in disks] == [
        (("sda",), "ST9250610NS", False, "0000:00:17.0"),
        (("sdb",), "ST9250610NS", True, "0000:00:17.0"),
    ]
    links = {link.a: (link.b, link.kind) for link in topology.links}
    assert links["n0/storage0"] == links["n0/storage1"] == ("n0/controller0", LinkKind.STORAGE)
    assert links["n0/controller0"] == ("n0/hostbridge0", LinkKind.PCIE)
    assert Domains(topology).of("n0/storage1", "Socket") == "n0/socket0"


def test_a_virtio_disk_and_what_software_made(tree: MachineTree) -> None:
    card = tree.function(f"{HOST}/0000:00:04.0", "010000", "1af4:1001")
    tree.entry("block", "vda", card, "virtio0", size="41943040")
    for name in ("loop0", "ram0", "dm-0", "md0", "zram0"):
        write(tree.root / f"devices/virtual/block/{name}/size", "8")
        tree.link(f"block/{name}", tree.root / f"devices/virtual/block/{name}")
    storage = the(read(tree), DeviceKind.STORAGE)
    assert (storage.os_names, storage.capacity_bytes) == (("vda",), 20 << 30)


def test_a_drive_without_a_medium(tree: MachineTree) -> None:
    card = tree.function(f"{HOST}/0000:00:1f.2", "010601")
    tree.entry("block", "sr0", card, "ata1/host1", size="0")
    assert the(read(tree), DeviceKind.STORAGE).capacity_bytes is None


def test_an_nvme_disk_with_two_paths(tree: MachineTree) -> None:
    """The disk is entered as software, each path as a hidden disk."""
    subsystem = tree.root / "devices/virtual/nvme-subsystem/nvme-subsys0"
    tree.entry("block", "nvme0n1", subsystem.parent, size="8")
    (tree.root / "block/nvme0n1").unlink()
    write(subsystem / "nvme0n1/size", "2000")
    tree.link("block/nvme0n1", subsystem / "nvme0n1")
    for number in range(2):
        card = tree.function(f"{HOST}/0000:00:0{number + 4}.0", "010802")
        tree.entry("block", f"nvme0c{number}n1", card, f"nvme/nvme{number}", size="2000", hidden="1")
        (subsystem / f"nvme{number}").symlink_to(f"../../../{HOST}/{card.name}/nvme/nvme{number}")
    disks = read(tree).devices_of(DeviceKind.STORAGE)
    assert [(d.os_names, d.pci_bus_id, d.capacity_bytes) for d in disks] == [
        (("nvme0n1",), "0000:00:04.0", 2000 * 512),
        ((), "0000:00:05.0", None),  # the other path
    ]


# -- accelerators ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "pci_id", "kind"),
    [
        ("030200", "10de:2330", DeviceKind.GPU),
        ("038000", "8086:56c0", DeviceKind.GPU),
        ("120000", "1002:74a1", DeviceKind.GPU),  # an Instinct card is a processing accelerator
        ("030000", "1a03:2000", None),  # a management chip's screen
        ("030000", "1013:00b8", None),
        ("120000", "10ee:5000", DeviceKind.FPGA),
        ("058000", "10ee:9034", DeviceKind.FPGA),
        ("020000", "10ee:9034", DeviceKind.NIC),  # an FPGA that plays a network card
        ("120000", "8086:7d1d", DeviceKind.ASIC),
        ("120000", "1da3:1020", DeviceKind.ASIC),
        ("010802", "1d82:0401", DeviceKind.VPU),  # NETINT's cards look like NVMe disks
        ("048000", "bdbd:a13b", DeviceKind.VPU),
        ("040300", "10de:22ba", None),  # the sound function of a GPU
        ("048000", "1131:7160", None),
        ("0b4000", "8086:37c8", None),
        ("0c0330", "8086:a12f", None),
    ],
)
def test_kinds_of_cards(tree: MachineTree, code: str, pci_id: str, kind: DeviceKind | None) -> None:
    tree.function(f"{HOST}/0000:00:02.0", code, pci_id)
    found = [d.kind for d in read(tree).devices if d.kind is not DeviceKind.CPU]
    assert found == ([] if kind is None else [kind])


def test_intels_fpga_cards_are_told_by_their_driver(tree: MachineTree) -> None:
    card = tree.function(f"{HOST}/0000:00:02.0", "120000", "8086:0b2b")
    (card / "driver").symlink_to("../../../bus/pci/drivers/dfl-pci")
    assert the(read(tree), DeviceKind.FPGA).pci_id == "8086:0b2b"


def test_what_the_driver_tells_of_a_gpu(tree: MachineTree) -> None:
    card = tree.function(
        f"{HOST}/0000:00:02.0",
        "038000",
        "1002:740f",
        mem_info_vram_total="68702699520",
        product_name="AMD Instinct MI210",
    )
    for name in ("card1", "card1-DP-1", "renderD128"):
        tree.entry("drm", name, card)
    gpu = the(read(tree), DeviceKind.GPU)
    assert (gpu.name, gpu.memory_bytes) == ("AMD Instinct MI210", 68702699520)
    assert gpu.os_names == ("card1", "renderD128")


def test_a_card_of_the_accelerator_class_of_the_kernel(tree: MachineTree) -> None:
    tree.entry("accel", "accel0", tree.function(f"{HOST}/0000:00:0b.0", "0b4000", "1e60:2864"))
    assert the(read(tree), DeviceKind.ASIC).os_names == ("accel0",)


def test_gpus_on_no_pci_bus(tree: MachineTree) -> None:
    """A board's own renders; a screen's controller, and what software made, do not."""
    for name in ("card0", "renderD128"):
        tree.entry("drm", name, tree.root / "devices/platform/soc/fb000000.gpu")
    tree.entry("drm", "card1", tree.root / "devices/platform/soc/display")
    tree.entry("drm", "renderD129", tree.root / "devices/platform/vgem")
    gpu = the(read(tree), DeviceKind.GPU)
    assert (gpu.name, gpu.pci_bus_id, gpu.os_names) == ("fb000000.gpu", None, ("card0", "renderD128"))


# -- CXL memory --------------------------------------------------------------------------------------------------------


def cxl_device(tree: MachineTree, name: str, bus_id: str, size: int) -> None:
    tree.bridge(f"{HOST}/0000:00:01.0")
    card = tree.function(f"{HOST}/0000:00:01.0/{bus_id}", "050210", "1af4:0d93", now=("32.0 GT/s PCIe", "8"))
    write(card / name / "ram/size", hex(size))
    write(card / name / "pmem/size", "0x0")
    tree.link(f"bus/cxl/devices/{name}", card / name)


def test_a_cxl_device_that_is_no_memory_of_the_kernel_yet(tree: MachineTree) -> None:
    cxl_device(tree, "mem0", "0000:01:00.0", 16 << 30)
    topology = read(tree)
    memory = the(topology, DeviceKind.CXL_MEMORY)
    assert (memory.id, memory.memory_bytes, memory.numa_node) == ("n0/cxl_memory0", 16 << 30, None)
    assert (memory.pci_bus_id, memory.os_names) == ("0000:01:00.0", ("mem0",))
    (link,) = [link for link in topology.links if link.a == memory.id]
    assert (link.kind, link.b, link.width, link.speed) == (LinkKind.CXL, "n0/rootport0", 8, "32.0 GT/s")
    assert link.bandwidth_bytes_per_second is None
    assert [f.shown_as for f in topology.pci_functions if f.bus_id == "0000:01:00.0"] == ["n0/cxl_memory0"]


def test_a_cxl_device_and_its_numa_node_are_one(tmp_path: Path) -> None:
    """As a volatile region is shown by Linux 6.3: memory -> endpoint -> decoder -> region -> dax -> node 2."""
    tree = MachineTree(tmp_path, sockets=2)
    write(tree.root / "devices/system/node/online", "0-2")
    for node in range(2):
        tree.numa_node(
            node, f"{2 * node}-{2 * node + 1}", 1 << 30, [10 if n == node else 21 for n in range(2)] + [14 + 10 * node]
        )
    tree.numa_node(2, "", 16 << 30, [14, 24, 10])
    cxl_device(tree, "mem0", "0000:01:00.0", 16 << 30)
    root = tree.root / "devices/platform/ACPI0017:00/root0"
    endpoint = root / "port1/endpoint2"
    (endpoint / "decoder2.0").mkdir(parents=True)
    (endpoint / "uport").symlink_to("../../../../../" + f"{HOST}/0000:00:01.0/0000:01:00.0/mem0")
    region = root / "decoder0.0/region0"
    write(region / "target0", "decoder2.0")
    write(region / "dax_region0/dax0.0/target_node", "2")
    for name, target in (("region0", region), ("decoder2.0", endpoint / "decoder2.0"), ("endpoint2", endpoint)):
        tree.link(f"bus/cxl/devices/{name}", target)
    tree.link("bus/dax/devices/dax0.0", region / "dax_region0/dax0.0")
    topology = read(tree)
    memory = the(topology, DeviceKind.CXL_MEMORY)
    assert (memory.numa_node, memory.memory_bytes) == (2, 16 << 30)
    nearest = [link for link in topology.links if link.a == memory.id and link.b == "n0/cpu0"]
    assert [(link.kind, link.numa_distance) for link in nearest] == [(LinkKind.CXL, 14)]
    domains = Domains(topology)
    assert domains.of("n0/cpu0", "CXL_Memory_Node") == "n0/cxl_memory0"
    assert domains.of("n0/cpu1", "CXL_Memory_Node") is None
    assert topology.numa_nodes[2].distances == {0: 14, 1: 24, 2: 10}
    assert not any("memory and no processors" in w for w in topology.warnings)


def test_persistent_memory_has_regions_of_the_same_name(tree: MachineTree) -> None:
    cxl_device(tree, "mem0", "0000:01:00.0", 16 << 30)
    write(tree.root / "devices/LNXSYSTM:00/ndbus0/region0/dax0.0/target_node", "0")
    tree.link("bus/dax/devices/dax0.0", tree.root / "devices/LNXSYSTM:00/ndbus0/region0/dax0.0")
    assert the(read(tree), DeviceKind.CXL_MEMORY).numa_node is None


def test_memory_without_processors(tree: MachineTree) -> None:
    write(tree.root / "devices/system/node/online", "0-2")
    tree.numa_node(0, "0-1", 1 << 30, [10, 17, 30])
    tree.numa_node(1, "", 8 << 30, [17, 10, 30])
    tree.numa_node(2, "", 0, [30, 30, 10])  # an empty slot
    topology = read(tree)
    memory = the(topology, DeviceKind.CXL_MEMORY)
    assert (memory.numa_node, memory.memory_bytes, memory.pci_bus_id) == (1, 8 << 30, None)
    (link,) = [link for link in topology.links if link.a == memory.id]
    assert (link.b, link.kind, link.numa_distance) == ("n0/cpu0", LinkKind.MEMORY, 17)
    assert any("NUMA node 1 has memory and no processors" in w for w in topology.warnings)
    assert [n.number for n in topology.numa_nodes] == [0, 1, 2]
