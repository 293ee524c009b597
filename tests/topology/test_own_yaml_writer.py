"""What is stored is what is read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from observatory.topology.importers.own_yaml import read_topology
from observatory.topology.importers.recognise import read_file
from observatory.topology.load import load_topology, shipped_names
from observatory.topology.own_yaml_writer import write_topology

FIXTURES = Path(__file__).parent / "fixtures"
FILES = sorted(p.name for p in FIXTURES.iterdir() if p.name != "facts.yaml")


@pytest.mark.parametrize("name", [*FILES, *shipped_names()])
def test_there_and_back(name: str, tmp_path: Path) -> None:
    topology = load_topology(name) if name in shipped_names() else read_file(str(FIXTURES / name))
    write_topology(topology, tmp_path / "deep" / "x.yaml", "x")
    back = read_topology(tmp_path / "deep" / "x.yaml")
    assert back.nodes == topology.nodes
    assert back.devices == topology.devices
    assert back.vertices == topology.vertices
    assert back.links == topology.links
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["x.yaml"]
