"""A pool that has more memory than its job uses gives it back while frames flow, and nobody misses one."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from dataplane.assignment import Assignment, OutputAssignment, PortSize
from dataplane.pool import ClassUse, Policy, PoolUse
from observatory.app.compacting import Compaction
from observatory.model.media import PixelFormat, TimeBase, VideoFormat
from tests.app.command import Workspace, probe
from tests.app.test_up import ENDLESS, finish, frames_of, pipelines, platform, until

MB = 1 << 20
FORMAT = VideoFormat(width=16, height=16, pixel_format=PixelFormat.YUV420P, time_base=TimeBase(num=1, den=25))


def assignment(least: int | None = 4) -> Assignment:
    sizes = (PortSize(slot_bytes=4 * MB, slot_count=40, least_slots=least, slab_slots=10),)
    return Assignment(
        operator="hd", op="scale", params={"width": 64, "height": 64}, device="d", real_device=0, stream=1, epoch=1,
        inputs=(), outputs=(OutputAssignment(port="video", format=FORMAT, ring_capacity=64, sizes=sizes),),
    )  # fmt: skip


def report(seconds: float, high_water: int, slots: int = 40, layout: int = 1, waits: int = 0) -> PoolUse:
    one = ClassUse(
        slot_bytes=4 * MB, slot_count=slots, in_use=1, high_water=high_water, payload_bytes=0,
        resident_bytes=slots * 4 * MB, external_bytes=0, idle_bytes=0,
    )  # fmt: skip
    return PoolUse(seconds=seconds, layout=layout, classes=(one,), waits_for_slot=waits)


def slots(wish: Any) -> int:
    (size,) = wish.assignment.outputs[0].sizes
    return int(size.slot_count)


def test_it_asks_for_what_was_in_use_and_a_quarter_more_once_that_held_for_long_enough() -> None:
    compaction = Compaction([assignment()], Policy(window_seconds=60))
    wishes = [compaction.note("hd", "video", report(t, 8)) for t in range(0, 65, 5)]
    assert wishes[:-1] == [None] * 12
    assert slots(wishes[-1]) == 10
    assert compaction.note("hd", "video", report(66, 8)) is None, "it was just asked for"


def test_it_goes_back_to_the_planned_size_when_slots_lack() -> None:
    compaction = Compaction([assignment()], Policy(window_seconds=60))
    for t in range(0, 65, 5):
        compaction.note("hd", "video", report(t, 8))
    wishes = [compaction.note("hd", "video", report(80 + t, 10, slots=10, layout=2, waits=t)) for t in range(0, 25, 5)]
    assert {slots(wish) for wish in wishes if wish is not None} == {40}


@pytest.mark.parametrize(
    ("planned", "policy"),
    [
        (assignment(), None),
        (assignment(least=None), Policy(window_seconds=60)),
    ],
)
def test_it_never_touches_what_it_must_not(planned: Assignment, policy: Policy | None) -> None:
    compaction = Compaction([planned], policy)
    assert [compaction.note("hd", "video", report(t, 8)) for t in range(0, 200, 5)] == [None] * 40


SPEC = ENDLESS.replace("160x90", "1280x720, rate: 30")


def decode_pool(workspace: Workspace) -> dict[str, Any]:
    pools = pipelines(workspace)["paced"]["pools"]
    return next((pool for pool in pools if pool["operator"] == "decode"), {"ring": 0, "slots_high_water": 0})


def test_a_running_job_gives_memory_back(workspace: Workspace) -> None:
    """Its consumer is held for a moment, so that the queue of 48 frames fills; after that a few slots are enough."""
    path = workspace.write(SPEC.format(name="paced"))
    config = workspace.write("[platform]\ncompact_pools_seconds = 6\nqueue_frames = 48\n", "observatory.toml")
    with platform(workspace, path, "--config", config, "--json") as process:
        until(lambda: frames_of(workspace, "paced") > 10, process)
        encoder = next(w["pid"] for w in pipelines(workspace)["paced"]["workers"] if w["operator"] == "enc")
        os.kill(encoder, signal.SIGSTOP)
        until(lambda: decode_pool(workspace)["slots_high_water"] > 40, process)
        os.kill(encoder, signal.SIGCONT)
        before = decode_pool(workspace)
        until(lambda: decode_pool(workspace)["ring"] > before["ring"], process, 90)
        after = decode_pool(workspace)
        code, out, err = finish(process, signal.SIGINT)
    assert code == 130, err
    assert after["slots"] < before["slots"]
    assert after["resident_bytes"] < before["resident_bytes"]
    assert "frame pools: decode.video: " in err
    (summary,) = [pipeline["summary"] for pipeline in json.loads(out)["pipelines"]]
    (stream,) = summary["streams"]
    assert stream["lost"] == []
    assert stream["frames_in"] == stream["frames_out"] == len(probe(workspace.folder / "paced.mp4").pts)
