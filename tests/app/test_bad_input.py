"""What users get wrong, and machines: one clear error, the right exit code, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import av
import pytest

from tests.app.command import CLIPS, LADDER, Workspace, needs_clips, probe

HEAD = "apiVersion: media.observatory/v1\nkind: MediaPipeline\nmetadata: {name: bad}\nspec:\n  operators:\n"
SIMPLE = (
    HEAD
    + "    - {name: decode, op: decode}\n"
    + "    - {name: e, op: encode, inputs: [decode], params: {codec: libx264, preset: ultrafast}}\n"
    + "    - {name: m, op: mux, inputs: [e], params: {path: OUT}}\n"
)

SPECS = {
    "cycle": (
        HEAD
        + "    - {name: a, op: scale, inputs: [b], params: {width: 64, height: 64}}\n"
        + "    - {name: b, op: scale, inputs: [a], params: {width: 64, height: 64}}\n",
        ["cycle", "a", "b"],
    ),
    "unknown operator": (HEAD + "    - {name: a, op: scael}\n", [":6:", "scael", "scale"]),
    "unknown input": (
        HEAD + "    - {name: decode, op: decode}\n    - {name: b, op: scale, inputs: [nobody], params: {width: 64}}\n",
        [":7:", "nobody"],
    ),
    "unknown codec": (SIMPLE.replace("libx264", "no_such_codec"), [":7:", "no_such_codec"]),
    "unknown parameter": (SIMPLE.replace("preset:", "presett:"), [":7:", "presett", "preset"]),
    "misspelt parameter that was needed": (
        HEAD
        + "    - {name: d, op: decode}\n    - {name: b, op: scale, inputs: [d], params: {widht: 64, height: 64}}\n",
        [":7:", "widht: there is no such key", "did you mean width?"],
    ),
    "two muxers on one path": (SIMPLE + "    - {name: m2, op: mux, inputs: [e], params: {path: OUT}}\n", [":9:", "m2"]),
    "no such folder": (SIMPLE.replace("OUT", "nowhere/x.mp4"), [":8:", "nowhere"]),
    "negative size": (
        HEAD
        + "    - {name: d, op: decode}\n    - {name: b, op: scale, inputs: [d], params: {width: -64, height: 64}}\n",
        [":7:", "width"],
    ),
    "impossible placement": (
        SIMPLE + "  topologyConstraints:\n    - {type: Device_Kind, members: [m], value: fpga}\n",
        ["m", "fpga"],
    ),
    "an output that goes nowhere": (
        SIMPLE + "    - {name: s, op: scale, inputs: [decode], params: {width: 64, height: 64}}\n",
        [":9:", "s: nothing takes its output"],
    ),
    "not yaml": ("{{{:::\n", [":1:"]),
    "empty": ("", ["empty"]),
}


@pytest.mark.parametrize("name", SPECS)
def test_bad_specification(workspace: Workspace, name: str) -> None:
    text, words = SPECS[name]
    spec = workspace.write(text.replace("OUT", str(workspace.folder / "o.mp4")))
    done = workspace.run("run", spec)
    assert done.code == 2, done.err
    for word in words:
        assert word in done.err, f"{word!r} is not in: {done.err}"
    assert done.err.count("error:") == 1
    assert "mend:" in done.err
    assert not list(workspace.folder.glob("*.mp4"))


def test_json_error_is_one_document(workspace: Workspace) -> None:
    spec = workspace.write(SPECS["unknown operator"][0])
    done = workspace.run("run", spec, "--json")
    assert done.code == 2
    assert done.json["error"]["line"] == 6
    assert done.json["error"]["file"] == str(spec)
    assert "scale" in done.json["error"]["mend"]


@pytest.mark.parametrize("kind", ["missing", "folder", "empty", "junk", "no video", "unreadable"])
def test_bad_video(workspace: Workspace, kind: str) -> None:
    path = workspace.folder / "in.mp4"
    if kind == "folder":
        path.mkdir()
    elif kind == "empty":
        path.touch()
    elif kind == "junk":
        path.write_bytes(os.urandom(100_000))
    elif kind == "no video":
        with av.open(str(path), "w") as container:
            stream = container.add_stream("aac", rate=48000)
            for index in range(10):
                frame = av.AudioFrame(format="fltp", layout="stereo", samples=1024)
                frame.sample_rate, frame.pts = 48000, index * 1024
                for plane in frame.planes:
                    plane.update(bytes(plane.buffer_size))
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
    elif kind == "unreadable":
        path = Path("/proc/self/mem")
    spec = workspace.write(SIMPLE.replace("OUT", str(workspace.folder / "o.mp4")))
    done = workspace.run("run", spec, "--input", path)
    assert done.code == 2, done.err
    assert str(path) in done.err
    assert not (workspace.folder / "o.mp4").exists()


@needs_clips
def test_half_a_transport_stream_is_delivered_and_the_rest_listed(workspace: Workspace) -> None:
    from tests.app.test_run import remux

    whole, half = workspace.folder / "whole.ts", workspace.folder / "half.ts"
    remux(CLIPS[0], whole, "mpegts", {})
    data = whole.read_bytes()
    half.write_bytes(data[: len(data) // 2])
    spec = workspace.write(SIMPLE.replace("OUT", str(workspace.folder / "o.mp4")))
    done = workspace.run("run", spec, "--input", half, "--json")
    assert done.code == 0, done.err
    stream = done.json["streams"][0]
    assert 0 < stream["frames_out"] < len(probe(CLIPS[0]).pts)
    assert len(probe(workspace.folder / "o.mp4").pts) == stream["frames_out"]


@needs_clips
def test_damaged_frames_are_skipped_counted_and_visible(workspace: Workspace) -> None:
    data = bytearray(CLIPS[0].read_bytes())
    middle = len(data) // 3
    data[middle : middle + 20_000] = os.urandom(20_000)
    damaged = workspace.folder / "damaged.mp4"
    damaged.write_bytes(data)
    spec = workspace.write(SIMPLE.replace("OUT", str(workspace.folder / "o.mp4")))
    done = workspace.run("run", spec, "--input", damaged, "--json")
    assert done.code == 0, done.err
    stream = done.json["streams"][0]
    assert stream["lost"]
    assert stream["frames_out"] == stream["frames_in"] > 0
    assert "lost" in done.err or done.json["warnings"]


def test_memory_refusal_shows_the_arithmetic(workspace: Workspace) -> None:
    spec = workspace.write(LADDER.format(out=workspace.folder))
    done = workspace.run("run", spec, "--memory-limit", "1M")
    assert done.code == 1
    assert "allows 1.0 MB" in done.err
    assert "decode.video:" in done.err
    assert " x " in done.err


def test_killed_supervisor_takes_its_workers_along(workspace: Workspace) -> None:
    spec = workspace.write(LADDER.format(out=workspace.folder))
    with workspace.started("run", spec, "--frames", 100000) as process:
        wait_for_worker(workspace, "mark")
        process.send_signal(signal.SIGKILL)
        process.wait()
        deadline = time.monotonic() + 5
        while workspace.processes() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert workspace.processes() == []
    after = workspace.run("run", spec, "--frames", 3, "--json")
    assert after.code == 0, after.err
    assert after.json["streams"][0]["epoch"] == 2
    assert workspace.run("ps").out.startswith("nothing is running")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_leaves_playable_outputs(workspace: Workspace, number: signal.Signals) -> None:
    spec = workspace.write(LADDER.format(out=workspace.folder))
    with workspace.started("run", spec, "--frames", 100000, "--json") as process:
        wait_for_worker(workspace, "mux-hd")
        time.sleep(0.5)
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    for name in ("hd.mp4", "sd.mp4"):
        assert len(probe(workspace.folder / name).pts) > 0
    assert '"interrupted": true' in out


def test_full_disk(workspace: Workspace) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    small = workspace.folder / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)], check=True)
    try:
        spec = workspace.write(SIMPLE.replace("OUT", str(small / "o.mp4")))
        done = workspace.run("run", spec, "--frames", 300)
        assert done.code == 1, done.err
        assert "No space left" in done.err or "full" in done.err
        assert str(small) in done.err
        assert not list(small.glob("*.mp4"))
        assert not list(small.glob(".*"))
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_full_disk_below_the_state_directory(workspace: Workspace) -> None:
    """The outputs are whole, what could not be recorded is said, and the exit code is not 0."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    workspace.state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(workspace.state)], check=True)
    try:
        tiny = SIMPLE.replace("op: decode}", "op: decode, params: {source: {size: 64x64}}}")
        spec = workspace.write(tiny.replace("OUT", str(workspace.folder / "o.mp4")))
        done = workspace.run("run", spec, "--frames", 9000, "--json")
        assert done.code == 1, done.err
        assert "could not be stored" in done.err
        assert done.json["records_dropped"] > 0
        assert done.json["streams"][0]["frames_out"] == 9000
        assert len(probe(workspace.folder / "o.mp4").pts) == 9000
    finally:
        subprocess.run(["umount", str(workspace.state)], check=True)


