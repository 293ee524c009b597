"""`observatory topology show`, as JSON and for people."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from observatory.app.cli.main import run_cli
from observatory.app.units import bytes_text, rate_text, seconds_text
from tests.topology.test_real import tree


def test_json_has_the_agreed_parts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code = run_cli(["topology", "show", "--topology", "two-socket-8gpu", "--json", "--state", str(tmp_path)])
    shown = json.loads(capsys.readouterr().out)
    assert code == 0
    assert shown["sources"] == ["shipped: two-socket-8gpu"]
    assert shown["nodes"] == [{"id": "n0", "hostname": None}]
    gpu = next(d for d in shown["devices"] if d["id"] == "n0/gpu3")
    assert {k: gpu[k] for k in ("kind", "node", "name", "numa_node", "pci_bus_id", "memory_bytes")} == {
        "kind": "gpu",
        "node": "n0",
        "name": "H100 SXM5 80GB",
        "numa_node": 0,
        "pci_bus_id": None,
        "memory_bytes": 80_000_000_000,
    }
    for link in shown["links"]:
        assert {"a", "b", "kind", "count", "width", "speed", "state"} <= link.keys()
        assert {"bandwidth_bytes_per_second", "latency_seconds"} <= link.keys()
        assert link["state"] is None  # a description does not say
    assert shown["warnings"] == []


def test_the_tree_names_every_device_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["topology", "show", "--topology", "two-socket-8gpu"]) == 0
    out = capsys.readouterr().out
    inside, _, others = out.partition("other links")
    for name in [*(f"n0/gpu{i}" for i in range(8)), "n0/cpu0", "n0/vpu1", "n0/pcie3", "n0/nvswitch0", "n0/socket1"]:
        assert inside.count(f"{name} ") == 1, name
    assert "a description, not a measurement" in out
    assert "8 x n0/gpu0-7" in others
    assert "upi x3 16.0 GT/s 144 GB/s 66.9 ns" in others


def test_a_recorded_machine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SYSFS_ROOT", str(tree(tmp_path)))
    assert run_cli(["topology", "show"]) == 0
    out = capsys.readouterr().out
    assert "cpus 0-1,8-9" in out
    assert "upi distance 21" in out
    assert "warning: sysfs tells no bandwidth" in out


def test_an_unknown_topology(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["topology", "show", "--topology", "no-such.yaml", "--json"]) == 2
    shown = capsys.readouterr()
    assert json.loads(shown.out)["error"]["kind"] == "BadTopology"
    assert "no-such.yaml" in shown.err


def test_units() -> None:
    assert [seconds_text(v) for v in (1.7317e-3, 275e-9, 0.0, None, 2.5, 0.99996, 1e-12)] == [
        "1.73 ms",
        "275 ns",
        "0",
        "?",
        "2.5 s",
        "1 s",
        "0.001 ns",
    ]
    assert [bytes_text(v) for v in (3_110_400, 80e9, 512, 999_999)] == ["3.11 MB", "80 GB", "512 B", "1 MB"]
    assert rate_text(63.015e9) == "63 GB/s"
    assert rate_text(None) == "?"
