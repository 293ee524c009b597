"""The pages in a browser on a stand-in of the API: what they show, live, and in states that are hard to bring about."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.dashboards import documents
from tests.dashboards.conftest import Tab, served
from tests.dashboards.standin import StandIn

Tabs = Callable[..., Tab]
Service = tuple[StandIn, str]


def cell(page: Page, table: str, row: str, column: str) -> str:
    """The text of one cell, by the table's name, the row's first cell and the column's head."""
    found = page.get_by_role("table", name=table)
    heads = found.locator("thead th").all_inner_texts()
    line = found.locator("tbody tr").filter(has_text=re.compile(f"^{re.escape(row)}"))
    return line.locator("td").nth(heads.index(column)).inner_text()


def badge(page: Page, words: str) -> None:
    expect(page.locator("#live-badge")).to_have_text(re.compile(words), timeout=30_000)


def test_overview_shows_what_the_snapshot_says_and_goes_on_without_reload(standin: Service, tab: Tabs) -> None:
    _, address = standin
    page = tab(address).open("/")
    badge(page, "^live$")
    expect(page.get_by_text("encoder-17")).to_be_visible()
    expect(page.get_by_text("1.51 GB")).to_be_visible()
    expect(page.get_by_text("of 10 GB")).to_be_visible()
    assert cell(page, "Workers", "watermark-720p", "Planned on") == "n0/gpu2"
    assert cell(page, "Workers", "watermark-720p", "Memory") == "91 MB"
    expect(page.locator("#queue-figure .textpoint").filter(has_text="scale-360p")).to_be_visible()
    expect(page.locator("#rate-figure .scatterlayer .trace")).to_have_count(2)  # its line, and the window
    assert page.locator(".modebar-btn[data-title*=Share]").count() == 0, "charts stay here"
    before = cell(page, "Pipelines", "abr-ladder", "In")
    page.evaluate("window.sameDocument = true")
    until = "document.querySelector('#rate-figure .js-plotly-plot').layout.xaxis.range[1]"
    first = page.evaluate(until)
    page.wait_for_function(f"first => {until} > first", arg=first)  # the window moves along
    expect(page.get_by_role("table", name="Pipelines")).not_to_contain_text(before)
    assert int(cell(page, "Pipelines", "abr-ladder", "In").replace(",", "")) > int(before.replace(",", ""))
    assert page.evaluate("window.sameDocument")


def test_live_values_leave_the_zoom_alone(standin: Service, tab: Tabs) -> None:
    _, address = standin
    page = tab(address).open("/")
    badge(page, "^live$")
    plot = page.locator("#latency-figure .js-plotly-plot")
    area = page.locator("#latency-figure .nsewdrag").bounding_box()
    assert area is not None
    page.mouse.move(area["x"] + area["width"] * 0.3, area["y"] + area["height"] * 0.2)
    page.mouse.down()
    page.mouse.move(area["x"] + area["width"] * 0.7, area["y"] + area["height"] * 0.8, steps=5)
    page.mouse.up()
    ranges = "plot => [plot.layout.xaxis.range, plot.layout.yaxis.range, plot.layout.yaxis.autorange]"
    zoomed = plot.evaluate(ranges)
    assert zoomed[2] is False
    newest = "plot => plot.data[1].x.length"
    before = plot.evaluate(newest)
    page.wait_for_function(
        "before => document.querySelector('#latency-figure .js-plotly-plot').data[1].x.length > before + 1", arg=before
    )
    assert plot.evaluate(ranges) == zoomed


@pytest.mark.slow
def test_pipelines_that_come_and_go_appear_and_vanish(standin: Service, tab: Tabs) -> None:
    service, address = standin
    page = tab(address).open("/")
    expect(page.get_by_role("heading", name="abr-ladder")).to_be_visible()
    service.base = documents.snapshot(
        documents.pipeline(), documents.pipeline("news", "failed", reason="decode: killed by SIGKILL")
    )
    page.get_by_role("link", name="news", exact=True).click()
    expect(page.get_by_role("heading", name="news")).to_be_visible()
    expect(page.get_by_text("decode: killed by SIGKILL")).to_be_visible()
    service.base = documents.snapshot()
    expect(page.get_by_text("No pipeline runs.")).to_be_visible()
    expect(page.get_by_text("observatory submit pipeline.yaml")).to_be_visible()
    expect(page.get_by_role("heading", name="news")).to_have_count(0)


