"""SRT in front of libavformat: PyAV's build has none, so Debian's `srt-live-transmit` receives it and sends plain UDP
to this machine.

Whoever owns a job starts the gateway before the source is looked into, and keeps it as long as the job lives: so the
sender's connection outlives the processes that open the source one after the other.

    with SrtGateway("srt://0.0.0.0:9000?mode=listener") as gateway:
        request = SourceRequest(input=gateway.url, address=gateway.address)
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from types import TracebackType
from typing import Self
from urllib.parse import parse_qsl, urlsplit

from dataplane.errors import BadMedia, WrongAddress
from dataplane.operators.addresses import without_secrets

PROGRAM = "srt-live-transmit"
MODES = ("caller", "listener", "rendezvous")
BACK_OFF_SECONDS, LONGEST_BACK_OFF_SECONDS = 0.1, 2.0
STEADY_SECONDS = 10.0  # who ran for so long is started again at once
END_SECONDS = 1.0
LAST_WORDS = 5

# Asks the kernel to be killed with its parent thread, then becomes the program. A process of its own, because nothing
# is safe between fork and exec in a process with threads.
_BECOME = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""

# As in "12:00:00.123456/SRT:RcvQ:w1!W:SRT.cn: processAsyncConnectRequest: REJECT ..."
_LOG_PREFIX = re.compile(r"^[\d:.]+/[^ ]+ (\w+: )?")

_taken: set[int] = set()  # local ports of this process's gateways


class SrtGateway:
    """Receives one SRT source and sends it on to `address`, a `udp://` one of this machine.

    A thread keeps the program running: it is started again, with a back-off, whenever it ends. The program dies with
    this process, also when that is killed. A context manager; `start` and `close` do the same.
    """

    def __init__(self, url: str) -> None:
        """Check the address. Raises WrongAddress."""
        self.url = url
        self.restarts = 0
        self.address = ""  # known once it has started
        self._listens = _check(url)
        self._port = 0
        self._words: deque[str] = deque(maxlen=LAST_WORDS)
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start receiving; returns at once, whether a sender is there or not.

        Raises:
            BadMedia: the program is not installed.
            WrongAddress: another program listens on the port.
        """
        program = shutil.which(PROGRAM)
        if program is None:
            words = f"SRT needs the program {PROGRAM}, which is not installed"
            raise BadMedia(words, file=without_secrets(self.url), mend="apt-get install srt-tools")
        if self._listens:
            _check_free(self.url)
        self._port = _free_port()
        self.address = f"udp://127.0.0.1:{self._port}"
        self._thread = threading.Thread(target=self._keep_running, args=(program,), name="SRT gateway", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the program. May be called twice, or before `start`."""
        self._closing.set()
        with self._lock:
            process = self._process
        if process is not None:
            process.terminate()
        if self._thread is not None:
            self._thread.join(END_SECONDS)
            if self._thread.is_alive() and process is not None:
                process.kill()
                self._thread.join()
            self._thread = None
        _taken.discard(self._port)

    @property
    def pid(self) -> int | None:
        """Of the program, while it runs."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    @property
    def last_words(self) -> str | None:
        """What the program last complained about, on one line: a wrong pass phrase, a host that is not known."""
        return " / ".join(self._words) or None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- the thread's side ------------------------------------------------------------------------------------------

    def _keep_running(self, program: str) -> None:
        """Start the program, hear it out, start it again. The kernel ties the program's life to this thread's."""
        back_off = BACK_OFF_SECONDS
        while not self._closing.is_set():
            started = time.monotonic()
            with self._lock:
                if self._closing.is_set():
                    return
                self._process = process = self._spawn(program)
            self._listen(process)
            process.wait()
            if self._closing.is_set():
                return
            back_off = BACK_OFF_SECONDS if time.monotonic() - started > STEADY_SECONDS else 2 * back_off
            self._closing.wait(min(back_off, LONGEST_BACK_OFF_SECONDS))
            self.restarts += 1

    def _spawn(self, program: str) -> subprocess.Popen[str]:
        command = [program, "-quiet:yes", "-loglevel:warn", self.url, self.address]
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _BECOME, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            process_group=0,  # Ctrl-C in a terminal is for the owner to hear
        )

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        with process.stderr as said:
            for line in said:
                words = without_secrets(_LOG_PREFIX.sub("", line).strip())
                if words and words not in self._words:  # it says the same a hundred times a second
                    self._words.append(words)


def _check(url: str) -> bool:
    """Whether the address asks to listen. Raises WrongAddress."""
    title = without_secrets(url)
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme != "srt" or port is None:
        raise WrongAddress("this is no SRT address", file=title, mend="as in srt://camera.example:9000?mode=caller")
    mode = dict(parse_qsl(parts.query)).get("mode", "caller" if parts.hostname else "listener")
    if mode not in MODES:
        raise WrongAddress(f"SRT has no mode {mode}", file=title, mend=f"take one of {', '.join(MODES)}")
    if mode == "caller" and not parts.hostname:
        raise WrongAddress("whom is it to call?", file=title, mend="as in srt://camera.example:9000?mode=caller")
    return mode == "listener"


def _check_free(url: str) -> None:
    """Raises WrongAddress when the port that is to be listened on is taken."""
    parts = urlsplit(url)
    host = parts.hostname or "0.0.0.0"
    with contextlib.suppress(ValueError):  # a name: the program will see
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as trial:
            try:
                trial.bind((host, parts.port or 0))
            except OSError as error:
                words = f"cannot listen there ({error.strerror})"
                mend = "end the program that does (`ss -ulpn` names it), or take another port"
                raise WrongAddress(words, file=without_secrets(url), mend=mend) from None


def _free_port() -> int:
    """A UDP port of this machine that nobody uses, and no other gateway of this process will."""
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
            trial.bind(("127.0.0.1", 0))
            port: int = trial.getsockname()[1]
        if port not in _taken:
            _taken.add(port)
            return port
