"""`observatory run` against the threaded ffmpeg tool: same ladder, same filters, same encoder settings, one run.

The peer is the FFmpeg binary in PyPI's imageio-ffmpeg (9.x), with the best of several thread settings, found here
before the comparison. Rounds are interleaved. Start-up is apart: ours is the time until the start signal, as the
summary says; the peer's is its wall time for one frame.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av

from benchmarks.report import ROOT, spread

PEER_PYTHON = ROOT / ".venv-bench" / "bin" / "python"
OBSERVATORY = Path(sys.executable).parent / "observatory"
CLIPS = ROOT.parent / "shared" / "data" / "video"
CLIP_SECONDS = 60.0

LADDER = """apiVersion: media.observatory/v1
kind: MediaPipeline
metadata: {{name: bench}}
spec:
  operators:
    - {{name: decode, op: decode, params: {source}}}
    - {{name: hd, op: scale, inputs: [decode], params: {{width: 1280, height: 720, method: bilinear}}}}
    - {{name: mark, op: watermark, inputs: [hd], params: {{text: demo}}}}
    - {{name: enc-hd, op: encode, inputs: [mark], params: {{codec: libx264, preset: veryfast, bitrate: 3M}}}}
    - {{name: mux-hd, op: mux, inputs: [enc-hd], params: {{path: {out}/hd.mp4}}}}
    - {{name: sd, op: scale, inputs: [decode], params: {{width: 640, height: 360, method: bilinear}}}}
    - {{name: enc-sd, op: encode, inputs: [sd], params: {{codec: libx264, preset: veryfast, bitrate: 800k}}}}
    - {{name: mux-sd, op: mux, inputs: [enc-sd], params: {{path: {out}/sd.mp4}}}}
"""
GRAPH = (
    "[0:v]split=2[a][b];"
    "[a]scale=1280:720:flags=bilinear,drawtext=text=demo:fontsize=36:fontcolor=white@0.8:x=w-tw-24:y=h-th-24[hd];"
    "[b]scale=640:360:flags=bilinear[sd]"
)
THREADS: dict[str, list[str]] = {
    "default": [],
    "filters 1": ["-filter_threads", "1", "-filter_complex_threads", "1"],
    "filters 2, encoders 2": ["-filter_threads", "2", "-filter_complex_threads", "2"],
    "filters 1, encoders 1": ["-filter_threads", "1", "-filter_complex_threads", "1"],
}
ENCODER_THREADS = {"filters 2, encoders 2": ["-threads:v", "2"], "filters 1, encoders 1": ["-threads:v", "1"]}


@dataclass(frozen=True, slots=True)
class Input:
    """One input of the comparison. `lavfi` for a generated picture, else a file."""

    name: str
    frames: int
    file: Path | None = None
    lavfi: str | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """One run: wall and CPU seconds of the whole process tree, and the part before frames flowed."""

    wall_seconds: float
    cpu_seconds: float
    startup_seconds: float

    @property
    def processing_seconds(self) -> float:
        return self.wall_seconds - self.startup_seconds


def ffmpeg() -> str:
    """Path of the peer's binary."""
    script = "import imageio_ffmpeg; print(imageio_ffmpeg.get_ffmpeg_exe())"
    return subprocess.check_output([str(PEER_PYTHON), "-c", script], text=True).strip()