@pytest.mark.slow
def test_a_platform_that_does_not_answer_is_said_with_its_mend_and_comes_back(standin: Service, tab: Tabs) -> None:
    service, address = standin
    page = tab(address).open("/")
    badge(page, "^live$")
    service.failing = {"kind": "Gone", "message": "nothing runs there any more", "mend": "start observatory up"}
    expect(page.get_by_text("nothing runs there any more")).to_be_visible()
    expect(page.get_by_text("start observatory up")).to_be_visible()
    badge(page, "^stale")
    service.failing = None
    badge(page, "^live$")
    expect(page.get_by_text("nothing runs there any more")).to_have_count(0)


def test_submit_sends_the_pipeline_and_shows_where_it_is_wrong(standin: Service, tab: Tabs) -> None:
    service, address = standin
    service.refusal = {
        "kind": "BadSpec", "message": "small (scale): widht: there is no such key", "file": "preview.yaml", "line": 7,
        "mend": "did you mean width?",
    }  # fmt: skip
    made = tab(address)
    page = made.open("/")
    page.get_by_role("button", name="Submit a pipeline").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Submit", exact=True).click()
    expect(dialog.get_by_text("Write or drop a pipeline first.")).to_be_visible()
    content = b"kind: MediaPipeline\n# \xc3\xa4\n"
    page.locator("#submit-upload input[type=file]").set_input_files(
        {"name": "preview.yaml", "mimeType": "application/yaml", "buffer": content}
    )
    expect(dialog.get_by_label("Pipeline", exact=True)).to_have_value(content.decode())
    dialog.get_by_label("Input").fill("a=one.mp4, b=rtp://0.0.0.0:5004?x=1,2")
    dialog.get_by_role("button", name="Submit", exact=True).click()
    expect(dialog.get_by_text("preview.yaml:7")).to_be_visible()
    expect(dialog.get_by_text("widht: there is no such key")).to_be_visible()
    expect(dialog.get_by_text("did you mean width?")).to_be_visible()
    assert service.submitted == [
        {
            "spec": content.decode(),
            "file": "preview.yaml",
            "inputs": {"a": "one.mp4", "b": "rtp://0.0.0.0:5004?x=1,2"},
        }
    ]
    service.refusal = None
    dialog.get_by_role("button", name="Submit", exact=True).click()
    expect(dialog).to_have_count(0)
    expect(page).to_have_url(f"{address}/?pipeline=abr-ladder")


@pytest.mark.slow
def test_remove_asks_first(standin: Service, tab: Tabs) -> None:
    service, address = standin
    page = tab(address).open("/")
    page.get_by_role("button", name="Remove abr-ladder").click()
    expect(page.get_by_role("dialog")).to_contain_text("abr-ladder")
    page.get_by_role("button", name="Keep it").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert service.removed == []
    page.get_by_role("button", name="Remove abr-ladder").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove", exact=True).click()
    expect(page.get_by_text("No pipeline runs.")).to_be_visible()
    assert service.removed == ["abr-ladder"]


def test_topology_of_one_node_shows_links_devices_and_operators(standin: Service, tab: Tabs) -> None:
    _, address = standin
    page = tab(address).open("/topology")
    graph = page.locator("#physical-figure")
    expect(graph.locator(".textpoint").filter(has_text="gpu7")).to_be_visible()
    expect(graph.locator(".textpoint").filter(has_text="nvswitch0")).to_be_visible()
    expect(graph.locator(".textpoint").filter(has_text="gpu2")).to_contain_text("scale-720p")
    expect(page.get_by_text("8 × NVLink, 18 × 25 GB/s per link, 450 GB/s")).to_be_visible()
    expect(page.get_by_text("1 × UPI, 24 × 16.0 GT/s, 144 GB/s")).to_be_visible()
    expect(page.get_by_text("unknown (2 cells)")).to_be_visible()
    page.locator("#cost-figure .nsewdrag").hover(position={"x": 20, "y": 200})
    expect(page.locator("#cost-words")).to_have_text(re.compile(r"From n0/\w+ to n0/cpu0: \d.* µs\."))


@pytest.mark.slow
def test_topology_of_a_cluster_names_trouble_and_goes_down_to_a_node(standin: Service, tab: Tabs) -> None:
    service, address = standin
    service.topology = documents.cluster(50)
    page = tab(address).open("/topology")
    expect(page.get_by_text("2 degraded or down")).to_be_visible()
    expect(page.get_by_text("1 × RDMA, 2 × 400 Gb/s, 25 GB/s (degraded)")).to_be_visible()
    expect(page.locator("#physical-figure .textpoint").filter(has_text="n49")).to_be_visible()
    expect(page.get_by_role("heading", name="Time to move 1 MiB between nodes")).to_be_visible()
    page.get_by_role("link", name="n3", exact=True).click()
    expect(page).to_have_url(f"{address}/topology?node=n3")
    expect(page.get_by_role("heading", name="Node n3")).to_be_visible()
    expect(page.get_by_role("heading", name="Time to move 1 MiB between devices")).to_be_visible()
    expect(page.get_by_role("textbox", name="Which node to show")).to_have_value("n3")


