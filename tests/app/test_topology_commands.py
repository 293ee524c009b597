"""`observatory topology cost`, `diff` and `watch`, as people call them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from observatory.app.cli.main import run_cli
from observatory.app.cli.topology_diff import value_words
from observatory.app.cli.topology_watch import picture
from observatory.app.cli.topology_words import link_words
from observatory.app.topology_views import views_of_batches, views_of_readings
from observatory.model.observation import Address, AddressKind, Observation
from observatory.topology.diff import compare
from observatory.topology.live import LiveTopology
from observatory.topology.load import load_topology
from observatory.topology.own_yaml_writer import write_topology

SHIPPED = ("--topology", "two-socket-8gpu")
GPU_LINK = "n0/gpu0--n0/pcie0:pcie"


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert run_cli(["topology", *arguments]) == code
    return capsys.readouterr().out


def document(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    return json.loads(said(capsys, *arguments, "--json", code=code))


def test_the_matrix(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, "cost", *SHIPPED).splitlines()
    assert lines[0].strip() == "1.05 MB between devices of n0"
    assert lines[1].split()[:3] == ["cpu0", "cpu1", "gpu0"]
    assert lines[4].split("µs")[0].split() == ["gpu0", "17.1"]
    found = document(capsys, "cost", *SHIPPED, "--bytes", "2Mi", "--node", "n0")
    gpu0, gpu7 = found["labels"].index("n0/gpu0"), found["labels"].index("n0/gpu7")
    assert (found["level"], found["message_bytes"], found["truncated"]) == ("devices", 2**21, False)
    assert found["seconds"][gpu0][gpu7] == pytest.approx(2**21 / 450e9 + 2 * 193e-9)
    assert found["seconds"][gpu0][gpu0] == 0
    assert document(capsys, "cost", *SHIPPED, "--nodes")["labels"] == ["n0"]


def test_two_devices_link_by_link(capsys: pytest.CaptureFixture[str]) -> None:
    pair = ("cost", *SHIPPED, "--from", "n0/gpu0", "--to", "n0/cpu1")
    lines = [" ".join(line.split()) for line in said(capsys, *pair).splitlines()]
    assert lines[0] == "1.05 MB from n0/gpu0 to n0/cpu1: 17.2 µs"
    assert lines[2:] == [
        "n0/gpu0 to n0/pcie0 pcie 115 ns 63 GB/s bottleneck: 16.6 µs",
        "n0/pcie0 to n0/socket0 pcie 275 ns 63 GB/s",
        "n0/socket0 to n0/socket1 upi 66.9 ns 144 GB/s",
        "n0/socket1 to n0/cpu1 memory 117 ns 282 GB/s",
        "all latencies 574 ns",
    ]
    found = document(capsys, *pair)
    assert found["bottleneck"] == GPU_LINK
    assert [step["kind"] for step in found["path"]] == ["pcie", "pcie", "upi", "memory"]
    assert found["seconds"] == pytest.approx(2**20 / 63.015e9 + (115 + 275 + 66.9 + 117.4) * 1e-9)
    row = document(capsys, "cost", *SHIPPED, "--from", "n0/gpu0")
    assert row["seconds"][row["labels"].index("n0/cpu1")] == found["seconds"]


def test_what_cannot_be_predicted_is_a_question_mark(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    topology = load_topology()
    links = tuple(x.model_copy(update={"latency_seconds": None}) if x.id == GPU_LINK else x for x in topology.links)
    file = tmp_path / "without.yaml"
    write_topology(topology.model_copy(update={"links": links}), file, "without")
    found = document(capsys, "cost", "--topology", str(file), "--from", "n0/gpu0", "--to", "n0/cpu0")
    assert (found["seconds"], found["reason"]) == (None, f"the latency of {GPU_LINK} is unknown")
    words = said(capsys, "cost", "--topology", str(file), "--from", "n0/gpu0", "--to", "n0/cpu0")
    assert words.startswith("1.05 MB from n0/gpu0 to n0/cpu0: ? (the latency of")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--to", "n0/gpu0"), "--to says only where data goes"),
        (("--from", "n0/gpu0", "--node", "n0"), "contradict each other"),
        (("--from", "n0/gpu99"), "no device or vertex 'n0/gpu99'"),
        (("--from", "n0/gpu0", "--to", "n1/gpu0"), "no device or vertex 'n1/gpu0'"),
        (("--node", "n7"), "no node 'n7'"),
        (("--bytes", "much"), "'much' is no size"),
    ],
)
def test_bad_questions(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str) -> None:
    assert message in document(capsys, "cost", *SHIPPED, *arguments, code=2)["error"]["message"]


def test_differences(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    topology = load_topology()
    narrow = {"width": 8, "bandwidth_bytes_per_second": 31.508e9}
    changed = topology.model_copy(
        update={
            "devices": tuple(d for d in topology.devices if d.id != "n0/nic1"),
            "links": tuple(
                link.model_copy(update=narrow if link.id == GPU_LINK else {"utilisation": 0.5})
                for link in topology.links
                if "n0/nic1" not in (link.a, link.b)
            ),
        }
    )
    before, after = tmp_path / "before.yaml", tmp_path / "after.yaml"
    write_topology(topology, before, "x")
    write_topology(changed, after, "y")
    assert said(capsys, "diff", "two-socket-8gpu", "two-socket-8gpu") == ""
    assert said(capsys, "diff", "two-socket-8gpu", str(before)) == ""
    assert said(capsys, "diff", str(before), str(after), code=1).splitlines() == [
        "- device n0/nic1 gone",
        f"~ link {GPU_LINK}: width 16 -> 8",
        f"~ link {GPU_LINK}: bandwidth 63 GB/s -> 31.5 GB/s",
        "- link n0/nic1--n0/pcie2:pcie gone",
    ]
    found = document(capsys, "diff", str(after), str(before), code=1)
    assert found["same"] is False
    assert found["changes"][0] == {
        "kind": "appeared", "what": "device", "id": "n0/nic1", "name": None, "before": None, "after": None,
    }  # fmt: skip
    assert document(capsys, "diff", str(before), str(before)) == {"same": True, "changes": []}
    assert run_cli(["topology", "diff", str(before), str(tmp_path / "nowhere")]) == 2


def test_watching_what_is_read_again() -> None:
    first = load_topology()
    second = first.model_copy(
        update={"links": tuple(x.model_copy(update={"width": 4}) if x.id == GPU_LINK else x for x in first.links)}
    )
    readings = iter([first, first, second, second])
    waits: list[float] = []
    views = views_of_readings(lambda: next(readings), 0.01, None, waits.append)
    changes = [next(views).changes for _ in range(4)]
    assert [len(c) for c in changes] == [0, 0, 1, 0]
    assert (changes[2][0].name, changes[2][0].before, changes[2][0].after) == ("width", 16, 4)
    assert changes[2] == compare(first, second)
    assert len(waits) == 3
    assert sum(1 for _ in views_of_readings(load_topology, 1.0, 3.0, lambda seconds: None)) == 4


def batches() -> Iterator[list[Observation]]:
    address = Address("n0", AddressKind.LINK, GPU_LINK)
    for at, width in enumerate((16, 8, 0), 1):
        yield [
            Observation(address, "link.width", width, at, "test"),
            Observation(address, "link.throughput", 15.7e9, at, "test"),
        ]


def test_watching_what_receivers_see() -> None:
    views = list(views_of_batches(LiveTopology(load_topology()), batches()))
    changed = [{c.name: c.after for c in view.changes} for view in views]
    assert changed[2]["width"] == 8
    assert (changed[3]["state"], changed[3]["width"]) == ("down", 0)
    console = Console(record=True, width=200, height=30, file=io.StringIO())
    console.print(picture(views[2], ("12:00:00 something changed",), 12, 200))
    text = console.export_text()
    shown = GPU_LINK.replace("n0/", "")
    row = next(line for line in text.splitlines() if line.startswith(shown))
    assert row.split()[1:5] == ["degraded", "x8", "32.0", "GT/s"]
    assert "#####.....  50%" in row
    assert text.splitlines()[2].startswith(shown)  # the worst first
    assert "more links" in text
    assert "something changed" in text


def test_lines_of_a_watch(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is replaced while it is watched."""
    topology = load_topology()
    file = tmp_path / "watched.yaml"
    write_topology(topology, file, "watched")

    def replaced(seconds: float) -> None:
        links = tuple(x.model_copy(update={"width": 1}) if x.id == GPU_LINK else x for x in topology.links)
        write_topology(topology.model_copy(update={"links": links}), file, "watched")

    monkeypatch.setattr("time.sleep", replaced)
    watch = ("watch", "--topology", str(file), "--interval", "0.1", "--duration", "0.2")
    assert said(capsys, *watch).splitlines()[1].endswith(f"link {GPU_LINK}: width 16 -> 1")
    write_topology(topology, file, "watched")
    (line,) = said(capsys, *watch, "--json").splitlines()
    change = json.loads(line)
    assert (change["kind"], change["id"], change["before"], change["after"]) == ("changed", GPU_LINK, 16, 1)
    assert "no time to wait" in document(capsys, "watch", "--interval", "0", code=2)["error"]["message"]


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_a_narrow_terminal_cuts_no_digits(width: int) -> None:
    view = list(views_of_batches(LiveTopology(load_topology()), batches()))[2]
    console = Console(record=True, width=width, height=40, file=io.StringIO())
    console.print(picture(view, (), 40, width))
    lines = console.export_text().splitlines()
    row = next(line for line in lines if "degraded" in line)
    assert "31.5 GB/s" in row
    assert " 50%" in row
    assert ("#####....." in row) == (width >= 100)
    numbers = row[row.index("degraded") :]
    assert "…" not in numbers
    assert "115 ns" in numbers or width == 60
    assert all(len(line) <= width for line in lines)


