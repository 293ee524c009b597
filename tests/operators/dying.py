"""Runs a sink that is killed again and again, on real rings, and gives back what is left in the end.

Death comes at a chosen effect: a write, a rename, an acknowledgement, a message to the supervisor: between two of these
nothing can be seen from outside. A write may also be cut in its middle. What a dead instance had not acknowledged comes
again, in order within each edge.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np
from pydantic import JsonValue

from dataplane._ring import Descriptor, ReadLease, RingConsumer, RingProducer, SizeClass
from dataplane.operators.base import MOST_CHECKPOINT_BYTES, Loss, Operator, OutputPort, Resume, SourceRequest
from observatory.model.media import PortFormat
from tests.operators.harness import Payload

SLOTS = 4  # of an edge: an operator that keeps more than that unacknowledged stops its test


PROCESSES = multiprocessing.get_context("forkserver")  # of one thread: a fork of this process might inherit a lock
PROCESSES.set_forkserver_preload(["dataplane.operators.mux", "dataplane.operators.package", "tests.operators.dying"])


def _nothing() -> None:
    pass


def _live(world: World, acked: dict[str, int], packed: list[tuple[str, bytes, bytes]]) -> None:
    """One instance, in a process of its own."""
    world.script = [(e, Payload(Descriptor.from_bytes(d), np.frombuffer(data, np.uint8))) for e, d, data in packed]
    world.acked = acked
    _Life(world, Fate()).run("died")


class Died(BaseException):
    """SIGKILL."""


@dataclass
class Fate:
    """Counts effects; death comes at number `at` (from 0 on; None: never), torn: within the write."""

    at: int | None = None
    torn: bool = False
    count: int = 0
    names: list[str] = field(default_factory=list)

    def meets(self, name: str) -> bool:
        """Whether this effect is the last one."""
        self.names.append(name)
        self.count += 1
        return self.at is not None and self.count > self.at

    def effect(self, name: str) -> None:
        """An effect that happens or does not."""
        if self.meets(name):
            raise Died(name)


class _Lease:
    """A lease whose release is an effect."""

    def __init__(self, lease: ReadLease, fate: Fate, released: Callable[[], None]) -> None:
        self._lease, self._fate, self._released = lease, fate, released

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lease, name)

    def release(self) -> None:
        self._fate.effect("release")
        self._lease.release()
        self._released()


@dataclass
class World:
    """What outlives an instance: the supervisor's knowledge, and what edges still have to deliver."""

    kind: type[Operator]
    params: Mapping[str, Any]
    inputs: Mapping[str, PortFormat]
    script: Sequence[tuple[str, Payload]]
    start_seconds: float = 0.0
    shuffle: random.Random | None = None
    state: Mapping[str, JsonValue] | None = None
    losses: list[Loss] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    outputs: list[tuple[str, int]] = field(default_factory=list)
    scratches: set[str] = field(default_factory=set)
    counted: int = 0  # by the last instance
    lives: int = 0
    after_each: Callable[[], None] = _nothing
    log: Path | None = None  # of instances that are processes: what they have told

    def __post_init__(self) -> None:
        self.acked = dict.fromkeys(self.inputs, 0)

    def tell(self, what: str, *said: Any) -> None:
        """Something that outlives the instance."""
        if self.log is None:
            self._hear(what, *json.loads(json.dumps(said)))
            return
        with self.log.open("ab", buffering=0) as stream:
            stream.write(json.dumps([what, *said]).encode() + b"\n")

    def _hear(self, what: str, *said: Any) -> None:
        match what:
            case "checkpoint":
                (self.state,) = said
            case "lost":
                self.losses.append(Loss(*said))
            case "warning" if said[0] not in self.warnings:
                self.warnings.append(said[0])
            case "scratch":
                self.scratches.add(said[0])
            case "output":
                self.outputs.append((said[0], said[1]))
            case "acked":
                self.acked[said[0]] = said[1]
            case "counted":
                (self.counted,) = said

    def live_in_a_process(self, folder: Path, seconds: float | None) -> bool:
        """One instance in a process of its own, killed after some seconds (None: never); whether it came to its end."""
        self.lives += 1
        self.log = folder / f"log-{self.lives}"
        self.log.write_bytes(b"")
        packed = [(edge, payload.descriptor.to_bytes(), payload.data.tobytes()) for edge, payload in self.script]
        process = PROCESSES.Process(
            target=_live, args=(replace(self, after_each=_nothing, script=[]), self.acked, packed)
        )
        process.start()
        if seconds is not None:
            time.sleep(seconds)
            process.kill()
        process.join()
        status = process.exitcode
        process.close()
        assert status in (0, -signal.SIGKILL)
        for line in self.log.read_bytes().splitlines():
            self._hear(*json.loads(line))
        self.log = None
        return status == 0

    def live(self, fate: Fate, how: Literal["died", "migrated"] = "died") -> bool:
        """One instance, to its end (True) or its death."""
        self.lives += 1
        life = _Life(self, fate)
        try:
            with _watched_files(fate):
                life.run(how)
        except Died:
            return False
        finally:
            life.bury()
        return True

    def to_the_end(self, fates: Sequence[Fate]) -> None:
        """One instance for each fate that is met, and one that nothing happens to."""
        for fate in fates:
            if self.live(fate):
                return
        assert self.live(Fate())

    def lost_indices(self) -> list[int | None]:
        return [loss.source_index for loss in self.losses]


