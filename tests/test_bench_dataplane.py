"""The smallest form of `script/bench dataplane`: that it hands frames over, counts right, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.dataplane import measure_transports
from benchmarks.dataplane_ends import NO_PEERS
from benchmarks.dataplane_figures import Figure, figures, markdown
from benchmarks.dataplane_pairs import Failed, Job, measure
from benchmarks.dataplane_rounds import Plan
from benchmarks.dataplane_transports import BY_NAME

SMALL = Plan(
    rounds=1,
    latency_frames=5,
    throughput_frames={"64 B": 50},
    sizes=("64 B",),
    latency=("futex", "ring", "ring-spinning", "shared-memory-queue"),
    throughput=("ring",),
    classes=("other",),
)


def test_a_round_gives_a_figure_for_every_transport() -> None:
    found = measure_transports(SMALL, "left out", lambda words: None)
    assert not found["notes"] or all("failed" not in note for note in found["notes"])
    latency = found["cells"]["other"]["latency"]["64 B"]
    assert set(latency) == set(SMALL.latency)
    for rounds in latency.values():
        (one,) = rounds
        assert one is not None
        assert one["frames"] == 5
        assert 0 < one["p50_seconds"] <= one["p99_seconds"] < 10
    (throughput,) = found["cells"]["other"]["throughput"]["64 B"]["ring"]
    assert throughput is not None
    assert throughput["frames_per_second"] > 0
    assert "| ring, 4 KiB pages |" in markdown({"transports": found})


@pytest.mark.parametrize("name", ["iceoryx2-event", "pyzmq"])
def test_peers_are_driven_and_leave_nothing(name: str) -> None:
    if BY_NAME[name].missing() == NO_PEERS:
        pytest.skip(f"{name} is {NO_PEERS}")
    before = _left()
    found = measure(Job(name, "throughput", 64, 30, False, warm=5))
    assert found["frames_per_second"] > 0
    assert _left() <= before


def _left() -> set[Path]:
    return {path for place in ("/dev/shm", "/tmp") for path in Path(place).glob("observatory-bench-*")}


def test_a_transport_that_fails_says_what() -> None:
    with pytest.raises(Failed, match=r"^ring: .*a size class has 1 to"):
        measure(Job("ring", "latency", 0, 1, False))


def test_ratios_are_taken_within_a_round() -> None:
    cells = {
        "fifo": {
            "latency": {
                "64 B": {
                    "ring": [{"p50_seconds": 2e-6}, {"p50_seconds": 30e-6}, None],
                    "iceoryx2-event": [{"p50_seconds": 4e-6}, {"p50_seconds": 50e-6}, {"p50_seconds": 1e-6}],
                }
            }
        }
    }
    results = {"transports": {"cells": cells, "classes": ["fifo"], "sizes": ["64 B"]}}
    figure = next(one for one in figures(results) if "iceoryx2 (event)" in one.what)
    assert figure == Figure(figure.what, "0.55x (0.50-0.60)", "<= 0.7x", True)


def test_a_part_that_could_not_be_measured_says_why() -> None:
    (figure,) = figures({"kills": {"missing": "kill_storm is not part of tests/native"}})
    assert figure.reached is None
    assert figure.measured == "not measured: kill_storm is not part of tests/native"
