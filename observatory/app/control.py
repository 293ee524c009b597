"""The control socket of a running platform: `observatory ps` asks, the process that runs the job answers.

A Unix stream socket under `<state>/run/<pid>.sock`, readable by its owner only; one JSON line asks, one JSON line
answers. A socket whose process is gone is removed by whoever finds it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from observatory.errors import ObservatoryError

ASK_SECONDS = 2.0


class ControlServer:
    """Answers commands in a thread of its own. `handlers` map a command's name to a function that returns JSON."""

    def __init__(self, state: Path, handlers: dict[str, Callable[[], Any]]) -> None:
        folder = state / "run"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._listen(folder)
        except OSError as error:
            words = f"cannot be used: {error.strerror}"
            raise ObservatoryError(words, file=str(folder), mend="choose another --state directory") from None
        self._handlers = handlers
        self._thread = threading.Thread(target=self._serve, name="control-socket", daemon=True)
        self._thread.start()

    def _listen(self, folder: Path) -> None:
        self.path = folder / f"{os.getpid()}.sock"
        self.path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        _bind(self._socket, self.path)
        self.path.chmod(0o600)
        self._socket.listen()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return  # closed
            with connection, contextlib.suppress(OSError):
                connection.settimeout(ASK_SECONDS)
                connection.sendall(self._answer(_read_line(connection)) + b"\n")

    def _answer(self, line: bytes) -> bytes:
        try:
            command = json.loads(line)["command"]
        except (ValueError, KeyError, TypeError):
            return json.dumps({"error": 'ask with one line: {"command": NAME}'}).encode()
        handler = self._handlers.get(command)
        if handler is None:
            return json.dumps({"error": f"unknown command {command!r}; known: {sorted(self._handlers)}"}).encode()
        try:
            return json.dumps(handler()).encode()
        except Exception as error:  # the job may be ending under the question: the asker hears so, the job goes on
            return json.dumps({"error": f"{type(error).__name__}: {error}"}).encode()

    def close(self) -> None:
        """Stop answering and remove the socket."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(timeout=ASK_SECONDS)
        self.path.unlink(missing_ok=True)


def ask_all(state: Path, command: str) -> list[dict[str, Any]]:
    """Ask every platform that runs on this state directory; those that are gone are cleaned up, none is an error."""
    answers = []
    for path in sorted((state / "run").glob("*.sock")):
        answer = _ask(path, command)
        if answer is not None and "error" not in answer:
            answers.append(answer)
    return answers


def _ask(path: Path, command: str) -> dict[str, Any] | None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ASK_SECONDS)
        try:
            _connect(connection, path)
            connection.sendall(json.dumps({"command": command}).encode() + b"\n")
            answer: dict[str, Any] = json.loads(_read_line(connection))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)  # its process died without closing it
            return None
        except (OSError, ValueError):
            return None
    return answer


def _read_line(connection: socket.socket) -> bytes:
    data = bytearray()
    while not data.endswith(b"\n") and (chunk := connection.recv(65536)):
        data += chunk
    return bytes(data)


# A Unix socket's address holds 107 bytes; a state directory may be deeper. Its /proc/self/fd name is always short.
def _bind(sock: socket.socket, path: Path) -> None:
    with _folder_fd(path) as folder:
        sock.bind(f"/proc/self/fd/{folder}/{path.name}")


def _connect(sock: socket.socket, path: Path) -> None:
    with _folder_fd(path) as folder:
        sock.connect(f"/proc/self/fd/{folder}/{path.name}")


@contextlib.contextmanager
def _folder_fd(path: Path) -> Any:
    fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)
