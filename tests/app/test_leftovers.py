"""What killed processes leave is cleared; what is of use to a living one stays."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from observatory.app.control import ControlServer, ask_all
from observatory.app.leftovers import sweep_leftovers
from tests.app.test_control_socket import another

DIE = """
import os, pathlib, signal, sys
from observatory.app.control import ControlServer
ControlServer(pathlib.Path(sys.argv[1]), {})
os.kill(os.getpid(), signal.SIGKILL)
"""


def age(path: Path) -> Path:
    """As if it had been made an hour ago."""
    then = path.stat().st_mtime - 3600
    os.utime(path, (then, then))
    return path


def folder(state: Path, name: str, *logs: tuple[str, str]) -> Path:
    made = state / "run" / name
    made.mkdir(parents=True)
    for file, text in logs:
        (made / file).write_text(text)
    return age(made)


def killed(state: Path) -> None:
    subprocess.run([sys.executable, "-c", DIE, str(state)], check=False)
    assert len(list((state / "run").glob("*.sock"))) == 1


def test_what_a_killed_platform_leaves_is_removed(tmp_path: Path) -> None:
    killed(tmp_path)
    empty = folder(tmp_path, "run-1")
    silent = folder(tmp_path, "run-2", ("decode.log", ""), ("enc.log", ""))
    telling = folder(tmp_path, "run-3", ("decode.log", ""), ("enc.log", "x264: out of memory\n"))
    other = folder(tmp_path, "run-4", ("notes.txt", ""))
    young = tmp_path / "run" / "run-5"
    young.mkdir()
    (tmp_path / "run" / "web.log").touch()
    sweep_leftovers(tmp_path)
    assert not empty.exists()
    assert not silent.exists()
    assert sorted((tmp_path / "run").iterdir()) == [telling, other, young, tmp_path / "run" / "web.log"]
    assert (telling / "enc.log").read_text() == "x264: out of memory\n"


def test_what_a_living_job_uses_stays(tmp_path: Path) -> None:
    killed(tmp_path)
    with another(tmp_path) as process:
        logs = folder(tmp_path, "run-1", ("decode.log", ""))  # its worker has said nothing so far
        empty = folder(tmp_path, "run-2")
        sweep_leftovers(tmp_path)
        assert (logs / "decode.log").exists()
        assert not empty.exists()
        assert [path.stem for path in (tmp_path / "run").glob("*.sock")] == [str(process.pid)]
        assert ask_all(tmp_path, "ps").answers == [{}]
    sweep_leftovers(tmp_path)
    assert list((tmp_path / "run").iterdir()) == []


def test_one_that_does_not_answer_is_not_gone(tmp_path: Path) -> None:
    server = ControlServer(tmp_path, {})
    stuck = socket.socket(socket.AF_UNIX)
    stuck.bind(str(tmp_path / "run" / "77.sock"))
    stuck.listen(0)
    waiting = [socket.socket(socket.AF_UNIX) for _ in range(3)]
    for one in waiting:
        one.setblocking(False)
        one.connect_ex(str(tmp_path / "run" / "77.sock"))  # until it takes no more
    sweep_leftovers(tmp_path)
    assert sorted(path.stem for path in (tmp_path / "run").iterdir()) == sorted(["77", str(os.getpid())])
    for one in (*waiting, stuck):
        one.close()
    server.close()


def test_where_there_is_nothing(tmp_path: Path) -> None:
    sweep_leftovers(tmp_path / "nowhere")
    (tmp_path / "run").write_text("a file")
    sweep_leftovers(tmp_path)
    assert (tmp_path / "run").read_text() == "a file"