class _Life:
    """An instance, and what its worker is to it (dataplane.operators.base.Context)."""

    def __init__(self, world: World, fate: Fate) -> None:
        self._world, self._fate = world, fate
        self.name = "sink"
        self.inputs = world.inputs
        self.outputs: Mapping[str, OutputPort] = {}
        self.source = SourceRequest()
        self.start_seconds = world.start_seconds
        self.stopping = threading.Event()
        self.resume: Resume | None = None
        self.counted = 0
        self._rings = {edge: _ring(world.acked[edge]) for edge in world.inputs}
        self._published = dict(world.acked)
        self._operator = world.kind(world.kind.Params.model_validate(dict(world.params)))

    # -- Context -----------------------------------------------------------------------------------------------------

    def checkpoint(self, state: Mapping[str, JsonValue]) -> None:
        text = json.dumps(dict(state))
        assert len(text) <= MOST_CHECKPOINT_BYTES
        self._fate.effect("checkpoint")
        self._world.tell("checkpoint", json.loads(text))

    def lost(self, source_index: int | None, pts: int | None, reason: str) -> None:
        self._fate.effect("lost")
        self._world.tell("lost", source_index, pts, reason)

    def warn(self, message: str) -> None:
        self._world.tell("warning", message)

    def scratch(self, path: str) -> None:
        self._fate.effect("scratch")
        self._world.tell("scratch", path)

    def finished_output(self, path: str, frames: int, by_edge: Mapping[str, int]) -> None:
        self._fate.effect("finished_output")
        self._world.tell("output", path, frames)

    def count_frame(self) -> None:
        self.counted += 1

    def acquire(self, payload_bytes: int, port: str = "video") -> Any:
        raise NotImplementedError

    def publish_together(self, writes: Any) -> int:
        raise NotImplementedError

    def source_waits(self, waiting: bool) -> None:
        raise NotImplementedError

    def begin_epoch(self, reason: str, pts_offset: int) -> int:
        raise NotImplementedError

    # -- its life ----------------------------------------------------------------------------------------------------

    def run(self, how: Literal["died", "migrated"]) -> None:
        world = self._world
        self._operator.open(self)
        if world.lives > 1:
            self.resume = Resume(world.lives, how, world.state, lost=tuple(world.losses))
            self._operator.continue_from(self.resume, self)
        for edge, payload in self._order():
            self._deliver(edge, payload)
            world.after_each()
        for edge in world.inputs:
            self._operator.ended(edge, self)
        self._operator.flush(self)
        world.tell("counted", self.counted)

    def _order(self) -> Iterator[tuple[str, Payload]]:
        """What is still to come: as scripted, or shuffled between the edges, but for some packets."""
        seen = dict.fromkeys(self._world.inputs, 0)
        left: list[tuple[str, Payload]] = []
        for edge, payload in self._world.script:
            if seen[edge] >= self._world.acked[edge]:
                left.append((edge, payload))
            seen[edge] += 1
        if self._world.shuffle is None:
            yield from left
            return
        queues = {edge: [item for item in left if item[0] == edge] for edge in self._world.inputs}
        while any(queues.values()):
            edge = self._world.shuffle.choice([edge for edge, queue in queues.items() if queue])
            for _ in range(self._world.shuffle.randint(1, 6)):
                if queues[edge]:
                    yield queues[edge].pop(0)

    def _deliver(self, edge: str, payload: Payload) -> None:
        producer, consumer = self._rings[edge]
        size = payload.data.size
        slot = producer.acquire(size, 0.0)
        assert slot is not None, "it holds more inputs than there are slots"
        slot.array[:size] = payload.data
        slot.publish(copied(payload.descriptor), size)
        self._published[edge] += 1
        lease = consumer.take(0.0)
        assert lease is not None
        watched = _Lease(lease, self._fate, lambda: self._acknowledged(edge))
        self._operator.process(watched, edge, self)  # type: ignore[arg-type]

    def _acknowledged(self, edge: str) -> None:
        self._world.tell("acked", edge, self._published[edge] - self._rings[edge][0].outstanding)

    def bury(self) -> None:
        """What the kernel does: descriptors are closed, mappings go, what was acknowledged stays so."""
        self._operator.close()
        for producer, consumer in self._rings.values():
            consumer.close()
            producer.close()


