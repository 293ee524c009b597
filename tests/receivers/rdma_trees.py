"""RDMA ports in a sysfs tree: made up, or recorded on real machines by others."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from tests.topology.sysfs_trees import DATA, write


def add_port(
    root: Path,
    card: str,
    *,
    rate: str = "100 Gb/sec (4X EDR)",
    state: str = "4: ACTIVE",
    link_layer: str = "InfiniBand",
    **counters: dict[str, str],
) -> Path:
    """A card with one port below `root`/sys; `counters`, `counters_ext`, `hw_counters` by name."""
    folder = root / f"sys/devices/pci0000:00/0000:00:05.0/infiniband/{card}"
    port = folder / "ports/1"
    write(port / "rate", rate)
    write(port / "state", state)
    write(port / "link_layer", link_layer)
    for kind, files in counters.items():
        for name, text in files.items():
            write(port / kind / name, text)
    link = root / f"sys/class/infiniband/{card}"
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(f"../../devices/pci0000:00/0000:00:05.0/infiniband/{card}")
    return port


def recorded_cards(archive: str, root: Path) -> None:
    """The RDMA cards of a record below `root`/sys/class/infiniband. Skips when there are no data."""
    path = DATA / archive
    if not path.exists():
        pytest.skip(f"{archive} is not in ../shared/data")
    files = _from_ttar(path) if path.name.endswith(".ttar") else _from_tar(path)
    for name, text in files.items():
        write(root / "sys/class/infiniband" / name, text)


def _from_tar(path: Path) -> dict[str, str]:
    found = {}
    with tarfile.open(path) as tar:
        for member in tar:
            file = tar.extractfile(member) if member.isfile() else None
            if file is not None:
                card = member.name.split("/sys-class-infiniband")[1].partition("/")[2]
                found[card] = file.read().decode().strip()
    return found


def _from_ttar(path: Path) -> dict[str, str]:
    found, name = {}, None
    lines = path.read_text(errors="replace").split("\n")
    for at, line in enumerate(lines):
        key, _, value = line.partition(": ")
        if key == "Path":
            name = value.partition("sys/class/infiniband/")[2] or None
        elif key == "Lines" and name is not None:
            found[name] = "\n".join(lines[at + 1 : at + 1 + int(value)])
    return found
