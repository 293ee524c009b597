"""What is asked of a platform: wrong questions, askers that leave, and a platform that does not answer."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from observatory.app.control import ControlClient, Refused
from observatory.app.state_lock import platform_socket
from tests.app.command import Workspace
from tests.app.test_up import ENDLESS, finish, pipelines, platform, snapshot, until
from tests.app.test_up_live import free_port

CAMERA = """apiVersion: media.observatory/v1
kind: MediaPipeline
metadata: {name: camera}
spec:
  operators:
    - {name: decode, op: decode, params: {open_timeout_seconds: 3600}}
    - {name: enc, op: encode, inputs: [decode], params: {codec: libx264, preset: ultrafast}}
    - {name: out, op: mux, inputs: [enc], params: {path: camera.mp4}}
"""


def refusal(workspace: Workspace, command: str, arguments: Any) -> tuple[str, str | None, int]:
    client = ControlClient(platform_socket(workspace.state))
    with pytest.raises(Refused) as caught:
        client.ask(command, arguments)
    client.close()
    return caught.value.message, caught.value.mend, caught.value.exit_code


def test_a_wrong_question_is_refused_by_the_name_of_its_field(workspace: Workspace) -> None:
    with platform(workspace, "--no-pipeline") as process:
        spec = ENDLESS.format(name="one")
        assert refusal(workspace, "submit", {"spec": 1}) == ("spec must be text, not 1", None, 2)
        assert refusal(workspace, "submit", {}) == ("spec is missing", "add spec: ...", 2)
        assert refusal(workspace, "submit", {"spek": spec}) == ("spek: there is no such key", "did you mean spec?", 2)
        assert refusal(workspace, "submit", {"spec": spec, "inputs": "film.mp4"})[0] == (
            "inputs must be a list, not 'film.mp4'"
        )
        assert refusal(workspace, "submit", {"spec": spec, "frames": 0})[2] == 2
        for arguments in ({}, {"name": None}):
            assert refusal(workspace, "remove", arguments) == ("name is missing", 'add "name": "..."', 2)
        assert refusal(workspace, "remove", {"name": ["one"]})[0] == "name must be text"
        assert refusal(workspace, "remove", {"name": "one"}) == ("no pipeline is called 'one'", "there is: none", 2)
        assert finish(process, signal.SIGTERM)[0] == 0


def test_a_submission_whose_asker_leaves_is_taken_back(workspace: Workspace) -> None:
    spec = workspace.write(CAMERA)
    with platform(workspace, "--no-pipeline") as process:
        before = set(workspace.processes())
        with workspace.started("submit", spec, "--input", f"udp://127.0.0.1:{free_port()}") as submit:
            # A process of its own opens the input.
            until(lambda: bool(set(workspace.processes()) - before - {submit.pid}), process)
            assert finish(submit, signal.SIGINT)[0] == 130
        until(lambda: set(workspace.processes()) == before, process)  # the source would be waited for for an hour
        assert pipelines(workspace) == {}
        assert finish(process, signal.SIGTERM)[0] == 0


def test_a_pipeline_that_has_begun_stays_when_its_asker_leaves(workspace: Workspace) -> None:
    with platform(workspace, "--no-pipeline") as process:
        client = ControlClient(platform_socket(workspace.state))
        client.ask("submit", {"spec": ENDLESS.format(name="one"), "folder": str(workspace.folder)}, 30.0)
        client.close()
        until(lambda: pipelines(workspace)["one"]["streams"][0]["frames_done"] > 10, process)
        assert finish(process, signal.SIGTERM)[0] == 0


def test_a_platform_that_is_stopped_is_not_nothing(workspace: Workspace) -> None:
    with platform(workspace, "--no-pipeline") as process:
        os.kill(process.pid, signal.SIGSTOP)
        try:
            shown = workspace.run("ps")
            document = workspace.run("ps", "--json")
        finally:
            os.kill(process.pid, signal.SIGCONT)
        assert (shown.code, shown.out) == (1, "")
        assert f"pid {process.pid} does not answer" in shown.err
        assert (document.code, document.json) == (1, {"platforms": [], "pipelines": [], "silent": [process.pid]})
        until(lambda: snapshot(workspace) is not None, process)
        again = workspace.run("ps", "--json")
        assert (again.code, again.json["silent"], len(again.json["platforms"])) == (0, [], 1)
        assert finish(process, signal.SIGTERM)[0] == 0
    nothing = workspace.run("ps")
    assert (nothing.code, "nothing is running" in nothing.out) == (0, True)
