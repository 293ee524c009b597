"""A consumer is held by SIGSTOP: what its siblings see of it is what the pipeline's policy says, and it shows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import Any

from tests.app.command import LADDER, Workspace, probe
from tests.app.test_up import finish, frames_in, pipelines, platform, until

SMALL = LADDER.replace("op: decode}}", "op: decode, params: {{source: {{size: 320x180, rate: 100}}}}}}")
DROPPING = SMALL + "  qos: {{on_full: drop_oldest}}\n"


def pid_of(workspace: Workspace, operator: str) -> int:
    return next(int(w["pid"]) for w in pipelines(workspace)["ladder"]["workers"] if w["operator"] == operator)


def stream(workspace: Workspace) -> dict[str, Any]:
    found: dict[str, Any] = pipelines(workspace)["ladder"]["streams"][0]
    return found


def queued(workspace: Workspace, edge: str) -> int:
    return next(int(e["queued"]) for e in pipelines(workspace)["ladder"]["edges"] if e["edge"] == edge)


def summary_of(out: str) -> Any:
    return json.loads(out)["pipelines"][0]["summary"]["streams"][0]


def test_under_block_all_wait_for_it_and_nothing_is_lost(workspace: Workspace) -> None:
    path = workspace.write(SMALL.format(out=workspace.folder))
    with platform(workspace, path, "--json") as process:
        until(lambda: frames_in(workspace, "ladder") > 50, process)
        held = pid_of(workspace, "enc-sd")
        os.kill(held, signal.SIGSTOP)
        until(lambda: stands_still(workspace, process), process)
        assert queued(workspace, "sd->enc-sd") >= 8, "whoever looks sees where it is stuck: the whole queue is full"
        assert queued(workspace, "mark->enc-hd") == 0, "nobody else is to blame"
        still = frames_in(workspace, "ladder")
        os.kill(held, signal.SIGCONT)
        until(lambda: frames_in(workspace, "ladder") > still + 100, process)
        code, out, err = finish(process, signal.SIGINT)
    assert code == 130, err
    told = summary_of(out)
    assert told["lost"] == []
    for name in ("hd.mp4", "sd.mp4"):
        assert len(probe(workspace.folder / name).pts) == told["frames_in"] == told["frames_out"]


def stands_still(workspace: Workspace, process: subprocess.Popen[str]) -> bool:
    """For a second; then for good, as far as one can tell."""
    before = frames_in(workspace, "ladder")
    try:
        process.wait(timeout=1.0)
    except subprocess.TimeoutExpired:
        return frames_in(workspace, "ladder") == before
    return False


def test_under_drop_oldest_its_siblings_go_on_and_what_it_misses_is_listed(workspace: Workspace) -> None:
    path = workspace.write(DROPPING.format(out=workspace.folder))
    with platform(workspace, path, "--json") as process:
        until(lambda: frames_in(workspace, "ladder") > 50, process)
        held = pid_of(workspace, "enc-sd")
        os.kill(held, signal.SIGSTOP)
        at, dropped = frames_in(workspace, "ladder"), stream(workspace)["frames_dropped"]
        until(lambda: frames_in(workspace, "ladder") > at + 200, process)
        until(lambda: stream(workspace)["frames_dropped"] > dropped + 100, process)
        os.kill(held, signal.SIGCONT)
        code, out, err = finish(process, signal.SIGINT)
    assert code == 130, err
    told = summary_of(out)
    assert any("drop_oldest" in loss["reason"] for loss in told["lost"])
    high, low = (len(probe(workspace.folder / name).pts) for name in ("hd.mp4", "sd.mp4"))
    assert low <= told["frames_in"] - 100
    assert high > low