def test_a_link_that_is_down_shows_no_rate() -> None:
    view = list(views_of_batches(LiveTopology(load_topology()), batches()))[3]
    console = Console(record=True, width=200, height=40, file=io.StringIO())
    console.print(picture(view, (), 40, 200))
    row = next(line for line in console.export_text().splitlines() if " down " in line)
    assert "B/s" not in row
    down = next(link for link in view.topology.links if link.id == GPU_LINK)
    assert link_words(down) == "pcie x0 32.0 GT/s 115 ns DOWN"


@pytest.mark.parametrize("as_json", [False, True])
def test_a_watch_that_is_interrupted_ends_quietly(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupted)
    assert run_cli(["topology", "watch", *SHIPPED, *(["--json"] if as_json else [])]) == 130
    out, err = capsys.readouterr()
    assert err == ""
    assert "interrupted" not in out
    assert out.count("\n") == (0 if as_json else 1)


def test_the_topology_of_a_platform_that_does_not_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    nowhere = ("--state", str(tmp_path))
    for words in (("show", "--topology", "live"), ("cost", "--topology", "live"), ("diff", "live", "two-socket-8gpu"),
                  ("watch", "--topology", "live")):  # fmt: skip
        found = document(capsys, *words, *nowhere, code=2)
        assert found["error"]["message"] == "no platform runs on this state directory"
    assert run_cli(["topology", "watch", "--duration", "0", *nowhere]) == 0
    assert capsys.readouterr().err == (
        "warning: no platform runs on this state directory: this machine is watched instead\n"
    )


