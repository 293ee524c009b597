"""Sysfs trees for tests: made up piece by piece, or recorded on real machines by others."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"

_OF_NO_USE = re.compile(
    r"/(memory\d+|statistics|queues|power|hugepages|cpuidle|cpufreq|vulnerabilities|counters|uevent|modalias|enable"
    r"|resource\d*|remove|rescan|msi_bus|irq|msi_irqs|broken_parity_status|firmware|kernel|module|thermal_throttle"
    r"|microcode|proc/\d+|hwmon\d*|scsi_host|bsg|sas_phy)(/|$)"
)


def write(path: Path, text: str) -> None:
    """A file of one line, as sysfs has them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


class MachineTree:
    """A machine put together below `root`: one socket, one NUMA node, what is added."""

    def __init__(self, root: Path, *, sockets: int = 1) -> None:
        self.root = root
        write(root / "devices/system/cpu/online", f"0-{2 * sockets - 1}")
        write(root / "devices/system/node/online", f"0-{sockets - 1}" if sockets > 1 else "0")
        for cpu in range(2 * sockets):
            topology = root / f"devices/system/cpu/cpu{cpu}/topology"
            write(topology / "physical_package_id", str(cpu // 2))
            write(topology / "core_cpus_list", str(cpu))
        for node in range(sockets):
            self.numa_node(
                node, f"{2 * node}-{2 * node + 1}", 1 << 30, [10 if n == node else 21 for n in range(sockets)]
            )

    def numa_node(self, number: int, cpus: str, memory_bytes: int, distances: list[int]) -> None:
        """A NUMA node's folder; `devices/system/node/online` is left as it is."""
        folder = self.root / f"devices/system/node/node{number}"
        write(folder / "cpulist", cpus)
        write(folder / "meminfo", f"Node {number} MemTotal: {memory_bytes // 1024} kB")
        write(folder / "distance", " ".join(map(str, distances)))

    def function(
        self,
        path: str,
        code: str,
        pci_id: str = "1234:5678",
        *,
        now: tuple[str, str] | None = None,
        best: tuple[str, str] | None = None,
        numa_node: str = "-1",
        **files: str,
    ) -> Path:
        """A PCI function at `pci0000:00/0000:00:01.0/...`: class code, vendor:device, speed and width, other files."""
        folder = self.root / "devices" / path
        vendor, _, device = pci_id.partition(":")
        write(folder / "class", f"0x{code}")
        write(folder / "vendor", f"0x{vendor}")
        write(folder / "device", f"0x{device}")
        write(folder / "numa_node", numa_node)
        for name, pair in (("current", now), ("max", best)):
            if pair is not None:
                write(folder / f"{name}_link_speed", pair[0])
                write(folder / f"{name}_link_width", pair[1])
        for name, text in files.items():
            write(folder / name, text)
        self.link(f"bus/pci/devices/{folder.name}", folder)
        return folder

    def bridge(self, path: str, *, best: tuple[str, str] | None = None, now: tuple[str, str] | None = None) -> Path:
        """A PCI bridge: a root port, a switch's port."""
        return self.function(path, "060400", now=now, best=best)

    def entry(self, kind: str, name: str, function: Path, below: str = "", **files: str) -> Path:
        """Something of `class/KIND` (or of `block`) called `name` that hangs on a function."""
        folder = function / below / kind / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            write(folder / file, text)
        self.link(f"{'' if kind == 'block' else 'class/'}{kind}/{name}", folder)
        return folder

    def link(self, name: str, target: Path) -> None:
        """A relative link, as the kernel makes them."""
        link = self.root / name
        link.parent.mkdir(parents=True, exist_ok=True)
        up = "../" * (len(Path(name).parts) - 1)
        link.symlink_to(up + str(target.relative_to(self.root)))


def recorded(archive: str, into: Path) -> Path:
    """The file system root of a recorded machine, unpacked without what nobody reads. Skips when there are no data."""
    path = DATA / archive
    if not path.exists():
        pytest.skip(f"{archive} is not in ../shared/data")
    if path.name.endswith(".ttar"):
        return _unpack_ttar(path, into)
    with tarfile.open(path) as tar:
        if hasattr(tarfile, "data_filter"):  # Debian's 3.11 has none, and 3.12 warns when it is not used
            tar.extraction_filter = tarfile.data_filter
        tar.extractall(into, members=[m for m in tar if not _OF_NO_USE.search(m.name)])
    return next(p for p in (into, *sorted(into.rglob("*"))) if (p / "sys").is_dir() or p.name.startswith("sys-class"))


def _unpack_ttar(path: Path, into: Path) -> Path:
    """A text archive of Prometheus' projects: a header per entry, then the lines of a file."""
    lines = iter(path.read_text(errors="surrogateescape").split("\n"))
    target = into
    for line in lines:
        key, _, value = line.partition(": ")
        if key in ("Directory", "Path"):
            target = into / value
        if _OF_NO_USE.search(str(target)) or "/sys/" not in f"{target}/":
            continue
        if key == "Directory":
            target.mkdir(parents=True, exist_ok=True)
        elif key == "SymlinkTo":
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(value)
        elif key == "Lines":
            text = "\n".join(next(lines) for _ in range(int(value)))
            text = text.replace("NULLBYTE", "\0")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(
                text.removesuffix("EOF") if text.endswith("EOF") else text + "\n", errors="surrogateescape"
            )
    return next(p.parent for p in sorted(into.rglob("sys")) if (p / "devices/system/cpu").is_dir())
