"""`script/bench live`: live 1080p30 streams through `observatory up`, watched for ten minutes.

Each stream is H.264 in an MPEG transport stream, sent by FFmpeg over UDP at its own pace; its pipeline decodes it,
scales it to 640x360, encodes that with x264 (ultrafast, zerolatency) and packages it as HLS with a window of six
segments. Said are drops, end-to-end latency, the slowest stage, memory and CPU time of all processes over time, and the
first paint of each page in headless Chromium while all that goes on. FFmpeg does the same work afterwards for its CPU
time.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.against_ffmpeg import ffmpeg
from benchmarks.report import write_results, write_table
from observatory.app.control import ControlClient, Gone
from observatory.app.errors import NotRunning
from observatory.app.state_lock import platform_socket
from observatory.frames.ingest import stored_to_records
from observatory.frames.store import FrameStore
from observatory.model.kinds import UNKNOWN_I64, EventKind

OBSERVATORY = Path(sys.executable).parent / "observatory"
QUEUE_FRAMES = 4
SAMPLE_SECONDS = 5.0
SETTLE_SECONDS = 60.0  # memory is looked at after that
FIRST_PORT = 42_000
PAGES = ("/", "/topology", "/frames")
PAINTS = 5

PIPELINE = """apiVersion: media.observatory/v1
kind: MediaPipeline
metadata: {{name: {name}}}
spec:
  qos: {{deadline_seconds: 0.2, frames_per_second: 30, priority: realtime}}
  operators:
    - {{name: decode, op: decode, params: {{path: "{url}"}}}}
    - {{name: scale, op: scale, inputs: [decode], params: {{width: 640, height: 360}}}}
    - name: encode
      op: encode
      inputs: [scale]
      params: {{codec: libx264, preset: ultrafast, bitrate: 800k, keyframe_seconds: 2, threads: 1,
               options: {{tune: zerolatency}}}}
    - {{name: package, op: package, inputs: [encode],
       params: {{folder: "{folder}", container: mpegts, segment_seconds: 2, window_segments: 6}}}}
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """All processes of the platform at one moment.

    `memory_bytes` is anonymous and shared memory (PSS, so that what is shared counts once), without the pages of files,
    which the kernel takes back when it needs them. `file_bytes` are those: libraries, the frame store.
    """

    seconds: float
    memory_bytes: int
    file_bytes: int
    cpu_seconds: float
    by_role: dict[
        str, int
    ]  # memory_bytes of the platform, the web process, the nursery, and all workers of an operator


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="script/bench live", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--peer-minutes", type=float, default=1.0)
    parser.add_argument("--bitrate", default="4M", help="of the sources")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="observatory-live-") as name:
        folder = Path(name)
        source = make_source(folder, chosen.bitrate)
        results = measure(folder, source, chosen.streams, chosen.minutes * 60)
        results["peer"] = measure_peer(folder, source, chosen.streams, chosen.peer_minutes * 60)
    write_table("live", table(results))
    print(table(results))
    print(f"\nlive: results in {write_results('live', results)}")
    return 0


def make_source(folder: Path, bitrate: str) -> Path:
    """A minute of 1080p30 as a camera sends it: no B frames, a key frame every second."""
    path = folder / "source.ts"
    picture = "testsrc2=size=1920x1080:rate=30:duration=60,noise=alls=6:allf=t,format=yuv420p"
    encoder = ["-c:v", "libx264", "-preset", "veryfast", "-b:v", bitrate, "-bf", "0", "-g", "30"]
    command = [ffmpeg(), "-v", "error", "-y", "-f", "lavfi", "-i", picture, *encoder, "-f", "mpegts", str(path)]
    subprocess.run(command, check=True)
    return path


@contextmanager
def senders(source: Path, streams: int) -> Iterator[None]:
    """One FFmpeg per stream that sends the source again and again, at its own pace."""
    running = []
    try:
        for number in range(streams):
            target = f"udp://127.0.0.1:{FIRST_PORT + 2 * number}?pkt_size=1316"
            command = [ffmpeg(), "-v", "error", "-re", "-stream_loop", "-1", "-i", str(source), "-c", "copy"]
            running.append(subprocess.Popen([*command, "-f", "mpegts", target], stdin=subprocess.DEVNULL))
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


