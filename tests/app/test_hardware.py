"""A platform on its emulated machine: what is changed there is seen, told, kept, shown, and over when it is undone."""

from __future__ import annotations

import gzip
import json
import signal
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from observatory.app.control import ControlClient
from observatory.app.packed import unpack
from observatory.app.state_lock import platform_socket
from tests.app.command import Workspace
from tests.app.test_up import platform, snapshot, until

LINK = "n0/gpu0--n0/nvswitch0:nvlink"


def telemetry(workspace: Workspace) -> dict[str, Any]:
    found: dict[str, Any] = (snapshot(workspace) or {}).get("telemetry") or {"receivers": [], "incidents": []}
    return found


def at_work(workspace: Workspace) -> set[str]:
    return {one["name"] for one in telemetry(workspace)["receivers"] if one["state"] == "working" and not one["stale"]}


def open_ones(workspace: Workspace) -> dict[tuple[str, str], dict[str, Any]]:
    return {(one["kind"], one["subject"]): one for one in telemetry(workspace)["incidents"]}


def ask(workspace: Workspace, command: str, **arguments: object) -> Any:
    client = ControlClient(platform_socket(workspace.state))
    try:
        return client.ask(command, arguments, 20.0)
    finally:
        client.close()


def nvlink(workspace: Workspace) -> dict[str, Any]:
    ends = set(LINK.removesuffix(":nvlink").split("--"))
    (found,) = (one for one in ask(workspace, "topology")["links"] if {one["a"], one["b"]} == ends)
    assert isinstance(found, dict)
    return found


def samples(workspace: Workspace, name: str) -> list[tuple[dict[str, str], float]]:
    text = gzip.decompress(unpack(ask(workspace, "metrics", openmetrics=False)["gzip"])).decode()
    return [(s.labels, s.value) for f in text_string_to_metric_families(text) for s in f.samples if s.name == name]


def test_a_link_that_loses_lanes_is_an_incident_until_it_has_them_again(workspace: Workspace) -> None:
    with platform(workspace, "--no-pipeline") as process:
        until(lambda: {"nvml", "sysfs-pcie", "infiniband", "kmsg", "pressure"} <= at_work(workspace), process)
        assert telemetry(workspace)["emulated"] is True
        assert not [kind for kind, _ in open_ones(workspace) if kind != "memory_pressure"], "it is well"

        changed = workspace.run("topology", "set", "gpu0-nvswitch0", "width=8", "--json")
        assert (changed.code, changed.json["state"], changed.json["width"]) == (0, "degraded", 8)
        until(lambda: ("nvlink_degraded", LINK) in open_ones(workspace), process)
        found = open_ones(workspace)["nvlink_degraded", LINK]
        assert found["sources"] == ["nvml"]
        assert (found["evidence"][-1]["value"], found["evidence"][-1]["expected"]) == (8, 18)
        link = nvlink(workspace)
        assert (link["state"], link["width"], link["best_width"]) == ("degraded", 8, 18)
        until(lambda: workspace.run("incidents", "--open", "--json").code == 1, process)
        opened = [labels for labels, value in samples(workspace, "observatory_incidents_open") if value == 1]
        assert {"kind": "nvlink_degraded", "severity": "warning", "subject": LINK} in opened
        assert [value for labels, value in samples(workspace, "link_width_lanes") if labels.get("link") == LINK] == [8]

        assert workspace.run("topology", "set", LINK, "state=up").code == 0
        until(lambda: ("nvlink_degraded", LINK) not in open_ones(workspace), process)
        assert nvlink(workspace)["state"] == "up"

        def is_kept_as_over() -> bool:
            kept = workspace.run("incidents", "--json").json["incidents"]
            return [one["state"] for one in kept if one["subject"] == LINK] == ["closed"]

        until(is_kept_as_over, process)
        machine = workspace.state / "run" / "machine"
        assert machine.is_dir()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 0, err
    assert "warning: 8 of 18 links are active" in err
    assert workspace.run("incidents", "--open", "--json").json["watched"] == "nobody"
    assert not machine.exists()


def test_what_a_killed_platform_left_open_is_closed_by_the_next_one(workspace: Workspace) -> None:
    with platform(workspace, "--no-pipeline") as process:
        until(lambda: "nvml" in at_work(workspace), process)
        assert workspace.run("topology", "set", "gpu3", "lost=yes").code == 0
        until(lambda: ("gpu_lost", "n0/gpu3") in open_ones(workspace), process)
        until(lambda: workspace.run("incidents", "--open").code == 1, process)
        process.kill()
        process.wait(timeout=30)
    with platform(workspace, "--no-pipeline") as process:
        until(lambda: "nvml" in at_work(workspace), process)
        assert ("gpu_lost", "n0/gpu3") not in open_ones(workspace), "its machine is a new one"
        kept = workspace.run("incidents", "--json").json["incidents"]
        (lost,) = (one for one in kept if one["kind"] == "gpu_lost")
        assert lost["state"] == "closed"
        assert "the platform ended while it was open" in lost["words"]


def test_the_real_machine_cannot_be_changed(workspace: Workspace) -> None:
    with platform(workspace, "--no-pipeline", "--topology", "real") as process:
        until(lambda: "pressure" in at_work(workspace), process)
        assert telemetry(workspace)["emulated"] is False
        refused = workspace.run("topology", "set", "gpu0", "lost=yes", "--json")
        assert refused.code == 2
        assert "looks at the real machine" in json.loads(refused.out)["error"]["message"]
