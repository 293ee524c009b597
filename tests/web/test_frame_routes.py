"""Streams, frames and decisions: read from the state directory, the same documents as the commands print."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from observatory.app.cli.main import run_cli
from observatory.app.web.answers import (
    Decisions,
    FrameDetail,
    FrameProblem,
    Frames,
    SlowestFrames,
    Statistics,
    Streams,
)
from observatory.frames.counters import StreamCounters
from observatory.frames.store import FrameStore
from observatory.model.cost import CostParameters
from observatory.model.media import TimeBase
from observatory.model.plan import DecisionRecord
from observatory.model.record import LostFrame
from scheduler.audit import AuditStore
from tests.frames.support import begin, whole_frame
from tests.web.asking import Asker
from tests.web.platforms import FakePlatform

Command = Callable[..., Any]


@pytest.fixture
def recorded(platform: FakePlatform) -> Path:
    """Two epochs of one stream: frames 0 to 4 in the first, 0 to 9 in the second, where 10 is lost."""
    with FrameStore.open(platform.state, write=True) as store:
        (first,) = begin(store, run_id="run-1")
        store.append(np.concatenate([whole_frame(first, index) for index in range(5)]))
        store.put_counters({(first.id, first.epoch): StreamCounters(finished=True)})
        (second,) = begin(store, run_id="run-2")
        frames = np.concatenate([whole_frame(second, index) for index in range(10)])
        store.append(frames)
        lost = LostFrame(
            source_index=10, pts=10, time_base=TimeBase(num=1, den=25), operator="decode", reason="corrupt packet"
        )
        store.add_lost(second.id, second.epoch, [lost])
    return platform.state


@pytest.fixture
def command(recorded: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """What a command prints with --json."""

    def run(*arguments: str) -> Any:
        run_cli([*arguments, "--json", "--state", str(recorded)])
        return json.loads(capsys.readouterr().out)

    return run


def test_nothing_recorded_yet_is_an_empty_answer(api: Asker, platform: FakePlatform) -> None:
    assert api.get("/api/v1/streams").json() == {"streams": []}
    assert api.get("/api/v1/frames?stream=any").json()["frames"] == []
    assert api.get("/api/v1/frames/slowest").json() == {"frames": []}
    assert api.get("/api/v1/frames/stats").json() == {"streams": []}
    assert api.get("/api/v1/decisions").json() == {"decisions": []}
    answer = api.get("/api/v1/frames/find?pts=1")
    assert (answer.status_code, answer.json()["error"]["kind"]) == (404, "NoSuchFrame")
    assert sorted(path.name for path in platform.state.iterdir()) == ["run"]  # reading made nothing


def test_a_store_that_comes_later_is_found(api: Asker, platform: FakePlatform) -> None:
    assert api.get("/api/v1/frames").json()["frames"] == []
    with FrameStore.open(platform.state, write=True) as store:
        (run,) = begin(store)
        store.append(whole_frame(run, 0))
        assert len(api.get("/api/v1/frames").json()["frames"]) == 1
        store.append(whole_frame(run, 1))
        assert len(api.get("/api/v1/frames").json()["frames"]) == 2


def test_a_store_that_was_made_anew_is_seen(api: Asker, recorded: Path) -> None:
    assert api.get("/api/v1/frames").json()["frames"] != []
    shutil.rmtree(recorded / "frames")
    assert api.get("/api/v1/frames").json()["frames"] == []


def test_streams(api: Asker, recorded: Path) -> None:
    (stream,) = Streams.model_validate(api.get("/api/v1/streams").json()).streams
    assert (stream.stream, stream.newest_epoch) == ("ladder", 2)
    assert [(e.epoch, e.run_id, e.finished) for e in stream.epochs] == [(2, "run-2", False), (1, "run-1", True)]
    assert {(e.pipeline, e.input, e.time_base, e.reason, e.began_unix_seconds) for e in stream.epochs} == {
        ("ladder", "testsrc2", "1/25", None, 2000.000001)
    }


def test_frames_are_paged_newest_first(api: Asker, recorded: Path) -> None:
    seen: list[int] = []
    before, pages = "", 0
    while True:
        page = Frames.model_validate(api.get(f"/api/v1/frames?limit=4{before}").json())
        assert (page.stream, page.epoch) == ("ladder", 2)
        assert [entry.reason for entry in page.lost] == ["corrupt packet"]
        seen += [frame.source_index for frame in page.frames]
        pages += 1
        if page.next_before is None:
            break
        before = f"&before={page.next_before}"
    assert seen == list(range(9, -1, -1))
    assert pages == 3
    assert api.get("/api/v1/frames?before=0").json()["frames"] == []
    assert len(api.get("/api/v1/frames?epoch=1&limit=1000000000000").json()["frames"]) == 5


def test_rows_are_those_of_the_command(api: Asker, command: Command) -> None:
    printed = command("frames", "list", "--limit", "5")
    answer = api.get("/api/v1/frames?limit=5").json()
    assert answer["frames"][::-1] == printed["frames"]
    assert answer["lost"] == printed["lost"]


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ("pts=7", ("--pts", "7")),
        ("pts=3584&time_base=1/12800", ("--pts", "3584", "--time-base", "1/12800")),
        ("source_index=3&epoch=1&stream=ladder", ("--source-index", "3", "--epoch", "1", "--stream", "ladder")),
    ],
)
def test_find_is_the_commands_document(api: Asker, command: Command, query: str, options: tuple[str, ...]) -> None:
    answer = api.get(f"/api/v1/frames/find?{query}")
    assert answer.status_code == 200
    assert answer.json() == command("frames", "find", *options)
    assert FrameDetail.model_validate(answer.json()).end_to_end_seconds == 0.013


def test_not_found_names_the_nearest(api: Asker, command: Command) -> None:
    answer = api.get("/api/v1/frames/find?pts=-3")
    assert answer.status_code == 404
    assert answer.json() == command("frames", "find", "--pts", "-3")
    (nearest,) = FrameProblem.model_validate(answer.json()).error.nearest
    assert (nearest.pts, nearest.time_base, nearest.source_index) == (0, "1/25", 0)
    lost = FrameProblem.model_validate(api.get("/api/v1/frames/find?pts=10").json()).error
    assert lost.lost is not None
    assert lost.lost.reason == "corrupt packet"


def test_mends_name_parameters_not_options(api: Asker, recorded: Path) -> None:
    error = api.get("/api/v1/frames/find?source_index=1&epoch=9").json()["error"]
    assert "--" not in error["message"] + (error["mend"] or "")
    with FrameStore.open(recorded, write=True) as store:
        (other,) = begin(store, "other", run_id="run-3")
        store.append(whole_frame(other, 0))
    answer = api.get("/api/v1/frames")
    assert answer.status_code == 400
    assert answer.json()["error"]["mend"] == "name one with stream: ladder, other"


@pytest.mark.parametrize(
    ("query", "status", "mend"),
    [("stream=laddr", 404, "did you mean ladder?"), ("epoch=7", 404, "its epochs with frames: 1, 2")],
)
def test_streams_that_are_none(api: Asker, recorded: Path, query: str, status: int, mend: str) -> None:
    for path in ("frames", "frames/slowest", "frames/stats"):
        answer = api.get(f"/api/v1/{path}?{query}")
        assert (answer.status_code, answer.json()["error"]["mend"]) == (status, mend)


def test_slowest_and_stats_are_the_commands_documents(api: Asker, command: Command) -> None:
    slowest = api.get("/api/v1/frames/slowest?count=2").json()
    assert slowest == command("frames", "slowest", "--count", "2")
    SlowestFrames.model_validate(slowest)
    stats = api.get("/api/v1/frames/stats?stream=ladder&epoch=1").json()
    assert stats == command("frames", "stats", "--stream", "ladder", "--epoch", "1")
    (stream,) = Statistics.model_validate(stats).streams
    assert (stream.frames, stream.records, stream.end_to_end.p50_seconds) == (5, 20, 0.013)


def test_a_damaged_store_is_said(api: Asker, platform: FakePlatform) -> None:
    (platform.state / "frames").mkdir()
    (platform.state / "frames" / "data.mdb").write_bytes(b"not a database" * 1000)
    answer = api.get("/api/v1/streams")
    assert (answer.status_code, answer.json()["error"]["kind"]) == (500, "FrameStoreDamaged")


@pytest.mark.parametrize(
    ("query", "parameter", "words"),
    [
        ("frames?limit=0", "limit", "greater than or equal to 1"),
        ("frames?limit=ten", "limit", "valid integer"),
        ("frames?limt=10", "limt", "no parameter"),
        ("frames?epoch=0", "epoch", "greater than or equal to 1"),
        ("frames?epoch=4294967296", "epoch", "less than"),
        (f"frames?stream={'x' * 512}", "stream", "at most 511 bytes"),
        ("frames/find", "pts", "either pts or source_index"),
        ("frames/find?pts=1&source_index=1", "pts", "either pts or source_index"),
        ("frames/find?source_index=1&time_base=1/25", "time_base", "goes with pts"),
        ("frames/find?pts=1&time_base=0.04", "time_base", "1/90000"),
        ("frames/find?pts=1&time_base=1/0", "time_base", "from 1 to"),
        ("frames/find?pts=9223372036854775808", "pts", "less than"),
        ("frames/slowest?count=-1", "count", "greater than or equal to 1"),
        ("decisions?limit=0", "limit", "greater than or equal to 1"),
        ("topology/cost?level=racks", "level", "'auto', 'nodes' or 'devices'"),
        ("streams?stream=ladder", "stream", "no parameter"),
    ],
)
def test_malformed_queries(api: Asker, recorded: Path, query: str, parameter: str, words: str) -> None:
    answer = api.get(f"/api/v1/{query}")
    error = answer.json()["error"]
    assert (answer.status_code, error["kind"], error["parameter"]) == (422, "BadRequest", parameter)
    assert words in error["message"]


def test_decisions(api: Asker, platform: FakePlatform) -> None:
    decision = made_up_decision("d-1", 100.0)
    with AuditStore(platform.state) as audit:
        audit.save(decision)
        audit.save(made_up_decision("d-2", 200.0))
    listed = Decisions.model_validate(api.get("/api/v1/decisions").json()).decisions
    assert [(line.id, line.pipeline, line.trigger) for line in listed] == [
        ("d-2", "ladder", "submit"),
        ("d-1", "ladder", "submit"),
    ]
    assert [line["id"] for line in api.get("/api/v1/decisions?limit=1").json()["decisions"]] == ["d-2"]
    assert DecisionRecord.model_validate(api.get("/api/v1/decisions/d-1").json()) == decision
    answer = api.get("/api/v1/decisions/d-11")
    assert (answer.status_code, answer.json()["error"]["mend"]) == (404, "did you mean d-1?")


def made_up_decision(name: str, created_unix_seconds: float) -> DecisionRecord:
    return DecisionRecord(
        id=name,
        trigger="submit",
        created_unix_seconds=created_unix_seconds,
        software_version="0",
        solver="heft",
        input_topology_matrix={"name": "pair"},
        candidate_nodes=("n0",),
        score_breakdown=(),
        edges=(),
        final_placement={"ladder/decode": "n0/gpu0"},
        predicted_cost=0.001,
        makespan_seconds=None,
        solve_seconds=0.01,
        cost_parameters=CostParameters(),
    )