def looped(clip: Path, folder: Path) -> Input:
    """The clip's own packets, repeated until it lasts CLIP_SECONDS, without encoding anything again."""
    target = folder / clip.name
    with av.open(str(clip)) as probe:
        seconds = float((probe.duration or 0) / av.time_base)
    times = max(1, int(-(-CLIP_SECONDS // seconds)))
    command = [ffmpeg(), "-v", "error", "-nostdin", "-stream_loop", str(times - 1), "-i", str(clip), "-c", "copy"]
    subprocess.run([*command, "-y", str(target)], check=True)
    with av.open(str(target)) as container:
        frames = sum(1 for _ in container.decode(video=0))
    return Input(f"{clip.stem}, looped x{times}", frames, file=target)


def run_peer(source: Input, threads: str, folder: Path, frames: int | None = None) -> tuple[float, float]:
    """Wall and CPU seconds of one ffmpeg run."""
    reading = ["-f", "lavfi", "-i", source.lavfi] if source.lavfi else ["-i", str(source.file)]
    limit = ["-frames:v", str(frames or source.frames)]
    command = [ffmpeg(), "-v", "error", "-nostdin", "-y", *THREADS[threads], *reading, "-filter_complex", GRAPH]
    encoder = ["-c:v", "libx264", "-preset", "veryfast", *ENCODER_THREADS.get(threads, [])]
    for label, rate in (("hd", "3M"), ("sd", "800k")):
        audio = [] if source.lavfi else ["-map", "0:a?", "-c:a", "copy"]
        command += ["-map", f"[{label}]", *audio, *encoder, "-b:v", rate, *limit, str(folder / f"peer-{label}.mp4")]
    return _timed(command, folder)[:2]


def run_ours(source: Input, folder: Path, spec: Path) -> tuple[Timing, dict[str, Any]]:
    """One run of ours: timing, and the summary document."""
    command = [str(OBSERVATORY), "run", str(spec), "--json", "--state", str(folder / "state")]
    command += ["--input", str(source.file)] if source.file else ["--frames", str(source.frames)]
    wall, cpu, out = _timed(command, folder)
    summary: dict[str, Any] = json.loads(out)
    done = summary["streams"][0]
    if done["frames_out"] != source.frames or done["lost"]:
        raise SystemExit(f"{source.name}: {done['frames_out']} of {source.frames} frames, lost {done['lost'][:3]}")
    return Timing(wall, cpu, wall - summary["processing_seconds"]), summary


def _timed(command: Sequence[str], folder: Path) -> tuple[float, float, str]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder, stdin=subprocess.DEVNULL)
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def best_threads(source: Input, folder: Path) -> str:
    """The peer's fastest thread setting on this input."""
    return min(THREADS, key=lambda name: run_peer(source, name, folder)[0])


def compare(source: Input, folder: Path, rounds: int) -> dict[str, Any]:
    """Interleaved rounds on one input."""
    spec = folder / "bench.yaml"
    source_params = "{source: {size: 1920x1080}}" if source.lavfi else "{}"
    spec.write_text(LADDER.format(out=folder, source=source_params))
    threads = best_threads(source, folder)
    ours: list[Timing] = []
    peer: list[Timing] = []
    summary: dict[str, Any] = {}
    for _ in range(rounds):
        timing, summary = run_ours(source, folder, spec)
        ours.append(timing)
        first = run_peer(source, threads, folder, frames=1)[0]
        wall, cpu = run_peer(source, threads, folder)
        peer.append(Timing(wall, cpu, first))
    per_frame = {w["operator"]: (w["cpu_seconds"] or 0.0) / source.frames for w in summary["workers"]}
    return {
        "frames": source.frames,
        "peer_threads": threads,
        "processing_ratio": spread(
            [p.processing_seconds / o.processing_seconds for o, p in zip(ours, peer, strict=True)]
        ),
        "wall_ratio": spread([p.wall_seconds / o.wall_seconds for o, p in zip(ours, peer, strict=True)]),
        "frames_per_second": spread([source.frames / o.processing_seconds for o in ours]),
        "peer_frames_per_second": spread([source.frames / p.processing_seconds for p in peer]),
        "startup_seconds": spread([o.startup_seconds for o in ours]),
        "peer_startup_seconds": spread([p.startup_seconds for p in peer]),
        "cpu_seconds": spread([o.cpu_seconds for o in ours]),
        "peer_cpu_seconds": spread([p.cpu_seconds for p in peer]),
        "cpu_seconds_per_frame_by_operator": per_frame,
        "latency_seconds": summary["latency_seconds"],
    }


def measure(rounds: int, only: str | None = None) -> dict[str, Any]:
    """All inputs, or those whose name contains `only`: both clips and a generated 1080p picture, a minute each."""
    os.environ.setdefault("SVT_LOG", "1")
    generated = Input("testsrc2 1920x1080, 60 s", 1800, lavfi="testsrc2=size=1920x1080:rate=30")
    clips = sorted(CLIPS.glob("*.mp4")) if CLIPS.is_dir() else []
    results = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        inputs = [looped(clip, folder) for clip in clips if only is None or only in clip.stem]
        inputs += [generated] if only is None or only in generated.name else []
        for source in inputs:
            results[source.name] = compare(source, folder, rounds)
    return results


def table(results: dict[str, Any]) -> str:
    """The comparison as Markdown."""
    rows = [
        "| input | ours, fps | ffmpeg, fps | ratio | whole command | start-up, s | CPU s ours / ffmpeg |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, r in results.items():
        ratio, wall = r["processing_ratio"], r["wall_ratio"]
        rows.append(
            f"| {name} | {r['frames_per_second']['median']:.1f} | {r['peer_frames_per_second']['median']:.1f} "
            f"| **{ratio['median']:.2f}** ({ratio['min']:.2f}-{ratio['max']:.2f}) "
            f"| {wall['median']:.2f} ({wall['min']:.2f}-{wall['max']:.2f}) "
            f"| {r['startup_seconds']['median']:.2f} / {r['peer_startup_seconds']['median']:.2f} s "
            f"| {r['cpu_seconds']['median']:.1f} / {r['peer_cpu_seconds']['median']:.1f} |"
        )
    rows += ["", "Where our CPU time goes, milliseconds per source frame, by operator:", ""]
    operators = list(next(iter(results.values()))["cpu_seconds_per_frame_by_operator"])
    rows += ["| input | " + " | ".join(operators) + " |", "|---" * (len(operators) + 1) + "|"]
    for name, r in results.items():
        costs = r["cpu_seconds_per_frame_by_operator"]
        rows.append(f"| {name} | " + " | ".join(f"{costs[o] * 1e3:.2f}" for o in operators) + " |")
    return "\n".join(rows)