def test_the_topology_of_a_platform_that_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The platform is played: it sees a link of which this machine's description knows nothing."""
    live = LiveTopology(load_topology())
    live.apply(list(batches())[2])
    monkeypatch.setattr("observatory.app.topology_views.platform_reading", lambda state: live.snapshot)
    words = f"~ link {GPU_LINK}: state unknown -> down"
    assert words in said(capsys, "diff", "two-socket-8gpu", "live", code=1).splitlines()
    assert "DOWN" in said(capsys, "show", "--topology", "live")
    pair = ("cost", "--from", "n0/gpu0", "--to", "n0/cpu0")
    assert next(step["link"] for step in document(capsys, *pair, *SHIPPED)["path"]) == GPU_LINK
    assert document(capsys, *pair)["path"] == document(capsys, *pair, "--topology", "live")["path"]
    assert GPU_LINK not in [step["link"] for step in document(capsys, *pair)["path"]]
    message = document(capsys, "cost", "--from", "n0/gpu99", code=2)["error"]["message"]
    assert message == "no device or vertex 'n0/gpu99' in the live topology of the running platform"


def test_a_stored_topology_has_a_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    stored = ("--state", str(tmp_path))
    said(capsys, "import", "two-socket-8gpu", "--save", "--name", "ndv4", *stored)
    assert "ndv4" in said(capsys, "show", "--topology", "ndv4", *stored)
    assert document(capsys, "diff", "ndv4", "ndv4", *stored)["same"] is True
    error = document(capsys, "show", "--topology", "ndv5", *stored, code=2)["error"]
    assert error["message"] == "there is no topology ndv5"
    assert "ndv4" in error["mend"]


def test_differences_are_told_in_words() -> None:
    engines = [{"kind": "decode", "count": 7, "sessions": None}, {"kind": "encode", "count": 2, "sessions": 8}]
    assert value_words("engines", engines) == "7 decode, 2 encode sessions 8"
    ports = [{"name": "mlx5_0/1", "link_layer": "infiniband", "bytes_per_second": 50e9, "state": "up"}]
    assert value_words("ports", ports) == "mlx5_0/1 link layer infiniband 50 GB/s up"
    assert value_words("engines", []) == "none"
    assert value_words("cpus", [0, 1, 2, 3, 8]) == "0-3,8"
    assert value_words("os_names", ["eth0", "mlx5_0"]) == "eth0, mlx5_0"
