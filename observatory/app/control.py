"""The control socket of whatever runs on a state directory: `observatory ps`, `submit` and the web app ask, it answers.

A Unix stream socket under `<state>/run/<pid>.sock`, readable by its owner only. One JSON line asks, one JSON line
answers, as often as the asker likes:

    {"command": NAME, "arguments": {...}}
    {"ok": DOCUMENT}  or  {"error": {kind, message, file, line, mend, exit_code}}

Each connection has a thread of its own, so that a slow command (a pipeline being opened) delays no other, and so that
a command can look whether whoever asked is still there.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from observatory.errors import ObservatoryError
from observatory.model.errors import ExitCode, MediaObservatoryError

CallerGone = Callable[[], bool]
"""Whether whoever asked has hung up. Who only has nothing more to ask (a half-closed connection) is still there."""

Handler = Callable[[dict[str, Any], CallerGone], Any]
"""Takes the arguments; returns what JSON can say. What it raises becomes the answer."""

SEND_SECONDS = 5.0  # then the asker, who does not read, is hung up on
MOST_LINE_BYTES = 16 << 20
PAUSE_SECONDS = 0.1  # when there are no descriptors or threads for another connection: some will be free again


class ControlServer:
    """Answers commands in threads of its own. `handlers` by command name."""

    def __init__(self, state: Path, handlers: Mapping[str, Handler]) -> None:
        folder = state / "run"
        self._closed = False
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
        making = self.path.with_suffix(".making")  # until it listens, it would look like one whose owner is gone
        making.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with short_address(making) as address:
            self._socket.bind(address)
        making.chmod(0o600)
        self._socket.listen()
        making.rename(self.path)

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                time.sleep(PAUSE_SECONDS)
                continue
            try:
                threading.Thread(target=self._serve, args=(connection,), name="control", daemon=True).start()
            except RuntimeError:
                connection.close()
                time.sleep(PAUSE_SECONDS)

    def _serve(self, connection: socket.socket) -> None:
        hung_up = select.poll()
        hung_up.register(connection, 0)  # errors and the end are told in any case
        with connection, contextlib.suppress(OSError):
            try:
                for line in read_lines(connection):
                    _send(connection, self._answer(line, lambda: bool(hung_up.poll(0))))
            except LineTooLong as error:
                _send(connection, _error(ObservatoryError(str(error))))

    def _answer(self, line: bytes, caller_gone: CallerGone) -> dict[str, Any]:
        try:
            command, arguments = _asked(line)
            handler = self._handlers.get(command)
            if handler is None:
                raise ObservatoryError(f"unknown command {command!r}; known: {', '.join(sorted(self._handlers))}")
            return {"ok": handler(arguments, caller_gone)}
        except MediaObservatoryError as error:
            return _error(error)
        except Exception as error:  # the job may be ending under the question: the asker hears so, the job goes on
            return _error(ObservatoryError(f"{type(error).__name__}: {error}"))

    def close(self) -> None:
        """Stop answering and remove the socket."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(timeout=2.0)
        self.path.unlink(missing_ok=True)


def _asked(line: bytes) -> tuple[str, dict[str, Any]]:
    """Command and arguments. Raises ObservatoryError: the line does not ask."""
    try:
        asked = json.loads(line)
        command, arguments = asked["command"], asked.get("arguments")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, MemoryError):
        command = arguments = None
    if not isinstance(command, str):
        raise ObservatoryError('ask with one line: {"command": NAME, "arguments": {...}}')
    if not isinstance(arguments, dict | None):
        raise ObservatoryError(
            f"the arguments of {command!r} are no object but {json.dumps(arguments)[:60]}",
            mend='name each of them: "arguments": {"name": ...}',
        )
    return command, arguments or {}


def _send(connection: socket.socket, answer: dict[str, Any]) -> None:
    connection.settimeout(SEND_SECONDS)
    connection.sendall(json.dumps(answer).encode() + b"\n")
    connection.settimeout(None)


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


class Silent(Gone):
    """Something is there and does not answer: it is stopped, overloaded, or somebody else's."""


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
            Silent: the process is there, and did not answer in time.
            Gone: it is not there (its stale socket is removed), or went away before it answered.
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
        except (ConnectionError, ValueError) as error:
            self.close()
            raise Gone(f"no answer: {error}", file=str(self.path)) from None
        except OSError as error:  # in time; or so many wait already that it takes no more; or it is not ours to ask
            self.close()
            raise Silent(f"no answer: {error.strerror or error}", file=str(self.path)) from None
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


@dataclass(frozen=True, slots=True)
class Answers:
    """What everything on a state directory says. `silent`: pid of what is there and gave no answer -> why."""

    answers: list[Any] = field(default_factory=list)
    silent: dict[int, str] = field(default_factory=dict)


def ask_all(state: Path, command: str) -> Answers:
    """Ask everything that runs on this state directory; what is gone is left out.

    Raises:
        ObservatoryError: the directory may not be looked into.
    """
    found = Answers()
    for path in sockets(state):
        client = ControlClient(path)
        try:
            found.answers.append(client.ask(command))
        except (Silent, Refused) as error:
            if path.stem.isdecimal():
                found.silent[int(path.stem)] = error.message
        except Gone:
            pass
        finally:
            client.close()
    return found


def sockets(state: Path) -> list[Path]:
    """The control sockets on this state directory, also those whose owner is gone. Raises ObservatoryError."""
    folder = state / "run"
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == ".sock")
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        words = f"cannot be looked into: {error.strerror}"
        raise ObservatoryError(words, file=str(folder), mend="ask as its owner, or name another --state") from None


class LineTooLong(OSError):
    """Somebody sends and sends, and never ends the line."""


def read_lines(connection: socket.socket) -> Iterator[bytes]:
    """Whole lines as they arrive; ends when the other end hangs up. Raises OSError; LineTooLong is one."""
    data = bytearray()
    while True:
        line, found, rest = data.partition(b"\n")
        if found:
            data = rest
            yield bytes(line)
            continue
        if len(data) > MOST_LINE_BYTES:
            raise LineTooLong(f"a line has more than {MOST_LINE_BYTES} bytes")
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
