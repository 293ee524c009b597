"""iceoryx2, multiprocessing's shared memory with queues, and ZeroMQ, each driven the way its users would."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import BaseContext
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmarks.dataplane_ends import NO_PEERS, PAGE_BYTES, SLOTS, Bytes, Receiver, Sender, Transport

# -- iceoryx2 ----------------------------------------------------------------------------------------------------------


class _Iceoryx:
    """What both ends have: a node of an installation of its own, the service for frames, the one for events."""

    def __init__(self, folder: str) -> None:
        import iceoryx2 as iox

        iox.set_log_level(iox.LogLevel.Error)
        config = iox.config.default()
        config.global_cfg.root_path = iox.Path.new(folder)
        config.global_cfg.prefix = iox.FileName.new(_iceoryx_prefix(folder))
        self._node = iox.NodeBuilder.new().config(config).create(iox.ServiceType.Ipc)
        self.frames = (
            self._node.service_builder(iox.ServiceName.new("frames"))
            .publish_subscribe(iox.Slice[ctypes.c_uint8])
            .subscriber_max_buffer_size(SLOTS - 2)
            .subscriber_max_borrowed_samples(1)
            .enable_safe_overflow(False)
            .history_size(0)
            .payload_alignment(iox.Alignment.new(64))
            .open_or_create()
        )
        self.events = self._node.service_builder(iox.ServiceName.new("bell")).event().open_or_create()


class _IceoryxSender:
    def __init__(self, folder: str, frame_bytes: int, rings: bool) -> None:
        import iceoryx2 as iox

        self._services = _Iceoryx(folder)
        self._bytes = frame_bytes
        self._publisher = (
            self._services.frames.publisher_builder()
            .initial_max_slice_len(frame_bytes)
            .max_loaned_samples(1)
            .backpressure_strategy(iox.BackpressureStrategy.RetryUntilDelivered)
            .create()
        )
        self._bell = self._services.events.notifier_builder().create() if rings else None
        self._sample: Any = None

    def frame(self) -> Bytes:
        self._sample = self._publisher.loan_slice_uninit(self._bytes)
        return np.frombuffer(self._sample.payload().as_memory_view(), dtype=np.uint8)

    def send(self) -> None:
        self._sample.assume_init().send()
        if self._bell is not None:
            self._bell.notify()


class _IceoryxReceiver:
    def __init__(self, folder: str, listens: bool) -> None:
        self._services = _Iceoryx(folder)
        self._subscriber = self._services.frames.subscriber_builder().create()
        self._listener = self._services.events.listener_builder().create() if listens else None
        self._sample: Any = None

    def take(self) -> Bytes:
        while (sample := self._subscriber.receive()) is None:
            if self._listener is not None:
                self._listener.blocking_wait()
        self._sample = sample
        return np.frombuffer(sample.payload().as_memory_view(), dtype=np.uint8)

    def done(self) -> None:
        self._sample.delete()


def _iceoryx_prefix(folder: str) -> str:
    return f"{Path(folder).name}_"


class IceoryxEvent(Transport):
    name = "iceoryx2-event"
    words = "iceoryx2, event"
    event: ClassVar[bool] = True

    @classmethod
    def missing(cls) -> str | None:
        return None if importlib.util.find_spec("iceoryx2") else NO_PEERS

    @classmethod
    @contextmanager
    def prepare(cls, context: BaseContext, frame_bytes: int) -> Iterator[tuple[Any, Any]]:
        folder = tempfile.mkdtemp(prefix="observatory-bench-")
        try:
            yield folder, folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            for left in Path("/dev/shm").glob(f"{_iceoryx_prefix(folder)}*"):
                left.unlink(missing_ok=True)

    @classmethod
    def sender(cls, end: Any, frame_bytes: int) -> Sender:
        return _IceoryxSender(end, frame_bytes, cls.event)

    @classmethod
    def receiver(cls, end: Any, frame_bytes: int) -> Receiver:
        return _IceoryxReceiver(end, cls.event)


class IceoryxPolling(IceoryxEvent):
    name = "iceoryx2-polling"
    words = "iceoryx2, polling"
    event = False


# -- multiprocessing ---------------------------------------------------------------------------------------------------


class _Queues:
    """Shared memory for the frames, and queues that say which is free and which is full."""

    def __init__(self, end: Any, frame_bytes: int) -> None:
        names, self._free, self._full = end
        self._memory = [SharedMemory(name) for name in names]
        self._frames = [np.ndarray((frame_bytes,), dtype=np.uint8, buffer=one.buf) for one in self._memory]
        self._index = 0

    def frame(self) -> Bytes:
        self._index = self._free.get()
        return self._frames[self._index]

    def send(self) -> None:
        self._full.put(self._index)

    def take(self) -> Bytes:
        self._index = self._full.get()
        return self._frames[self._index]

    def done(self) -> None:
        self._free.put(self._index)


class SharedMemoryQueue(Transport):
    name = "shared-memory-queue"
    words = "shared_memory + Queue"

    @classmethod
    @contextmanager
    def prepare(cls, context: BaseContext, frame_bytes: int) -> Iterator[tuple[Any, Any]]:
        memory = [SharedMemory(create=True, size=frame_bytes) for _ in range(SLOTS)]
        try:
            free, full = context.Queue(), context.Queue()
            for index in range(SLOTS):
                free.put(index)
            end = ([one.name for one in memory], free, full)
            yield end, end
            free.close()
            full.close()
        finally:
            for one in memory:
                one.close()
                one.unlink()

    @classmethod
    def sender(cls, end: Any, frame_bytes: int) -> Sender:
        return _Queues(end, frame_bytes)

    @classmethod
    def receiver(cls, end: Any, frame_bytes: int) -> Receiver:
        return _Queues(end, frame_bytes)


# -- ZeroMQ ------------------------------------------------------------------------------------------------------------


class _ZmqSender:
    def __init__(self, folder: str, frame_bytes: int) -> None:
        import zmq

        self._socket = zmq.Context().socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, SLOTS - 2)
        self._socket.bind(f"ipc://{folder}/frames")
        self._frames = [np.zeros(frame_bytes, dtype=np.uint8) for _ in range(SLOTS)]
        self._sending: list[Any] = [None] * SLOTS
        self._next = 0
        self._copy = frame_bytes <= PAGE_BYTES

    def frame(self) -> Bytes:
        if (before := self._sending[self._next]) is not None:
            before.wait()
        return self._frames[self._next]

    def send(self) -> None:
        frame = self._frames[self._next]
        self._sending[self._next] = self._socket.send(frame, copy=self._copy, track=not self._copy)
        self._next = (self._next + 1) % SLOTS


class _ZmqReceiver:
    def __init__(self, folder: str) -> None:
        import zmq

        self._socket = zmq.Context().socket(zmq.PULL)
        self._socket.setsockopt(zmq.RCVHWM, SLOTS - 2)
        self._socket.connect(f"ipc://{folder}/frames")
        self._frame: Any = None

    def take(self) -> Bytes:
        self._frame = self._socket.recv(copy=False)
        return np.frombuffer(self._frame.buffer, dtype=np.uint8)

    def done(self) -> None:
        self._frame = None


class Zmq(Transport):
    name = "pyzmq"
    words = "pyzmq, ipc"
    copies = True

    @classmethod
    def missing(cls) -> str | None:
        return None if importlib.util.find_spec("zmq") else NO_PEERS

    @classmethod
    @contextmanager
    def prepare(cls, context: BaseContext, frame_bytes: int) -> Iterator[tuple[Any, Any]]:
        with tempfile.TemporaryDirectory(prefix="observatory-bench-") as folder:
            yield folder, folder

    @classmethod
    def sender(cls, end: Any, frame_bytes: int) -> Sender:
        return _ZmqSender(end, frame_bytes)

    @classmethod
    def receiver(cls, end: Any, frame_bytes: int) -> Receiver:
        return _ZmqReceiver(end)
