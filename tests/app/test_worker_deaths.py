"""Workers are killed with SIGKILL under a running job: others go on with their work, no frame is lost or doubled."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import av
import pytest

from tests.app.command import LADDER, Workspace
from tests.app.test_bad_input import wait_for_worker

TINY = LADDER.replace("op: decode}}", "op: decode, params: {{source: {{size: 320x180}}}}}}")
REORDERING = TINY.replace("preset: ultrafast", "preset: veryfast, gop: 30")
OPERATORS = ("decode", "hd", "sd", "mark", "enc-hd", "enc-sd", "mux-hd", "mux-sd")
FRAMES = 2500


def workers(workspace: Workspace) -> dict[str, dict[str, object]]:
    """By operator, as `ps` shows those that run now."""
    jobs = workspace.run("ps", "--json").json["pipelines"]
    return {w["operator"]: w for job in jobs for w in job["workers"] if w["state"] == "running"}


def kill(running: dict[str, dict[str, object]], operators: Sequence[str]) -> list[str]:
    """Those of them that were there to be killed."""
    pids = [(name, int(str(running[name]["pid"]))) for name in operators if name in running]
    killed = []
    for name, pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        killed.append(name)
    return killed


def run_under(
    workspace: Workspace, spec: str, victims: Callable[[], Iterator[Sequence[str]]], frames: int = FRAMES
) -> tuple[list[str], subprocess.CompletedProcess[str]]:
    """Run to the end, killing one group of workers after the other; who was killed, and how the run ended."""
    killed: list[str] = []
    path = workspace.write(spec.format(out=workspace.folder))
    with workspace.started("run", path, "--frames", frames, "--json") as process:
        wait_for_worker(workspace, "mux-hd")
        for group in victims():
            if process.poll() is not None:
                break
            killed += kill(workers(workspace), group)
        out, err = process.communicate(timeout=180)
    return killed, subprocess.CompletedProcess("run", process.returncode, out, err)


def check_file(workspace: Workspace, name: str, frames: int = FRAMES) -> None:
    """Every frame is there once, in its place, and decodes: the test picture has a time stamp per frame."""
    with av.open(str(workspace.folder / name)) as container:
        stream = container.streams.video[0]
        assert stream.time_base is not None
        times = [frame.pts * stream.time_base for frame in container.decode(stream) if frame.pts is not None]
    assert len(times) == frames
    steps = {later - earlier for earlier, later in itertools.pairwise(times)}
    assert len(steps) == 1, steps


def check_all(workspace: Workspace, done: subprocess.CompletedProcess[str], frames: int = FRAMES) -> None:
    assert done.returncode == 0, done.stderr
    stream = json.loads(done.stdout)["streams"][0]
    assert stream["lost"] == []
    assert (stream["frames_in"], stream["frames_out"]) == (frames, frames)
    for name in ("hd.mp4", "sd.mp4"):
        check_file(workspace, name, frames)
    assert not [path for path in workspace.folder.iterdir() if path.name.startswith(".")], "temporary files are left"


def check_stopped(workspace: Workspace, done: subprocess.CompletedProcess[str]) -> None:
    """The same after a Ctrl-C: whatever went in has come out."""
    assert done.returncode == 130, done.stderr
    stream = json.loads(done.stdout)["streams"][0]
    assert stream["lost"] == []
    assert stream["frames_in"] == stream["frames_out"] > 0
    for name in ("hd.mp4", "sd.mp4"):
        check_file(workspace, name, stream["frames_in"])


@contextmanager
def stopped_in_the_end(workspace: Workspace, said: list[str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """A job without an end, once it is at work; it is ended by Ctrl-C then, and all must have come out.

    What it said on standard error is added to `said`.
    """
    path = workspace.write(REORDERING.format(out=workspace.folder))
    with workspace.started("run", path, "--frames", 1_000_000, "--json") as process:
        wait_for_worker(workspace, "mux-hd")
        yield process
        assert process.poll() is None, process.communicate()[1]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    if said is not None:
        said.append(err)
    check_stopped(workspace, subprocess.CompletedProcess("run", process.returncode, out, err))


def succeeded(workspace: Workspace, before: dict[str, dict[str, object]], operators: Iterable[str]) -> None:
    """Wait until other processes than `before` do the work of these operators."""
    deadline = time.monotonic() + 30
    while any(name not in (now := workers(workspace)) or now[name]["pid"] == before[name]["pid"] for name in operators):
        assert time.monotonic() < deadline, now


# The other branch has the same operators.
EACH = [pytest.param(name, marks=[pytest.mark.slow] if "sd" in name else []) for name in OPERATORS]


@pytest.mark.parametrize("operator", EACH)
def test_any_worker_may_be_killed(workspace: Workspace, operator: str) -> None:
    said: list[str] = []
    with stopped_in_the_end(workspace, said):
        before = workers(workspace)
        assert kill(before, [operator]) == [operator]
        succeeded(workspace, before, [operator])
    assert f"operator {operator} (pid " in said[0]
    assert "killed by SIGKILL" in said[0]
    assert "went on with its work" in said[0]


GROUPS = [
    OPERATORS,
    ("decode", "enc-hd", "mux-hd"),
    pytest.param(("hd", "mark"), marks=pytest.mark.slow),
    pytest.param(("enc-sd", "mux-sd"), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("group", GROUPS)
def test_several_may_be_killed_at_once(workspace: Workspace, group: Sequence[str]) -> None:
    killed, done = run_under(workspace, REORDERING, lambda: iter([group]))
    assert set(killed) == set(group)
    check_all(workspace, done)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_random_kills_all_along(workspace: Workspace, seed: int) -> None:
    chosen = random.Random(seed)

    def victims() -> Iterator[Sequence[str]]:
        for _ in range(16):
            yield chosen.sample(OPERATORS, chosen.randint(1, 3))
            time.sleep(chosen.random())

    killed, done = run_under(workspace, REORDERING, victims, frames=6000)
    assert killed
    check_all(workspace, done, frames=6000)


def test_who_dies_again_and_again_is_quarantined(workspace: Workspace) -> None:
    def victims() -> Iterator[Sequence[str]]:
        for _ in range(200):
            yield ["hd"]

    killed, done = run_under(workspace, TINY, victims, frames=1_000_000)
    assert done.returncode == 1
    assert len(killed) == 7
    assert "operator hd is quarantined: 7 deaths within 60 s" in done.stderr
    assert "SIGKILL" in done.stderr
    assert done.stderr.count("error:") == 1
    assert workspace.processes() == []
    assert not [path for path in workspace.folder.iterdir() if ".mp4" in path.name], "an unfinished output is left"
    after = workspace.run("run", workspace.folder / "pipeline.yaml", "--frames", 3, "--json")
    assert after.code == 0, after.err


def test_ps_counts_restarts(workspace: Workspace) -> None:
    spec = workspace.write(TINY.format(out=workspace.folder))
    with workspace.started("run", spec, "--frames", 1_000_000):
        victim = wait_for_worker(workspace, "enc-hd")
        os.kill(victim, signal.SIGKILL)
        deadline = time.monotonic() + 20
        while (seen := workers(workspace).get("enc-hd", {})).get("restarts") != 1:
            assert time.monotonic() < deadline, seen
        assert seen["pid"] != victim
        assert workers(workspace)["enc-sd"]["restarts"] == 0


@pytest.mark.parametrize("victim", ["mux-hd", "enc-hd"])
def test_a_death_while_the_job_is_being_stopped_is_one_as_any_other(workspace: Workspace, victim: str) -> None:
    """It is held until the sources have ended, so that it dies with work in its hands that nobody else has."""
    spec = workspace.write(REORDERING.format(out=workspace.folder))
    with workspace.started("run", spec, "--frames", 1_000_000, "--json") as process:
        held = wait_for_worker(workspace, victim)
        time.sleep(1.0)
        os.kill(held, signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + 20
        while "decode" in (left := workers(workspace)):
            assert time.monotonic() < deadline, left
        os.kill(held, signal.SIGKILL)
        out, err = process.communicate(timeout=60)
    assert "went on with its work" in err
    check_stopped(workspace, subprocess.CompletedProcess("run", process.returncode, out, err))
