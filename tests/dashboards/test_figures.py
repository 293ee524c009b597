"""Figures and numbers, by hand: what is drawn where, and what it says."""

from __future__ import annotations

import base64
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboards import numbers
from dashboards.figures import cluster, cost, hardware, machine, queues, waterfall
from dashboards.figures.layers import apart, layers_of, ordered, spread
from dashboards.pages.submit import read_inputs
from dashboards.pages.topology import placement, wanted_node
from observatory.app.topology_document import topology_document
from observatory.model.status import PipelineStatus, Snapshot
from observatory.topology.load import load_topology
from tests.dashboards import documents


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (numbers.seconds(0.0123), "12.3 ms"), (numbers.seconds(275e-9), "275 ns"), (numbers.seconds(1.2), "1.2 s"),
        (numbers.seconds(0.3985), "398 ms"), (numbers.seconds(0.0), "0 s"), (numbers.seconds(None), "–"),
        (numbers.seconds(1234.0), "1234 s"), (numbers.size(1_500_000_000), "1.5 GB"), (numbers.size(640), "640 B"),
        (numbers.size(0), "0 B"), (numbers.size(None, "unknown"), "unknown"), (numbers.rate(63.015e9), "63 GB/s"),
        (numbers.count(12345), "12,345"), (numbers.per_second(29.97), "30.0"), (numbers.per_second(12_300.4), "12,300"),
        (numbers.span(45), "45 s"), (numbers.span(11_520), "3 h 12 min"), (numbers.span(0), "0 s"),
        (numbers.span(86_400 * 2 + 60), "2 d"), (numbers.span(3600), "1 h"),
    ],
)  # fmt: skip
def test_numbers_have_units_and_few_digits(said: str, text: str) -> None:
    assert said == text


def test_rows_of_a_dag_are_one_below_the_last_predecessor() -> None:
    edges = [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("a", "d"), ("x", "c")]
    assert [sorted(row) for row in layers_of(edges, "abcdx")] == [["a", "x"], ["b", "c"], ["d"]]


def test_a_cycle_is_drawn_too() -> None:
    rows = layers_of([("a", "b"), ("b", "a"), ("b", "c")], "abc")
    assert sorted(itertools.chain(*rows)) == ["a", "b", "c"]


def test_orders_avoid_crossings_that_can_be_avoided() -> None:
    rows = ordered([["a", "b"], ["y", "x"]], [("a", "x"), ("b", "y")])
    assert rows[0].index("a") - rows[0].index("b") == rows[1].index("x") - rows[1].index("y")


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=12), st.floats(0.1, 3))
def test_positions_keep_order_and_distance_and_are_nearest(wanted: list[float], gap: float) -> None:
    found = apart(wanted, gap)
    assert len(found) == len(wanted)
    assert all(b - a >= gap - 1e-6 for a, b in itertools.pairwise(found))

    def far(at: list[float]) -> float:
        return sum((a - b) ** 2 for a, b in zip(at, wanted, strict=True))

    # No block of neighbours can be shifted, within what is allowed, so that all come nearer.
    for first, last in itertools.combinations(range(len(found) + 1), 2):
        for step in (-1e-3, 1e-3):
            moved = [at + step if first <= i < last else at for i, at in enumerate(found)]
            if all(b - a >= gap - 1e-9 for a, b in itertools.pairwise(moved)):
                assert far(moved) >= far(found) - 1e-6


def test_a_parent_stands_in_the_middle_of_its_children() -> None:
    at = spread([["p"], ["a", "b", "c"]], [("p", "a"), ("p", "b"), ("p", "c")])
    assert at["p"] == pytest.approx(at["b"])
    assert at["b"] - at["a"] == pytest.approx(1)


def test_costs_are_quantised_so_that_unknown_and_nothing_are_apart_from_all_times() -> None:
    seconds: list[list[float | None]] = [[0.0, 1e-6, None], [1e-4, 0.0, 1e-5], [1e-6, 1e-4, 0.0]]
    codes = cost.quantised(seconds, 1e-6, 1e-4)
    # 1 to 100 µs are two decades over the codes 2 to 255: 10 µs is half-way, 128.5, which rounds to even.
    assert codes.tolist() == [[1, 2, 0], [255, 1, 128], [2, 255, 1]]
    assert codes.dtype == np.uint8
    words = cost.words_of_codes(1e-6, 1e-4)
    assert (len(words), words[2], words[255]) == (256, "about 1 µs", "about 100 µs")
    assert words[0].startswith("unknown")


