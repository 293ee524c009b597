from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from observatory.app.web.app import build_app
from observatory.app.web.backend import Backend
from tests.web.asking import Asker
from tests.web.platforms import FakePlatform


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[FakePlatform]:
    fake = FakePlatform(tmp_path)
    yield fake
    fake.stop()


@pytest.fixture
def api(platform: FakePlatform) -> Iterator[Asker]:
    """The application without pages, asked in-process; any host may ask."""
    backend = Backend(platform.path, platform.state)
    with Asker(build_app(backend, with_pages=False)) as client:
        yield client
    backend.close()