def test_a_frame_is_found_by_the_form_and_by_its_address(standin: Service, tab: Tabs) -> None:
    _, address = standin
    page = tab(address).open("/frames")
    expect(page.get_by_text("No frame chosen yet.")).to_be_visible()
    page.get_by_label("PTS").fill("120")
    page.get_by_label("Epoch").fill("1")
    page.get_by_role("button", name="Find").click()
    expect(page).to_have_url(f"{address}/frames?stream=abr-ladder&pts=120&epoch=1")
    expect(page.locator("#frame")).to_contain_text("399 ms end to end")  # 0.398526432 s in the record
    expect(page.locator("#waterfall .yaxislayer-above .ytick")).to_have_count(7)
    page.get_by_text("Hops in figures").click()
    assert (
        cell(page, "Hops of this frame", "decode → scale-720p", "wait, ms") == "83.69"
    )  # 10953108382642 - 10953024697220
    again = tab(address).open("/frames?stream=abr-ladder&pts=120&epoch=1")
    expect(again.locator("#frame")).to_contain_text("399 ms end to end")
    expect(again.get_by_label("PTS")).to_have_value("120")


def test_a_frame_that_is_not_there_names_the_nearest(standin: Service, tab: Tabs) -> None:
    _, address = standin
    page = tab(address).open("/frames?stream=abr-ladder&pts=999999")
    expect(page.locator("#frame")).to_contain_text("no frame has PTS 999999 (time base 1/30)")
    link = page.locator("#frame").get_by_role("link", name="PTS 299 at 1/30")
    link.click()
    expect(page).to_have_url(re.compile(r"/frames\?stream=abr-ladder&pts=299&time_base=1%2F30$"))


@pytest.mark.slow
def test_a_row_of_the_list_opens_its_frame(standin: Service, tab: Tabs) -> None:
    _, address = standin
    page = tab(address).open("/frames")
    page.locator("#frames-grid .ag-row").first.click()
    expect(page).to_have_url(re.compile(r"pts=260"))
    page.get_by_text("Slowest", exact=True).click()
    expect(page.locator("#frames-grid .ag-row").first).to_contain_text("566.03")


@pytest.mark.slow
def test_no_frames_yet(standin: Service, tab: Tabs) -> None:
    service, address = standin
    service.store = {}
    page = tab(address).open("/frames")
    expect(page.locator("#frame").get_by_text("No frames yet.")).to_be_visible()
    expect(page.locator("#frames-list").get_by_text("No frames yet.")).to_be_visible()


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/topology", "/frames"])
def test_pages_say_when_the_api_is_away(standin: Service, tab: Tabs, path: str) -> None:
    service, address = standin
    service.failing = {"kind": "Gone", "message": "nothing runs there any more", "mend": "start observatory up"}
    page = tab(address).open(path)
    expect(page.get_by_text("nothing runs there any more").first).to_be_visible()
    expect(page.get_by_text("start observatory up").first).to_be_visible()


@pytest.mark.slow
def test_an_unknown_page_leads_back(standin: Service, tab: Tabs) -> None:
    _, address = standin
    page = tab(address).open("/nowhere")
    page.get_by_role("main").get_by_role("link", name="Overview").click()
    expect(page.get_by_text("encoder-17")).to_be_visible()


@pytest.mark.slow
def test_dark_follows_the_browser_and_text_is_readable_in_figures(standin: Service, tab: Tabs) -> None:
    _, address = standin
    lightness = (
        "e => { const [r, g, b] = getComputedStyle(e)[PROPERTY].match(/\\d+/g).map(Number); return (r + g + b) / 3 }"
    )
    for scheme, darker in (("light", "fill"), ("dark", "backgroundColor")):
        page = tab(address, color_scheme=scheme).open("/")
        text = page.locator("#queue-figure .textpoint text").first
        text.wait_for()
        found = {
            "fill": text.evaluate(lightness.replace("PROPERTY", "'fill'")),
            "backgroundColor": page.locator(".panel").first.evaluate(
                lightness.replace("PROPERTY", "'backgroundColor'")
            ),
        }
        assert min(found, key=lambda name: found[name]) == darker
        assert abs(found["fill"] - found["backgroundColor"]) > 120


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/", "/topology", "/frames?stream=abr-ladder&pts=120"])
def test_a_narrow_window_needs_no_scrolling_sideways(standin: Service, tab: Tabs, path: str) -> None:
    _, address = standin
    page = tab(address, width=400).open(path)
    page.wait_for_selector(".js-plotly-plot")
    assert page.evaluate("document.documentElement.scrollWidth") == 400


