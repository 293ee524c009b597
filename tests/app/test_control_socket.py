"""The control socket: answers, garbage, stale sockets, deep state directories."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from observatory.app.control import MOST_LINE_BYTES, CallerGone, ControlServer, ask_all
from observatory.errors import ObservatoryError


def test_answers_and_cleans_up(tmp_path: Path) -> None:
    server = ControlServer(tmp_path, {"ps": lambda *_: {"pipeline": "p"}})
    assert server.path.stat().st_mode & 0o777 == 0o600
    assert ask_all(tmp_path, "ps").answers == [{"pipeline": "p"}]
    assert ask_all(tmp_path, "no such command").answers == []
    server.close()
    assert not server.path.exists()
    assert ask_all(tmp_path, "ps").answers == []


def test_garbage_is_answered_and_the_next_one_served(tmp_path: Path) -> None:
    server = ControlServer(tmp_path, {"ps": lambda *_: {"ok": True}})
    for garbage in (b"\n", b"{]\n", b'"ps"\n', b"\xff\xfe\n", b'{"command": 7}\n'):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(server.path))
            client.sendall(garbage)
            assert "error" in json.loads(client.recv(65536))
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(server.path))  # asks nothing and leaves
    assert ask_all(tmp_path, "ps").answers == [{"ok": True}]
    server.close()


def test_a_failing_handler_is_an_answer_and_not_the_end(tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the rings are gone")

    server = ControlServer(tmp_path, {"ps": fail, "other": lambda *_: {"alive": True}})
    assert ask_all(tmp_path, "ps").answers == []
    assert ask_all(tmp_path, "other").answers == [{"alive": True}]
    server.close()


def test_the_socket_of_a_dead_process_is_removed(tmp_path: Path) -> None:
    script = (
        "import os, sys, pathlib; from observatory.app.control import ControlServer\n"
        "ControlServer(pathlib.Path(sys.argv[1]), {}); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    assert len(list((tmp_path / "run").glob("*.sock"))) == 1
    assert ask_all(tmp_path, "ps").answers == []
    assert list((tmp_path / "run").glob("*.sock")) == []


def test_a_state_directory_deeper_than_a_socket_address(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["a-rather-long-folder-name"] * 6)
    deep.mkdir(parents=True)
    server = ControlServer(deep, {"ps": lambda *_: {"deep": True}})
    assert ask_all(deep, "ps").answers == [{"deep": True}]
    server.close()


def test_a_state_directory_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(ObservatoryError, match="run: cannot be used: File exists"):
        ControlServer(tmp_path, {})


SERVER = """
import pathlib, sys
from observatory.app.control import ControlServer
server = ControlServer(pathlib.Path(sys.argv[1]), {"ps": lambda *_: {}})
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def another(state: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that answers on this state directory."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(state)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def said(path: Path, line: bytes) -> dict[str, Any]:
    """What the server answers to one line."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(line)
        answer: dict[str, Any] = json.loads(client.makefile().readline())
    return answer


def test_what_is_stopped_is_not_gone(tmp_path: Path) -> None:
    with another(tmp_path) as process:
        os.kill(process.pid, signal.SIGSTOP)
        found = ask_all(tmp_path, "ps")
        assert (found.answers, list(found.silent)) == ([], [process.pid])
        os.kill(process.pid, signal.SIGCONT)
        assert ask_all(tmp_path, "ps").answers == [{}]
        process.kill()
        process.wait()
        found = ask_all(tmp_path, "ps")
        assert (found.answers, found.silent) == ([], {}), "what is gone is not silent"


def test_a_socket_that_is_being_made_is_not_taken_for_a_stale_one(tmp_path: Path) -> None:
    class Slow(socket.socket):
        def listen(self, backlog: int = 5, /) -> None:
            ask_all(tmp_path, "ps")  # somebody looks right now
            super().listen(backlog)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "socket", Slow)
        server = ControlServer(tmp_path, {"ps": lambda *_: {}})
    assert ask_all(tmp_path, "ps").answers == [{}]
    server.close()
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_no_line_is_a_reason_to_hang_up_without_a_word(tmp_path: Path) -> None:
    server = ControlServer(tmp_path, {"ps": lambda *_: {}})
    deep = (
        b"[" * 200_000,
        b'{"command": "ps", "arguments": ' + b'{"a":' * 200_000,
        b"9" * 5000,
        b'{"command": "\xff"}',
    )
    for line in deep:
        assert "ask with one line" in said(server.path, line + b"\n")["error"]["message"]
    assert "more than" in said(server.path, b"x" * (MOST_LINE_BYTES + 1))["error"]["message"]
    server.close()


def test_arguments_that_are_no_object(tmp_path: Path) -> None:
    server = ControlServer(tmp_path, {"ps": lambda *_: {}})
    for arguments in (b"[1]", b"[]", b"0", b'"name"', b"false"):
        message = said(server.path, b'{"command": "ps", "arguments": ' + arguments + b"}\n")["error"]["message"]
        assert message == f"the arguments of 'ps' are no object but {arguments.decode()}"
    assert said(server.path, b'{"command": "ps", "arguments": null}\n') == {"ok": {}}
    server.close()


def test_a_handler_learns_that_its_caller_left(tmp_path: Path) -> None:
    asked, left = threading.Event(), threading.Event()

    def wait(_: dict[str, Any], gone: CallerGone) -> str:
        asked.set()
        for _tick in range(600):
            if gone():
                left.set()
                return "to nobody"
            threading.Event().wait(0.05)
        return "still there"

    def look(_: dict[str, Any], gone: CallerGone) -> bool:
        return gone()

    server = ControlServer(tmp_path, {"wait": wait, "look": look})
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(server.path))
        client.sendall(b'{"command": "wait"}\n{"command": "look"}\n')  # also with another question on its way
        assert asked.wait(30)
        assert not left.is_set()
    assert left.wait(30)

    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(server.path))
        client.sendall(b'{"command": "look"}\n')
        client.shutdown(socket.SHUT_WR)  # as `nc -N` does: it asks no more, and reads the answer
        assert json.loads(client.makefile().readline()) == {"ok": False}
    server.close()


def test_a_moment_without_descriptors_is_not_the_end(tmp_path: Path) -> None:
    server = ControlServer(tmp_path, {"ps": lambda *_: {}})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    client = socket.socket(socket.AF_UNIX)
    used = os.dup(0)
    os.close(used)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used, hard))
    try:
        client.connect(str(server.path))  # there is no descriptor for its other end
        threading.Event().wait(0.3)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    client.sendall(b'{"command": "ps"}\n')
    assert json.loads(client.makefile().readline()) == {"ok": {}}
    client.close()
    server.close()


def test_a_state_directory_that_may_not_be_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> Iterator[Path]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(ObservatoryError, match="run: cannot be looked into: Permission denied"):
        ask_all(tmp_path, "ps")
