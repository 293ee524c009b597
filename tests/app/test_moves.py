"""`observatory move`: operators go over to other processes while frames flow; none is lost, doubled or reordered."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.app.command import Workspace
from tests.app.test_bad_input import wait_for_worker
from tests.app.test_worker_deaths import OPERATORS, REORDERING, kill, stopped_in_the_end, succeeded, workers


def move_under(workspace: Workspace, operators: Sequence[str]) -> None:
    """Move one after the other under a running job, and look at everything it leaves."""
    with stopped_in_the_end(workspace):
        before = workers(workspace)
        for operator in operators:
            moved = workspace.run("move", operator, "--json")
            assert moved.code == 0, moved.err
            assert moved.json["old_pid"] != moved.json["pid"]
        succeeded(workspace, before, operators)  # `ps` tells what was true up to half a second ago
        after = workers(workspace)
        assert all(after[name]["restarts"] == 0 for name in operators), "a move is no death"


@pytest.mark.parametrize("operator", ["decode", "hd", "mark", "enc-hd", "mux-hd"])
def test_an_operator_moves(workspace: Workspace, operator: str) -> None:
    move_under(workspace, [operator])


@pytest.mark.slow
def test_all_of_them_move_twice(workspace: Workspace) -> None:
    move_under(workspace, [*OPERATORS, *reversed(OPERATORS)])


def test_what_is_not_there_is_refused(workspace: Workspace) -> None:
    assert workspace.run("move", "nothing").code == 2
    path = workspace.write(REORDERING.format(out=workspace.folder))
    with workspace.started("run", path, "--frames", 100_000):
        wait_for_worker(workspace, "mux-hd")
        refused = workspace.run("move", "ladder/nothing", "--json")
        assert refused.code == 2
        assert "observatory ps" in refused.json["error"]["mend"]


AROUND = ["enc-hd", pytest.param("mark", marks=pytest.mark.slow), pytest.param("mux-hd", marks=pytest.mark.slow)]


@pytest.mark.parametrize("victim", AROUND)
def test_deaths_around_a_move_lose_nothing(workspace: Workspace, victim: str) -> None:
    """The operator itself, its producer or its consumer is killed just before it is moved, and just after."""
    said: list[str] = []
    with stopped_in_the_end(workspace, said):
        assert kill(workers(workspace), [victim]) == [victim]
        first = workspace.run("move", "enc-hd", "--json")
        assert first.code == 0 or "enc-hd" in first.json["error"]["message"], first.err
        wait_for_worker(workspace, victim)
        assert workspace.run("move", "enc-hd").code == 0
        before = workers(workspace)
        assert kill(before, [victim]) == [victim]
        succeeded(workspace, before, [victim])
    assert said[0].count("killed by SIGKILL") == 2


def newborn(workspace: Workspace, before: set[int], mover: subprocess.Popen[str]) -> list[int]:
    """The workers that are there by now and were not before."""
    return [pid for pid in workspace.processes() if pid not in before and pid != mover.pid]


IN_THE_MIDST = [
    "old",
    "new",
    pytest.param("producer", marks=pytest.mark.slow),
    pytest.param("consumer", marks=pytest.mark.slow),
    pytest.param("old and new", marks=pytest.mark.slow),
    pytest.param("new and producer", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("victim", IN_THE_MIDST)
def test_deaths_in_the_midst_of_a_move_lose_nothing(workspace: Workspace, victim: str) -> None:
    """Kills at three moments from its beginning to beyond its end: it moves, or stays, or its work is gone on with."""
    operators = {"old": "enc-hd", "producer": "mark", "consumer": "mux-hd"}
    killed = 0
    with stopped_in_the_end(workspace) as process:
        for delay in (0.0, 0.1, 0.3):
            running, before = workers(workspace), set(workspace.processes())
            with workspace.started("move", "enc-hd", "--json") as mover:
                while not (born := newborn(workspace, before, mover)) and mover.poll() is None:
                    time.sleep(0.01)
                time.sleep(delay)
                for name in victim.split(" and "):
                    pids = born if name == "new" else [int(str(running[operators[name]]["pid"]))]
                    for pid in pids:
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                            killed += 1
                said, _ = mover.communicate(timeout=60)
            document = json.loads(said)
            assert "enc-hd" in document["error"]["message"] if mover.returncode else document["pid"] in born
            for name in operators.values():
                assert process.poll() is None, process.communicate()[1]
                wait_for_worker(workspace, name)
    assert killed


def test_nothing_stays_open_after_moves_of_a_muxer(workspace: Workspace) -> None:
    """Its temporary files are held for each process anew, and the supervisor's hold is handed on."""
    with stopped_in_the_end(workspace) as process:
        for _ in range(4):
            assert workspace.run("move", "mux-hd").code == 0
        held = [str(entry.readlink()) for entry in Path(f"/proc/{process.pid}/fd").iterdir()]
    files = [name for name in held if name.startswith(str(workspace.folder)) and "hd" in name]
    assert files, "it holds none at all: the test says nothing"
    assert len(files) == len(set(files))


def test_moves_back_to_back_all_get_an_answer(workspace: Workspace) -> None:
    """An instance that is cut off may say that it is done before its producer has said that it has cut."""
    with stopped_in_the_end(workspace):
        for operator in ["sd", "mark"] * 4:
            moved = workspace.run("move", operator, "--json")
            assert moved.code == 0, moved.err
