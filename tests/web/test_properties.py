"""Whatever is asked, the answer is a document, and never an internal error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from observatory.app.web.answers import Problem
from observatory.app.web.app import build_app
from observatory.app.web.backend import Backend
from observatory.frames.store import FrameStore
from tests.frames.support import begin, whole_frame
from tests.web.asking import Asker
from tests.web.platforms import FakePlatform, cluster

PATHS = ("streams", "frames", "frames/find", "frames/slowest", "frames/stats", "decisions", "topology/cost", "snapshot")
NAMES = ("stream", "epoch", "limit", "before", "pts", "time_base", "source_index", "count", "level", "node", "interval")
KNOWN = ("ladder", "other", "1", "0", "-1", "7", "1/25", "1/12800", "nodes", "devices", "auto", "n0", "n1", "null")
LARGE = st.integers(-(2**70), 2**70).map(str)
VALUES = st.one_of(
    st.sampled_from(KNOWN),
    LARGE,
    st.floats().map(str),
    st.text(max_size=40),
    st.tuples(LARGE, LARGE).map("/".join),
    st.integers(0, 600).map(lambda n: "é" * n),
)


@pytest.fixture(scope="module")
def asker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    state: Path = tmp_path_factory.mktemp("state")
    with FrameStore.open(state, write=True) as store:
        for run in begin(store, "ladder", "other"):
            store.append(np.concatenate([whole_frame(run, index) for index in range(3)]))
    platform = FakePlatform(state, topology=cluster(2, 2))
    backend = Backend(platform.path, state)
    with Asker(build_app(backend, with_pages=False)) as client:
        yield client
    backend.close()
    platform.stop()


def check(asker: Asker, method: str, path: str, content: bytes | None = None) -> int:
    headers = {} if content is None else {"content-type": "application/json"}
    answer = asker.request(method, path, content=content, headers=headers)
    assert answer.status_code < 500, f"{path}: {answer.text}"
    if answer.status_code >= 400:
        error = Problem.model_validate(answer.json()).error
        assert error.message
    return answer.status_code


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from(PATHS),
    query=st.lists(st.tuples(st.sampled_from(NAMES) | st.text(max_size=5), VALUES), max_size=4),
)
def test_any_query(asker: Asker, path: str, query: list[tuple[str, str]]) -> None:
    text = "&".join(f"{quote(name, errors='replace')}={quote(value, errors='replace')}" for name, value in query)
    check(asker, "GET", f"/api/v1/{path}?{text}")


@settings(max_examples=120, deadline=None)
@given(
    stream=st.sampled_from(["ladder", "other", None]),
    epoch=st.sampled_from([1, 2, None]),
    pts=st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 5),
    base=st.tuples(st.integers(1, 2**32 - 1), st.integers(1, 2**32 - 1)) | st.just((1, 25)),
)
def test_any_well_formed_look_up(
    asker: Asker, stream: str | None, epoch: int | None, pts: int, base: tuple[int, int]
) -> None:
    parts = {"stream": stream, "epoch": epoch, "pts": pts, "time_base": f"{base[0]}/{base[1]}"}
    text = "&".join(f"{name}={value}" for name, value in parts.items() if value is not None)
    exists = epoch != 2 and stream is not None and base == (1, 25) and 0 <= pts < 3
    status = check(asker, "GET", f"/api/v1/frames/find?{text}")
    assert status in ((200,) if exists else (200, 400, 404))


@settings(max_examples=100, deadline=None)
@given(name=st.text(max_size=80), method=st.sampled_from(["GET", "DELETE", "POST", "PUT"]))
def test_any_name(asker: Asker, name: str, method: str) -> None:
    for folder in ("pipelines", "decisions"):
        check(asker, method, f"/api/v1/{folder}/{quote(name, safe='', errors='replace')}")


@settings(max_examples=100, deadline=None)
@given(body=st.binary(max_size=200) | st.text(max_size=100).map(lambda t: t.encode(errors="replace")))
def test_any_body(asker: Asker, body: bytes) -> None:
    check(asker, "POST", "/api/v1/pipelines", body)
