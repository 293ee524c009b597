"""The main job as a user sees it: real clips in, playable files out, every frame accounted for."""

from __future__ import annotations

import random
from pathlib import Path

import av
import pytest

from tests.app.command import CLIPS, EDGES, LADDER, Workspace, needs_clips, probe

IN_ORDER = ["DMA_BUF_ALLOC", "PRODUCER_KERNEL_LAUNCH", "FENCE_SIGNAL", "CONSUMER_KERNEL_LAUNCH", "SLOT_RELEASE"]


def remux(source: Path, target: Path, container_format: str, options: dict[str, str]) -> None:
    """The same packets in another container."""
    with av.open(str(source)) as old, av.open(str(target), "w", format=container_format, options=options) as new:
        streams = {s.index: new.add_stream_from_template(s) for s in old.streams if s.type in ("video", "audio")}
        for packet in old.demux([old.streams[i] for i in streams]):
            if packet.dts is not None:
                packet.stream = streams[packet.stream.index]
                new.mux(packet)


@needs_clips
@pytest.mark.parametrize("clip", CLIPS, ids=lambda c: c.stem)
def test_real_clip_frame_exact(workspace: Workspace, clip: Path) -> None:
    spec = workspace.write(LADDER.format(out=workspace.folder))
    done = workspace.run("run", spec, "--input", clip, "--json")
    assert done.code == 0, done.err
    source = probe(clip)
    stream = done.json["streams"][0]
    assert (stream["frames_in"], stream["frames_out"], stream["lost"]) == (len(source.pts), len(source.pts), [])
    assert done.json["events_lost"] == 0
    assert done.json["incomplete_records"] == 0
    assert done.json["records"] == len(source.pts) * len(EDGES)
    for name in ("hd.mp4", "sd.mp4"):
        result = probe(workspace.folder / name)
        assert result.seconds == pytest.approx(source.seconds, abs=1e-4)
        assert result.duration_seconds == pytest.approx(source.duration_seconds, abs=1e-3)
        assert [a for _, a in result.audio] == [a for _, a in source.audio]
        assert [t for t, _ in result.audio] == pytest.approx([t for t, _ in source.audio], abs=2e-3)


@needs_clips
def test_every_sampled_frame_is_found_with_its_events_in_order(workspace: Workspace) -> None:
    clip = CLIPS[0]
    spec = workspace.write(LADDER.format(out=workspace.folder))
    assert workspace.run("run", spec, "--input", clip, "--quiet").code == 0
    source = probe(clip)
    for index in random.Random(7).sample(range(len(source.pts)), 4):
        found = workspace.run("frames", "find", "--stream", "ladder", "--pts", source.pts[index], "--json")
        assert found.code == 0, found.err
        frame = found.json
        assert frame["source_index"] == index
        assert {hop["edge"] for hop in frame["hops"]} == EDGES
        for hop in frame["hops"]:
            times = [hop["events"][kind] for kind in IN_ORDER]
            assert times == sorted(times)
            assert hop["bytes"] > 0
        first = min(hop["events"]["PRODUCER_KERNEL_LAUNCH"] for hop in frame["hops"])
        last = max(hop["events"]["SLOT_RELEASE"] for hop in frame["hops"])
        assert frame["end_to_end_seconds"] == pytest.approx((last - first) / 1e9)
    by_edge = {hop["edge"]: hop for hop in frame["hops"]}
    assert by_edge["hd->mark"]["bytes"] == 320 * 180 * 3 // 2
    assert by_edge["sd->enc-sd"]["bytes"] == 160 * 90 * 3 // 2


@needs_clips
@pytest.mark.parametrize(
    ("container_format", "options"),
    [("mp4", {"movflags": "frag_keyframe+empty_moov"}), ("mpegts", {})],
    ids=["fragmented-mp4", "mpeg-ts"],
)
def test_other_containers(workspace: Workspace, container_format: str, options: dict[str, str]) -> None:
    clip = workspace.folder / f"in.{container_format}"
    remux(CLIPS[0], clip, container_format, options)
    spec = workspace.write(LADDER.format(out=workspace.folder))
    done = workspace.run("run", spec, "--input", clip, "--json")
    assert done.code == 0, done.err
    source, result = probe(clip), probe(workspace.folder / "hd.mp4")
    assert result.seconds == pytest.approx(source.seconds, abs=1e-4)
    assert done.json["streams"][0]["lost"] == []


