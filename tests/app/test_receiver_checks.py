"""What `observatory doctor` says of the receivers: each was opened and polled."""

from __future__ import annotations

from pathlib import Path

import pytest

from observatory.app.receiver_checks import check_receivers
from tests.topology.sysfs_trees import MachineTree


def test_a_machine_with_one_link_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = MachineTree(tmp_path / "sys")
    tree.bridge("pci0000:00/0000:00:01.0", best=("8.0 GT/s", "16"))
    tree.function("pci0000:00/0000:00:01.0/0000:01:00.0", "030200", now=("8.0 GT/s", "8"), best=("8.0 GT/s", "16"))
    monkeypatch.setenv("SYSFS_ROOT", str(tmp_path / "sys"))
    findings = check_receivers(but={"ebpf-links", "nvml"})
    assert findings["sysfs-pcie"].works
    assert "read 5 values of 1 part" in findings["sysfs-pcie"].reason  # width, speed, the best of both, up
    assert not findings["infiniband"].works
    assert "shows no RDMA port" in findings["infiniband"].reason
    assert findings["infiniband"].mend
    assert not findings["kmsg"].works
    assert not findings["endpoint"].works
    assert findings["endpoint"].mend is not None
    assert "url" in findings["endpoint"].mend


def test_this_machine() -> None:
    findings = check_receivers(but={"ebpf-links", "nvml"})
    assert findings["interfaces"].works
    assert "read" in findings["interfaces"].reason
