"""hwloc's files as hwloc reads them: lstopo is the judge."""

from __future__ import annotations

import subprocess
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import pytest

from observatory.model.device import DeviceKind
from observatory.model.topology import Topology, VertexKind
from observatory.topology.importers.recognise import read_file
from tests.peers import peer
from tests.topology.sysfs_trees import DATA

FILES = sorted(p.name for p in (DATA / "hwloc").glob("*.xml")) or ["none"]


def judged(path: Path, into: Path) -> ET.Element:
    """The machine as lstopo writes it after reading the file. Debian's is of version 2 and takes no later one."""
    old = into / "old.xml"
    old.write_text(path.read_text().replace('<topology version="3.0">', '<topology version="2.0">'))
    done = subprocess.run(
        [peer("lstopo-no-graphics"), "--input", str(old), "--if", "xml", "--of", "xml", "--whole-io", "--disallowed"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
    )
    return ET.fromstring(done.stdout)


def of(root: ET.Element, kind: str) -> list[ET.Element]:
    return [e for e in root.iter("object") if e.get("type") == kind]


def numa_memory(topology: Topology) -> Counter[tuple[int, int]]:
    return Counter((n.number, n.memory_bytes or 0) for n in topology.numa_nodes)


@pytest.mark.parametrize("name", FILES)
def test_counts(name: str, tmp_path: Path) -> None:
    path = DATA / "hwloc" / name
    if not path.exists():
        pytest.skip("../shared/data is not there")
    theirs, ours = judged(path, tmp_path), read_file(str(path))
    packages, nodes, units = of(theirs, "Package"), of(theirs, "NUMANode"), of(theirs, "PU")
    if units and packages:
        assert sum(v.kind is VertexKind.SOCKET for v in ours.vertices) == len(packages)
    assert numa_memory(ours) == Counter((int(n.get("os_index", -1)), int(n.get("local_memory", 0))) for n in nodes)
    assert {c for d in ours.devices_of(DeviceKind.CPU) for c in d.cpus or ()} == {
        int(u.get("os_index", -1)) for u in units
    }
    functions = [e for e in theirs.iter("object") if e.get("pci_busid")]
    assert len(ours.pci_functions) == len({f.bus_id for f in ours.pci_functions})
    assert {f.bus_id for f in ours.pci_functions} == {e.get("pci_busid") for e in functions}
    speeds = {e.get("pci_busid"): float(e.get("pci_link_speed", 0)) for e in functions}
    for device in ours.devices:
        for link in ours.links:
            if link.a == device.id and link.bandwidth_bytes_per_second and link.kind.value == "pcie":
                assert link.bandwidth_bytes_per_second / 1e9 == pytest.approx(speeds[device.pci_bus_id])
    named = {e.get("name") for f in functions for e in f.findall("object") if e.get("type") == "OSDev"}
    assert {n for f in ours.pci_functions for n in f.os_names} == named