def _ring(first: int) -> tuple[RingProducer, RingConsumer]:
    """An edge that begins with the first payload that was not acknowledged."""
    producer = RingProducer(capacity=8, size_classes=[SizeClass(1 << 18, SLOTS)], first_sequence=first)
    consumer = RingConsumer()
    producer.admit(consumer.page_fd, "block")
    consumer.attach(producer.ring_fd, producer.slab_fds, [size.slot_bytes for size in producer.size_classes])
    return producer, consumer


def copied(said: Descriptor) -> Descriptor:
    """As a producer would say it."""
    return Descriptor(
        payload_kind=said.payload_kind,
        source_index=said.source_index,
        pts=said.pts,
        dts=said.dts,
        duration=said.duration,
        time_base=said.time_base,
        stream_index=said.stream_index,
        flags=said.flags,
        epoch=said.epoch,
    )


@contextmanager
def _watched_files(fate: Fate) -> Iterator[None]:
    """Makes every change of files an effect."""
    pwrite, pwritev, write_bytes = os.pwrite, os.pwritev, Path.write_bytes

    def torn_pwritev(fd: int, parts: Sequence[Any], at: int) -> int:
        if fate.meets("pwritev"):
            whole = b"".join(bytes(part) for part in parts)
            pwrite(fd, whole[: len(whole) // 2] if fate.torn else b"", at)
            raise Died
        return pwritev(fd, parts, at)

    def torn_pwrite(fd: int, data: Any, at: int) -> int:
        if fate.meets("pwrite"):
            pwrite(fd, bytes(data)[: len(data) // 2] if fate.torn else b"", at)
            raise Died
        return pwrite(fd, data, at)

    def torn_write_bytes(path: Path, data: Any) -> int:
        if fate.meets("write_bytes"):
            if fate.torn:
                write_bytes(path, bytes(data)[: len(data) // 2])
            raise Died
        return write_bytes(path, data)

    def effect(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*args: Any, **more: Any) -> Any:
            fate.effect(name)
            return real(*args, **more)

        return call

    patches: dict[str, Any] = {
        name: effect(name) for name in ("ftruncate", "replace", "unlink", "mkdir", "copy_file_range")
    }
    patches |= {"pwritev": torn_pwritev, "pwrite": torn_pwrite}
    with mock.patch.multiple(os, **patches), mock.patch.object(Path, "write_bytes", torn_write_bytes):
        yield
