"""Made-up runs for the benchmarks of the frame store: many streams, six hops each, plausible times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from observatory.frames.store import StreamRun
from observatory.model.kinds import UNKNOWN_I64, EventKind
from observatory.model.manifest import ClockAnchor, HopEntry, PortEntry, RunManifest, StreamEntry
from observatory.model.media import PixelFormat, TimeBase, VideoFormat
from observatory.model.pipeline import Edge, OperatorNode, Pipeline
from observatory.model.record import RECORD_DTYPE

OPERATORS = ("decode", "hd", "sd", "enc-hd", "enc-sd", "mux")
EDGES = (
    ("decode", "hd"),
    ("decode", "sd"),
    ("hd", "enc-hd"),
    ("sd", "enc-sd"),
    ("enc-hd", "mux"),
    ("enc-sd", "mux"),
)
HOPS = len(EDGES)
TICKS = 512  # per frame, at 1/12800: 25 frames/s
TIME_BASE = TimeBase(num=1, den=12800)


def manifest(runs: Sequence[StreamRun], run_id: str = "benchmark") -> RunManifest:
    """One run with a ladder of `HOPS` hops per stream; hop h of stream number s is s * HOPS + h."""
    form = VideoFormat(width=1280, height=720, pixel_format=PixelFormat.YUV420P, time_base=TIME_BASE)
    nodes: list[OperatorNode] = []
    ports: list[PortEntry] = []
    hops: list[HopEntry] = []
    for run in runs:
        for name in OPERATORS:
            inputs = tuple(f"{run.name}.{a}" for a, b in EDGES if b == name)
            nodes.append(OperatorNode(name=f"{run.name}.{name}", op=name, inputs=inputs))
        numbers: dict[str, int] = {}
        for producer, consumer in EDGES:
            if producer not in numbers:
                numbers[producer] = len(ports)
                ports.append(PortEntry(operator=f"{run.name}.{producer}", port="video", stream=run.id))
            edge = Edge(producer=f"{run.name}.{producer}", port="video", consumer=f"{run.name}.{consumer}", format=form)
            hops.append(
                HopEntry(
                    edge=edge,
                    port=numbers[producer],
                    producer_device=0,
                    consumer_device=1,
                    producer_real_device=2,
                    consumer_real_device=2,
                )
            )
    return RunManifest(
        run_id=run_id,
        host="benchmark",
        software_version="0",
        started=ClockAnchor(monotonic_ns=0, realtime_ns=0),
        pipeline=Pipeline(name="benchmark", operators=tuple(nodes)),
        decision_id="",
        topology_name="",
        streams=tuple(
            StreamEntry(
                name=run.name,
                id=run.id,
                epoch=run.epoch,
                source_operator=f"{run.name}.decode",
                input="synthetic",
                time_base=TIME_BASE,
            )
            for run in runs
        ),
        devices=("n0/gpu0", "n0/gpu1", "n0/cpu0"),
        ports=tuple(ports),
        hops=tuple(hops),
    )


def batch(runs: Sequence[StreamRun], first: int, frames: int, random: np.random.Generator) -> npt.NDArray[np.void]:
    """Records of `frames` frames of every stream from source index `first` on, frame by frame as they would come."""
    streams = len(runs)
    count = frames * streams * HOPS
    records = np.zeros(count, RECORD_DTYPE)
    stream = np.tile(np.repeat(np.arange(streams), HOPS), frames)
    hop = np.tile(np.arange(HOPS), frames * streams)
    index = np.repeat(np.arange(first, first + frames), streams * HOPS)
    records["stream"] = np.array([run.id for run in runs], np.uint32)[stream]
    records["epoch"] = runs[0].epoch
    records["source_index"] = index
    records["hop"] = stream * HOPS + hop
    records["pts"] = index * TICKS
    records["time_base_num"], records["time_base_den"] = TIME_BASE.num, TIME_BASE.den
    records["slot"] = index % 8
    records["bytes"] = np.where(hop < 4, 1_382_400, 12_000)
    records["producer_device"], records["consumer_device"] = 0, 1
    records["producer_real_device"] = records["consumer_real_device"] = 2
    records["version"] = 1
    steps = random.lognormal(13, 0.5, (count, 6)).astype(np.int64)  # medians of 0.44 ms
    kinds = [kind for kind in EventKind if kind not in (EventKind.LINK_START, EventKind.LINK_END)]
    start = index * 40_000_000 + hop * 1_000_000 + 10**9
    records["times_ns"] = UNKNOWN_I64
    records["times_ns"][:, kinds] = start[:, None] + np.cumsum(steps, axis=1)
    return records


def events_of(run: StreamRun, frames: int, manifest_: RunManifest) -> list[dict[str, Any]]:
    """Arguments of `EventRing.emit`, six events per hop, as the processes of one stream would emit them."""
    found: list[dict[str, Any]] = []
    base = (TIME_BASE.num, TIME_BASE.den)
    for index in range(frames):
        for number, hop in enumerate(manifest_.hops):
            for kind, place in ((0, hop.port), (1, hop.port), (2, hop.port), (5, number), (6, number), (7, number)):
                found.append(
                    {
                        "kind": kind,
                        "time_ns": 10**9 + index * 40_000_000 + number * 1_000_000 + kind * 100_000,
                        "source_index": index,
                        "pts": index * TICKS,
                        "time_base": base,
                        "stream": run.id,
                        "epoch": run.epoch,
                        "place": place,
                        "slot": index % 8,
                        "bytes": 1_382_400,
                        "device": 2,
                    }
                )
    return found
