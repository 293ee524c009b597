"""The control socket of whatever runs on a state directory: `observatory ps`, `submit` and the web app ask, it answers.

A Unix stream socket under `<state>/run/<pid>.sock`, readable by its owner only. One JSON line asks, one JSON line
answers, as often as the asker likes:

    {"command": NAME, "arguments": {...}}
    {"ok": DOCUMENT}  or  {"error": {kind, message, file, line, mend, exit_code}}

Each connection has a thread of its own, so that a slow command (a pipeline being opened) delays no other.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from observatory.errors import ObservatoryError
from observatory.model.errors import ExitCode, MediaObservatoryError

Handler = Callable[[dict[str, Any]], Any]
"""Takes the arguments; returns what JSON can say. What it raises becomes the answer."""

SEND_SECONDS = 5.0  # then the asker, who does not read, is hung up on
MOST_LINE_BYTES = 16 << 20


class ControlServer:
    """Answers commands in threads of its own. `handlers` by command name."""

    def __init__(self, state: Path, handlers: Mapping[str, Handler]) -> None:
        folder = state / "run"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._listen(folder)
        except OSError as error:
            words = f"cannot be used: {error.strerror}"
            raise ObservatoryError(words, file=str(folder), mend="choose another --state directory") from None
        self._handlers = dict(handlers)
        self._thread = threading.Thread(target=self._accept, name="control-socket", daemon=True)
        self._thread.start()

    def _listen(self, folder: Path) -> None:
        self.path = folder / f"{os.getpid()}.sock"
        self.path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with short_address(self.path) as address:
            self._socket.bind(address)
        self.path.chmod(0o600)
        self._socket.listen()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(connection,), name="control", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            for line in read_lines(connection):
                answer = json.dumps(self._answer(line)).encode() + b"\n"
                connection.settimeout(SEND_SECONDS)
                connection.sendall(answer)
                connection.settimeout(None)

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            asked = json.loads(line)
            command, arguments = asked["command"], asked.get("arguments") or {}
            handler = self._handlers.get(command) if isinstance(command, str) else None
        except (ValueError, KeyError, TypeError, AttributeError):
            return _error(ObservatoryError('ask with one line: {"command": NAME, "arguments": {...}}'))
        if handler is None or not isinstance(arguments, dict):
            return _error(ObservatoryError(f"unknown command {command!r}; known: {', '.join(sorted(self._handlers))}"))
        try:
            return {"ok": handler(arguments)}
        except MediaObservatoryError as error:
            return _error(error)
        except Exception as error:  # the job may be ending under the question: the asker hears so, the job goes on
            return _error(ObservatoryError(f"{type(error).__name__}: {error}"))

    def close(self) -> None:
        """Stop answering and remove the socket."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(timeout=2.0)
        self.path.unlink(missing_ok=True)


def _error(error: MediaObservatoryError) -> dict[str, Any]:
    return {"error": error.as_dict() | {"exit_code": int(error.exit_code)}}


class Refused(ObservatoryError):
    """What the process at the other end answered when it did not do it: its words, its place, its exit code."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        super().__init__(said["message"], file=said.get("file"), line=said.get("line"), mend=said.get("mend"))
        self.kind = str(said.get("kind", type(self).__name__))
        self.exit_code = ExitCode(said.get("exit_code", ExitCode.JOB_FAILED))

    def as_dict(self) -> dict[str, str | int | None]:
        """As the other process would have shown it."""
        return super().as_dict() | {"kind": self.kind}


class Gone(ObservatoryError):
    """Nobody answers at the socket."""


class ControlClient:
    """A connection to one control socket, made at the first question and again after a failure. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket: socket.socket | None = None
        self._lines: Iterator[bytes] = iter(())

    def ask(self, command: str, arguments: Mapping[str, Any] | None = None, timeout_seconds: float = 2.0) -> Any:
        """The answer to one command.

        Raises:
            Refused: the answer is an error.
            Gone: the process is not there (its stale socket is removed), or did not answer in time.
        """
        try:
            connection = self._connect()
            connection.settimeout(timeout_seconds)
            connection.sendall(json.dumps({"command": command, "arguments": arguments or {}}).encode() + b"\n")
            line = next(self._lines, None)
            if line is None:
                raise ConnectionResetError("it hung up")
            answer = json.loads(line)
        except (ConnectionRefusedError, FileNotFoundError):
            self.close()
            self.path.unlink(missing_ok=True)  # its process died without closing it
            raise Gone("nothing runs there any more", file=str(self.path)) from None
        except (OSError, ValueError) as error:
            self.close()
            raise Gone(f"no answer: {error}", file=str(self.path)) from None
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["ok"]

    def _connect(self) -> socket.socket:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.settimeout(2.0)
            with short_address(self.path) as address:
                self._socket.connect(address)
            self._lines = read_lines(self._socket)
        return self._socket

    def close(self) -> None:
        """Hang up; the next question connects anew."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def ask_all(state: Path, command: str) -> list[Any]:
    """Ask everything that runs on this state directory; those that are gone or refuse are left out."""
    answers = []
    for path in sorted((state / "run").glob("*.sock")):
        client = ControlClient(path)
        with contextlib.suppress(Gone, Refused):
            answers.append(client.ask(command))
        client.close()
    return answers


def read_lines(connection: socket.socket) -> Iterator[bytes]:
    """Whole lines as they arrive; ends when the other end hangs up. Raises OSError, and for a line without end."""
    data = bytearray()
    while True:
        line, found, rest = data.partition(b"\n")
        if found:
            data = rest
            yield bytes(line)
            continue
        if len(data) > MOST_LINE_BYTES:
            raise OSError("a line without end")
        chunk = connection.recv(1 << 16)
        if not chunk:
            return
        data += chunk


# A Unix socket's address holds 107 bytes; a state directory may be deeper. Its /proc/self/fd name is always short.
@contextlib.contextmanager
def short_address(path: Path) -> Iterator[str]:
    """An address for `bind` or `connect` that is short however deep `path` lies."""
    fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{fd}/{path.name}"
    finally:
        os.close(fd)
