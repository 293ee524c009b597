"""Frame pools as a user meets them: 2 MB pages asked for in the pipeline's file, and what `ps` says of memory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.app.command import LADDER, Workspace
from tests.dataplane.huge_pages import huge_pages

LADDER_ON_HUGE_PAGES = LADDER + "  sharedMemoryProfile: hugepage-2mb\n"


def run(workspace: Workspace) -> Any:
    spec = workspace.write(LADDER_ON_HUGE_PAGES.format(out=workspace.folder))
    done = workspace.run("run", spec, "--frames", "20", "--json")
    assert done.code == 0, done.err
    assert [s["frames_out"] for s in done.json["streams"]] == [20]
    return done.json


def of_pages(document: Any) -> list[str]:
    return [words for words in document["warnings"] if "2 MB pages" in words]


def test_2_mb_pages_are_used_when_there_are_some(workspace: Workspace) -> None:
    with huge_pages(256):
        assert not [words for words in of_pages(run(workspace)) if "hugetlb" in words]


def test_without_2_mb_pages_it_runs_on_small_ones_and_says_so_once(workspace: Workspace) -> None:
    with huge_pages(0):
        missing = [words for words in of_pages(run(workspace)) if "hugetlb" in words]
    assert len(missing) == 1
    assert missing[0].startswith("frame pools: no 2 MB pages from the hugetlb pool (")
    assert "0 are free)" in missing[0]


def test_ps_shows_what_pools_take_and_how_they_fit(workspace: Workspace) -> None:
    spec = workspace.write(LADDER.format(out=workspace.folder))
    with workspace.started("run", spec, "--frames", 100000):
        seen = wait_for_pools(workspace)
        resident = sum(slab_bytes(worker["pid"]) for worker in seen["workers"])  # a little later, so no less
        shown = workspace.run("ps").out
    assert {(pool["operator"], pool["port"]) for pool in seen["pools"]} >= {("decode", "video"), ("enc-hd", "video")}
    assert seen["pool_resident_bytes"] == sum(pool["resident_bytes"] for pool in seen["pools"])
    assert 0 < seen["pool_resident_bytes"] <= resident <= seen["pool_bytes"]
    assert 0 < seen["pool_hit_rate"] <= 1
    decode = next(pool for pool in seen["pools"] if pool["operator"] == "decode")
    assert 0 < decode["slots_high_water"] <= decode["slots"]
    assert sum(decode["allocations"].values()) > 0
    assert "frame pools: " in shown
    assert "hit rate" in shown


def wait_for_pools(workspace: Workspace, timeout_seconds: float = 60) -> Any:
    """The running pipeline, once all its workers but the last have told how their pools were used for a while."""
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        for pipeline in workspace.run("ps", "--json").json["pipelines"]:
            told = [pool for pool in pipeline["pools"] if pool["hit_rate"] is not None]
            if len(told) >= 6:
                return pipeline
        time.sleep(0.2)
    raise AssertionError("the workers did not tell of their pools")


def slab_bytes(pid: int) -> int:
    """Memory of the slabs that a process made, by the descriptors that it keeps of them."""
    total = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        if "memfd:observatory-slab" in str(entry.readlink()):
            total += entry.stat().st_blocks * 512
    return total