def test_the_largest_matrix_is_one_byte_per_cell() -> None:
    side = cost.LARGEST
    seconds = [[1e-6 * (1 + i + j) for j in range(side)] for i in range(side)]
    (trace,) = cost.heatmap([f"n/gpu{i}" for i in range(side)], seconds, "x")["data"]
    assert trace["z"]["dtype"] == "u1"
    assert len(base64.b64decode(trace["z"]["bdata"])) == side * side
    assert "customdata" not in trace


def test_one_cost_only_is_drawn_as_well() -> None:
    (trace,) = cost.heatmap(["a", "b"], [[0.0, 5e-6], [5e-6, 0.0]], "x")["data"]
    assert trace["customdata"][0][1] == "5 µs"
    assert trace["colorbar"]["ticktext"] == ["5 µs"]


def hop(**events: int | None) -> dict[str, Any]:
    names = [phase.begin for phase in waterfall.PHASES] + ["CONSUMER_WAIT_FENCE", "LINK_END", "SLOT_RELEASE"]
    return {
        "edge": "a->b", "producer_device": "n0/gpu0", "consumer_device": "n0/gpu1", "producer_real_device": "vm/cpu0",
        "consumer_real_device": "vm/cpu0", "bytes": 1000, "slot": 65_538, "pts": 3, "time_base": "1/30",
        "incomplete": False, "dropped": False, "parents": [], "events": dict.fromkeys(names) | events,
    }  # fmt: skip


def frame(*hops: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "stream": "s", "epoch": 1, "source_index": 3, "pts": 3, "time_base": "1/30", "end_to_end_seconds": None,
        "began_unix_seconds": None, "state": "complete", "lost": [], "missing": [], "hops": list(hops),
    } | more  # fmt: skip


MS = 1_000_000


def test_phases_lie_between_their_events() -> None:
    whole = hop(
        DMA_BUF_ALLOC=10 * MS, PRODUCER_KERNEL_LAUNCH=11 * MS, FENCE_SIGNAL=14 * MS, CONSUMER_WAIT_FENCE=12 * MS,
        CONSUMER_KERNEL_LAUNCH=20 * MS, SLOT_RELEASE=27 * MS,
    )  # fmt: skip
    traces = {trace["name"]: trace for trace in waterfall.waterfall(frame(whole))["data"]}
    spans = {name: (trace["base"][0], trace["x"][0]) for name, trace in traces.items() if trace["type"] == "bar"}
    assert spans == {"allocate": (0, 1), "produce": (1, 3), "wait": (4, 6), "consume": (10, 7)}
    assert traces["consumer ready"]["x"] == [2]
    assert "waited 2.00 ms for the fence" in traces["consumer ready"]["hovertext"][0]


def test_what_was_not_recorded_is_said_and_not_drawn() -> None:
    broken = hop(DMA_BUF_ALLOC=0, PRODUCER_KERNEL_LAUNCH=0, FENCE_SIGNAL=5 * MS)
    dropped = hop(DMA_BUF_ALLOC=0, PRODUCER_KERNEL_LAUNCH=0, FENCE_SIGNAL=5 * MS) | {"edge": "a->c", "dropped": True}
    figure = waterfall.waterfall(frame(broken, dropped, missing=["b->d"]))
    assert "consume" not in {trace["name"] for trace in figure["data"]}
    remarks = {remark["y"]: remark["text"] for remark in figure["layout"]["annotations"]}
    assert remarks == {
        "a → b": "<b>? not recorded further</b>",
        "a → c": "<b>dropped here</b>",
        "b → d": "no record",
    }


def test_a_frame_without_any_event_is_drawn() -> None:
    assert waterfall.waterfall(frame(hop()))["data"] == []


def shapes_of(figure: dict[str, Any]) -> list[tuple[float, float]]:
    return [
        ((s["x0"] + s["x1"]) / 2, (s["y0"] + s["y1"]) / 2) for s in figure["layout"]["shapes"] if s["type"] == "rect"
    ]  # fmt: skip


def test_a_node_is_drawn_in_layers() -> None:
    drawn = machine.plan(topology_document(load_topology("two-socket-8gpu")), "n0")
    rows = [drawn.at[f"n0/{name}"][1] for name in ("cpu0", "socket0", "pcie0", "gpu0", "nvswitch0")]
    assert rows == sorted(rows)
    assert len(set(rows)) == 5
    assert len(set(drawn.at.values())) == len(drawn.at) == 21
    assert len(drawn.links) == 27
    gpus = [drawn.at[f"n0/gpu{i}"][0] for i in range(8)]
    assert max(gpus[:4]) < min(gpus[4:]), "each socket's GPUs stand together"


