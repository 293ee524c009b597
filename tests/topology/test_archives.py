"""Recorded trees read out of their archive are what they are when unpacked."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from observatory.topology.importers.real import read_machine
from observatory.topology.importers.recognise import read_file
from observatory.topology.importers.tar import tar_members
from tests.topology.sysfs_trees import DATA, MachineTree, recorded

ARCHIVES = (
    "hwloc-sysfs/2pa-pcidomain32bits.tar.bz2",
    "hwloc-sysfs/fakepcilocalities.tar.bz2",
    "hwloc-sysfs/nvidia-dgx-gb10.tar.bz2",
    "node-exporter/sys.ttar",
    "sysfs-ib/procfs_fixtures.ttar",
)


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_is_read_as_its_tree(name: str, tmp_path: Path) -> None:
    root = recorded(name, tmp_path)
    unpacked = read_machine(root / "sys")
    packed = read_file(str(DATA / name))
    assert [d.model_copy(update={"name": None}) for d in packed.devices] == [
        d.model_copy(update={"name": None}) for d in unpacked.devices
    ]
    for theirs, ours in zip(unpacked.devices, packed.devices, strict=True):
        assert theirs.name in (None, ours.name)  # the archive has `proc`, too, which is not unpacked everywhere
    for what in ("vertices", "links", "numa_nodes", "caches", "pci_functions", "warnings"):
        assert getattr(packed, what) == getattr(unpacked, what), what
    assert packed.sources == (str(DATA / name),)


def a_machine(root: Path) -> MachineTree:
    tree = MachineTree(root / "sys", sockets=2)
    tree.bridge("pci0000:00/0000:00:01.0", now=("16.0 GT/s PCIe", "16"))
    card = tree.function("pci0000:00/0000:00:01.0/0000:01:00.0", "020000", now=("16.0 GT/s PCIe", "8"), numa_node="0")
    tree.entry("net", "eth0", card, speed="25000", type="1", operstate="up")
    return tree


@pytest.mark.parametrize("form", ["w", "w:gz", "w:bz2", "w:xz"])
@pytest.mark.parametrize("dialect", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_kind_of_tar(form: str, dialect: int, tmp_path: Path) -> None:
    tree = a_machine(tmp_path / "tree")
    deep = tree.root / "devices" / "/".join(["a" * 60] * 3)  # names that a plain header has no room for
    deep.mkdir(parents=True)
    (deep / "file").write_text("x")
    with tarfile.open(tmp_path / "x.tar", form, format=dialect) as tar:  # type: ignore[call-overload]
        tar.add(tree.root, "recorded/machine/sys")
    packed, unpacked = read_file(str(tmp_path / "x.tar")), read_machine(tree.root)
    assert packed.devices == unpacked.devices
    assert packed.links == unpacked.links


def test_names_and_sizes_as_python_has_them(tmp_path: Path) -> None:
    tree = a_machine(tmp_path / "tree")
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.GNU_FORMAT) as tar:
        tar.add(tree.root, "sys")
    with tarfile.open(tmp_path / "x.tar") as tar:
        expected = [(m.name, m.size, m.linkname or None) for m in tar]
    data = (tmp_path / "x.tar").read_bytes()
    assert [(m.name.rstrip("/"), m.size, m.target) for m in tar_members(data)] == expected


def test_a_folder(tmp_path: Path) -> None:
    tree = a_machine(tmp_path)
    for folder in (tmp_path, tree.root):
        found = read_file(str(folder))
        assert found.devices == read_machine(tree.root).devices
        assert found.sources == (str(folder),)
