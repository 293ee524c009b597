"""The page of topology files is what the importers make of the public files."""

from __future__ import annotations

from pathlib import Path

import pytest

from observatory.topology.importers.recognise import formats
from observatory.topology.importers.reference import reference
from tests.topology.sysfs_trees import DATA

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "topology-files.md"


def test_the_page_is_current() -> None:
    if not DATA.exists():
        pytest.skip("../shared/data is not there")
    command = (
        ".venv/bin/python -m observatory.topology.importers.reference ../shared/data > docs/reference/topology-files.md"
    )
    assert PAGE.read_text() == reference(DATA), f"run: {command}"


def test_the_page_names_every_format() -> None:
    page = PAGE.read_text()
    for found in formats():
        assert f"| `{found.name}` | {found.title} |" in page
