"""The control socket: answers, garbage, stale sockets, deep state directories."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from observatory.app.control import ControlServer, ask_all
from observatory.errors import ObservatoryError


def test_answers_and_cleans_up(tmp_path: Path) -> None:
    server = ControlServer(tmp_path, {"ps": lambda _: {"pipeline": "p"}})
    assert server.path.stat().st_mode & 0o777 == 0o600
    assert ask_all(tmp_path, "ps") == [{"pipeline": "p"}]
    assert ask_all(tmp_path, "no such command") == []
    server.close()
    assert not server.path.exists()
    assert ask_all(tmp_path, "ps") == []


def test_garbage_is_answered_and_the_next_one_served(tmp_path: Path) -> None:
    server = ControlServer(tmp_path, {"ps": lambda _: {"ok": True}})
    for garbage in (b"\n", b"{]\n", b'"ps"\n', b"\xff\xfe\n", b'{"command": 7}\n'):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(server.path))
            client.sendall(garbage)
            assert "error" in json.loads(client.recv(65536))
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(server.path))  # asks nothing and leaves
    assert ask_all(tmp_path, "ps") == [{"ok": True}]
    server.close()


def test_a_failing_handler_is_an_answer_and_not_the_end(tmp_path: Path) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("the rings are gone")

    server = ControlServer(tmp_path, {"ps": fail, "other": lambda _: {"alive": True}})
    assert ask_all(tmp_path, "ps") == []
    assert ask_all(tmp_path, "other") == [{"alive": True}]
    server.close()


def test_the_socket_of_a_dead_process_is_removed(tmp_path: Path) -> None:
    script = (
        "import os, sys, pathlib; from observatory.app.control import ControlServer\n"
        "ControlServer(pathlib.Path(sys.argv[1]), {}); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    assert len(list((tmp_path / "run").glob("*.sock"))) == 1
    assert ask_all(tmp_path, "ps") == []
    assert list((tmp_path / "run").glob("*.sock")) == []


def test_a_state_directory_deeper_than_a_socket_address(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["a-rather-long-folder-name"] * 6)
    deep.mkdir(parents=True)
    server = ControlServer(deep, {"ps": lambda _: {"deep": True}})
    assert ask_all(deep, "ps") == [{"deep": True}]
    server.close()


def test_a_state_directory_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(ObservatoryError, match="run: cannot be used: File exists"):
        ControlServer(tmp_path, {})