def test_default_pipeline_on_the_test_picture(workspace: Workspace) -> None:
    done = workspace.run("run", "--frames", 48)
    assert done.code == 0, done.err
    for name, size in (("abr-ladder-720p.mp4", (1280, 720)), ("abr-ladder-360p.mp4", (640, 360))):
        with av.open(str(workspace.folder / name)) as container:
            stream = container.streams.video[0]
            assert (stream.width, stream.height) == size
            assert sum(1 for _ in container.decode(stream)) == 48
    assert "48 in, 48 out, 0 lost" in done.out


def test_a_second_run_is_a_new_epoch(workspace: Workspace) -> None:
    spec = workspace.write(LADDER.format(out=workspace.folder))
    for epoch in (1, 2):
        done = workspace.run("run", spec, "--frames", 5, "--json")
        assert done.json["streams"][0]["epoch"] == epoch
    newest = workspace.run("frames", "find", "--pts", 0, "--json").json
    oldest = workspace.run("frames", "find", "--pts", 0, "--epoch", 1, "--json").json
    assert (newest["epoch"], oldest["epoch"]) == (2, 1)


def test_two_sources_are_two_streams(workspace: Workspace) -> None:
    spec = workspace.write(
        f"""apiVersion: media.observatory/v1
kind: MediaPipeline
metadata: {{name: pair}}
spec:
  operators:
    - {{name: left, op: decode}}
    - {{name: right, op: decode}}
    - {{name: enc-l, op: encode, inputs: [left], params: {{codec: libx264, preset: ultrafast}}}}
    - {{name: enc-r, op: encode, inputs: [right], params: {{codec: libx264, preset: ultrafast}}}}
    - {{name: m-l, op: mux, inputs: [enc-l], params: {{path: {workspace.folder}/l.mp4}}}}
    - {{name: m-r, op: mux, inputs: [enc-r], params: {{path: {workspace.folder}/r.mp4}}}}
"""
    )
    done = workspace.run("run", spec, "--frames", 6, "--json")
    assert done.code == 0, done.err
    assert [s["stream"] for s in done.json["streams"]] == ["pair/left", "pair/right"]
    assert [s["frames_out"] for s in done.json["streams"]] == [6, 6]
    assert [len(s["outputs"]) for s in done.json["streams"]] == [1, 1]
    found = workspace.run("frames", "find", "--stream", "pair/right", "--pts", 3, "--json").json
    assert {hop["edge"] for hop in found["hops"]} == {"right->enc-r", "enc-r->m-r"}


def test_frames_of_two_renditions_in_one_file_are_counted_once(workspace: Workspace) -> None:
    one_file = LADDER.replace("inputs: [enc-hd], params", "inputs: [enc-hd, enc-sd], params")
    spec = workspace.write(one_file.format(out=workspace.folder))
    done = workspace.run("run", spec, "--frames", 5, "--json")
    assert done.code == 0, done.err
    stream = done.json["streams"][0]
    assert (stream["frames_in"], stream["frames_out"]) == (5, 5)
    assert sorted(output["frames"] for output in stream["outputs"]) == [5, 10]


def test_drop_oldest_is_counted_and_visible(workspace: Workspace) -> None:
    """A slow encoder behind a fast source: frames are dropped, each of them is listed, the rest arrives."""
    spec = workspace.write(
        f"""apiVersion: media.observatory/v1
kind: MediaPipeline
metadata: {{name: shed}}
spec:
  qos: {{on_full: drop_oldest}}
  operators:
    - {{name: decode, op: decode, params: {{source: {{size: 320x180}}}}}}
    - {{name: big, op: scale, inputs: [decode], params: {{width: 1920, height: 1080}}}}
    - {{name: enc, op: encode, inputs: [big], params: {{codec: libx264, preset: veryslow}}}}
    - {{name: mux, op: mux, inputs: [enc], params: {{path: {workspace.folder}/o.mp4}}}}
"""
    )
    done = workspace.run("run", spec, "--frames", 120, "--json", timeout=110)
    assert done.code == 0, done.err
    stream = done.json["streams"][0]
    assert stream["frames_in"] == 120
    assert stream["lost"], "the encoder kept up: the test says nothing"
    assert len(stream["lost"]) + stream["frames_out"] == 120
    assert len(probe(workspace.folder / "o.mp4").pts) == stream["frames_out"]
    assert all("drop_oldest" in loss["reason"] for loss in stream["lost"])
