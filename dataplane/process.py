"""One worker process as its supervisor sees it: pid, pidfd, control channel, log, state."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from dataplane.control import Channel

LOG_TAIL_BYTES = 2000


class WorkerProcess:
    """A started worker. `state` is starting, running, done, failed or dead."""

    def __init__(self, operator: str, process: subprocess.Popen[bytes], channel: Channel, log: Path) -> None:
        self.operator = operator
        self.channel = channel
        self.pid = process.pid
        self.pidfd = os.pidfd_open(process.pid)
        self.state = "starting"
        self.restarts = 0
        self.frames = 0
        self.cpu_seconds: float | None = None
        self.listening = True
        self.scratch: list[Path] = []
        self._process = process
        self._log = log

    @classmethod
    def spawn(cls, operator: str, log: Path) -> WorkerProcess:
        """Start a worker; it shows up with a `hello` on the channel.

        It gets a process group of its own, so that Ctrl-C in a terminal reaches only us, and an interpreter that does
        not look for modules in the current folder (-P: our package names are common words).
        """
        channel, theirs = Channel.pair()
        with theirs, log.open("wb") as errors:
            ends = ["--control-fd", str(theirs.fileno()), "--parent", str(os.getpid())]
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "dataplane.worker", *ends],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                pass_fds=[theirs.fileno()],
                process_group=0,
                env={"SVT_LOG": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ},
            )
        return cls(operator, process, channel, log)

    @property
    def alive(self) -> bool:
        """Whether the process is still there."""
        return self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal unless the process is gone."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)

    def wait(self, timeout_seconds: float) -> bool:
        """Wait for the process to end; False after the timeout."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_seconds)
            return True
        return False

    def reap(self) -> str:
        """Collect the exit status of a process that has ended: how it ended, in words."""
        status = self._process.wait()
        if status < 0:
            return f"was killed by {signal.Signals(-status).name}"
        return f"ended by itself with exit code {status}"

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
