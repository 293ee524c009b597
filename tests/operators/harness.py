"""Runs one operator in this process on real rings, and strings operators together.

A `Bench` is what a worker is to an operator: it feeds inputs through a ring per edge and collects what comes out. The
pools are as small as the operators' contracts allow, so an operator that holds more than it says stops its test.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from pydantic import JsonValue

from dataplane._ring import (
    Descriptor,
    EventRing,
    ReadLease,
    RingConsumer,
    RingEnded,
    RingProducer,
    SizeClass,
    Trace,
    WriteLease,
    publish_together,
)
from dataplane.operators.base import MOST_CHECKPOINT_BYTES, Operator, OutputPort, Resume, SourceRequest, Write
from dataplane.operators.formats import plane_layout
from observatory.model.media import AudioFormat, PacketFormat, PayloadKind, PixelFormat, PortFormat, VideoFormat

CLIPS = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "video"


def clip(name: str) -> Path:
    """One of the real clips; skips the test where they are not."""
    path = CLIPS / name
    if not path.exists():
        pytest.skip(f"the clip {path} is not here")
    return path.resolve()


@dataclass(frozen=True)
class Payload:
    """One published payload, copied out of its slot."""

    descriptor: Descriptor
    data: npt.NDArray[np.uint8]

    @property
    def pts(self) -> int:
        return self.descriptor.pts

    @property
    def kind(self) -> int:
        return self.descriptor.payload_kind

    def planes(self) -> list[npt.NDArray[np.integer]]:
        """Y, U and V samples of a raw frame."""
        said = self.descriptor
        return plane_layout(PixelFormat(said.pixel_format), said.width, said.height).sample_views(self.data)


class _Edge:
    """A ring with one producer and one consumer."""

    def __init__(self, sizes: list[SizeClass]) -> None:
        capacity = max(8, sum(size.slot_count for size in sizes))
        self.producer = RingProducer(capacity=capacity, size_classes=sizes)
        # As in a run: descriptors carry all their times only where the port is traced. Nobody reads these events.
        self.producer.trace(Trace(EventRing.create(64), 1, 1, 0, 0))
        self.consumer = RingConsumer()
        self.producer.admit(self.consumer.page_fd, "block")
        slot_bytes = [size.slot_bytes for size in self.producer.size_classes]
        self.consumer.attach(self.producer.ring_fd, self.producer.slab_fds, slot_bytes)

    def close(self) -> None:
        self.consumer.close()
        self.producer.close()


@dataclass
class Bench:
    """One operator and its surroundings; `out` and the lists tell what it did."""

    kind: type[Operator]
    params: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, PortFormat] = field(default_factory=dict)
    source: SourceRequest = field(default_factory=SourceRequest)
    start_seconds: float = 0.0
    ports: tuple[str, ...] = ("video", "audio")  # those that are connected
    name: str = "bench"

    def __post_init__(self) -> None:
        parameters = self.kind.Params.model_validate(dict(self.params))
        self.lost_frames: list[tuple[int | None, int | None, str]] = []
        self.warnings: list[str] = []
        self.files: list[tuple[str, int]] = []
        self.scratches: list[str] = []
        self.counted = 0
        self.waits: list[bool] = []
        self.epochs: list[tuple[str, int]] = []
        self.stopping = threading.Event()
        self.resume: Resume | None = None
        self.state: Mapping[str, JsonValue] | None = None  # as given to `checkpoint` last
        self._collected: dict[str, list[Payload]] = {}
        self.probe = self.kind.probe(parameters, self.source) if self.kind.source else None
        if self.probe is not None:
            self.start_seconds = self.probe.start_seconds
        made = self.probe.outputs if self.probe else self.kind.output(parameters, list(self.inputs.values()))
        self.outputs: Mapping[str, OutputPort] = {port.name: port for port in made if port.name in self.ports}
        self._out = {name: _Edge([_size(s) for s in port.slots]) for name, port in self.outputs.items()}
        held = self.kind.contract(parameters).held_frames
        self._in = {edge: _Edge(_input_sizes(form, held)) for edge, form in self.inputs.items()}
        self.operator = self.kind(parameters)
        self.operator.open(self)

    # -- dataplane.operators.base.Context --------------------------------------------------------------------------

    def acquire(self, payload_bytes: int, port: str = "video") -> WriteLease:
        self._collect()
        lease = self._out[port].producer.acquire(payload_bytes, 0.0)
        assert lease is not None, f"{self.kind.op} holds every slot of its own port {port}"
        return lease

    def publish_together(self, writes: Sequence[Write]) -> int:
        leases, descriptors, sizes = zip(*writes, strict=True)
        return publish_together(leases, descriptors, sizes)

    def checkpoint(self, state: Mapping[str, JsonValue]) -> None:
        text = json.dumps(dict(state))
        assert len(text) <= MOST_CHECKPOINT_BYTES
        self.state = json.loads(text)

    def lost(self, source_index: int | None, pts: int | None, reason: str) -> None:
        self.lost_frames.append((source_index, pts, reason))

    def warn(self, message: str) -> None:
        if message not in self.warnings:
            self.warnings.append(message)

    def scratch(self, path: str) -> None:
        self.scratches.append(path)

    def finished_output(self, path: str, frames: int, by_edge: Mapping[str, int]) -> None:
        self.files.append((path, frames))

    def count_frame(self) -> None:
        self.counted += 1

    def source_waits(self, waiting: bool) -> None:
        self.waits.append(waiting)

    def begin_epoch(self, reason: str, pts_offset: int) -> int:
        self.epochs.append((reason, pts_offset))
        return 1 + len(self.epochs)

    # -- driving ---------------------------------------------------------------------------------------------------

    def feed(self, payload: Payload, edge: str | None = None) -> dict[str, list[Payload]]:
        """Give one payload to the operator; what it published by then, per port."""
        name = edge if edge is not None else next(iter(self.inputs))
        ring = self._in[name]
        if payload.kind == PayloadKind.FRAME_LOST:
            ring.producer.publish_empty(_copy(payload.descriptor), 0.0)
        else:
            size = payload.data.size
            slot = ring.producer.acquire(size, 0.0)
            assert slot is not None, f"{self.kind.op} holds more inputs than its contract says"
            slot.array[:size] = payload.data
            slot.publish(_copy(payload.descriptor), size)
        lease = ring.consumer.take(0.0)
        assert lease is not None
        self.operator.process(self.handed(lease), name, self)
        return self.taken()

    def handed(self, lease: ReadLease) -> ReadLease:
        """What the operator gets of an input."""
        return lease

    def consumer_acked(self) -> int:
        """Payloads of the only input that the operator has acknowledged."""
        (ring,) = self._in.values()
        return ring.consumer.acked

    def go_on(self, resume: Resume) -> None:
        """The operator continues what others did."""
        self.resume = resume
        self.operator.continue_from(resume, self)

    def steps(self) -> Iterator[dict[str, list[Payload]]]:
        """Run a source; what it published, step by step."""
        while self.operator.step(self):
            yield self.taken()
        yield self.finish()

    def finish(self) -> dict[str, list[Payload]]:
        """End all inputs, flush, close; what came out then."""
        for edge in self.inputs:
            self.operator.ended(edge, self)
        self.operator.flush(self)
        self.operator.close()
        for ring in self._in.values():
            assert ring.producer.outstanding == 0, f"{self.kind.op} did not release its inputs"
        for ring in self._out.values():
            ring.producer.finish()
        last = self.taken()
        self.close()
        return last

    def close(self) -> None:
        for ring in (*self._in.values(), *self._out.values()):
            ring.close()

    def taken(self) -> dict[str, list[Payload]]:
        """Everything published since the last call, per port."""
        self._collect()
        collected, self._collected = self._collected, {}
        return collected

    def format(self, port: str = "video") -> PortFormat:
        return self.outputs[port].format

    def _collect(self) -> None:
        for name, ring in self._out.items():
            while True:
                try:
                    lease = ring.consumer.take(0.0)
                except RingEnded:
                    break
                if lease is None:
                    break
                payload = Payload(lease.descriptor, lease.array.copy())
                _check_times(payload.descriptor)
                lease.release()
                self._collected.setdefault(name, []).append(payload)


def run(bench: Bench, payloads: Iterable[Payload] = ()) -> list[Payload]:
    """Run a whole operator with one input (or a source); everything on port "video"."""
    found: list[Payload] = []
    if bench.kind.source:
        for step in bench.steps():
            found += step.get("video", [])
        return found
    for payload in payloads:
        found += bench.feed(payload).get("video", [])
    return found + bench.finish().get("video", [])


def _copy(said: Descriptor) -> Descriptor:
    return Descriptor(
        payload_kind=said.payload_kind,
        source_index=said.source_index,
        pts=said.pts,
        dts=said.dts,
        duration=said.duration,
        time_base=said.time_base,
        stream_index=said.stream_index,
        pixel_format=said.pixel_format,
        width=said.width,
        height=said.height,
        planes=said.planes,
        color=said.color,
        sample_aspect=said.sample_aspect,
        flags=said.flags,
        epoch=said.epoch,
    )


def _check_times(said: Descriptor) -> None:
    if said.payload_kind in (PayloadKind.VIDEO_FRAME, PayloadKind.VIDEO_PACKET):
        assert 0 < said.alloc_ns <= said.launch_ns <= said.signal_ns


def _size(slot_class: Any) -> SizeClass:
    return SizeClass(slot_class.slot_bytes, slot_class.slot_count)


def _input_sizes(form: PortFormat, held: int) -> list[SizeClass]:
    match form:
        case VideoFormat():
            return [SizeClass(form.bytes_per_frame, held)]
        case PacketFormat():
            return [SizeClass(16384, 4), SizeClass(form.largest_packet_bytes, 2)]
        case AudioFormat():
            return [SizeClass(65536, 4)]
