"""The README, followed to the letter in a fresh clone: its commands are read from it, not repeated here."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

import av
import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def commands(heading: str) -> list[str]:
    """The indented command lines below a heading, without drawings."""
    section = README.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = re.findall(r"^    (\S.*)$", section, re.MULTILINE)
    return [line for line in lines if re.match(r"(git|script/|observatory )", line)]


def test_the_readme_names_what_it_should() -> None:
    assert commands("Start")[0].startswith("git clone ")
    assert commands("Start")[1] == "script/run"
    assert any(line.startswith("observatory frames find") for line in commands("Find a frame"))
    for path in re.findall(r"\]\(((?:docs|script)/[^)#]*)\)", README):
        assert (ROOT / path).exists(), f"README links to {path}, which is not there"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not (ROOT / ".git").exists() or shutil.which("git") is None, reason="this is no git checkout")
def test_a_fresh_clone_follows_the_readme(tmp_path: Path) -> None:
    clone = tmp_path / "media-observatory"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    film = clone / "film.mp4"
    _make_film(film)
    (clone / "my-pipeline.yaml").write_text((ROOT / "observatory/app/pipelines/abr-ladder.yaml").read_text())
    inherited = ("VIRTUAL_ENV", "PYTHONPATH", "XDG_STATE_HOME", "OBSERVATORY_STATE")
    environment = {key: value for key, value in os.environ.items() if key not in inherited}
    environment["HOME"] = str(tmp_path)
    environment["PATH"] = f"{clone / '.venv/bin'}:{os.environ['PATH']}"
    environment["OBSERVATORY_PLATFORM_PORT"] = "0"  # the one that the README names may be taken here
    _live(clone, environment)
    for command in commands("Start")[2:] + commands("Find a frame"):
        shell = ["bash", "-c", command]
        done = subprocess.run(
            shell, cwd=clone, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}: {done.stdout[-500:]} {done.stderr[-2000:]}"
        if command == "script/run --input film.mp4":
            for name in ("abr-ladder-720p.mp4", "abr-ladder-360p.mp4"):
                with av.open(str(clone / name)) as container:
                    assert sum(1 for _ in container.decode(video=0)) == 200


def _live(clone: Path, environment: dict[str, str]) -> None:
    """`script/run` alone has no end: its page answers, its window plays, Ctrl-C ends it in good order."""
    lock = Path(environment["HOME"]) / ".local/state/media-observatory/run/platform.lock"
    master = clone / "live-hls" / "master.m3u8"
    with (clone / "up.log").open("w+") as log:
        up = subprocess.Popen(
            ["bash", "-c", "script/run"], cwd=clone, env=environment, stdin=subprocess.DEVNULL, stderr=log
        )
        try:
            deadline = time.monotonic() + 900
            while not master.exists():
                assert up.poll() is None, (clone / "up.log").read_text()[-2000:]
                assert time.monotonic() < deadline, "no playlist appeared"
                time.sleep(0.5)
            url = json.loads(lock.read_text())["url"]
            with urllib.request.urlopen(url, timeout=30) as page:
                assert b"Media Observatory" in page.read()
            with av.open(str(master)) as container:
                assert {stream.height for stream in container.streams.video} >= {720, 480, 360}
            up.send_signal(signal.SIGINT)
            assert up.wait(60) == 130
        finally:
            up.kill()
            up.wait()


def _make_film(path: Path) -> None:
    """200 frames, so that the frame the README looks for is in it."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=30, options={"preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = 320, 180, "yuv420p"
        for index in range(200):
            frame = av.VideoFrame(320, 180, "yuv420p")
            for plane in frame.planes:
                plane.update(bytes([index % 200]) * plane.buffer_size)
            frame.pts = index
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
