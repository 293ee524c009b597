"""The examples in the reference are read by the readers they describe."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from observatory.model.plan import DecisionRecord
from observatory.topology.importers.own_yaml import read_topology
from scheduler.specs.models import POD_GROUP_API_VERSIONS, POD_GROUP_IGNORED
from scheduler.specs.read import read_spec

REFERENCE = Path(__file__).parents[2] / "docs/reference"


def blocks(name: str) -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```", (REFERENCE / name).read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(2))
def test_pipeline_examples(number: int, tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(blocks("media-pipeline-spec.md")[number])
    pipeline, _ = read_spec(path)
    assert pipeline.operators[0].name == "decode"


def test_the_topology_example(tmp_path: Path) -> None:
    (block,) = blocks("topology-yaml.md")
    path = tmp_path / "t.yaml"
    path.write_text(block)
    topology = read_topology(path)
    assert len(topology.devices) == 3
    assert all(link.bandwidth_bytes_per_second for link in topology.links)


def test_every_field_is_explained() -> None:
    decision = (REFERENCE / "decision-record.md").read_text()
    assert [f for f in DecisionRecord.model_fields if f != "version" and f"`{f}`" not in decision] == []
    spec = (REFERENCE / "media-pipeline-spec.md").read_text()
    assert [w for w in (*POD_GROUP_API_VERSIONS, *POD_GROUP_IGNORED) if w not in spec] == []