# -- ours ----------------------------------------------------------------------------------------------------------


def measure(folder: Path, source: Path, streams: int, seconds: float) -> dict[str, Any]:
    """Run the platform for that long and look at it."""
    state = folder / "state"
    log = (folder / "up.log").open("w")
    command = [str(OBSERVATORY), "up", "--no-pipeline", "--port", "0", "--queue-frames", str(QUEUE_FRAMES)]
    with senders(source, streams):
        up = subprocess.Popen([*command, "--state", str(state)], stdin=subprocess.DEVNULL, stderr=log)
        try:
            client = connect(state)
            for number in range(streams):
                submit(folder, state, number)
            samples, last = watch(client, psutil.Process(up.pid), seconds)
            paints = first_paints(last["platform"]["url"])
        finally:
            up.terminate()
            up.wait(60)
    if up.returncode:
        raise SystemExit(f"the platform ended with code {up.returncode}: {(folder / 'up.log').read_text()[-2000:]}")
    return {
        "streams": streams,
        "seconds": seconds,
        "queue_frames": QUEUE_FRAMES,
        **frames_of(last),
        "stages": stages(state, last),
        "memory": memory(samples),
        "cpu_cores": (samples[-1].cpu_seconds - samples[0].cpu_seconds) / (samples[-1].seconds - samples[0].seconds),
        "first_paint_seconds": paints,
    }


def connect(state: Path) -> ControlClient:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with suppress(NotRunning, Gone):
            client = ControlClient(platform_socket(state))
            client.ask("snapshot")
            return client
        time.sleep(0.1)
    raise SystemExit("the platform does not answer")


def submit(folder: Path, state: Path, number: int) -> None:
    spec = folder / f"live-{number}.yaml"
    url = f"udp://127.0.0.1:{FIRST_PORT + 2 * number}"
    spec.write_text(PIPELINE.format(name=f"live-{number}", url=url, folder=folder / f"hls-{number}"))
    subprocess.run(
        [str(OBSERVATORY), "submit", str(spec), "--state", str(state)], check=True, stdout=subprocess.DEVNULL
    )


def watch(client: ControlClient, platform: psutil.Process, seconds: float) -> tuple[list[Sample], dict[str, Any]]:
    """A sample every few seconds, and the last snapshot."""
    samples: list[Sample] = []
    began = time.monotonic()
    while (now := time.monotonic() - began) < seconds:
        seen = client.ask("snapshot", timeout_seconds=10)
        samples.append(sample(platform, now, seen))
        for pipeline in seen["pipelines"]:
            if pipeline["state"] != "running":
                raise SystemExit(f"{pipeline['name']} {pipeline['state']}: {pipeline['reason']}")
        time.sleep(max(0.0, began + now + SAMPLE_SECONDS - time.monotonic()))
    last = client.ask("snapshot", timeout_seconds=10)
    samples.append(sample(platform, time.monotonic() - began, last))
    return samples, last


def sample(platform: psutil.Process, now: float, snapshot: dict[str, Any]) -> Sample:
    roles = {w["pid"]: w["operator"] for p in snapshot["pipelines"] for w in p["workers"]} | {platform.pid: "platform"}
    memory_bytes, file_bytes, cpu = 0, 0, 0.0
    by_role: dict[str, int] = {}
    for process in [platform, *platform.children(recursive=True)]:
        with suppress(psutil.Error, OSError):
            rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
            kilobytes = {line.split()[0]: int(line.split()[1]) for line in rollup.splitlines()[1:]}
            own = (kilobytes["Pss_Anon:"] + kilobytes["Pss_Shmem:"]) * 1024
            memory_bytes += own
            role = roles.get(process.pid) or ("web" if "observatory.app.web" in process.cmdline() else "nursery")
            by_role[role] = by_role.get(role, 0) + own
            file_bytes += kilobytes["Pss_File:"] * 1024
            times = process.cpu_times()
            cpu += times.user + times.system
    return Sample(now, memory_bytes, file_bytes, cpu, by_role)


