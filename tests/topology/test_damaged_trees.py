"""A machine of every kind of device, with any of its files gone, emptied or overwritten: never more than warnings."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from observatory.app.topology_document import topology_document
from observatory.topology.errors import MachineUnreadable
from observatory.topology.importers.real import read_machine
from tests.topology.sysfs_trees import MachineTree, write

HOST = "pci0000:00"
GEN4 = ("16.0 GT/s PCIe", "16")

DAMAGE = st.one_of(
    st.just(None),  # gone
    st.binary(max_size=40),
    st.sampled_from(
        [b"", b"-1", b"0-999999", b"4294967295", b"0x", b"9" * 30, b"\x1b[2J", b"\xff\xff", b"1 2 3 4", b"-5 -6 -7"]
    ),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree with something of everything."""
    tree = MachineTree(tmp_path_factory.mktemp("whole") / "sys", sockets=2)
    write(tree.root / "devices/system/node/online", "0-2")
    for node, (cpus, distances) in enumerate([("0-1", [10, 21, 21]), ("2-3", [21, 10, 21]), ("", [21, 21, 10])]):
        tree.numa_node(node, cpus, 1 << 30, distances)
    for name, text in (("level", "1"), ("type", "Data"), ("size", "48K"), ("shared_cpu_list", "0")):
        write(tree.root / "devices/system/cpu/cpu0/cache/index0" / name, text)
    path = f"{HOST}/0000:00:01.0"
    tree.bridge(path, now=GEN4, best=GEN4)
    tree.bridge(f"{path}/0000:01:00.0", now=GEN4, best=GEN4)
    tree.bridge(f"{path}/0000:01:00.0/0000:02:00.0")
    tree.function(
        f"{path}/0000:01:00.0/0000:02:00.0/0000:03:00.0", "030200", "10de:2330", now=GEN4, mem_info_vram_total="1"
    )
    nic = tree.function(f"{HOST}/0000:00:02.0", "020000", numa_node="1", local_cpulist="2-3")
    tree.entry("net", "eth0", nic, type="1", speed="1000", operstate="up", carrier="1")
    write(nic / "infiniband/mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)")
    tree.entry("infiniband", "mlx5_0", nic)
    sata = tree.function(f"{HOST}/0000:00:17.0", "010601")
    disk = tree.entry("block", "sda", sata, "ata1/host1", size="100", hidden="0")
    write(disk / "device/model", "ST9250610NS")
    memory = tree.function(f"{HOST}/0000:00:05.0", "050210")
    write(memory / "mem0/ram/size", "0x1000")
    tree.link("bus/cxl/devices/mem0", memory / "mem0")
    return tree.root


@contextmanager
def damaged(root: Path, damage: list[tuple[int, bytes | None]]) -> Iterator[None]:
    """The tree with these of its files gone or overwritten; as before when done."""
    files = sorted(p for p in root.rglob("*") if p.is_file() or p.is_symlink())
    chosen = {files[index % len(files)]: content for index, content in damage}
    before = {f: f.readlink() if f.is_symlink() else f.read_bytes() for f in chosen}
    try:
        for file, content in chosen.items():
            file.unlink()
            if content is not None:
                file.write_bytes(content)
        yield
    finally:
        for file, was in before.items():
            file.unlink(missing_ok=True)
            file.write_bytes(was) if isinstance(was, bytes) else file.symlink_to(was)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(damage=st.lists(st.tuples(st.integers(0, 10_000), DAMAGE), min_size=1, max_size=12))
def test_a_damaged_tree(damage: list[tuple[int, bytes | None]], whole: Path) -> None:
    with damaged(whole, damage):
        topology = read_machine(whole, pci_databases=[])
    json.dumps(topology_document(topology))
    assert len({d.id for d in topology.devices}) == len(topology.devices)
    cpus = [c for d in topology.devices for c in d.cpus or ()]
    assert sorted(set(cpus)) == sorted(cpus)  # each in one device
    assert cpus
    assert set(cpus) <= {0, 1, 2, 3}  # those that have folders, whatever the list says


def test_the_whole_tree_has_no_damage(whole: Path) -> None:
    topology = read_machine(whole, pci_databases=[])
    assert [d.kind for d in topology.devices] == ["cpu", "cpu", "nic", "storage", "gpu", "cxl_memory", "cxl_memory"]
    assert not any("makes no sense" in w for w in topology.warnings)


def test_names_that_are_no_text(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "sys", symlinks=True)
    (tmp_path / "sys/class/net/\x1b[31mred").symlink_to(f"../../devices/{HOST}/0000:00:02.0/net/eth0")
    topology = read_machine(tmp_path / "sys", pci_databases=[])
    assert any("has a name that is no text" in w for w in topology.warnings)
    assert not any("\x1b" in w for w in topology.warnings)


def test_nothing_at_all(tmp_path: Path) -> None:
    write(tmp_path / "devices/system/cpu/online", "nonsense")
    with pytest.raises(MachineUnreadable, match="online makes no sense: 'nonsense'"):
        read_machine(tmp_path)
