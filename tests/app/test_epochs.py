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

from observatory.frames import lookup, summary
from observatory.frames.errors import NoFrameStore, NoSuchFrame, NoSuchStream
from observatory.frames.store import FrameStore
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
    lost = jumping.run("frames", "find", "--pts", 4 * STEP, "--epoch", 2)
    assert (lost.code, "lost in source: lost on purpose" in lost.err) == (1, True)

    with FrameStore.open(jumping.state) as store:
        for epoch, own in ((1, 0), (2, 0), (3, far)):
            for at in range(10):
                index = 10 * (epoch - 1) + at
                if index != 14:
                    frame = lookup.find(store, own + at * STEP, epoch=epoch)
                    assert (frame.source_index, frame.state) == (index, "complete")
        assert lookup.find(store, far + 2 * STEP).source_index == 22
        (second,) = summary.stats(store, stream="jumps", epoch=2)
        assert (second.frames, second.records, second.lost) == (9, 27, 1)
        assert second.as_dict()["finished"]

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


def test_killed_between_the_number_and_the_first_frame(jumping: Workspace) -> None:
    stalled = jumping.folder / "stalled"
    spec = jumping.write(pipeline(jumping.folder, first=[0, 0], frames=5, stall=str(stalled)))
    with jumping.started("run", spec, "--quiet") as process:
        deadline = time.monotonic() + 60
        while not stalled.exists() or not seen(jumping.state, 5):
            assert time.monotonic() < deadline
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.1)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        while jumping.processes():
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert stalled.read_text() == "2"

    with FrameStore.open(jumping.state) as store:
        assert [f.pts for f in lookup.list_frames(store)] == [i * STEP for i in range(5)]
        assert [(e["epoch"], e["reason"]) for e in lookup.list_epochs(store)] == [(1, None), (2, "jump 1")]
        assert lookup.find(store, 2 * STEP).epoch == 1
        with pytest.raises(NoSuchFrame, match="epoch 2: no frame has PTS"):
            lookup.find(store, 2 * STEP, epoch=2)

    again = jumping.write(pipeline(jumping.folder, first=[0, 7], frames=5))
    assert jumping.run("run", again, "--quiet").code == 0
    assert [find(jumping, "--pts", pts)["epoch"] for pts in (0, 7)] == [3, 4]


def seen(state: Path, frames: int) -> bool:
    """Whether the store has that many frames by now."""
    try:
        with FrameStore.open(state) as store:
            return len(lookup.list_frames(store)) == frames
    except (NoFrameStore, NoSuchStream):
        return False
