"""A publisher, honest readers, and intruders, put together the way the exchange's tests need them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from dataplane import _ring
from dataplane.exchange import Descriptor, Frame, PayloadKind, Publisher
from dataplane.exchange.handshake import PROTOCOL, Policy, layouts

ROOT = Path(__file__).resolve().parents[2]
PEER = Path(__file__).with_name("exchange_peer.py")
FRAME_BYTES = 16 * 1024
PAGE_BYTES = 4096
F_SEAL_FUTURE_WRITE = 0x10
BLOCK: tuple[Policy, ...] = ("block",)
BOTH: tuple[Policy, ...] = ("block", "drop_oldest")


def word(index: int) -> int:
    """What every 8 bytes of a frame say: different for each frame, and nowhere 0."""
    return (index * 0x9E3779B97F4A7C15 + 0x1234567) % 2**64


def publish(out: Publisher, index: int, timeout_seconds: float = 60.0) -> int:
    with out.acquire(timeout_seconds=timeout_seconds) as slot:
        slot.array.view(np.uint64)[:] = word(index)
        descriptor = Descriptor(payload_kind=PayloadKind.VIDEO_FRAME, source_index=index, pts=index, time_base=(1, 25))
        return slot.publish(descriptor, FRAME_BYTES)


def is_whole(frame: Frame) -> bool:
    expected = word(frame.descriptor.source_index)
    return frame.bytes == FRAME_BYTES and bool((frame.array.view(np.uint64) == expected).all())


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait for something that another thread or process does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)


class Peer:
    """A process that plays one of the roles of exchange_peer.py."""

    def __init__(self, role: str, path: Path, *arguments: object) -> None:
        command = [sys.executable, str(PEER), role, str(path), *map(str, arguments)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=ROOT)

    def hears(self, timeout_seconds: float = 60.0) -> dict[str, Any]:
        """The next line it prints."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], timeout_seconds)
        assert ready, "the other process says nothing"
        line = self.process.stdout.readline()
        assert line, f"the other process ended with {self.process.wait(60)}"
        said: dict[str, Any] = json.loads(line)
        return said

    def close(self) -> None:
        self.process.kill()
        self.process.wait(60.0)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def peer(role: str, path: Path, *arguments: object) -> Iterator[Peer]:
    made = Peer(role, path, *arguments)
    try:
        yield made
    finally:
        made.close()


class Stage:
    """A publisher with an honest reader in a process of its own that must get every frame, whatever else happens."""

    def __init__(self, out: Publisher, reader: Peer) -> None:
        self.out = out
        self.reader = reader
        self.reader_pid = reader.process.pid
        self.published = 0

    def publish(self, count: int = 1) -> None:
        for _ in range(count):
            publish(self.out, self.published, timeout_seconds=30.0)
            self.published += 1

    def check(self) -> None:
        """Nobody but the attackers was dismissed; the honest reader got everything, unharmed."""
        assert self.reader_pid in [consumer.pid for consumer in self.out.consumers]
        self.out.close()
        assert self.reader.hears() == {"seen": self.published, "gaps": 0, "torn": 0, "end": "end_of_stream"}

    @property
    def codes(self) -> list[str]:
        return [dismissal.code for dismissal in self.out.dismissals]


@contextmanager
def stage(path: Path, slots: int = 16, stall_seconds: float = 60.0) -> Iterator[Stage]:
    """The honest reader's policy is `block`: it loses nothing, and nothing but itself may make the publisher wait."""
    with (
        Publisher(path, frame_bytes=FRAME_BYTES, slots=slots, grants=BOTH, stall_seconds=stall_seconds) as out,
        peer("read", path, "block") as reader,
    ):
        assert reader.hears() == {"ready": True}
        yield Stage(out, reader)


