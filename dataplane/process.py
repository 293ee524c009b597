"""Processes as the supervisor sees them: the nursery, and the workers that come from it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dataplane.control import Channel, ControlClosed
from dataplane.errors import WorkerDied

LOG_TAIL_BYTES = 2000


class NurseryProcess:
    """The supervisor's side of the nursery: starts it, asks it for workers, hears of their ends.

    Starting it returns at once; it imports while the caller goes on. A context manager; any thread may ask it.
    """

    def __init__(self) -> None:
        self._channel, theirs = Channel.pair()
        with theirs:
            ends = ["--control-fd", str(theirs.fileno()), "--parent", str(os.getpid())]
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "dataplane.nursery", *ends],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,
                env={"SVT_LOG": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ},
            )
        self._exits: dict[int, int] = {}
        self._lock = threading.Lock()  # one question at a time

    @property
    def alive(self) -> bool:
        """Whether it can still start workers."""
        return self._process.poll() is None

    def spawn(self, control: socket.socket, log: Path, **role: Any) -> tuple[int, int]:
        """Start a worker (or what `role` says, see dataplane.nursery): its pid and pidfd, which is ours to close.

        Raises:
            WorkerDied: the nursery is gone.
        """
        try:
            with self._lock, log.open("wb") as stream:
                self._channel.send("spawn", fds=[control.fileno(), stream.fileno()], **role)
                return self._born()
        except ControlClosed:
            raise WorkerDied(
                f"the process that starts workers (pid {self._process.pid}) {_how(self._process.wait())}",
                mend="SIGKILL without your doing: out of memory?",
            ) from None

    def _born(self) -> tuple[int, int]:
        while True:
            received = self._channel.receive(None)
            if received is None:
                continue
            message, fds = received
            if message["type"] == "born":
                self._exits.pop(message["pid"], None)  # of a worker that had this number before
                return message["pid"], fds[0]
            self._exits[message["pid"]] = message["status"]

    def exit_status(self, pid: int) -> int:
        """The exit status of a worker whose pidfd says that it ended (negative: the signal that killed it)."""
        with self._lock:
            while pid not in self._exits:
                try:
                    received = self._channel.receive(None)
                except ControlClosed:
                    return -signal.SIGKILL  # the nursery was killed, and so the kernel killed its workers
                if received is not None:
                    self._exits[received[0]["pid"]] = received[0]["status"]
            return self._exits.pop(pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the nursery; its workers have ended before."""
        self._channel.close()
        self._process.kill()
        self._process.wait()


def _how(status: int) -> str:
    """How a process with that exit status ended (negative: the signal that killed it)."""
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended by itself with exit code {status}"


class WorkerProcess:
    """A started worker. `state` is starting, running, done, failed or dead."""

    def __init__(self, operator: str, nursery: NurseryProcess, log: Path) -> None:
        self.channel, theirs = Channel.pair()
        try:
            with theirs:
                self.pid, self.pidfd = nursery.spawn(theirs, log)
        except BaseException:
            self.channel.close()
            raise
        self.operator = operator
        self.state = "starting"
        self.restarts = 0
        self.frames = 0
        self.cpu_seconds: float | None = None
        self.listening = True
        self.scratch: list[Path] = []
        self._nursery = nursery
        self._log = log
        self._status: int | None = None  # once it was asked for

    @property
    def alive(self) -> bool:
        """Whether the process is still there."""
        return not self.wait(0.0)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal unless the process is gone."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def wait(self, timeout_seconds: float) -> bool:
        """Wait for the process to end; False after the timeout."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(timeout_seconds * 1000))

    def reap(self) -> str:
        """How a process that has ended did so, in words."""
        if self._status is None:
            self._status = self._nursery.exit_status(self.pid)
        return _how(self._status)

    def log_tail(self) -> str:
        """The last lines of its standard error, on one line."""
        with contextlib.suppress(OSError):
            lines = self._log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").split("\n")
            return " / ".join(line.strip() for line in lines[-4:] if line.strip())
        return ""

    def remove_scratch(self) -> None:
        """Remove the temporary files it had reported."""
        for path in self.scratch:
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Free descriptors; remove a log in which nothing was said."""
        os.close(self.pidfd)
        self.channel.close()
        with contextlib.suppress(OSError):
            if self._log.stat().st_size == 0:
                self._log.unlink()
