"""The pages of a real platform: `observatory up`, its web process, its frames, in a browser."""

from __future__ import annotations

import json
import re
import signal
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import expect

from tests.app.command import Workspace, probe
from tests.dashboards.conftest import Tab
from tests.dashboards.test_pages import badge, cell

LADDER = """apiVersion: media.observatory/v1
kind: MediaPipeline
metadata: {name: ladder}
spec:
  operators:
    - {name: decode, op: decode, params: {source: {size: 160x90}}}
    - {name: small, op: scale, inputs: [decode], params: {width: 80, height: 48}}
    - {name: enc-a, op: encode, inputs: [decode], params: {codec: libx264, preset: ultrafast, bitrate: 100k}}
    - {name: enc-b, op: encode, inputs: [small], params: {codec: libx264, preset: ultrafast, bitrate: 50k}}
    - {name: out-a, op: mux, inputs: [enc-a], params: {path: a.mp4}}
    - {name: out-b, op: mux, inputs: [enc-b], params: {path: b.mp4}}
"""


def asked(address: str, path: str) -> Any:
    with urllib.request.urlopen(address + path, timeout=30) as answer:
        return json.load(answer)


def address_of(workspace: Workspace, process: Any) -> str:
    deadline = time.monotonic() + 60
    while True:
        shown = workspace.run("ps", "--json")
        urls = re.findall(r"http://127\.0\.0\.1:\d+", shown.out)
        if urls:
            return str(urls[0])
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, shown.out
        time.sleep(0.2)


def test_a_pipeline_from_submission_to_its_frames(tmp_path: Path, tab: Callable[..., Tab]) -> None:
    workspace = Workspace(tmp_path)
    with workspace.started("up", "--no-pipeline", "--port", 0) as process:
        address = address_of(workspace, process)
        page = tab(address).open("/")
        expect(page.get_by_text("No pipeline runs.")).to_be_visible()

        page.get_by_role("button", name="Submit a pipeline").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Pipeline", exact=True).fill(LADDER.replace("height: 48", "heigth: 48"))
        dialog.get_by_label("Folder").fill(str(tmp_path))
        dialog.get_by_role("button", name="Submit", exact=True).click()
        expect(dialog.locator(".message").filter(has_text="heigth")).to_be_visible()
        expect(dialog.get_by_text(re.compile("did you mean height"))).to_be_visible()
        dialog.get_by_label("Pipeline", exact=True).fill(LADDER)
        dialog.get_by_role("button", name="Submit", exact=True).click()
        expect(page.get_by_role("heading", name="ladder")).to_be_visible()
        expect(page.locator("#queue-figure .textpoint").filter(has_text="enc-b")).to_be_visible()
        badge(page, "^live$")
        page.wait_for_function("() => document.querySelectorAll('#workers-table tbody tr').length === 6")
        (worker,) = (
            w for w in asked(address, "/api/v1/snapshot")["pipelines"][0]["workers"] if w["operator"] == "enc-a"
        )
        assert cell(page, "Workers", "enc-a", "PID") == str(worker["pid"])
        assert cell(page, "Workers", "enc-a", "Planned on") == worker["device"]

        known = asked(address, "/api/v1/frames/find?stream=ladder&source_index=10")
        page.locator("#nav-frames").click()
        page.get_by_label("PTS").fill(str(known["pts"]))
        page.get_by_role("button", name="Find").click()
        expect(page.locator("#frame")).to_contain_text("source index 10")
        expect(page.locator("#waterfall .yaxislayer-above .ytick")).to_have_count(5)
        page.locator("#nav-topology").click()
        expect(page.locator("#physical-figure .textpoint").filter(has_text="nvswitch0")).to_be_visible()
        placed = {w["device"].partition("/")[2] for w in asked(address, "/api/v1/snapshot")["pipelines"][0]["workers"]}
        for device in placed:
            box = page.locator("#physical-figure .textpoint text").filter(has_text=re.compile(f"^{device}."))
            expect(box).to_have_count(1)

        page.locator("#nav-overview").click()
        page.get_by_role("button", name="Remove ladder").click()
        page.get_by_role("dialog").get_by_role("button", name="Remove", exact=True).click()
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(page.get_by_role("heading", name="ladder")).to_have_count(0)
        assert len(probe(tmp_path / "a.mp4").pts) > 10
        page.goto("about:blank")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
