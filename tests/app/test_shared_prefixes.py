"""Two pipelines on one input decode it once; each of them comes and goes, fails and dies as if it were alone."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import av
import pytest

from tests.app.command import CLIPS, Workspace, needs_clips, probe
from tests.app.test_up import finish, frames_of, pipelines, platform, until
from tests.app.test_up_live import free_port, sender

PIPELINE = """apiVersion: media.observatory/v1
kind: MediaPipeline
metadata: {{name: {name}}}
spec:
  operators:
    - {{name: {source}, op: decode, params: {{{params}}}}}
    - {{name: small, op: scale, inputs: [{source}], params: {{width: {width}, height: 90}}}}
    - name: enc
      op: encode
      inputs: [small]
      params: {{codec: libx264, preset: ultrafast, bitrate: 200k, options: {{tune: zerolatency}}}}
    - {{name: out, op: mux, inputs: [enc], params: {{path: {name}.mp4}}}}
"""
GENERATED = "source: {size: 320x180}"


def write(workspace: Workspace, name: str, source: str = "decode", width: int = 160, params: str = GENERATED) -> Path:
    return workspace.write(PIPELINE.format(name=name, source=source, width=width, params=params), f"{name}.yaml")


def two(workspace: Workspace, params: str = GENERATED) -> tuple[Path, Path]:
    """Two pipelines that have their source in common, under different names."""
    return write(workspace, "one", params=params), write(workspace, "two", "src", width=80, params=params)


def workers(workspace: Workspace, name: str) -> dict[str, dict[str, Any]]:
    return {w["operator"]: w for w in pipelines(workspace)[name]["workers"]}


def pictures(path: Path) -> list[str]:
    """A digest of each decoded picture."""
    with av.open(str(path)) as container:
        return [hashlib.sha256(frame.to_ndarray().tobytes()).hexdigest() for frame in container.decode(video=0)]


def alone(workspace: Workspace, spec: Path, *options: object) -> list[str]:
    """What a pipeline makes when it runs without the other one."""
    done = workspace.run("up", spec, "--no-web", "--json", *options)
    assert done.code == 0, done.err
    output = workspace.folder / f"{spec.stem}.mp4"
    made = pictures(output)
    output.unlink()
    return made


def records_are_whole(workspace: Workspace, stream: str, pts: int, source: str) -> None:
    found = workspace.run("frames", "find", "--stream", stream, "--pts", pts, "--json")
    assert found.code == 0, found.err
    hops = {hop["edge"]: hop for hop in found.json["hops"]}
    assert set(hops) == {f"{source}->small", "small->enc", "enc->out"}
    for hop in hops.values():
        times = [hop["events"][kind] for kind in ("DMA_BUF_ALLOC", "PRODUCER_KERNEL_LAUNCH", "FENCE_SIGNAL")]
        times += [hop["events"][kind] for kind in ("CONSUMER_KERNEL_LAUNCH", "SLOT_RELEASE")]
        assert None not in times
        assert times == sorted(times)


def ended(process: subprocess.Popen[str]) -> dict[str, int]:
    """End both by Ctrl-C: how many frames went in and came out again, by pipeline."""
    assert process.poll() is None, process.communicate()[1]
    code, out, err = finish(process, signal.SIGINT)
    assert code == 130, err
    streams = {p["name"]: p["summary"]["streams"][0] for p in json.loads(out)["pipelines"]}
    for stream in streams.values():
        assert (stream["lost"], stream["frames_out"]) == ([], stream["frames_in"])
    return {name: stream["frames_in"] for name, stream in streams.items()}


def goes_on(workspace: Workspace, process: subprocess.Popen[str], *names: str, frames: int = 20) -> None:
    before = {name: frames_of(workspace, name) for name in names}
    until(lambda: all(frames_of(workspace, name) > before[name] + frames for name in names), process)


def is_whole(workspace: Workspace, name: str, frames: int) -> bool:
    """Whether its output has that many pictures, each in its place."""
    times = probe(workspace.folder / f"{name}.mp4").seconds
    return [round(time * 30) for time in times] == list(range(frames))


@contextmanager
def both(workspace: Workspace, *options: object, params: str = GENERATED) -> Iterator[subprocess.Popen[str]]:
    """Both pipelines at work, from one source."""
    with platform(workspace, *two(workspace, params), *options) as process:
        until(lambda: all(frames_of(workspace, name) > 10 for name in ("one", "two")), process)
        assert workers(workspace, "one")["decode"]["pid"] == workers(workspace, "two")["src"]["pid"]
        yield process


def test_started_together_they_decode_once_and_each_makes_what_it_makes_alone(workspace: Workspace) -> None:
    specs = two(workspace)
    with both(workspace, "--json") as process:
        now = pipelines(workspace)
        decoders = [w for p in now.values() for w in p["workers"] if w["op"] == "decode"]
        assert len(decoders) == 2
        assert len({w["pid"] for w in decoders}) == 1
        assert [w["shared_by"] for w in decoders] == [["one", "two"]] * 2
        assert {w["operator"] for w in decoders} == {"decode", "src"}
        shown = workspace.run("ps").out
        assert shown.count(str(decoders[0]["pid"])) == 1
        assert "shared by one, two" in shown
        frames = ended(process)
    made = {spec: pictures(workspace.folder / f"{spec.stem}.mp4") for spec in specs}
    records_are_whole(workspace, "one", 5, "decode")
    records_are_whole(workspace, "two", 5, "src")
    last = frames["two"] - 1
    assert workspace.run("frames", "find", "--stream", "two", "--pts", last, "--json").json["source_index"] == last
    for spec in specs:
        assert made[spec] == alone(workspace, spec, "--frames", frames[spec.stem])


@pytest.mark.parametrize(("gone", "other"), [("one", "two"), ("two", "one")])
def test_either_may_be_removed_and_the_other_goes_on(workspace: Workspace, gone: str, other: str) -> None:
    with both(workspace, "--json") as process:
        decoder = workers(workspace, other)["decode" if other == "one" else "src"]["pid"]
        removed = workspace.run("remove", gone, "--json")
        assert removed.code == 0, removed.err
        assert removed.json["state"] == "removed"
        done = sum(stream["frames_done"] for stream in removed.json["streams"])
        assert done > 10
        (stream,) = removed.json["streams"]
        assert stream["frames_in"] == done
        assert probe(workspace.folder / f"{gone}.mp4").pts == sorted(probe(workspace.folder / f"{gone}.mp4").pts)
        assert len(pictures(workspace.folder / f"{gone}.mp4")) == done
        source = "decode" if other == "one" else "src"
        until(lambda: workers(workspace, other)[source]["shared_by"] == [], process)
        assert workers(workspace, other)[source]["pid"] == decoder
        goes_on(workspace, process, other)
        frames = ended(process)
    assert is_whole(workspace, other, frames[other])
    listed = workspace.run("frames", "list", "--stream", gone, "--limit", 1000, "--json").json["frames"]
    assert len(listed) == done


@pytest.mark.parametrize(
    ("pipeline", "operator"),
    [("one", "small"), ("one", "enc"), ("two", "out"), ("one", "decode")],
)
def test_a_killed_worker_costs_nobody_a_frame(workspace: Workspace, pipeline: str, operator: str) -> None:
    with both(workspace, "--json") as process:
        killed = workers(workspace, pipeline)[operator]["pid"]
        os.kill(killed, signal.SIGKILL)
        until(lambda: workers(workspace, pipeline)[operator]["pid"] not in (killed, None), process)
        goes_on(workspace, process, "one", "two")
        frames = ended(process)
    assert is_whole(workspace, "one", frames["one"])
    assert is_whole(workspace, "two", frames["two"])


def test_what_is_below_the_source_is_shared_as_far_as_it_is_the_same(workspace: Workspace) -> None:
    specs = write(workspace, "one"), write(workspace, "two", "src")
    with platform(workspace, *specs, "--json") as process:
        until(lambda: all(frames_of(workspace, name) > 10 for name in ("one", "two")), process)
        one, other = workers(workspace, "one"), workers(workspace, "two")
        assert one["decode"]["pid"] == other["src"]["pid"]
        assert one["small"]["pid"] == other["small"]["pid"]
        assert one["enc"]["pid"] != other["enc"]["pid"]
        edges = {edge["edge"] for edge in pipelines(workspace)["two"]["edges"]}
        assert edges == {"src->small", "small->enc", "enc->out"}
        os.kill(one["small"]["pid"], signal.SIGKILL)
        until(lambda: workers(workspace, "one")["small"]["pid"] not in (one["small"]["pid"], None), process)
        goes_on(workspace, process, "one", "two")
        frames = ended(process)
    made = {spec: pictures(workspace.folder / f"{spec.stem}.mp4") for spec in specs}
    records_are_whole(workspace, "one", 5, "decode")
    records_are_whole(workspace, "two", frames["two"] - 1, "src")
    for spec in specs:
        assert made[spec] == alone(workspace, spec, "--frames", frames[spec.stem])


def test_a_shared_operator_moves_for_all(workspace: Workspace) -> None:
    with both(workspace, "--json") as process:
        before = workers(workspace, "one")["decode"]["pid"]
        moved = workspace.run("move", "two/src", "--json")
        assert moved.code == 0, moved.err
        assert (moved.json["old_pid"], moved.json["pid"] == before) == (before, False)
        until(lambda: workers(workspace, "one")["decode"]["pid"] == moved.json["pid"], process)
        assert workspace.run("move", "one/out").code == 0, "what reads no shared operator moves as ever"
        stays = workspace.run("move", "one/small")
        assert stays.code == 1
        assert "shares with this one" in stays.err
        goes_on(workspace, process, "one", "two")
        frames = ended(process)
    assert is_whole(workspace, "one", frames["one"])
    assert is_whole(workspace, "two", frames["two"])
    records_are_whole(workspace, "one", frames["one"] - 1, "decode")


def test_what_one_pipeline_drops_the_other_one_gets(workspace: Workspace) -> None:
    patient, hasty = two(workspace)
    wish = "spec:\n  qos: {on_full: drop_oldest}\n"
    hasty.write_text(hasty.read_text().replace("spec:\n", wish).replace("width: 80", "width: 1280"))
    done = workspace.run("up", patient, hasty, "--frames", 400, "--no-realtime", "--no-web", "--json")
    assert done.code == 0, done.err
    one, other = (pipeline["summary"]["streams"][0] for pipeline in done.json["pipelines"])
    assert (one["frames_in"], one["frames_out"], one["frames_lost"]) == (400, 400, 0)
    assert other["frames_in"] == 400
    assert other["frames_lost"] > 0, "it made nothing of the chance to be slow"
    assert other["frames_out"] + other["frames_lost"] == 400
    assert {loss["operator"] for loss in other["lost"]} <= {"src", "small"}


def test_one_fails_and_the_other_goes_on(workspace: Workspace) -> None:
    with both(workspace) as process:
        os.kill(workers(workspace, "one")["small"]["pid"], signal.SIGTERM)
        until(lambda: pipelines(workspace)["one"]["state"] == "failed", process)
        goes_on(workspace, process, "two")
        assert finish(process, signal.SIGINT)[0] in (1, 130)
    made = len(probe(workspace.folder / "two.mp4").seconds)
    assert made > 20
    assert is_whole(workspace, "two", made)


def test_the_shared_source_fails_for_both_in_its_own_words(workspace: Workspace) -> None:
    with both(workspace) as process:
        os.kill(workers(workspace, "one")["decode"]["pid"], signal.SIGTERM)
        until(lambda: all(p["state"] == "failed" for p in pipelines(workspace).values()), process)
        reasons = [p["reason"] for p in pipelines(workspace).values()]
    assert "operator decode (pid" in reasons[0]
    assert "operator src (pid" in reasons[1]
    assert all("was told to end by SIGTERM" in reason for reason in reasons)


def test_nothing_is_shared_where_it_is_not_wanted(workspace: Workspace) -> None:
    with platform(workspace, *two(workspace), "--no-sharing") as process:
        until(lambda: all(frames_of(workspace, name) > 10 for name in ("one", "two")), process)
        assert workers(workspace, "one")["decode"]["pid"] != workers(workspace, "two")["src"]["pid"]
        assert finish(process, signal.SIGTERM)[0] == 0


def test_who_comes_later_to_a_picture_with_a_beginning_makes_its_own(workspace: Workspace) -> None:
    first, second = two(workspace)
    with platform(workspace, first) as process:
        until(lambda: frames_of(workspace, "one") > 10, process)
        assert workspace.run("submit", second).code == 0
        until(lambda: frames_of(workspace, "two") > 10, process)
        assert workers(workspace, "one")["decode"]["pid"] != workers(workspace, "two")["src"]["pid"]
        assert finish(process, signal.SIGTERM)[0] == 0
    assert workspace.run("frames", "find", "--stream", "two", "--pts", 0).code == 0


def test_the_last_reader_ends_the_shared_source(workspace: Workspace) -> None:
    first, second = two(workspace)
    with platform(workspace, "--no-pipeline") as process:
        started = workspace.run("submit", first, second, "--json")
        assert started.code == 0, started.err
        assert [p["name"] for p in started.json["pipelines"]] == ["one", "two"]
        until(lambda: all(frames_of(workspace, name) > 10 for name in ("one", "two")), process)
        decoder = workers(workspace, "one")["decode"]["pid"]
        assert workspace.run("remove", "one").code == 0
        assert Path(f"/proc/{decoder}").exists()
        assert workspace.run("remove", "two").code == 0
        until(lambda: not Path(f"/proc/{decoder}").exists(), process)
        assert finish(process, signal.SIGTERM)[0] == 0
    assert not list((workspace.state / "run").glob("shared-*"))


def test_ctrl_c_leaves_both_outputs_playable(workspace: Workspace) -> None:
    with both(workspace) as process:
        assert finish(process, signal.SIGINT)[0] == 130
    for name in ("one", "two"):
        assert len(pictures(workspace.folder / f"{name}.mp4")) > 10


@needs_clips
def test_a_real_film_with_its_sound_is_read_once(workspace: Workspace) -> None:
    clip = next(path for path in CLIPS if probe(path).audio)
    specs = two(workspace, params="")
    expected = [alone(workspace, spec, "--input", clip) for spec in specs]
    sound = probe(clip).audio
    with platform(workspace, *specs, "--input", clip, "--realtime") as process:
        until(lambda: all(frames_of(workspace, name) > 5 for name in ("one", "two")), process)
        assert workers(workspace, "one")["decode"]["pid"] == workers(workspace, "two")["src"]["pid"]
        assert process.wait(timeout=60) == 0
    for spec, pictures_alone in zip(specs, expected, strict=True):
        made = workspace.folder / f"{spec.stem}.mp4"
        assert pictures(made) == pictures_alone
        heard = probe(made).audio
        assert heard
        assert [data for _, data in heard] == [data for _, data in sound[: len(heard)]]


def test_who_comes_later_reads_along_a_live_source(workspace: Workspace) -> None:
    """A port can be listened to by one process only: who could not read along would be refused."""
    port = free_port()
    first, second = two(workspace, params="read_timeout_seconds: 1")
    address = f"udp://127.0.0.1:{port}"
    with sender(f"{address}?pkt_size=1316") as camera, platform(workspace, first, "--input", address) as process:
        until(lambda: frames_of(workspace, "one") > 20, process)
        assert workers(workspace, "one")["decode"]["shared_by"] == []
        joined = workspace.run("submit", second, "--input", address)
        assert joined.code == 0, joined.err
        until(lambda: frames_of(workspace, "two") > 20, process)
        decoder = workers(workspace, "two")["src"]
        assert decoder["pid"] == workers(workspace, "one")["decode"]["pid"]
        assert decoder["shared_by"] == ["one", "two"]
        camera.kill()
        until(lambda: all(p["streams"][0]["state"] == "waiting" for p in pipelines(workspace).values()), process)
        before = {name: frames_of(workspace, name) for name in ("one", "two")}
        with sender(f"{address}?pkt_size=1316"):
            until(lambda: all(frames_of(workspace, name) > before[name] + 10 for name in before), process)
            assert [p["streams"][0]["epoch"] for p in pipelines(workspace).values()] == [2, 2]
            removed = workspace.run("remove", "one", "--json")
            assert removed.code == 0, removed.err
            until(lambda: frames_of(workspace, "two") > before["two"] + 30, process)
            again = workspace.run("submit", first, "--input", address)
            assert again.code == 0, again.err
            until(lambda: frames_of(workspace, "one") > 10, process)
            assert workers(workspace, "one")["decode"]["shared_by"] == ["two", "one"]
            assert finish(process, signal.SIGTERM)[0] == 0
    listed = workspace.run("frames", "list", "--stream", "two", "--epoch", 1, "--limit", 1000, "--json").json["frames"]
    assert min(frame["source_index"] for frame in listed) >= 20, "it began with the frame at which it came"
    # Stream one begins its second run with epoch 3, and the source is in its second one: that is number 4 then.
    for stream, epochs in (("one", (1, 2, 4)), ("two", (1, 2))):
        for epoch in epochs:
            frames = workspace.run(
                "frames", "list", "--stream", stream, "--epoch", epoch, "--limit", 1000, "--json"
            ).json["frames"]
            assert frames
            assert [frame for frame in frames if frame["end_to_end_seconds"] is None] == []


def test_who_cannot_read_along_is_told_why(workspace: Workspace) -> None:
    """An encoder that looks far ahead keeps more frames than the pool of a live source has to spare."""
    port = free_port()
    first = write(workspace, "one", params="read_timeout_seconds: 1")
    greedy = first.read_text().replace("name: one}", "name: greedy}").replace("one.mp4", "greedy.mp4")
    greedy = greedy.replace("inputs: [small]", "inputs: [decode]").replace("ultrafast", "medium")
    greedy = greedy.replace(", options: {tune: zerolatency}", "")
    greedy = "\n".join(line for line in greedy.splitlines() if "name: small" not in line)
    second = workspace.write(greedy, "greedy.yaml")
    address = f"udp://127.0.0.1:{port}"
    with sender(f"{address}?pkt_size=1316"), platform(workspace, first, "--input", address) as process:
        until(lambda: frames_of(workspace, "one") > 10, process)
        refused = workspace.run("submit", second, "--input", address)
        assert refused.code == 2
        assert "the pool has room for 8" in refused.err
        before = frames_of(workspace, "one")
        until(lambda: frames_of(workspace, "one") > before + 10, process)
        assert finish(process, signal.SIGTERM)[0] == 0
