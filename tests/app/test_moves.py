"""`observatory move`: operators go over to other processes while frames flow; none is lost, doubled or reordered."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

import pytest

from tests.app.command import Workspace
from tests.app.test_bad_input import wait_for_worker
from tests.app.test_worker_deaths import OPERATORS, REORDERING, check_all, kill, workers

FRAMES = 4000


def move_under(workspace: Workspace, operators: Sequence[str], frames: int = FRAMES) -> None:
    """Move one after the other under a running job, and look at everything it leaves."""
    path = workspace.write(REORDERING.format(out=workspace.folder))
    with workspace.started("run", path, "--frames", frames, "--json") as process:
        wait_for_worker(workspace, "mux-hd")
        before = workers(workspace)
        for operator in operators:
            moved = workspace.run("move", operator, "--json")
            assert moved.code == 0, moved.err
            assert moved.json["old_pid"] != moved.json["pid"]
        after = workers(workspace)
        out, err = process.communicate(timeout=180)
    assert all(after[name]["pid"] != before[name]["pid"] for name in set(operators) & set(after))
    assert all(after[name]["restarts"] == 0 for name in set(operators) & set(after)), "a move is no death"
    check_all(workspace, subprocess.CompletedProcess("run", process.returncode, out, err), frames)


@pytest.mark.parametrize("operator", ["decode", "hd", "mark", "enc-hd", "mux-hd"])
def test_an_operator_moves(workspace: Workspace, operator: str) -> None:
    move_under(workspace, [operator])


@pytest.mark.slow
def test_all_of_them_move_twice(workspace: Workspace) -> None:
    move_under(workspace, [*OPERATORS, *reversed(OPERATORS)], frames=12_000)


def test_what_is_not_there_is_refused(workspace: Workspace) -> None:
    assert workspace.run("move", "nothing").code == 2
    path = workspace.write(REORDERING.format(out=workspace.folder))
    with workspace.started("run", path, "--frames", 100_000):
        wait_for_worker(workspace, "mux-hd")
        refused = workspace.run("move", "ladder/nothing", "--json")
        assert refused.code == 2
        assert "observatory ps" in refused.json["error"]["mend"]


@pytest.mark.parametrize("victim", ["enc-hd", "mark", "mux-hd"])
def test_deaths_around_a_move_lose_nothing(workspace: Workspace, victim: str) -> None:
    """The operator itself, its producer or its consumer is killed as soon as it has moved, and once more meanwhile."""
    path = workspace.write(REORDERING.format(out=workspace.folder))
    with workspace.started("run", path, "--frames", FRAMES, "--json") as process:
        wait_for_worker(workspace, "mux-hd")
        for _ in range(2):
            kill(workers(workspace), [victim])
            workspace.run("move", "enc-hd")
        out, err = process.communicate(timeout=180)
    check_all(workspace, subprocess.CompletedProcess("run", process.returncode, out, err), FRAMES)
