"""Sources that die, or move, as their job is being stopped: they end where they were, and what is in flight arrives."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from tests.app.command import CLIPS, LADDER, Workspace, needs_clips, probe
from tests.app.test_up import finish, frames_in, pipelines, platform, until

DELAYS = [0.0, 0.02]


def check(workspace: Workspace, told: tuple[int, str, str]) -> None:
    """Ended by Ctrl-C, and all that went in has come out."""
    code, out, err = told
    assert code == 130, err
    stream = json.loads(out)["pipelines"][0]["summary"]["streams"][0]
    assert stream["lost"] == []
    for name in ("hd.mp4", "sd.mp4"):
        assert len(probe(workspace.folder / name).pts) == stream["frames_in"] == stream["frames_out"]


@needs_clips
@pytest.mark.parametrize("delay", DELAYS)
def test_a_source_that_dies_as_the_job_is_stopped_ends_where_it_was(workspace: Workspace, delay: float) -> None:
    """Its heir is told to end before it has found its place in the file."""
    path = workspace.write(LADDER.format(out=workspace.folder))
    with platform(workspace, path, "--input", CLIPS[0], "--realtime", "--json") as process:
        until(lambda: frames_in(workspace, "ladder") > 20, process)
        source = next(w["pid"] for w in pipelines(workspace)["ladder"]["workers"] if w["operator"] == "decode")
        os.kill(source, signal.SIGKILL)
        time.sleep(delay)
        told = finish(process, signal.SIGINT)
    check(workspace, told)


@needs_clips
@pytest.mark.parametrize("delay", DELAYS)
def test_a_source_that_moves_as_the_job_is_stopped_ends_where_it_was(workspace: Workspace, delay: float) -> None:
    path = workspace.write(LADDER.format(out=workspace.folder))
    with platform(workspace, path, "--input", CLIPS[0], "--realtime", "--json") as process:
        until(lambda: frames_in(workspace, "ladder") > 20, process)
        with workspace.started("move", "decode"):
            time.sleep(0.4 + delay)  # the command itself takes about that long to ask
            told = finish(process, signal.SIGINT)
    check(workspace, told)
