"""Slurm's machines are copied, not validated one by one: what comes out is what validation makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from observatory.model.topology import Topology
from observatory.topology.errors import BadTopology
from observatory.topology.importers import building
from observatory.topology.importers.recognise import read_file

CONF = """
SwitchName=root Switches=leaf[0-1]
SwitchName=leaf0 Nodes=tux[0-15] LinkSpeed=100
SwitchName=leaf1 Nodes=tux[16-31],tux3
"""


def test_copies_are_valid(tmp_path: Path) -> None:
    file = tmp_path / "topology.conf"
    file.write_text(CONF)
    topology = read_file(str(file))
    assert Topology.model_validate(topology.model_dump()) == topology
    assert len(topology.nodes) == 32
    assert len(topology.links) == 2 + 33  # tux3 is named below both
    assert {link.speed for link in topology.links if link.b == "fabric/leaf0"} == {"100"}
    hosts = [v for v in topology.vertices if v.node == "tux7"]
    assert [(v.id, v.kind) for v in hosts] == [("tux7/host", "host")]


def test_too_many_machines_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "topology.conf"
    file.write_text(CONF)
    monkeypatch.setattr(building, "MOST_THINGS", 50)
    with pytest.raises(BadTopology, match="more than 50 things"):
        read_file(str(file))
