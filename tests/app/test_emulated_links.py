"""Pipelines over emulated links, as a user runs them: a small machine whose figures are known by heart."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.app.command import Workspace

PIPELINE = """apiVersion: media.observatory/v1
kind: MediaPipeline
metadata: {{name: over}}
spec:
  operators:
    - {{name: decode, op: decode}}
    - {{name: small, op: scale, inputs: [decode], params: {{width: 320, height: 180}}}}
    - {{name: enc, op: encode, inputs: [small], params: {{codec: libx264, preset: ultrafast, bitrate: 300k}}}}
    - {{name: out, op: mux, inputs: [enc], params: {{path: {out}/out.mp4}}}}
  topologyConstraints:
    - {{type: Device_Kind, members: [small], value: gpu}}
    - {{type: Device_Kind, members: [decode, enc, out], value: cpu}}
"""
MACHINE = """apiVersion: media.observatory/v1
kind: Topology
metadata: {{name: pair}}
spec:
  nodes: [n0]
  devices:
    - {{id: n0/cpu0, engines: {{compute: 8}}}}
    - {{id: n0/gpu0, engines: {{compute: 1}}}}
  links:
    - {link}
"""
PCIE = "{a: n0/cpu0, b: n0/gpu0, kind: pcie, bandwidth_bytes_per_second: 1e9, latency_seconds: 10e-6}"
LINK = "n0/cpu0--n0/gpu0:pcie"
LINK_KINDS = ["FENCE_SIGNAL", "LINK_START", "LINK_END", "CONSUMER_KERNEL_LAUNCH", "SLOT_RELEASE"]


@pytest.fixture
def pipeline(workspace: Workspace) -> Path:
    return workspace.write(PIPELINE.format(out=workspace.folder))


def machine(workspace: Workspace, link: str = PCIE) -> Path:
    return workspace.write(MACHINE.format(link=link), "pair.yaml")


def link_times(workspace: Workspace) -> dict[str, list[float]]:
    """Milliseconds of every transfer, by edge."""
    found: dict[str, list[float]] = {}
    for index in range(9):
        frame = workspace.run("frames", "find", "--pts", index, "--json").json
        for hop in frame["hops"]:
            if hop["link"] is not None:
                events = hop["events"]
                found.setdefault(hop["edge"], []).append((events["LINK_END"] - events["LINK_START"]) / 1e6)
    return found


def test_frames_take_as_long_as_the_links_they_cross(workspace: Workspace, pipeline: Path) -> None:
    links = ("--topology", machine(workspace), "--emulate-links", "5", "--link-seed", "exact")
    done = workspace.run("run", pipeline, "--frames", 40, *links, "--json")
    assert done.code == 0, done.err
    summary = done.json
    assert (summary["streams"][0]["frames_out"], summary["incomplete_records"], summary["events_lost"]) == (40, 0, 0)
    told = summary["links"]
    assert (told["label"], told["time_scale"], told["seed"]) == ("emulated", 5.0, None)
    assert told["edges"] == [
        {"edge": "decode->small", "links": [LINK]},
        {"edge": "small->enc", "links": [LINK]},
    ]
    # Raw frames of 1280x720 there, of 320x180 back.
    assert told["traffic"][0]["link"] == LINK
    assert told["traffic"][0]["bytes"] == 40 * (1_382_400 + 86_400)

    times = link_times(workspace)
    # By hand: bytes at 1 GB/s, and 10 us; five times that. The machine can only make it longer: the quickest of nine.
    assert min(times["decode->small"]) == pytest.approx(5 * (1.3824 + 0.01), rel=0.01)
    assert min(times["small->enc"]) == pytest.approx(5 * (0.0864 + 0.01), rel=0.01)

    frame = workspace.run("frames", "find", "--pts", 7, "--json").json
    for hop in frame["hops"]:
        events = [hop["events"][kind] for kind in LINK_KINDS]
        if hop["edge"] == "enc->out":
            assert hop["link"] is None
            assert events[1:3] == [None, None]
        else:
            assert hop["link"] == {"label": "emulated", "time_scale": 5.0, "seed": None, "path": [LINK]}
            assert events == sorted(events)
    assert "link (emulated, x5)" in workspace.run("frames", "find", "--pts", 7).out
    assert "link: emulated, 5 times slower" in workspace.run("frames", "stats").out
    stats = workspace.run("frames", "stats", "--json").json["streams"][0]["hops"]
    assert [hop["phases"]["link"]["count"] for hop in stats] == [40, 40, 0]


def test_the_summary_for_people_says_emulated(workspace: Workspace, pipeline: Path) -> None:
    links = ("--topology", machine(workspace), "--emulate-links", "--link-seed", "11")
    done = workspace.run("run", pipeline, "--frames", 5, *links)
    assert done.code == 0, done.err
    # 3 MB at 1 GB/s take 3 ms: no need to scale.
    assert "emulated, time scale 1, seed 11: 2 edges cross 1 links" in done.out
    assert f"{LINK}: 7.34 MB in" in done.out


def test_without_the_option_no_frame_crosses_a_link(workspace: Workspace, pipeline: Path) -> None:
    done = workspace.run("run", pipeline, "--frames", 5, "--topology", machine(workspace), "--json")
    assert done.code == 0, done.err
    assert done.json["links"] is None
    hops = workspace.run("frames", "find", "--pts", 2, "--json").json["hops"]
    assert all(hop["link"] is None and hop["events"]["LINK_START"] is None for hop in hops)


def test_on_a_platform_too(workspace: Workspace, pipeline: Path) -> None:
    links = ("--topology", machine(workspace), "--emulate-links", "2", "--link-seed", "exact")
    done = workspace.run("up", pipeline, "--frames", 8, *links, "--no-web", "--json")
    assert done.code == 0, done.err
    summary = done.json["pipelines"][0]["summary"]
    assert (summary["links"]["label"], summary["links"]["time_scale"]) == ("emulated", 2.0)
    assert summary["links"]["traffic"][0]["bytes"] == 8 * (1_382_400 + 86_400)
    assert "links are emulated, 2 times slower than described" in done.err


@pytest.mark.parametrize(
    ("options", "words", "mend"),
    [
        (["--emulate-links", "0.5"], "'0.5' is no time scale", "--emulate-links=auto"),
        (["--emulate-links", "fast"], "'fast' is no time scale", "--emulate-links=auto"),
        (["--emulate-links", "--link-seed", "-1"], "'-1' is no seed", "a whole number, or exact"),
        (["--link-seed", "3"], "emulated links only", "add --emulate-links"),
    ],
)
def test_options_that_make_no_sense(
    workspace: Workspace, pipeline: Path, options: list[str], words: str, mend: str
) -> None:
    done = workspace.run("run", pipeline, "--topology", machine(workspace), *options)
    assert done.code == 2
    assert words in done.err
    assert mend in done.err


@pytest.mark.parametrize("link", ["{a: n0/cpu0, b: n0/gpu0, kind: pcie}", PCIE.replace("}", ", state: down}")])
def test_nothing_is_placed_across_links_that_cannot_carry_it(workspace: Workspace, pipeline: Path, link: str) -> None:
    done = workspace.run("run", pipeline, "--topology", machine(workspace, link), "--emulate-links", "--json")
    assert done.code == 2
    error = done.json["error"]
    assert "decode->small" in error["message"]
    assert error["mend"]