@pytest.mark.slow
def test_a_browser_that_hangs_disturbs_no_other_and_catches_up(standin: Service, tab: Tabs, browser: Browser) -> None:
    _, address = standin
    apart = browser.new_context()  # a process of its own
    hanging = apart.new_page()
    hanging.goto(address)
    badge(hanging, "^live$")
    page = tab(address).open("/")
    badge(page, "^live$")
    hanging.evaluate("setTimeout(() => { const t = Date.now(); while (Date.now() - t < 12000); }, 0); 0")
    for _ in range(3):
        before = cell(page, "Pipelines", "abr-ladder", "In")
        expect(page.get_by_role("table", name="Pipelines")).not_to_contain_text(before, timeout=10_000)
    badge(page, "^live$")
    badge(hanging, "^live$")
    late, now = (int(cell(p, "Pipelines", "abr-ladder", "In").replace(",", "")) for p in (hanging, page))
    assert abs(late - now) <= 30 * 20, "it shows the past"
    apart.close()


def test_the_very_first_request_may_be_a_deep_link(shipped: documents.Document, tab: Tabs) -> None:
    fresh = StandIn(documents.snapshot(), shipped, documents.recorded())
    with served(fresh.server) as address:
        made = tab(address)
        page = made.open("/frames?stream=abr-ladder&pts=120")
        expect(page.locator("#frame")).to_contain_text("399 ms end to end")
        expect(page.get_by_role("link", name="Frames", exact=True)).to_have_attribute("aria-current", "page")
        page.close()


def test_incidents_come_with_their_evidence_and_go_again(standin: Service, tab: Tabs) -> None:
    service, address = standin
    lanes = documents.incident("nvlink_degraded", "n0/gpu3--n0/nvswitch0:nvlink", "8 of 18 NVLinks are down")
    fallen = documents.incident(
        "gpu_lost",
        "n0/gpu5",
        "n0/gpu5 has fallen off the bus",
        "critical",
        mend="reset the node",
        affected=["n0/x:pcie"],
    )
    over = documents.incident("aer_storm", "n0/nic0", "AER storm", state="closed", closed_at=fallen["opened_at"] + 75)
    service.base = documents.snapshot() | {"telemetry": documents.telemetry(fallen, lanes)}
    service.store = {"incidents": [over]}
    page = tab(address).open("/incidents")
    badge(page, "^live$")
    first = page.locator(".incident").first
    expect(first).to_contain_text("has fallen off the bus")
    expect(first).to_contain_text(re.compile("for 1 min 3[0-9] s"))
    expect(first).to_contain_text("confidence 80%")
    expect(first).to_contain_text("Mend: reset the node")
    expect(first).to_contain_text("Suffers too: n0/x:pcie")
    expect(page.locator(".incident").nth(1)).to_contain_text("10 of 18 links are active")
    expect(page.get_by_text("not answering: dcgm")).to_be_visible()
    assert "connection refused" in cell(page, "Receivers", "dcgm", "State")
    assert cell(page, "Receivers", "kmsg", "Every") == "as it comes"
    assert cell(page, "Incidents that are over", "AER storm", "Took") == "1 min 15 s"
    service.base = documents.snapshot() | {"telemetry": documents.telemetry()}
    expect(page.get_by_text("Nothing is wrong with the hardware")).to_be_visible()
    service.base = documents.snapshot()
    expect(page.get_by_text("no receivers run on this platform").first).to_be_visible()


def test_the_topology_is_drawn_again_when_a_link_changes(standin: Service, tab: Tabs) -> None:
    service, address = standin
    service.topology = documents.cluster(1, degraded=False)
    service.base = documents.snapshot() | {"telemetry": documents.telemetry()}
    page = tab(address).open("/topology")
    expect(page.locator("#physical-figure .js-plotly-plot")).to_be_visible()
    badge(page, "^live$")
    assert page.get_by_text("degraded or down").count() == 0
    service.topology = documents.cluster(1, degraded=False)
    service.topology["links"][-1]["state"] = "degraded"
    service.base = documents.snapshot() | {"telemetry": documents.telemetry() | {"topology_version": 13}}
    expect(page.get_by_text("1 degraded or down")).to_be_visible()
