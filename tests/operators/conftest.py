"""Material of several test files, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.operators.media import make
from tests.operators.packaging import COUNT, Stream


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures from 0 s on, and sound."""
    return make(tmp_path_factory.mktemp("source") / "source.mkv", count=COUNT, size=(320, 180), audio="aac")


@pytest.fixture(scope="session")
def stream() -> Stream:
    return Stream()
