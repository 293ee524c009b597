"""The emulated machine's /sys, read back by our importer and receivers, and by node_exporter."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pydantic import BaseModel

from chaos.machine.machine import EmulatedMachine
from observatory.model.device import DeviceKind
from observatory.model.link import LinkKind, LinkState
from observatory.model.topology import Topology, VertexKind
from observatory.receivers.infiniband import Infiniband
from observatory.receivers.interfaces import Interfaces
from observatory.receivers.sysfs_pcie import SysfsPcie
from observatory.topology.importers.real import read_machine
from observatory.topology.load import load_topology
from tests.machine.machines import fabric_of, move, two_gpus
from tests.receivers.looking import Told, look
from tests.receivers.test_node_exporter import node_exporter, scraped
from tests.receivers.waiting import wait_until
from tests.topology.sysfs_trees import DATA

TREES = (
    "2pa-pcidomain32bits",
    "32em64t-2n8c+dax+nvme+mic+dimms",
    "40intel64-2g2n4c+pcilocality",
    "fakepcilocalities",
)


def read_back(machine: EmulatedMachine) -> Topology:
    return read_machine(machine.root / "sys", pci_databases=())


def without(things: Sequence[BaseModel], *fields: str) -> list[dict[str, object]]:
    return [thing.model_dump(exclude=set(fields)) for thing in things]


def setting(machine: EmulatedMachine, target: str, changes: dict[str, str]) -> Callable[[], None]:
    def change() -> None:
        machine.set(target, changes)

    return change


@pytest.mark.parametrize("name", TREES)
def test_a_recorded_machine_is_read_back_as_it_was(name: str, tmp_path: Path) -> None:
    archive = DATA / "hwloc-sysfs" / f"{name}.tar.bz2"
    if not archive.exists():
        pytest.skip("../shared/data is not there")
    before = load_topology(archive)
    with EmulatedMachine(before, None, tmp_path / "machine") as machine:
        after = read_back(machine)
    # Names of cards are those of a database of PCI ids, which sysfs is not.
    assert without(after.devices, "name") == without(before.devices, "name")
    assert without(after.vertices, "name") == without(before.vertices, "name")
    assert after.numa_nodes == before.numa_nodes
    assert after.caches == before.caches
    assert without(after.pci_functions, "name") == without(before.pci_functions, "name")
    # What a link can do at best is told by the emulated machine even where the recorded one does not.
    ours = {link.id: link for link in after.links}
    assert ours.keys() == {link.id for link in before.links}
    for link in before.links:
        unknown = {"best_width", "best_speed"} if link.best_width is None else set()
        assert ours[link.id].model_dump(exclude=unknown) == link.model_dump(exclude=unknown)


def test_a_described_machine_has_the_same_cards_on_the_same_switches(tmp_path: Path) -> None:
    described = load_topology()
    with EmulatedMachine(described, None, tmp_path / "machine") as machine:
        found = read_back(machine)
        addressed = machine.topology
    for device in addressed.devices:
        same = found.device(device.id)
        assert same is not None
        assert (same.kind, same.numa_node, same.pci_bus_id) == (device.kind, device.numa_node, device.pci_bus_id)
    assert len(found.devices) == len(described.devices)
    gpu = found.device("n0/gpu0")
    assert gpu is not None
    assert gpu.pci_id == "10de:2330"  # an H100
    links = {link.id: link for link in found.links}
    for link in described.links:
        if link.kind is LinkKind.PCIE and "socket" not in link.id:
            assert (links[link.id].width, links[link.id].speed) == (link.width, link.speed)
            assert links[link.id].state is LinkState.UP
    ports = [port for card in found.devices_of(DeviceKind.NIC) for port in card.ports]
    assert [(port.name, port.bytes_per_second) for port in ports] == [("mlx5_0/1", 50e9), ("mlx5_1/1", 50e9)]
    assert [cpu.engines[0].count for cpu in found.devices_of(DeviceKind.CPU)] == [56, 56]


def test_a_link_that_is_narrower_and_slower_shows_at_both_of_its_ends(tmp_path: Path) -> None:
    with EmulatedMachine(two_gpus(), None, tmp_path / "machine") as machine:
        machine.set("gpu0-pcie0", {"width": "4", "speed": "8GT/s"})
        link = next(x for x in read_back(machine).links if x.id == "n0/gpu0--n0/pcie0:pcie")
        assert (link.width, link.best_width) == (4, 16)
        assert (link.speed, link.best_speed) == ("8.0 GT/s", "16.0 GT/s")
        assert link.state is LinkState.DEGRADED
        assert link.bandwidth_bytes_per_second == pytest.approx(4 * 8e9 * 128 / 130 / 8)
        bus_id = next(d.pci_bus_id for d in machine.topology.devices if d.id == "n0/gpu0")
        port = (machine.root / "sys/bus/pci/devices" / str(bus_id)).resolve().parent
        assert (port / "current_link_width").read_text().strip() == "4"
        machine.set("gpu0-pcie0", {"state": "up"})
        link = next(x for x in read_back(machine).links if x.id == "n0/gpu0--n0/pcie0:pcie")
        assert (link.width, link.speed, link.state) == (16, "16.0 GT/s", LinkState.UP)


def test_the_receiver_of_pcie_links_sees_each_change(tmp_path: Path) -> None:
    with EmulatedMachine(two_gpus(), None, tmp_path / "machine") as machine:
        key = str(next(d.pci_bus_id for d in machine.topology.devices if d.id == "n0/gpu1"))
        first, narrow, errors, down = look(
            SysfsPcie,
            machine.root,
            setting(machine, "gpu1-pcie1", {"width": "8"}),
            setting(machine, "gpu1-pcie1", {"errors": "12", "fatal": "2"}),
            setting(machine, "gpu1-pcie1", {"state": "down"}),
        )
        root_port = next(f.bus_id for f in machine.plan.tree.above(key) if f.parent is None)
    assert (first[key, "link.width"], first[key, "link.width.best"], first[key, "link.speed"]) == (16, 16, 16e9)
    assert narrow[key, "link.width"] == 8
    assert first[key, "link.errors aer_corrected"] == 0
    assert errors[key, "link.errors aer_corrected"] == 12
    assert errors[key, "link.errors aer_fatal"] == 2
    assert errors[root_port, "link.errors aer_root_corrected"] == 12
    assert (first[key, "link.up"], down[key, "link.up"]) == (1, 0)


def test_ports_of_a_switch_do_not_tell_of_the_links_below_them_as_their_own(tmp_path: Path) -> None:
    with EmulatedMachine(load_topology(), None, tmp_path / "machine") as machine:
        (first,) = look(SysfsPcie, machine.root)
        ends = {str(d.pci_bus_id) for d in machine.topology.devices if d.pci_bus_id is not None}
        ends |= {str(v.pci_bus_id) for v in machine.topology.vertices if v.kind is VertexKind.PCIE_SWITCH}
    assert {key for key, metric in first if metric == "link.width"} == ends
    assert len(ends) == 8 + 2 + 2 + 4  # GPUs, video cards, network cards, switches


def test_ports_count_what_crosses_the_bus_and_go_down(tmp_path: Path) -> None:
    topology = two_gpus()
    fabric = fabric_of(topology)
    with EmulatedMachine(topology, fabric, tmp_path / "machine") as machine:
        size = 64 << 20
        move(fabric, "n0/nic0--n0/pcie0:pcie", size)  # from the card to the switch: it came in at the port

        def received() -> float:
            return look(Interfaces, machine.root)[0]["eth0", "hw.network.io receive"] or 0

        scaled = size * fabric.time_scale
        wait_until(lambda: received() == pytest.approx(scaled, rel=1e-3), "the counters to follow")
        before, after = look(Interfaces, machine.root, setting(machine, "nic0", {"state": "down", "errors": "3"}))
        assert (before["eth0", "hw.network.up"], after["eth0", "hw.network.up"]) == (1, 0)
        assert before["eth0", "hw.network.bandwidth.limit"] == 12.5e9
        assert after["eth0", "link.errors receive"] == 3
        machine.set("nic0", {"state": "up", "loss": "1%"})
        (rdma,) = look(Infiniband, machine.root)
    assert rdma["mlx5_0/1", "hw.network.up"] == 1
    packets = int(scaled) // 4096
    assert rdma["mlx5_0/1", "link.errors out_of_sequence"] == int(0.01 * packets)


def test_a_reader_that_keeps_a_file_open_sees_whole_values(tmp_path: Path) -> None:
    with EmulatedMachine(two_gpus(), None, tmp_path / "machine") as machine:
        bus_id = next(d.pci_bus_id for d in machine.topology.devices if d.id == "n0/gpu0")
        path = machine.root / "sys/bus/pci/devices" / str(bus_id) / "current_link_width"
        descriptor = os.open(path, os.O_RDONLY)
        try:
            for width in (8, 1, 16, 2) * 10:
                machine.set("gpu0-pcie0", {"width": str(width)})
                assert os.pread(descriptor, 4096, 0).strip() == str(width).encode()
        finally:
            os.close(descriptor)


def test_node_exporter_agrees_with_what_was_put_in(tmp_path: Path) -> None:
    topology = load_topology()
    with EmulatedMachine(topology, None, tmp_path / "machine") as machine:
        machine.set("nic1", {"state": "down", "errors": "7"})
        (machine.root / "proc/net").mkdir(parents=True)
        (machine.root / "proc/net/dev").write_text(" head\n head\n")
        (machine.root / "proc/pressure").mkdir()
        for resource in ("cpu", "memory", "io"):
            lines = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
            (machine.root / "proc/pressure" / resource).write_text(lines)
        with node_exporter(machine.root) as url:
            theirs: Told = scraped(url)
        (ours,) = look(Infiniband, machine.root)
    assert theirs["mlx5_0/1", "hw.network.bandwidth.limit"] == 50e9
    assert theirs["mlx5_1/1", "link.errors receive"] == 7
    assert theirs["0", "numa.memory.limit"] == 1 << 40
    assert theirs["1", "numa.memory.limit"] == 1 << 40
    both = theirs.keys() & ours.keys()
    assert {key: theirs[key] for key in both} == {key: ours[key] for key in both}
    assert len(both) >= 12


def test_downs_of_a_port_are_counted(tmp_path: Path) -> None:
    with EmulatedMachine(two_gpus(), None, tmp_path / "machine") as machine:
        counted = []
        for state in ("down", "up", "down", "up"):
            machine.set("nic0", {"state": state})
            counted.append(
                {
                    path.name: path.read_text().strip()
                    for path in (machine.root / "sys/devices").rglob("*")
                    if path.name in ("link_downed", "carrier_down_count")
                }
            )
        assert [set(found.values()) for found in counted] == [{"1"}, {"1"}, {"2"}, {"2"}]
        assert "carrier_down_count" in counted[0]
