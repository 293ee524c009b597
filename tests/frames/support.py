"""Runs made up by hand: a small ladder, its manifest, and records with times that can be worked out on paper."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from observatory.frames.store import FrameStore, StreamRun
from observatory.model.kinds import UNKNOWN_I64, EventKind
from observatory.model.manifest import ClockAnchor, HopEntry, PortEntry, RunManifest, StreamEntry
from observatory.model.media import PixelFormat, TimeBase, VideoFormat
from observatory.model.pipeline import Edge, OperatorNode, Pipeline
from observatory.model.record import RECORD_DTYPE

ROOT = Path(__file__).resolve().parents[2]
MS = 1_000_000

# decode feeds two branches; the operators are written so that the hops of the manifest are not in the DAG's order.
EDGES = (("hd", "enc"), ("decode", "sd"), ("decode", "hd"), ("enc", "mux"))
OPERATORS = ("decode", "hd", "sd", "enc", "mux")
DEVICES = ("n0/cpu0", "n0/gpu0", "n0/gpu1")


def manifest(
    runs: Sequence[StreamRun],
    *,
    run_id: str = "run-1",
    edges: Sequence[tuple[str, str]] = EDGES,
    operators: Sequence[str] = OPERATORS,
    time_base: tuple[int, int] = (1, 25),
) -> RunManifest:
    """One pipeline per stream, all alike; with several streams the operators' names get the stream's as a prefix."""
    base = TimeBase(num=time_base[0], den=time_base[1])
    form = VideoFormat(width=640, height=360, pixel_format=PixelFormat.YUV420P, time_base=base)
    ports: list[PortEntry] = []
    hops: list[HopEntry] = []
    nodes: list[OperatorNode] = []
    streams: list[StreamEntry] = []
    for run in runs:
        prefix = f"{run.name.replace('/', '.')}." if len(runs) > 1 else ""
        for name in operators:
            inputs = tuple(prefix + a for a, b in edges if b == name)
            nodes.append(OperatorNode(name=prefix + name, op="any", inputs=inputs))
        numbers: dict[str, int] = {}
        for producer, consumer in edges:
            if producer not in numbers:
                numbers[producer] = len(ports)
                ports.append(PortEntry(operator=prefix + producer, port="video", stream=run.id))
            edge = Edge(producer=prefix + producer, port="video", consumer=prefix + consumer, format=form)
            hops.append(
                HopEntry(
                    edge=edge,
                    port=numbers[producer],
                    producer_device=1,
                    consumer_device=2,
                    producer_real_device=0,
                    consumer_real_device=0,
                )
            )
        streams.append(
            StreamEntry(
                name=run.name,
                id=run.id,
                epoch=run.epoch,
                source_operator=prefix + operators[0],
                input="testsrc2",
                time_base=base,
            )
        )
    return RunManifest(
        run_id=run_id,
        host="here",
        software_version="0",
        started=ClockAnchor(monotonic_ns=1_000, realtime_ns=2_000_000_001_000),
        pipeline=Pipeline(name="ladder", operators=tuple(nodes)),
        decision_id="d",
        topology_name="t",
        streams=tuple(streams),
        devices=DEVICES,
        ports=tuple(ports),
        hops=tuple(hops),
    )


def begin(store: FrameStore, *names: str, run_id: str = "run-1", **options: Any) -> list[StreamRun]:
    """A new run of these streams, its manifest saved."""
    runs = store.begin_run(names or ("ladder",))
    store.save_manifest(manifest(runs, run_id=run_id, **options))
    return runs


def record(run: StreamRun, index: int, hop: int, **fields: Any) -> npt.NDArray[np.void]:
    """One record. `times` maps event kinds to milliseconds; the others are unknown. PTS is the index unless given."""
    one = np.zeros(1, RECORD_DTYPE)
    times: Mapping[EventKind, float] = fields.pop("times", {})
    values: dict[str, Any] = {
        "stream": run.id,
        "epoch": run.epoch,
        "source_index": index,
        "hop": hop,
        "pts": index,
        "time_base_num": 1,
        "time_base_den": 25,
        "slot": 3,
        "bytes": 345_600,
        "producer_device": 1,
        "consumer_device": 2,
        "version": 1,
        **fields,
    }
    for name, value in values.items():
        one[name] = value
    one["times_ns"] = UNKNOWN_I64
    for kind, milliseconds in times.items():
        one["times_ns"][0, kind] = round(milliseconds * MS)
    return one


def life(start: float, work: float, wait: float, consume: float) -> dict[EventKind, float]:
    """Times (ms) of a whole hop: launched 1 ms after the slot was there, at `start`."""
    signal = start + work
    return {
        EventKind.DMA_BUF_ALLOC: start - 1,
        EventKind.PRODUCER_KERNEL_LAUNCH: start,
        EventKind.FENCE_SIGNAL: signal,
        EventKind.CONSUMER_WAIT_FENCE: signal - 0.5,
        EventKind.CONSUMER_KERNEL_LAUNCH: signal + wait,
        EventKind.SLOT_RELEASE: signal + wait + consume,
    }


def whole_frame(run: StreamRun, index: int, *, at: float | None = None, **fields: Any) -> npt.NDArray[np.void]:
    """All four hops of the ladder. From the first launch (ms 0) to the last release it takes 13 ms:

    decode works 0-2, hd 3-6; hd's output waits 4, enc has it from 10 to 11; its packet waits 1, mux has it 12-13.
    """
    start = 100.0 + 40 * index if at is None else at
    return np.concatenate(
        [
            record(run, index, 2, times=life(start, 2, 1, 3), **fields),  # decode->hd
            record(run, index, 1, times=life(start, 2, 0.25, 0.75), **fields),  # decode->sd
            record(run, index, 0, times=life(start + 3, 3, 4, 1), **fields),  # hd->enc
            record(run, index, 3, times=life(start + 10, 1, 1, 1), **fields),  # enc->mux
        ]
    )


WHOLE_FRAME_SECONDS = 0.013


def python(script: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    """A process of its own that runs `script`; `sys.argv[1:]` are the arguments."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )
