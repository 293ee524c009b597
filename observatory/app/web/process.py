"""The platform's side of the web process: the port, the process, and starting it again when it died.

The platform listens, the process serves: that the port is in use is known before anything starts, and while the process
is started again browsers wait instead of being refused. Nothing here imports FastAPI or Dash.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from observatory.errors import ObservatoryError
from observatory.model.errors import ExitCode

FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 15.0
HEALTHY_SECONDS = 30.0
"""A process that lived so long (seconds) is started again at once when it dies."""
END_SECONDS = 3.0
TAIL_BYTES = 4096
MOST_LOG_BYTES = 4 << 20


class WebError(ObservatoryError):
    """What keeps the web process from serving."""


class PortInUse(WebError):
    """Another process listens there already."""

    exit_code = ExitCode.BAD_INPUT


class BadAddress(WebError):
    """An address that this machine does not have, or may not be bound to."""

    exit_code = ExitCode.BAD_INPUT


def bind(host: str, port: int) -> socket.socket:
    """A TCP socket that listens on this address; port 0 picks a free one (`getsockname` tells).

    Raises:
        PortInUse: another process has the port; it is named when /proc tells.
        BadAddress: the host is unknown or not of this machine, or the port is not allowed.
    """
    if not 0 <= port <= 65535:  # getaddrinfo takes it modulo that
        raise BadAddress(f"there is no port {port}", mend="ports are 1 to 65535, and 0 for a free one")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise BadAddress(f"there is no address {host!r} with port {port}", mend="--host 127.0.0.1") from None
    family, kind, protocol, _, address = found[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of an earlier run may linger
        listening.bind(address)
        listening.listen(1024)
    except OSError as error:
        listening.close()
        raise _refused(host, port, error) from None
    return listening


def _refused(host: str, port: int, error: OSError) -> WebError:
    if error.errno == errno.EADDRINUSE:
        holder = _listener(port)
        by = f" by {holder}" if holder else ""
        return PortInUse(f"port {port} on {host} is in use{by}", mend=f"--port {port + 1}, or --port 0 for a free one")
    if error.errno == errno.EACCES:
        return BadAddress(f"port {port} may not be used by this user", mend="use a port from 1024 on: --port 8050")
    if error.errno == errno.EADDRNOTAVAIL:
        return BadAddress(f"{host} is no address of this machine", mend="--host 127.0.0.1, or --host 0.0.0.0 for all")
    return BadAddress(f"cannot listen on {host}, port {port}: {error}", mend="--host 127.0.0.1 --port 0")


def _listener(port: int) -> str | None:
    """Which process listens on that port, as far as we may know: `prometheus (pid 815)`."""
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            here = connection.laddr
            if connection.status == psutil.CONN_LISTEN and here and here.port == port and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    return None


def url_of(listening: socket.socket) -> str:
    """The address as a browser takes it; a socket on all addresses is reached on the loopback one."""
    host, port = listening.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class WebProcess:
    """The web process of a platform. Call `poll` now and then, and `close` at the end. One thread only.

    Args:
        listening: from `bind`; closed by `close`.
        state: the state directory; the process's log is `run/web.log` in it.
        control: the platform's control socket (`ControlServer.path`).
        allow_hosts: names beside the loopback ones that requests may be addressed to.

    Attributes:
        restarts: how often it was started again.
        reason: why it died the last time, in words; None when it never did.
    """

    def __init__(
        self, listening: socket.socket, state: Path, control: Path, *, allow_hosts: Sequence[str] = ()
    ) -> None:
        self._listening = listening
        self._state = state
        self._control = control
        self._allow_hosts = tuple(allow_hosts)
        self.log = state / "run" / "web.log"
        self.restarts = 0
        self.reason: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._started = self._due = time.monotonic()
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._closed = False
        self._begin()

    @property
    def pid(self) -> int | None:
        """Its process id; None while it is not running."""
        return None if self._process is None else self._process.pid

    @property
    def url(self) -> str:
        """Where it serves."""
        return url_of(self._listening)

    def poll(self) -> None:
        """Start it again when it died: at once after a long life, else after a pause that doubles. Never raises."""
        if self._closed:
            return
        now = time.monotonic()
        if self._process is not None:
            code = self._process.poll()
            if code is None:
                return
            self._process = None
            self.reason = self._why(code)
            healthy = now - self._started >= HEALTHY_SECONDS
            self._pause_seconds = FIRST_PAUSE_SECONDS if healthy else self._pause_seconds
            self._due = now + (0.0 if healthy else self._pause_seconds)
            self._pause_seconds = min(2 * self._pause_seconds, LONGEST_PAUSE_SECONDS)
        if now >= self._due:
            self.restarts += 1
            self._begin()

    def log_tail(self) -> str:
        """The last few lines that it said."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
                return log.read().decode(errors="replace")
        except OSError:
            return ""

    def close(self, timeout_seconds: float = END_SECONDS) -> None:
        """End the process, by force when it takes too long, and give up the port. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._listening.close()
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _begin(self) -> None:
        descriptor = self._listening.fileno()
        arguments = [
            *("--socket-fd", str(descriptor), "--state", str(self._state), "--control", str(self._control)),
            *("--parent", str(os.getpid())),
            *(f"--allow-host={name}" for name in self._allow_hosts),
        ]
        self._started = time.monotonic()
        try:
            with self._open_log() as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "observatory.app.web", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(descriptor,),
                    process_group=0,  # Ctrl-C in the terminal is for the platform
                )
        except OSError as error:
            self.reason = f"it could not be started: {error.strerror or error}"
            self._due = self._started + self._pause_seconds
            self._pause_seconds = min(2 * self._pause_seconds, LONGEST_PAUSE_SECONDS)

    def _open_log(self) -> contextlib.AbstractContextManager[int]:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with contextlib.suppress(OSError):
            if not self.restarts or self.log.stat().st_size > MOST_LOG_BYTES:
                flags |= os.O_TRUNC
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.log, flags, 0o600)
        except OSError:  # a full disk is no reason to show nothing
            descriptor = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        return _closing(descriptor)

    def _why(self, code: int) -> str:
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"it ended with signal {signal.Signals(-code).name}"
        lines = [line for line in self.log_tail().splitlines() if line.strip()]
        said = f": {lines[-1]}" if lines else ""
        return f"it ended with exit code {code}{said}"


@contextlib.contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)
