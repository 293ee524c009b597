"""Files of other tools, as people published them: what they say was worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from observatory.topology.importers.recognise import read_file
from tests.topology.facts import check
from tests.topology.sysfs_trees import DATA

FACTS: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("recorded_facts.yaml").read_text())


@pytest.mark.parametrize("name", FACTS)
def test_what_a_file_says(name: str) -> None:
    if not (DATA / name).exists():
        pytest.skip(f"{name} is not in ../shared/data")
    check(read_file(str(DATA / name)), FACTS[name])