def test_ps_shows_the_running_workers(workspace: Workspace) -> None:
    spec = workspace.write(LADDER.format(out=workspace.folder))
    with workspace.started("run", spec, "--frames", 100000):
        wait_for_worker(workspace, "mux-hd")
        seen = workspace.run("ps", "--json").json["pipelines"]
        shown = workspace.run("ps").out
    workers = seen[0]["workers"]
    assert [w["operator"] for w in workers] == ["decode", "hd", "sd", "mark", "enc-hd", "enc-sd", "mux-hd", "mux-sd"]
    assert all(w["state"] == "running" and w["restarts"] == 0 for w in workers)
    assert "decode->hd" in [edge["edge"] for edge in seen[0]["edges"]]
    assert "enc-hd" in shown


def wait_for_worker(workspace: Workspace, operator: str, timeout_seconds: float = 20) -> int:
    """Pid of the worker of that operator, once `ps` shows it running and frames have passed."""
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        for job in workspace.run("ps", "--json").json["pipelines"]:
            for worker in job["workers"]:
                started = any((w["frames"] or 0) > 10 for w in job["workers"] if w["op"] == "decode")
                if worker["operator"] == operator and worker["state"] == "running" and started:
                    return int(worker["pid"])
        time.sleep(0.1)
    raise AssertionError(f"worker {operator} did not start")
