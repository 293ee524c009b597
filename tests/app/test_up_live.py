"""Live sources on a platform: seen to wait and to come back, found again by their own PTS in each epoch."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.app.command import Workspace, probe
from tests.app.test_up import finish, frames_of, pipelines, platform, until
from tests.peers import ffmpeg, peer

CAMERA = """apiVersion: media.observatory/v1
kind: MediaPipeline
metadata: {name: camera}
spec:
  operators:
    - {name: decode, op: decode, params: {read_timeout_seconds: 1}}
    - name: enc
      op: encode
      inputs: [decode]
      params: {codec: libx264, preset: ultrafast, bitrate: 200k, options: {tune: zerolatency}}
    - {name: out, op: mux, inputs: [enc], params: {path: camera.ts}}
"""


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextmanager
def sender(target: str) -> Iterator[subprocess.Popen[bytes]]:
    """FFmpeg sends a generated picture, in real time, until it is killed."""
    picture = ["-re", "-f", "lavfi", "-i", "testsrc2=size=160x90:rate=25"]
    encoder = ["-c:v", "libx264", "-preset", "ultrafast", "-bf", "0", "-g", "10", "-f", "mpegts", target]
    process = subprocess.Popen([ffmpeg(), "-v", "error", *picture, *encoder], stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def stream_of(workspace: Workspace) -> dict[str, Any]:
    found: dict[str, Any] = next(iter(pipelines(workspace)["camera"]["streams"]), {})
    return found


def test_a_source_that_goes_is_waited_for_and_begins_another_epoch(workspace: Workspace) -> None:
    port = free_port()
    spec = workspace.write(CAMERA)
    target = f"udp://127.0.0.1:{port}?pkt_size=1316"
    with sender(target) as first, platform(workspace, spec, "--input", f"udp://127.0.0.1:{port}") as process:
        until(lambda: frames_of(workspace, "camera") > 10, process)
        assert stream_of(workspace)["live"]
        first.kill()
        until(lambda: stream_of(workspace)["state"] == "waiting", process)
        before = frames_of(workspace, "camera")
        with sender(target):
            until(lambda: stream_of(workspace)["state"] == "running", process)
            until(lambda: frames_of(workspace, "camera") > before + 10, process)
        assert stream_of(workspace)["epoch"] == 2
        code, _, err = finish(process, signal.SIGTERM)
    assert code == 0
    assert "it was away for" in err
    frames = probe(workspace.folder / "camera.ts").pts
    assert frames == sorted(frames), "times in the output rise"
    found = [workspace.run("frames", "list", "--epoch", e, "--limit", 1, "--json").json["frames"] for e in (1, 2)]
    for epoch, (frame,) in enumerate(found, start=1):
        again = workspace.run("frames", "find", "--stream", "camera", "--pts", frame["pts"], "--epoch", epoch, "--json")
        assert again.json["source_index"] == frame["source_index"]


def test_srt_is_received_through_its_gateway(workspace: Workspace, tmp_path: Path) -> None:
    transmit = peer("srt-live-transmit")
    port, relay = free_port(), free_port()
    spec = workspace.write(CAMERA)
    send = [transmit, "-quiet:yes", f"udp://127.0.0.1:{relay}", f"srt://127.0.0.1:{port}?mode=caller"]
    with sender(f"udp://127.0.0.1:{relay}?pkt_size=1316"):
        process = subprocess.Popen(send, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            url = f"srt://127.0.0.1:{port}?mode=listener"
            with platform(workspace, spec, "--input", url) as up:
                until(lambda: frames_of(workspace, "camera") > 10, up)
                assert stream_of(workspace)["input"] == url
                assert finish(up, signal.SIGTERM)[0] == 0
        finally:
            process.kill()
            process.wait()


def test_a_source_that_never_comes_is_refused_in_time(workspace: Workspace) -> None:
    spec = workspace.write(CAMERA.replace("read_timeout_seconds: 1", "open_timeout_seconds: 1"))
    done = workspace.run("up", spec, "--no-web", "--input", f"udp://127.0.0.1:{free_port()}", "--json")
    assert done.code == 2
    assert "udp://127.0.0.1" in done.json["error"]["file"]
    assert done.json["error"]["mend"]


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_an_end_while_an_input_is_opened_comes_at_once(workspace: Workspace, number: str) -> None:
    spec = workspace.write(CAMERA)
    with platform(workspace, spec, "--input", f"udp://127.0.0.1:{free_port()}") as process:
        time.sleep(0.5)
        began = time.monotonic()
        code, _, err = finish(process, signal.Signals[number])
        assert time.monotonic() - began < 5, "it would have waited 15 s for the source"
    assert code == (130 if number == "SIGINT" else 0), err
