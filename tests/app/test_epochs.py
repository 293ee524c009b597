"""A source whose time stamps jump: every jump is an epoch, and every frame is found by its own PTS in each of them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.app.command import Workspace
from tests.app.jumping_source import STEP

EDGES = {"source->small", "small->enc", "enc->out"}


@pytest.fixture
def jumping(workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A workspace with the plug-in installed."""
    plugins = tmp_path / "plugins"
    info = plugins / "jumping-1.0.dist-info"
    info.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("jumping_source.py"), plugins / "jumping_source.py")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: jumping\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[media_observatory.operators]\njumping = jumping_source:Jumping\n")
    monkeypatch.setenv("PYTHONPATH", str(plugins))
    return workspace


def pipeline(folder: Path, **params: Any) -> str:
    return f"""apiVersion: media.observatory/v1
kind: MediaPipeline
metadata: {{name: jumps}}
spec:
  operators:
    - {{name: source, op: jumping, params: {json.dumps(params)}}}
    - {{name: small, op: scale, inputs: [source], params: {{width: 32, height: 18}}}}
    - {{name: enc, op: encode, inputs: [small], params: {{codec: libx264, preset: medium}}}}
    - {{name: out, op: mux, inputs: [enc], params: {{path: {folder}/out.mp4}}}}
"""


def find(workspace: Workspace, *arguments: object) -> Any:
    found = workspace.run("frames", "find", *arguments, "--json")
    assert found.code == 0, found.err
    return found.json


def test_every_frame_is_found_by_its_own_pts_in_every_epoch(jumping: Workspace) -> None:
    # Epoch 1 from 0; epoch 2 from 0 again, as when a 33 bit counter wraps; epoch 3 from far ahead. With B frames, some
    # of an epoch are still in the encoder when the next begins.
    far = 1_000_000_007
    spec = jumping.write(pipeline(jumping.folder, first=[0, 0, far], frames=10, lose=14))
    done = jumping.run("run", spec, "--json")
    assert done.code == 0, done.err
    stream = done.json["streams"][0]
    assert (stream["frames_in"], stream["frames_out"]) == (29, 29)
    assert (done.json["records"], done.json["incomplete_records"], done.json["events_lost"]) == (29 * 3, 0, 0)

    newest = find(jumping, "--pts", 3 * STEP)  # in epochs 1 and 2: the newer one is meant
    assert (newest["epoch"], newest["source_index"], newest["pts"]) == (2, 13, 3 * STEP)
    assert (newest["pts_offset"], newest["epoch_reason"]) == (10 * STEP, "jump 1")
    assert {hop["edge"] for hop in newest["hops"]} == EDGES
    assert {hop["pts"] for hop in newest["hops"]} == {13 * STEP}  # as it is in the job
    first = find(jumping, "--pts", 3 * STEP, "--epoch", 1)
    assert (first["epoch"], first["source_index"], first["pts"], first["epoch_reason"]) == (1, 3, 3 * STEP, None)
    assert {hop["pts"] for hop in first["hops"]} == {3 * STEP}
    last = find(jumping, "--pts", far + 2 * STEP)
    assert (last["epoch"], last["source_index"], last["state"]) == (3, 22, "complete")
    assert find(jumping, "--pts", 3, "--time-base", "1/25")["source_index"] == 13
    assert find(jumping, "--source-index", 3)["epoch"] == 1

    lost = jumping.run("frames", "find", "--pts", 4 * STEP, "--epoch", 2)
    assert (lost.code, "lost in source: lost on purpose" in lost.err) == (1, True)
    between = jumping.run("frames", "find", "--pts", 9 * STEP + 1, "--json")
    assert (between.code, [n["epoch"] for n in between.json["error"]["nearest"]]) == (1, [2, 3])
    assert [n["pts"] for n in between.json["error"]["nearest"]] == [9 * STEP, far]

    listed = jumping.run("frames", "list", "--json", "--limit", 100).json
    assert [f["source_index"] for f in listed["frames"]] == [i for i in range(30) if i != 14]
    assert [(e["epoch"], e["reason"], e["frames"]) for e in listed["epochs"]] == [
        (1, None, 10),
        (2, "jump 1", 9),
        (3, "jump 2", 10),
    ]
    assert [(entry["source_index"], entry["pts"]) for entry in listed["lost"]] == [(14, 4 * STEP)]
    began = [e["began_unix_seconds"] for e in listed["epochs"]]
    assert began == sorted(began)
    assert time.time() - 300 < began[0] <= began[2] < time.time()
    words = jumping.run("frames", "list").out
    assert "jump 1" in words
    assert "jump 2" in words

    whole = jumping.run("frames", "stats", "--json").json["streams"][0]
    assert (whole["frames"], whole["records"], whole["lost"], whole["epochs"]) == (29, 87, 1, 3)
    second = jumping.run("frames", "stats", "--epoch", 2, "--json").json["streams"][0]
    assert (second["frames"], second["records"], second["lost"], second["finished"]) == (9, 27, 1, True)
    slowest = jumping.run("frames", "slowest", "--count", 100, "--json").json["frames"]
    assert len(slowest) == 29
    assert {frame["epoch"] for frame in slowest} == {1, 2, 3}


def test_killed_between_the_number_and_the_first_frame(jumping: Workspace) -> None:
    stalled = jumping.folder / "stalled"
    spec = jumping.write(pipeline(jumping.folder, first=[0, 0], frames=5, stall=str(stalled)))
    with jumping.started("run", spec, "--quiet") as process:
        deadline = time.monotonic() + 60
        while not stalled.exists() or not seen(jumping, 5):
            assert time.monotonic() < deadline
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.1)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        while jumping.processes():
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert stalled.read_text() == "2"

    listed = jumping.run("frames", "list", "--json").json
    assert [f["pts"] for f in listed["frames"]] == [i * STEP for i in range(5)]
    assert [(e["epoch"], e["reason"]) for e in listed["epochs"]] == [(1, None), (2, "jump 1")]
    assert find(jumping, "--pts", 2 * STEP)["epoch"] == 1
    refused = jumping.run("frames", "find", "--pts", 2 * STEP, "--epoch", 2)
    assert refused.code == 1
    assert "epoch 2: no frame has PTS" in refused.err

    again = jumping.write(pipeline(jumping.folder, first=[0, 7], frames=5))
    assert jumping.run("run", again, "--quiet").code == 0
    assert [find(jumping, "--pts", pts)["epoch"] for pts in (0, 7)] == [3, 4]


def seen(workspace: Workspace, frames: int) -> bool:
    listed = workspace.run("frames", "list", "--json")
    return listed.code == 0 and len(listed.json["frames"]) == frames
