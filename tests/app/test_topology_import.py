"""`observatory topology import` from the terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from observatory.app.cli.main import run_cli
from tests.topology.test_importers import FACTS, FIXTURES


def imported(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert run_cli(["topology", "import", *arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert isinstance(document, dict)
    return document


def test_one_document_and_nothing_stored(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    document = imported(capsys, str(FIXTURES / "nccl.xml"), "--state", str(tmp_path))
    assert document["sources"] == [str(FIXTURES / "nccl.xml")]
    assert {"nodes", "devices", "links", "warnings"} <= document.keys()
    assert "saved" not in document
    assert list(tmp_path.iterdir()) == []


def test_a_stored_topology_is_used_by_others(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = [str(FIXTURES / "nccl.xml"), str(FIXTURES / "nvidia_smi_topo.txt")]
    document = imported(capsys, *files, "--state", str(tmp_path), "--save", "--name", "my rack")
    path = tmp_path / "topologies" / "my-rack.yaml"
    assert document["saved"] == str(path)
    assert run_cli(["topology", "show", "--topology", str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["devices"] == document["devices"]
    assert shown["links"] == document["links"]


def test_contradictions_are_warnings(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    other = tmp_path / "other.xml"
    other.write_text((FIXTURES / "nccl.xml").read_text().replace('numaid="-1"', 'numaid="1"'))
    again = tmp_path / "again.xml"
    again.write_text((FIXTURES / "nccl.xml").read_text().replace('numaid="-1"', 'numaid="0"'))
    document = imported(capsys, str(other), str(again))
    warnings = document["warnings"]
    assert isinstance(warnings, list)
    assert any(
        w.startswith("contradiction: n0/gpu0 numa_node") and str(other) in w and str(again) in w for w in warnings
    )


@pytest.mark.parametrize("name", FACTS)
def test_every_format_is_shown(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["topology", "show", "--topology", str(FIXTURES / name)]) == 0
    shown = capsys.readouterr().out
    assert str(FIXTURES / name) in shown.replace("\n", "")
    assert run_cli(["topology", "import", str(FIXTURES / name)]) == 0
    assert "machine" in capsys.readouterr().out


def test_refusals(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    bad = tmp_path / "bad.conf"
    bad.write_text("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2\n")
    assert run_cli(["topology", "import", str(FIXTURES / "nccl.xml"), str(bad), "--json"]) == 2
    shown = capsys.readouterr()
    error = json.loads(shown.out)["error"]
    assert (error["file"], error["line"], error["mend"]) == (str(bad), 2, "remove one of them")
    assert f"{bad}:2" in shown.err
    assert run_cli(["topology", "import"]) == 2
    empty = tmp_path / "kueue.yaml"
    empty.write_text(
        "apiVersion: kueue.x-k8s.io/v1beta1\nkind: Topology\nmetadata: {name: a}\nspec: {levels: [{nodeLabel: rack}]}\n"
    )
    assert run_cli(["topology", "import", str(empty), "--save", "--state", str(tmp_path)]) != 0
    assert "nothing to store" in capsys.readouterr().err


def test_many_machines_are_counted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    large = tmp_path / "topology.conf"
    large.write_text("SwitchName=a Nodes=n[1-500]\n")
    assert run_cli(["topology", "import", str(large)]) == 0
    assert "500 machines; 1 switch, 500 host; 500 network links" in capsys.readouterr().out