def frames_of(snapshot: dict[str, Any]) -> dict[str, Any]:
    streams = [stream for pipeline in snapshot["pipelines"] for stream in pipeline["streams"]]
    return {
        "frames_in": sum(s["frames_in"] for s in streams),
        "frames_done": sum(s["frames_done"] for s in streams),
        "frames_lost": sum(s["frames_lost"] for s in streams),
        "frames_dropped": sum(s["frames_dropped"] for s in streams),
        "discontinuities": sum(s["epoch"] - 1 for s in streams),
        "events_lost": snapshot["store"]["events_lost"],
        "latency_p50_seconds": max(s["latency_p50_seconds"] for s in streams),
        "latency_p99_seconds": max(s["latency_p99_seconds"] for s in streams),
        "latency_max_seconds": max(s["latency_max_seconds"] for s in streams),
        "store_bytes": snapshot["store"]["disk_bytes"],
    }


def stages(state: Path, snapshot: dict[str, Any]) -> dict[str, dict[str, float]]:
    """How long each operator works on a frame: sources from launch to publication, others from launch to release."""
    times: dict[str, list[np.ndarray[Any, Any]]] = {}
    with FrameStore.open(state) as store, store.read() as reader:
        for pipeline in snapshot["pipelines"]:
            info = reader.stream(pipeline["name"])
            assert info is not None
            epoch = pipeline["streams"][0]["epoch"]
            tables = reader.run(info.id, epoch)
            assert tables is not None
            pairs = list(reader.raw_records(info.id, epoch))
            records = stored_to_records([key for key, _ in pairs], [value for _, value in pairs])
            for number, hop in enumerate(tables.hops):
                own = records[records["hop"] == number]["times_ns"]
                times.setdefault(hop.consumer, []).append(interval(own, "CONSUMER_KERNEL_LAUNCH", "SLOT_RELEASE"))
                if hop.producer == "decode":
                    times.setdefault(hop.producer, []).append(interval(own, "PRODUCER_KERNEL_LAUNCH", "FENCE_SIGNAL"))
    joined = {name: np.concatenate(parts) for name, parts in times.items()}
    return {
        name: {"p50": float(np.quantile(all_, 0.5)), "p99": float(np.quantile(all_, 0.99)), "mean": float(all_.mean())}
        for name, all_ in joined.items()
    }


def interval(times: np.ndarray[Any, Any], first: str, last: str) -> np.ndarray[Any, Any]:
    begin, end = times[:, EventKind[first]], times[:, EventKind[last]]
    known = (begin != UNKNOWN_I64) & (end != UNKNOWN_I64)
    seconds: np.ndarray[Any, Any] = (end - begin)[known] / 1e9
    return seconds