@pytest.mark.parametrize("nodes", [1, 2, 8, 50])
def test_a_cluster_gives_every_node_and_device_a_place_of_its_own(nodes: int) -> None:
    document = documents.cluster(nodes)
    drawn = cluster.Plan(document)
    assert len({(round(x, 6), round(y, 6)) for x, y in drawn.at.values()}) == len(drawn.at)
    spots = cluster.device_spots(drawn)
    assert len({(round(x, 6), round(y, 6)) for x, y in spots.values()}) == len(document["devices"])
    figure = cluster.cluster(drawn, {"n0/gpu3": ["decode"]}, "x")
    words = [text for trace in figure["data"] for text in trace.get("hovertext") or ()]
    assert any("operators: decode" in text for text in words)


def test_a_cluster_without_switches_or_links_is_drawn() -> None:
    document = documents.cluster(3) | {"vertices": [], "links": []}
    assert len(cluster.cluster(cluster.Plan(document), {}, "x")["layout"]["shapes"]) == 3
    assert machine.machine(machine.plan(document, "n1"), {}, "n1")["layout"]["shapes"]


def test_unknown_values_are_said_to_be_unknown() -> None:
    link = documents.link("a", "b", "pcie", None, None, state=None)
    words = hardware.link_words(link)
    for part in ("width: unknown", "bandwidth: unknown", "latency: unknown", "utilisation: unknown", "state unknown"):
        assert part in words
    assert "0" not in words


def test_degraded_and_down_links_come_first_and_look_different() -> None:
    classes = hardware.classes(documents.cluster(2)["links"])
    first = [next(iter(links)) for links in classes.values()][:2]
    assert {link["state"] for link in first} == {"degraded", "down"}
    usual = hardware.link_line(documents.link("a", "b", "rdma", 50e9, 1e-6))
    assert all(hardware.link_line(link)["color"] != usual["color"] for link in first)


def test_gauges_show_queued_and_held_against_the_depth() -> None:
    pipeline = PipelineStatus.model_validate(documents.pipeline())
    figure = queues.queues(pipeline)
    gauges = figure["data"][1]
    assert set(gauges["text"]) == {"3/12"}
    assert len(gauges["text"]) == 7
    assert len(shapes_of(figure)) == 8
    assert len({(round(x, 3), round(y, 3)) for x, y in zip(gauges["x"], gauges["y"], strict=True)}) == 7


def test_operators_stand_where_the_running_pipelines_put_them() -> None:
    one, two = documents.pipeline("one"), documents.pipeline("two", "failed")
    snapshot = Snapshot.model_validate(documents.snapshot(one, two))
    assert placement(snapshot)["n0/gpu2"] == ["scale-720p", "watermark-720p"]
    both = Snapshot.model_validate(documents.snapshot(one, documents.pipeline("two")))
    assert placement(both)["n0/vpu1"] == ["one/encode-360p", "two/encode-360p"]


def test_the_node_that_is_shown_is_the_one_asked_for() -> None:
    document = documents.cluster(3)
    assert wanted_node("?node=n2", document) == "n2"
    assert wanted_node("?node=n9", document) is None
    assert wanted_node("", document) is None
    assert wanted_node("", documents.cluster(1)) == "n0"


@pytest.mark.parametrize(
    ("text", "inputs"),
    [
        ("", {}),
        (None, {}),
        ("film.mp4", {"": "film.mp4"}),
        (" my film, part 2.mp4 ", {"": "my film, part 2.mp4"}),
        ("a=one.mp4, b=two.mp4", {"a": "one.mp4", "b": "two.mp4"}),
        ("cam-1=rtp://0.0.0.0:5004?x=1,y=2", {"cam-1": "rtp://0.0.0.0:5004?x=1", "y": "2"}),
        ("rtp://0.0.0.0:5004?x=1", {"": "rtp://0.0.0.0:5004?x=1"}),
        ("srt://h:1?latency=20,30", {"": "srt://h:1?latency=20,30"}),
    ],
)
def test_inputs_are_read_as_written(text: str | None, inputs: dict[str, str]) -> None:
    assert read_inputs(text) == inputs


@given(st.text(max_size=40))
def test_any_text_is_read_as_inputs(text: str) -> None:
    assert all(isinstance(path, str) for path in read_inputs(text).values())
