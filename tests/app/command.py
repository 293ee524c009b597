"""Runs the `observatory` command as a user would, and looks at what it leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av
import pytest

OBSERVATORY = Path(sys.executable).parent / "observatory"
DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
CLIPS = sorted((DATA / "video").glob("*.mp4")) if (DATA / "video").is_dir() else []
needs_clips = pytest.mark.skipif(not CLIPS, reason="the shared sample clips are not beside this checkout")

LADDER = """apiVersion: media.observatory/v1
kind: MediaPipeline
metadata: {{name: ladder}}
spec:
  operators:
    - {{name: decode, op: decode}}
    - {{name: hd, op: scale, inputs: [decode], params: {{width: 320, height: 180}}}}
    - {{name: sd, op: scale, inputs: [decode], params: {{width: 160, height: 90}}}}
    - {{name: mark, op: watermark, inputs: [hd], params: {{text: demo}}}}
    - {{name: enc-hd, op: encode, inputs: [mark], params: {{codec: libx264, preset: ultrafast, bitrate: 500k}}}}
    - {{name: enc-sd, op: encode, inputs: [sd], params: {{codec: libx264, preset: ultrafast, bitrate: 200k}}}}
    - {{name: mux-hd, op: mux, inputs: [enc-hd], params: {{path: {out}/hd.mp4}}}}
    - {{name: mux-sd, op: mux, inputs: [enc-sd], params: {{path: {out}/sd.mp4}}}}
"""
EDGES = {"decode->hd", "decode->sd", "hd->mark", "mark->enc-hd", "sd->enc-sd", "enc-hd->mux-hd", "enc-sd->mux-sd"}


@dataclass
class Result:
    """One finished command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class Workspace:
    """A folder with its own state directory; every process started from it carries a mark in its environment."""

    folder: Path
    mark: str = field(default_factory=lambda: f"OBSERVATORY_TEST_MARK={uuid.uuid4().hex}")

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def environment(self) -> dict[str, str]:
        name, value = self.mark.split("=")
        # Without it, what cannot be written stays in a buffer until the exit, as it does for most people.
        usual = {key: kept for key, kept in os.environ.items() if key != "PYTHONUNBUFFERED"}
        return {**usual, name: value}

    def write(self, text: str, name: str = "pipeline.yaml") -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def arguments(self, *args: object) -> list[str]:
        return [str(OBSERVATORY), *map(str, args), "--state", str(self.state)]

    def run(self, *args: object, timeout: float = 90) -> Result:
        done = subprocess.run(
            self.arguments(*args),
            capture_output=True,
            text=True,
            timeout=timeout,
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
        )
        assert "Traceback" not in done.stdout + done.stderr, done.stderr
        return Result(done.returncode, done.stdout, done.stderr)

    @contextmanager
    def started(self, *args: object) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            self.arguments(*args),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def processes(self) -> list[int]:
        """Pids of all living processes that descend from this workspace, found by the mark they inherited."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z" and self.mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found


@dataclass(frozen=True)
class Media:
    """What a file holds, read by plain PyAV."""

    pts: list[int]
    seconds: list[float]
    duration_seconds: float
    audio: list[tuple[float, bytes]]


def probe(path: Path) -> Media:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.time_base is not None
        pts = [frame.pts for frame in container.decode(stream) if frame.pts is not None]
        seconds = [float((p - pts[0]) * stream.time_base) for p in pts]
        duration = float((stream.duration or 0) * stream.time_base)
    audio: list[tuple[float, bytes]] = []
    with av.open(str(path)) as container:
        if container.streams.audio:
            track = container.streams.audio[0]
            assert track.time_base is not None
            for packet in container.demux(track):
                if packet.pts is not None:
                    audio.append((float(packet.pts * track.time_base), bytes(packet)))
    return Media(pts, seconds, duration, audio)
