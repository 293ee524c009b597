"""Senders of live streams on loopback, and a way to watch what decode makes of them."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dataplane._ring import Descriptor
from dataplane.errors import Stopped
from dataplane.operators.base import Resume, SourceRequest
from dataplane.operators.decode import Decode
from tests.operators.harness import Bench
from tests.peers import ffmpeg

RATE = 25
STEP = 90_000 // RATE
DATAGRAM = 1316


def free_port(count: int = 1) -> int:
    """The first of `count` UDP ports in a row that nobody uses; even, as RTP wants it."""
    while True:
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            first = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            if port % 2:
                continue
            for other in range(port + 1, port + count):
                trial = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                trial.bind(("127.0.0.1", other))
            return port


class Sender:
    """An FFmpeg that sends a test picture (and a tone) at its own pace, until it is ended."""

    def __init__(
        self,
        target: str,
        form: str = "mpegts",
        *,
        size: str = "160x120",
        audio: bool = False,
        gop: int = 10,
        start: float = 0.0,
        seconds: float = 60.0,
        options: Sequence[str] = (),
    ) -> None:
        sound = ["-f", "lavfi", "-i", "sine=sample_rate=48000"] if audio else []
        command = [
            *(ffmpeg(), "-v", "error", "-re", "-f", "lavfi", "-i", f"testsrc2=size={size}:rate={RATE}", *sound),
            *("-t", str(seconds), "-c:v", "libx264", "-preset", "ultrafast", "-tune", "zerolatency", "-g", str(gop)),
            *("-bsf:v", "dump_extra", "-output_ts_offset", str(start), *options, "-f", form, target),
        ]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def pause(self, seconds: float) -> None:
        """Send nothing for a while."""
        self._process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


@dataclass
class Watched:
    """decode at work in a thread: what it has published so far."""

    bench: Bench
    frames: list[Descriptor] = field(default_factory=list)
    sound: list[Descriptor] = field(default_factory=list)
    planes: list[Any] = field(default_factory=list)
    error: BaseException | None = None
    ended: bool = False
    stopped: bool = False

    def wait(self, until: Callable[[Watched], bool], seconds: float = 20.0) -> None:
        """Until something is seen; fails the test when it does not come."""
        deadline = time.monotonic() + seconds
        while not until(self):
            assert self.error is None, self.error
            assert time.monotonic() < deadline, f"it did not come; {len(self.frames)} frames, {self.bench.warnings}"
            time.sleep(0.02)

    def more(self, count: int, seconds: float = 20.0) -> None:
        """Until so many more frames have come."""
        before = len(self.frames)
        self.wait(lambda seen: len(seen.frames) >= before + count, seconds)

    @property
    def epochs(self) -> list[int]:
        """Of the frames, in order, each once."""
        found: list[int] = []
        for frame in self.frames:
            if not found or found[-1] != frame.epoch:
                found.append(frame.epoch)
        return found

    def first_of(self, epoch: int) -> Descriptor:
        return next(frame for frame in self.frames if frame.epoch == epoch)

    def source_pts(self, frame: Descriptor) -> int:
        """The input's own stamp, as whoever looks a frame up would work it out."""
        return frame.pts - (self.bench.epochs[frame.epoch - 2][1] if frame.epoch else 0)


@contextlib.contextmanager
def watched(
    url: str,
    *,
    address: str | None = None,
    ports: tuple[str, ...] = ("video",),
    resume: Resume | None = None,
    **params: Any,
) -> Iterator[Watched]:
    """Open a live source and decode it in a thread, until the block is left."""
    request = SourceRequest(input=url, address=address)
    quick = {"read_timeout_seconds": 1.0, "open_timeout_seconds": 10.0}
    seen = Watched(Bench(Decode, quick | params, source=request, ports=ports))
    if resume is not None:
        seen.bench.go_on(resume)
    worker = threading.Thread(target=_work, args=(seen,))
    worker.start()
    try:
        yield seen
    finally:
        seen.bench.stopping.set()
        worker.join()
        seen.bench.operator.flush(seen.bench)
        seen.bench.operator.close()
        seen.bench.close()


def _work(seen: Watched) -> None:
    bench = seen.bench
    try:
        while bench.operator.step(bench) and not bench.stopping.is_set():
            _collect(seen)
        seen.ended = True
    except Stopped:
        seen.stopped = True
    except BaseException as error:
        seen.error = error
    _collect(seen)


def _collect(seen: Watched) -> None:
    for port, payloads in seen.bench.taken().items():
        known = [payload.descriptor for payload in payloads]
        if port == "video":
            seen.planes += [payload.planes()[0].mean() for payload in payloads]
            seen.frames += known
        else:
            seen.sound += known


class Relay:
    """Passes datagrams on, changed by `mangle` (None: dropped)."""

    def __init__(self, target: int, mangle: Callable[[bytes], bytes | None]) -> None:
        self._in = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._in.bind(("127.0.0.1", 0))
        self._in.settimeout(0.1)
        self.port: int = self._in.getsockname()[1]
        self._target = ("127.0.0.1", target)
        self._mangle = mangle
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            while not self._ending.is_set():
                with contextlib.suppress(TimeoutError):
                    changed = self._mangle(self._in.recv(65536))
                    if changed is not None:
                        out.sendto(changed, self._target)

    def __enter__(self) -> Relay:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        self._in.close()
