"""A run that writes segments, ended in every way: what its playlists name plays."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.app.command import Workspace
from tests.app.test_bad_input import wait_for_worker
from tests.operators.presenting import listed, parts_of, play

LIVE = """apiVersion: media.observatory/v1
kind: MediaPipeline
metadata: {{name: live}}
spec:
  operators:
    - {{name: decode, op: decode, params: {{source: {{size: 320x180}}}}}}
    - {{name: small, op: scale, inputs: [decode], params: {{width: 160, height: 90}}}}
    - {{name: hd, op: encode, inputs: [decode], params: {{preset: ultrafast, keyframe_seconds: 1}}}}
    - {{name: sd, op: encode, inputs: [small], params: {{preset: ultrafast, keyframe_seconds: 1}}}}
    - {{name: package, op: package, inputs: [hd, sd], params: {{folder: {out}, segment_seconds: 1, container: {kind}}}}}
"""
PLAYLISTS = ("video-hd.m3u8", "video-sd.m3u8")


def wait_for_segments(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if all((folder / name).exists() and len(listed(folder / name).names) >= count for name in PLAYLISTS):
            return
        time.sleep(0.02)
    raise AssertionError("no segments appear")


def run_until(workspace: Workspace, kind: str, end: Callable[[int], None]) -> tuple[Path, int, str]:
    """Start an endless run, and end it after some segments; its folder, exit code and words."""
    folder = workspace.folder / "live"
    spec = workspace.write(LIVE.format(out=folder, kind=kind))
    with workspace.started("run", spec, "--frames", 10_000_000, "--json") as process:
        wait_for_segments(folder, 2)
        end(process.pid)
        _, err = process.communicate(timeout=30)
    return folder, process.returncode, err


def wait_for_nobody(workspace: Workspace) -> None:
    deadline = time.monotonic() + 10
    while workspace.processes() and time.monotonic() < deadline:
        time.sleep(0.02)


@pytest.mark.parametrize("kind", ["cmaf", pytest.param("mpegts", marks=pytest.mark.slow)])
def test_what_is_listed_plays_after_kill_9_and_the_next_run_goes_on_behind_it(workspace: Workspace, kind: str) -> None:
    folder, code, _ = run_until(workspace, kind, lambda pid: os.kill(pid, signal.SIGKILL))
    wait_for_nobody(workspace)

    assert code == -signal.SIGKILL
    before = {name: listed(folder / name) for name in PLAYLISTS}
    for name, found in before.items():
        assert "ENDLIST" not in found.text
        (times,) = parts_of(folder, name, decode=False)
        assert len(times) == 30 * len(found.names) >= 60  # testsrc2 has 30 frames a second
    assert "RESOLUTION=320x180" in (folder / "master.m3u8").read_text()

    again = workspace.run("run", workspace.folder / "pipeline.yaml", "--frames", 45, "--json")

    assert again.code == 0, again.err
    assert again.json["streams"][0]["outputs"] == [{"path": f"{folder}/master.m3u8", "frames": 90}]
    for name, found in before.items():
        after = listed(folder / name)
        assert after.names[: len(found.names)] == found.names
        assert after.text.endswith("#EXT-X-ENDLIST\n")
        assert [len(times) for times in parts_of(folder, name, decode=False)] == [30 * len(found.names), 45]
    assert not list(folder.glob(".*"))


def test_ctrl_c_ends_the_playlists(workspace: Workspace) -> None:
    folder, code, err = run_until(workspace, "cmaf", lambda pid: os.kill(pid, signal.SIGINT))

    assert code == 130, err
    assert all(listed(folder / name).text.endswith("#EXT-X-ENDLIST\n") for name in PLAYLISTS)
    videos = play(folder / "master.m3u8")
    assert len(videos) == 2
    assert videos[0].seconds == videos[1].seconds
    assert not list(folder.glob(".*"))


@pytest.mark.slow
def test_the_end_of_the_packager_leaves_what_it_had_listed(workspace: Workspace) -> None:
    def end_packager(_pid: int) -> None:
        os.kill(wait_for_worker(workspace, "package"), signal.SIGTERM)

    folder, code, err = run_until(workspace, "cmaf", end_packager)

    assert code == 1
    assert "operator package" in err
    for name in PLAYLISTS:
        (times,) = parts_of(folder, name, decode=False)
        assert len(times) == 30 * len(listed(folder / name).names)
    assert not list(folder.glob(".*"))
