"""The live platform: pipelines come and go, one of them failing is its own affair, and every end is in good order."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from observatory.app.control import ControlClient, Gone
from observatory.app.errors import NotRunning
from observatory.app.state_lock import platform_socket
from tests.app.command import LADDER, Workspace, probe
from tests.peers import in_ci

ENDLESS = """apiVersion: media.observatory/v1
kind: MediaPipeline
metadata: {{name: {name}}}
spec:
  operators:
    - {{name: decode, op: decode, params: {{source: {{size: 160x90}}}}}}
    - {{name: enc, op: encode, inputs: [decode], params: {{codec: libx264, preset: ultrafast, bitrate: 100k}}}}
    - {{name: out, op: mux, inputs: [enc], params: {{path: {name}.mp4}}}}
"""


@contextmanager
def platform(workspace: Workspace, *options: object) -> Iterator[subprocess.Popen[str]]:
    """A running platform without pages, once it answers."""
    with workspace.started("up", "--no-web", *options) as process:
        until(lambda: snapshot(workspace) is not None, process)
        yield process


def snapshot(workspace: Workspace) -> dict[str, Any] | None:
    try:
        client = ControlClient(platform_socket(workspace.state))
        answer: dict[str, Any] = client.ask("snapshot")
        client.close()
    except (NotRunning, Gone):
        return None
    return answer


def pipelines(workspace: Workspace) -> dict[str, dict[str, Any]]:
    now = snapshot(workspace)
    return {} if now is None else {p["name"]: p for p in now["pipelines"]}


def frames_of(workspace: Workspace, name: str) -> int:
    streams = pipelines(workspace).get(name, {}).get("streams", ())
    return sum(stream["frames_done"] for stream in streams)


def frames_in(workspace: Workspace, name: str) -> int:
    streams = pipelines(workspace).get(name, {}).get("streams", ())
    return sum(stream["frames_in"] for stream in streams)


def until(met: Callable[[], bool], process: subprocess.Popen[Any], timeout_seconds: float = 30) -> None:
    deadline = time.monotonic() + timeout_seconds
    while not met():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "it did not come to that in time"
        time.sleep(0.05)


def finish(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str, str]:
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert "Traceback" not in err
    return process.returncode, out, err


def test_pipelines_come_and_go_while_others_run(workspace: Workspace) -> None:
    first = workspace.write(ENDLESS.format(name="one"), "one.yaml")
    second = workspace.write(ENDLESS.format(name="two"), "two.yaml")
    with platform(workspace, first) as process:
        until(lambda: frames_of(workspace, "one") > 10, process)
        submitted = workspace.run("submit", second, "--json")
        assert submitted.code == 0, submitted.err
        assert submitted.json["name"] == "two"
        assert {worker["state"] for worker in submitted.json["workers"]} == {"running"}
        until(lambda: frames_of(workspace, "two") > 10, process)

        taken = workspace.run("submit", second)
        assert taken.code == 2
        assert "'two' runs already" in taken.err
        renamed = workspace.run("submit", second, "--name", "three", "--json")
        assert renamed.code == 2, "it would write into the same file"
        assert "two.mp4" in renamed.json["error"]["message"]

        removed = workspace.run("remove", "two", "--json")
        assert removed.code == 0, removed.err
        done = sum(stream["frames_done"] for stream in removed.json["streams"])
        assert done > 10
        assert len(probe(workspace.folder / "two.mp4").pts) == done
        assert list(pipelines(workspace)) == ["one"]
        before = frames_of(workspace, "one")
        until(lambda: frames_of(workspace, "one") > before, process)
        missing = workspace.run("remove", "two")
        assert (missing.code, "there is: one" in missing.err) == (2, True)
        code, _, _ = finish(process, signal.SIGTERM)
    assert code == 0
    assert len(probe(workspace.folder / "one.mp4").pts) > before
    assert not list((workspace.state / "run").glob("*.sock"))


def test_ends_with_its_input(workspace: Workspace) -> None:
    spec = workspace.write(LADDER.format(out=workspace.folder))
    done = workspace.run("up", spec, "--frames", 40, "--no-web", "--json")
    assert done.code == 0, done.err
    (pipeline,) = done.json["pipelines"]
    assert (pipeline["name"], pipeline["state"]) == ("ladder", "ended")
    assert pipeline["summary"]["streams"][0]["frames_out"] == 40
    assert (pipeline["streams"][0]["frames_in"], pipeline["streams"][0]["frames_done"]) == (40, 40)
    assert len(probe(workspace.folder / "hd.mp4").pts) == 40
    assert workspace.run("frames", "find", "--stream", "ladder", "--pts", 39).code == 0


def test_a_duration_is_an_end_in_good_order(workspace: Workspace) -> None:
    spec = workspace.write(ENDLESS.format(name="one"))
    done = workspace.run("up", spec, "--duration", 5, "--no-web", "--json")
    assert done.code == 0, done.err
    (pipeline,) = done.json["pipelines"]
    assert len(probe(workspace.folder / "one.mp4").pts) == pipeline["summary"]["streams"][0]["frames_out"] > 0


def test_ctrl_c_leaves_playable_outputs_and_says_130(workspace: Workspace) -> None:
    spec = workspace.write(ENDLESS.format(name="one"))
    with platform(workspace, spec) as process:
        until(lambda: frames_of(workspace, "one") > 10, process)
        code, _, _ = finish(process, signal.SIGINT)
    assert code == 130
    assert len(probe(workspace.folder / "one.mp4").pts) > 10


def test_a_second_platform_on_one_state_directory_is_refused(workspace: Workspace) -> None:
    with platform(workspace, "--no-pipeline") as process:
        second = workspace.run("up", "--no-pipeline", "--no-web", "--json")
        assert second.code == 2
        assert second.json["error"]["kind"] == "AlreadyRunning"
        assert f"pid {process.pid}" in second.json["error"]["message"]
        assert snapshot(workspace) is not None, "the first goes on"


def test_killed_it_takes_its_workers_along_and_the_next_one_starts(workspace: Workspace) -> None:
    spec = workspace.write(ENDLESS.format(name="one"))
    with platform(workspace, spec) as process:
        until(lambda: frames_of(workspace, "one") > 10, process)
        process.kill()
        process.wait()
        deadline = time.monotonic() + 5
        while workspace.processes() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert workspace.processes() == []
        assert workspace.run("submit", spec).code == 2, "nobody is there"
    with platform(workspace, spec) as process:
        until(lambda: frames_of(workspace, "one") > 10, process)
        assert pipelines(workspace)["one"]["streams"][0]["epoch"] == 2
        assert finish(process, signal.SIGTERM)[0] == 0


def test_a_failing_pipeline_leaves_the_others_alone(workspace: Workspace) -> None:
    good = workspace.write(ENDLESS.format(name="good"), "good.yaml")
    bad = workspace.write(ENDLESS.format(name="bad"), "bad.yaml")
    with platform(workspace, good) as process:
        assert workspace.run("submit", bad).code == 0
        until(lambda: frames_of(workspace, "bad") > 10, process)
        victim = next(w["pid"] for w in pipelines(workspace)["bad"]["workers"] if w["operator"] == "enc")
        os.kill(victim, signal.SIGTERM)
        until(lambda: pipelines(workspace)["bad"]["state"] == "failed", process)
        assert "SIGTERM" in pipelines(workspace)["bad"]["reason"]
        before = frames_of(workspace, "good")
        until(lambda: frames_of(workspace, "good") > before + 10, process)
        assert workspace.run("submit", bad).code == 0, "its name is free again"
        code, _, err = finish(process, signal.SIGTERM)
    assert code == 0
    assert "bad: failed: operator enc" in err


def test_what_cannot_be_started_is_refused_with_its_line(workspace: Workspace) -> None:
    wrong = ENDLESS.format(name="wrong").replace("bitrate: 100k", "bitrat: 100k")
    spec = workspace.write(wrong, "wrong.yaml")
    with platform(workspace, "--no-pipeline"):
        refused = workspace.run("submit", spec, "--json")
        assert refused.code == 2
        assert refused.json["error"]["line"] == 7
        assert refused.json["error"]["file"] == str(spec)
        assert "did you mean bitrate" in refused.json["error"]["mend"]
        absent = workspace.run("submit", workspace.folder / "nowhere.yaml")
        assert (absent.code, "there is no such file" in absent.err) == (2, True)
        assert pipelines(workspace) == {}


def test_a_first_pipeline_that_cannot_be_started_ends_the_platform(workspace: Workspace) -> None:
    spec = workspace.write(ENDLESS.format(name="one"))
    done = workspace.run("up", spec, "--no-web", "--input", workspace.folder / "no.mp4", "--json")
    assert done.code == 2
    assert "no.mp4" in done.json["error"]["file"]


def test_a_submission_while_the_disk_is_full_is_refused_and_the_others_go_on(workspace: Workspace) -> None:
    workspace.state.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=6m", "none", workspace.state], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        if in_ci() and os.geteuid() == 0:
            pytest.fail(f"cannot mount a small disk: {mounted.stderr}")
        pytest.skip("cannot mount a small disk (this needs root)")
    try:
        first = workspace.write(ENDLESS.format(name="one"), "one.yaml")
        second = workspace.write(ENDLESS.format(name="two"), "two.yaml")
        with platform(workspace, first) as process:
            until(lambda: frames_of(workspace, "one") > 10, process)
            fill(workspace.state / "ballast")
            refused = workspace.run("submit", second, "--json")
            assert refused.code == 1, refused.out
            assert "the disk is full" in refused.json["error"]["message"]
            before = frames_of(workspace, "one")
            until(lambda: frames_of(workspace, "one") > before + 10, process)
            (workspace.state / "ballast").unlink()
            accepted = workspace.run("submit", second, "--json")
            assert accepted.code == 0, accepted.err
            assert finish(process, signal.SIGTERM)[0] == 0
        assert len(probe(workspace.folder / "one.mp4").pts) > before
    finally:
        subprocess.run(["umount", "-l", str(workspace.state)], check=True)


def fill(ballast: Path) -> None:
    """Take the last byte of a disk."""
    with ballast.open("wb", buffering=0) as stream:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while stream.write(bytes(size)) == size:
                    pass
            except OSError:
                continue


def test_the_document_at_the_end_is_one_json_document(workspace: Workspace) -> None:
    with workspace.started("up", "--no-pipeline", "--no-web", "--json") as process:
        until(lambda: snapshot(workspace) is not None, process)
        code, out, _ = finish(process, signal.SIGTERM)
    assert code == 0
    assert json.loads(out)["pipelines"] == []


def test_nobody_reads_standard_error_and_it_ends_all_the_same(workspace: Workspace) -> None:
    spec = workspace.write(ENDLESS.format(name="one"))
    command = [str(part) for part in workspace.arguments("up", "--no-web", spec, "--duration", 3, "--json")]
    reading, writing = os.pipe()
    os.close(reading)  # as `2>&1 | head -1` leaves it
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=writing, timeout=60, cwd=workspace.folder, env=workspace.environment
        )
    finally:
        os.close(writing)
    assert done.returncode == 0
    assert json.loads(done.stdout)["pipelines"][0]["state"] == "removed"
    assert len(probe(workspace.folder / "one.mp4").pts) > 10


def test_a_full_pipe_that_nobody_empties_stops_nothing(workspace: Workspace) -> None:
    spec = workspace.write(ENDLESS.format(name="one"))
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writing, bytes(4096))
    process = subprocess.Popen(
        workspace.arguments("up", "--no-web", spec), stderr=writing, cwd=workspace.folder, env=workspace.environment
    )
    try:
        until(lambda: frames_of(workspace, "one") > 10, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(reading)
        os.close(writing)
    assert len(probe(workspace.folder / "one.mp4").pts) > 10


def test_signals_that_come_all_the_time_stop_nothing(workspace: Workspace) -> None:
    spec = workspace.write(ENDLESS.format(name="one"))
    with platform(workspace, spec, "--quiet") as process:
        for _ in range(3000):
            process.send_signal(signal.SIGHUP)
            time.sleep(0.0005)
        before = frames_of(workspace, "one")
        until(lambda: frames_of(workspace, "one") > before, process)
        assert finish(process, signal.SIGTERM)[0] == 0


def test_two_who_remove_one_pipeline_lose_nothing(workspace: Workspace) -> None:
    slow = ENDLESS.format(name="slow").replace("preset: ultrafast, bitrate: 100k", "preset: slower, look_ahead: 40")
    spec = workspace.write(slow.replace("160x90", "640x360"))
    with platform(workspace, spec) as process:
        until(lambda: frames_in(workspace, "slow") > 60, process)
        remove = [subprocess.Popen(workspace.arguments("remove", "slow"), stdout=subprocess.DEVNULL) for _ in range(2)]
        process.send_signal(signal.SIGTERM)  # a third who wants it to end
        code = process.wait(60)
        for command in remove:
            command.wait(30)
    assert code == 0
    assert len(probe(workspace.folder / "slow.mp4").pts) > 60


def test_what_did_not_get_the_time_to_finish_is_no_success(workspace: Workspace) -> None:
    spec = workspace.write(ENDLESS.format(name="one"))
    with workspace.started("up", "--no-web", spec, "--json") as process:
        until(lambda: frames_of(workspace, "one") > 10, process)
        encoder = next(w["pid"] for w in pipelines(workspace)["one"]["workers"] if w["operator"] == "enc")
        os.kill(encoder, signal.SIGSTOP)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        code, out, _ = finish(process, signal.SIGTERM)
    assert code == 1
    (pipeline,) = json.loads(out)["pipelines"]
    assert pipeline["state"] == "failed"
    assert "thrown away" in pipeline["reason"]
