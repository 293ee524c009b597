"""A publisher that does what it likes: answers by hand, with a ring that it may write as it pleases."""

from __future__ import annotations

import json
import mmap
import os
import socket
import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from dataplane import _ring
from dataplane.exchange.handshake import PROTOCOL, layouts

from .exchange_stage import FRAME_BYTES, word

SLOTS = 8


def welcome(**other: object) -> dict[str, Any]:
    return {
        "type": "welcome",
        "protocol": PROTOCOL,
        "layouts": layouts(),
        "publisher": "fake",
        "slot_bytes": [FRAME_BYTES],
        "hold": 2,
        "stall_seconds": 5.0,
        "description": {},
        **other,
    }


class FakePublisher:
    """Serves one subscriber at `path`, in a thread.

    Args:
        answer: what it says to the hello; None: nothing at all. Bytes are sent as they are.
        handles: descriptors that go with it (None: those of a real ring and slab).
        admit: whether it lets the subscriber's page in.
    """

    def __init__(
        self,
        path: Path,
        answer: dict[str, Any] | bytes | None = None,
        handles: Sequence[int] | None = None,
        *,
        admit: bool = True,
        close_after: bool = False,
    ) -> None:
        self.producer = _ring.RingProducer(capacity=16, size_classes=[_ring.SizeClass(FRAME_BYTES, SLOTS)])
        self._header = _ring.layouts()["mo_ring_header"]
        self._descriptor = _ring.layouts()["mo_descriptor"]
        size = os.fstat(self.producer.ring_fd).st_size
        self.memory = mmap.mmap(self.producer.ring_fd, size)
        self._answer = answer
        self._handles = [self.producer.ring_fd, *self.producer.slab_fds] if handles is None else list(handles)
        self._admit = admit
        self._close_after = close_after
        self.heard: dict[str, Any] = {}
        self.connection: socket.socket | None = None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        try:
            self.connection, _ = self._listener.accept()
            data, fds, _, _ = socket.recv_fds(self.connection, 1 << 17, 8)
        except OSError:
            return
        if not data:
            return
        self.heard = json.loads(data)
        if self._admit:
            self.producer.admit(fds[0], self.heard["policy"])
        for fd in fds:
            os.close(fd)
        if self._answer is not None:
            answer = self._answer if isinstance(self._answer, bytes) else json.dumps(self._answer).encode()
            socket.send_fds(self.connection, [answer], self._handles)
        if self._close_after:
            self.connection.close()

    def publish(self, index: int) -> int:
        lease = self.producer.acquire(FRAME_BYTES, 0.0)
        assert lease is not None
        lease.array.view(np.uint64)[:] = word(index)
        return lease.publish(_ring.Descriptor(payload_kind=1, source_index=index), FRAME_BYTES)

    def store(self, name: str, value: int) -> None:
        """Write a word of the ring's header."""
        form = "<I" if name in ("magic", "abi", "capacity", "descriptor_bytes", "doorbell", "end_reason") else "<Q"
        struct.pack_into(form, self.memory, self._header["fields"][name], value)

    def load(self, name: str) -> int:
        (value,) = struct.unpack_from("<Q", self.memory, self._header["fields"][name])
        return int(value)

    def damage(self, sequence: int, name: str, value: int, form: str) -> None:
        """Write a field of a descriptor."""
        at = self._header["size"] + (sequence % 16) * self._descriptor["size"] + self._descriptor["fields"][name]
        struct.pack_into(form, self.memory, at, value)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(30.0)
        if self.connection is not None:
            self.connection.close()
        self.producer.close()