class ForgedPage:
    """A consumer page as the native core makes it, every word of which its owner may write at any time.

    Args:
        policy: what it says it is for.
        damage: other values for its first words: magic, abi, consumer_pid, policy, page_id.
        seals: added to it, as the core does (None: those).
    """

    def __init__(self, policy: str, /, *, size: int = PAGE_BYTES, seals: int | None = None, **damage: int) -> None:
        layout = _ring.layouts()["mo_consumer_page"]
        self.fd = os.memfd_create("forged", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, max(size, PAGE_BYTES))
        self._map = mmap.mmap(self.fd, PAGE_BYTES)
        fields = {
            "magic": 0x4D4F5047,
            "abi": layout["version"],
            "consumer_pid": os.getpid(),
            "policy": int(policy == "drop_oldest"),
            "page_id": int.from_bytes(os.urandom(8), "little") or 1,
            "taken": 2**64 - 1,
            **damage,
        }
        self.page_id = fields["page_id"]
        for name, value in fields.items():
            size_bytes = 8 if name in ("page_id", "taken") else 4
            struct.pack_into("<Q" if size_bytes == 8 else "<I", self._map, layout["fields"][name], value)
        self.words: npt.NDArray[np.uint64] = np.frombuffer(self._map, np.uint64)
        self._fields = layout["fields"]
        if size < PAGE_BYTES:
            os.ftruncate(self.fd, size)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals_of(policy) if seals is None else seals)

    def store(self, **words: int) -> None:
        """Write some of its 64-bit words: taken, acked, held, page_id."""
        for name, value in words.items():
            self.words[self._fields[name] // 8] = value

    def load(self, name: str) -> int:
        return int(self.words[self._fields[name] // 8])

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def seals_of(policy: str) -> int:
    """Those of a real page."""
    plain = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    return plain | (F_SEAL_FUTURE_WRITE if policy == "block" else 0)


class Intruder:
    """Speaks to a publisher by hand: raw messages, any descriptors, a page that it writes as it likes."""

    def __init__(self, path: str | Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(30.0)
        self.socket.connect(str(path))
        self.handles: list[int] = []
        self.page = ForgedPage("drop_oldest")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()
        self.page.close()
        for fd in self.handles:
            os.close(fd)
        self.handles = []

    def send(self, data: bytes | dict[str, Any], *fds: int) -> None:
        socket.send_fds(self.socket, [data if isinstance(data, bytes) else json.dumps(data).encode()], list(fds))

    def hears(self) -> dict[str, Any]:
        """The next message; {} at the end. Its descriptors are in `handles`."""
        try:
            data, fds, _, _ = socket.recv_fds(self.socket, 1 << 17, 32)
        except ConnectionResetError:
            data, fds, _, _ = socket.recv_fds(self.socket, 1 << 17, 32)
        self.handles += fds
        return json.loads(data) if data else {}

    def hears_now(self, timeout_seconds: float = 0.1) -> dict[str, Any]:
        """What it is told within that time; {} when that is nothing."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return self.hears() if poll.poll(timeout_seconds * 1000) else {}

    def refused(self) -> str:
        """The code of the refusal that comes, and then the end."""
        said = self.hears()
        assert said["type"] == "refused", said
        with contextlib.suppress(ConnectionResetError):
            assert self.hears() == {}
        return str(said["code"])

    def enter(self, policy: str = "drop_oldest", hold: int = 1) -> dict[str, Any]:
        """Be let in, with a page of our own that stays mapped writable."""
        self.page.close()
        self.page = ForgedPage(policy)
        self.send(hello(policy, hold), self.page.fd)
        answer = self.hears()
        assert answer["type"] == "welcome", answer
        return answer

    def dismissed(self) -> bool:
        """Whether the publisher has said so (or is gone)."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(0))


def hello(policy: object = "drop_oldest", hold: object = 1, **other: object) -> dict[str, Any]:
    return {"type": "hello", "protocol": PROTOCOL, "layouts": layouts(), "policy": policy, "hold": hold, **other}
