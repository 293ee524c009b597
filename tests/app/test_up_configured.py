"""A platform that runs by its configuration file: pipelines from it, SIGHUP, sources that are not there yet."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
from pathlib import Path

from tests.app.command import Workspace, probe
from tests.app.test_up import ENDLESS, finish, frames_of, pipelines, platform, snapshot, until


def configure(workspace: Workspace, *names: str, frames: str = "") -> Path:
    """A configuration with these pipelines; each writes NAME.mp4 into the workspace."""
    for name in names:
        workspace.write(ENDLESS.format(name=name), f"{name}.yaml")
    sections = "".join(f'[[pipelines]]\nspec = "{name}.yaml"\n' for name in names)
    return workspace.write(f"[frames]\n{frames}\n{sections}", "observatory.toml")


def test_sighup_takes_pipelines_in_and_out_and_the_others_lose_no_frame(workspace: Workspace) -> None:
    configure(workspace, "stays", "goes")
    with platform(workspace) as process:
        until(lambda: min(frames_of(workspace, n) for n in ("stays", "goes")) > 5, process)
        run = pipelines(workspace)["stays"]["run_id"]
        configure(workspace, "stays", "comes", frames="keep_one_in = 7\ndisk_budget = '1GB'")
        process.send_signal(signal.SIGHUP)
        until(lambda: frames_of(workspace, "comes") > 5 and "goes" not in pipelines(workspace), process)
        now = snapshot(workspace)
        assert now is not None
        assert now["store"]["budget_bytes"] == 10**9
        assert pipelines(workspace)["stays"]["run_id"] == run, "it was not started again"
        assert len(probe(workspace.folder / "goes.mp4").pts) > 5
        code, _, err = finish(process, signal.SIGTERM)
    assert code == 0
    assert "frames.keep_one_in: 100 -> 7, now" in err
    pts = probe(workspace.folder / "stays.mp4").pts
    steps = {after - before for before, after in itertools.pairwise(pts)}
    assert len(steps) == 1, "a frame is missing"


def test_a_broken_file_at_sighup_changes_nothing(workspace: Workspace) -> None:
    file = configure(workspace, "one")
    with platform(workspace) as process:
        until(lambda: frames_of(workspace, "one") > 5, process)
        file.write_text('[frames]\nkeep_one_inn = 3\n[[pipelines]]\nspec = "one.yaml"\n')
        process.send_signal(signal.SIGHUP)
        before = frames_of(workspace, "one")
        until(lambda: frames_of(workspace, "one") > before + 10, process)
        code, _, err = finish(process, signal.SIGTERM)
    assert code == 0
    assert "configuration not reloaded" in err
    assert "observatory.toml:2: " in err


def test_a_pipeline_whose_input_is_not_there_is_tried_again(workspace: Workspace) -> None:
    spec = workspace.write(ENDLESS.format(name="source"), "source.yaml")
    assert workspace.run("run", spec, "--frames", 20).code == 0
    film, later = workspace.folder / "source.mp4", workspace.folder / "later.mp4"
    workspace.write(ENDLESS.format(name="out"), "out.yaml")
    workspace.write('[[pipelines]]\nspec = "out.yaml"\ninputs = "later.mp4"\n', "observatory.toml")
    with platform(workspace) as process:
        until(lambda: "later.mp4" in str((snapshot(workspace) or {})["platform"]["warnings"]), process)
        assert pipelines(workspace) == {}
        shutil.copy(film, later)
        until(lambda: frames_of(workspace, "out") == 20, process)
        until(lambda: pipelines(workspace)["out"]["state"] == "ended", process)
        assert (snapshot(workspace) or {})["platform"]["warnings"] == []
        assert finish(process, signal.SIGTERM)[0] == 0


def test_a_configured_pipeline_that_fails_is_started_again(workspace: Workspace) -> None:
    configure(workspace, "one")
    with platform(workspace) as process:
        until(lambda: frames_of(workspace, "one") > 5, process)
        first = pipelines(workspace)["one"]
        os.kill(first["workers"][0]["pid"], signal.SIGTERM)
        until(lambda: pipelines(workspace)["one"]["run_id"] != first["run_id"], process)
        until(lambda: frames_of(workspace, "one") > 5, process)
        assert pipelines(workspace)["one"]["streams"][0]["epoch"] == 2
        code, _, err = finish(process, signal.SIGTERM)
    assert code == 0
    assert "tried again in 2 s" in err


def test_a_wrong_file_is_said_before_anything_starts(workspace: Workspace) -> None:
    workspace.write("[platform]\nport = 'many'\n", "observatory.toml")
    done = workspace.run("up", "--no-web", "--json")
    assert done.code == 2
    assert (done.json["error"]["file"], done.json["error"]["line"]) == ("observatory.toml", 2)
