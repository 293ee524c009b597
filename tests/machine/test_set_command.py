"""`observatory topology set` as people call it, answered as a platform does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.machine.machine import EmulatedMachine
from observatory.app.cli.main import run_cli
from observatory.app.control import ControlServer
from observatory.app.state_lock import StateLock
from tests.machine.machines import NVLINK, fabric_of, two_gpus


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    topology = two_gpus()
    with (
        StateLock(tmp_path),
        EmulatedMachine(topology, fabric_of(topology), tmp_path / "run" / "machine") as machine,
    ):
        server = ControlServer(tmp_path, {"set_part": lambda asked, _: machine.set(asked["target"], asked["changes"])})
        yield tmp_path
        server.close()


def said(capsys: pytest.CaptureFixture[str], state: Path, *arguments: str, code: int = 0) -> str:
    assert run_cli(["topology", "set", *arguments, "--state", str(state)]) == code
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.err


def test_it_says_what_the_link_is_and_where_that_shows(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, state, "gpu0-gpu1", "width=6").splitlines() == [
        f"{NVLINK}: degraded, 6 of 12 NVLinks, 150 GB/s (50% of what it had)",
        "  shown in NVML: 6 of 12 NVLinks are not active",
    ]
    assert said(capsys, state, "gpu0-gpu1", "state=up").splitlines() == [f"{NVLINK}: up, 12 of 12 NVLinks, 300 GB/s"]
    lines = said(capsys, state, "gpu0-pcie0", "width=8", "errors=3", "latency=5us").splitlines()
    assert lines[0] == (
        "n0/gpu0--n0/pcie0:pcie: degraded, 8 of 16 lanes, 16.0 GT/s, 15.8 GB/s (50% of what it had), "
        "5 µs slower to answer, 3 correctable errors"
    )
    assert [line.partition(":")[0] for line in lines[1:]] == [
        "  shown in sysfs",
        "  shown in sysfs",
        "  shown in what crosses it, and how long that takes",
    ]
    assert said(capsys, state, "gpu1", "temperature=91", "throttle=thermal") == (
        "n0/gpu1: temperature 91, throttle thermal\n"
    )


def test_json_says_the_same(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(said(capsys, state, "gpu0-gpu1", "state=down", "--json"))
    assert (found["link"], found["state"], found["best_width"]) == (NVLINK, "down", 12)
    assert found["shown_in"][1].endswith("Xid 74")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("gpu0-gpu7", "width=6"), "did you mean gpu0-gpu1?"),
        (("gpu0-gpu1", "widht=6"), "did you mean width?"),
        (("gpu0-gpu1", "width"), "write KEY=VALUE"),
        (("gpu0-gpu1", "width="), "write KEY=VALUE"),
        (("gpu0-gpu1", "width=6", "width=7"), "width is given twice"),
        (("gpu0-gpu1", "width=99"), "from 0 to 12"),
    ],
)
def test_a_mistake_gets_help_and_changes_nothing(
    state: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    assert words in said(capsys, state, *arguments, code=2)
    assert "300 GB/s" in said(capsys, state, "gpu0-gpu1", "bandwidth=100%")


def test_without_a_platform_there_is_nothing_to_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no platform runs on this state directory" in said(capsys, tmp_path, "gpu0-gpu1", "width=6", code=2)
