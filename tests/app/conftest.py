"""Fixtures of the command-line tests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.command import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    """A workspace; after the test nothing that was started from it may still be alive."""
    space = Workspace(tmp_path)
    yield space
    deadline = time.monotonic() + 5
    while space.processes() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert space.processes() == [], "processes are left behind"