def memory(samples: Sequence[Sample]) -> dict[str, Any]:
    """Memory once it has settled, at the end, and the slope of the line through all in between."""
    settled = [s for s in samples if s.seconds >= min(SETTLE_SECONDS, samples[-1].seconds / 3)]
    quarter = max(1, len(settled) // 4)
    seconds = [s.seconds for s in settled]
    slope = statistics.linear_regression(seconds, [s.memory_bytes for s in settled]).slope
    return {
        "first_bytes": statistics.median(s.memory_bytes for s in settled[:quarter]),
        "last_bytes": statistics.median(s.memory_bytes for s in settled[-quarter:]),
        "bytes_per_minute": slope * 60,
        "file_pages_bytes": settled[-1].file_bytes,
        "by_role": {
            role: {"first_bytes": settled[0].by_role.get(role), "last_bytes": settled[-1].by_role.get(role)}
            for role in settled[-1].by_role
        },
    }


def first_paints(url: str) -> dict[str, dict[str, float]]:
    """First contentful paint of each page, in a new browser context each time, while the streams go on."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        return {}
    found: dict[str, dict[str, float]] = {}
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        for page_path in PAGES:
            paints = []
            for _ in range(PAINTS):
                context = browser.new_context(viewport={"width": 1280, "height": 800})
                page = context.new_page()
                page.goto(url + page_path)
                page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length > 0")
                entry = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
                paints.append(page.evaluate(entry) / 1e3)
                context.close()
            found[page_path] = {"median": statistics.median(paints), "min": min(paints), "max": max(paints)}
        browser.close()
    return found


# -- the peer ------------------------------------------------------------------------------------------------------


def measure_peer(folder: Path, source: Path, streams: int, seconds: float) -> dict[str, Any]:
    """FFmpeg on the same streams: its CPU time. It keeps no record of latency."""
    jobs = []
    with senders(source, streams):
        for number in range(streams):
            out = folder / f"peer-{number}"
            out.mkdir()
            given = ["-i", f"udp://127.0.0.1:{FIRST_PORT + 2 * number}?fifo_size=50000", "-vf", "scale=640:360"]
            encoder = ["-c:v", "libx264", "-preset", "ultrafast", "-tune", "zerolatency", "-threads", "1"]
            rate = ["-b:v", "800k", "-force_key_frames", "expr:gte(t,n_forced*2)"]
            package = ["-f", "hls", "-hls_time", "2", "-hls_list_size", "6", "-hls_flags", "delete_segments"]
            command = [ffmpeg(), "-v", "fatal", *given, *encoder, *rate, *package, str(out / "index.m3u8")]
            jobs.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))
        time.sleep(5)
        before = sum(psutil.Process(job.pid).cpu_times()[0] + psutil.Process(job.pid).cpu_times()[1] for job in jobs)
        time.sleep(seconds)
        after = sum(psutil.Process(job.pid).cpu_times()[0] + psutil.Process(job.pid).cpu_times()[1] for job in jobs)
        for job in jobs:
            job.kill()
            job.wait()
    return {"seconds": seconds, "cpu_cores": (after - before) / seconds}


def table(r: dict[str, Any]) -> str:
    """The results as Markdown."""
    slowest, times = max(r["stages"].items(), key=lambda item: item[1]["p99"])
    bound = (r["queue_frames"] + 2) * times["p99"]
    memory_ = r["memory"]
    rows = [
        f"{r['streams']} streams, 1080p30 in, 640x360 out, {r['seconds'] / 60:g} minutes:",
        "",
        "| what | measured | goal |",
        "|---|---|---|",
        f"| frames in, through every hop | {r['frames_in']}, {r['frames_done']} | |",
        f"| lost, dropped, discontinuities | {r['frames_lost']}, {r['frames_dropped']}, {r['discontinuities']} | 0 |",
        f"| latency p50 | {r['latency_p50_seconds'] * 1e3:.1f} ms | |",
        f"| **latency p99** | **{r['latency_p99_seconds'] * 1e3:.1f} ms** | 200 ms, and {bound * 1e3:.0f} ms "
        f"= ({r['queue_frames']} + 2) x the slowest stage |",
        f"| slowest stage: {slowest}, p50 / p99 | {times['p50'] * 1e3:.1f} / {times['p99'] * 1e3:.1f} ms | |",
        f"| memory of all processes (anonymous and shared), after a minute / at the end "
        f"| {memory_['first_bytes'] / 1e6:.0f} / "
        f"{memory_['last_bytes'] / 1e6:.0f} MB ({memory_['bytes_per_minute'] / 1e6:+.2f} MB a minute) | flat |",
        f"| CPU, of {r['streams']} FFmpeg processes on the same work | {r['cpu_cores']:.2f} cores, "
        f"{r['peer']['cpu_cores']:.2f} cores (ratio {r['cpu_cores'] / r['peer']['cpu_cores']:.2f}) | |",
    ]
    for page, paint in r["first_paint_seconds"].items():
        rows.append(
            f"| first paint of `{page}` | {paint['median']:.2f} s ({paint['min']:.2f}-{paint['max']:.2f}) | 1.5 s |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
