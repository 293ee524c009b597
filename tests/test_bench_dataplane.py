"""The smallest form of `script/bench dataplane`: that it hands frames over, counts right, and leaves nothing behind."""

from __future__ import annotations

import json
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import dataplane, dataplane_machine, dataplane_stopped, report
from benchmarks.dataplane import Extent, measure_transports
from benchmarks.dataplane_ends import NO_PEERS
from benchmarks.dataplane_figures import Figure, figures, markdown
from benchmarks.dataplane_gaps import Gap, survivors, worst
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
def test_peers_are_driven_and_leave_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if BY_NAME[name].missing() == NO_PEERS:
        pytest.skip(f"{name} is {NO_PEERS}")
    made: list[Path] = []

    def make_folder(suffix: str | None = None, prefix: str | None = None, dir: str | None = None) -> str:
        folder = mkdtemp(suffix, prefix, dir)
        made.append(Path(folder))
        return folder

    mkdtemp = tempfile.mkdtemp
    monkeypatch.setattr(tempfile, "mkdtemp", make_folder)
    found = measure(Job(name, "throughput", 64, 30, False, warm=5))
    assert found["frames_per_second"] > 0
    # Only what this run made: others may measure at the same time.
    assert made
    assert not any(folder.exists() for folder in made)
    assert not [left for folder in made for left in Path("/dev/shm").glob(f"{folder.name}*")]


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


# -- verdicts ----------------------------------------------------------------------------------------------------------


def _verdicts(part: str, document: Mapping[str, Any]) -> list[bool | None]:
    return [figure.reached for figure in figures({part: document})]


def _ends(lost: int | None, p99_seconds: float | None, gap_seconds: float | None) -> dict[str, Any]:
    """What one of the two harnesses writes; None: it does not say."""
    said = {
        "kills": 10,
        "lost": lost,
        "duplicates": 0,
        "corrupt": 0,
        "leaked": 0,
        "reclaim_p50_seconds": None if p99_seconds is None else p99_seconds / 2,
        "reclaim_p99_seconds": p99_seconds,
        "worst_gap_seconds": gap_seconds,
    }
    return {name: value for name, value in said.items() if value is not None}


def test_kills_are_judged_by_what_was_lost_and_how_soon_it_went_on() -> None:
    met, missed, absent = _ends(0, 0.0009, 0.09), _ends(1, 0.0011, 0.11), _ends(None, None, None)
    assert _verdicts("kills", {"points": met, "storm": missed}) == [True, True, True, False, False, False]
    assert _verdicts("kills", {"points": absent, "storm": met}) == [None, None, None, True, True, True]
    assert _verdicts("kills", {"points": met, "storm": met, "storm_fifo": missed})[6:] == [False] * 3
    figure = figures({"kills": {"points": met, "storm": missed}})[3]
    assert figure.measured == "1 lost, 0 duplicates, 0 corrupt, 0 leaked"


def test_a_harness_that_failed_is_no_success_even_if_it_counted_nothing_wrong() -> None:
    failed = {**_ends(0, 0.0001, 0.01), "problem": "a consumer hangs"}
    assert _verdicts("kills", {"points": failed, "storm": failed})[0] is False


def _moves(**changed: float) -> dict[str, float]:
    moves = {
        "moves": 3,
        "seen": 3,
        "lost": 0,
        "duplicate": 0,
        "reordered": 0,
        "p50_seconds": 0.0125,
        "p99_seconds": 0.05,
    }
    return {**moves, **changed}


@pytest.mark.parametrize("wrong", ["lost", "duplicate", "reordered"])
def test_a_move_may_lose_duplicate_and_reorder_nothing(wrong: str) -> None:
    found = figures({"migration": {"idle": _moves(), "hog": _moves(**{wrong: 1})}})
    assert [figure.reached for figure in found] == [True, None, False, None]
    assert f"1 {wrong}" in found[2].measured
    assert found[1].measured == "p50 12.50 ms, p99 50.00 ms"


def _restarted(**changed: Any) -> dict[str, Any]:
    gaps = {"deaths": 3, "p50_seconds": 0.01, "max_seconds": 0.1, "longest_seconds": 0.13}
    restarted = {
        "kills": 4,
        "unseen": 1,
        "lost": 0,
        "duplicates": 0,
        "p50_seconds": 0.2,
        "p99_seconds": 0.3,
        "siblings": gaps,
        "downstream": {**gaps, "max_seconds": 0.101},
    }
    return {**restarted, **changed}


def test_restarts_are_judged_by_the_files_and_by_what_survivors_wait() -> None:
    found = figures({"restarts": _restarted()})
    assert [figure.reached for figure in found] == [None, True, True, False]
    assert found[0].what.endswith("3 kills")
    assert found[2].measured == "p50 10 ms, max 100 ms, of 3 kills; longest gap 130 ms"
    assert _verdicts("restarts", _restarted(lost=1)) == [None, False, True, False]
    assert _verdicts("restarts", _restarted(duplicates=1)) == [None, False, True, False]
    assert _verdicts("restarts", _restarted(siblings=None, downstream=None)) == [None, True, None, None]


def test_a_stopped_consumer_may_cost_its_sibling_nothing() -> None:
    spent = {"p50_seconds": 1e-5, "p99_seconds": 2e-5, "max_seconds": 3e-5}
    fine = {"frames": 10, "lost": 0, "waits": 0, "before": spent, "stopped": spent}
    assert _verdicts("stopped", fine)[0] is True
    assert _verdicts("stopped", {**fine, "lost": 1})[0] is False
    assert _verdicts("stopped", {**fine, "waits": 1})[0] is False


def test_slot_calls_are_judged_by_the_form_that_operators_use() -> None:
    slow, fast = ({"median": at, "min": at, "max": at} for at in (251.0, 250.0))
    others = ("four_calls_traced", "four_calls_in_blocks", "four_calls_chained", "bare_call")
    assert _verdicts("slot-calls", {"four_calls": slow, **dict.fromkeys(others, fast)}) == [False] + [None] * 4
    assert _verdicts("slot-calls", {"four_calls": fast, **dict.fromkeys(others, slow)}) == [True] + [None] * 4


def test_frames_per_second_are_judged_with_the_pages_that_the_peers_have() -> None:
    rates = {"ring": 110.0, "ring-huge": 200.0, "iceoryx2-event": 100.0, "ceiling": 100.0, "ceiling-huge": 250.0}
    throughput = {name: [{"frames_per_second": rate}] for name, rate in rates.items()}
    cells = {"fifo": {"throughput": {"8K": throughput}}}
    found = figures({"transports": {"cells": cells, "classes": ["fifo"], "sizes": ["8K"]}})
    by_name = {figure.what: figure for figure in found}
    event = by_name["8K frames/s, ring, 4 KiB pages, over iceoryx2, event"]
    assert (event.measured, event.goal, event.reached) == ("1.10x (1.10-1.10)", ">= 1.25x", False)
    huge = by_name["8K frames/s, ring, 2 MB pages, over iceoryx2, event with 4 KiB pages"]
    assert (huge.measured, huge.goal, huge.reached) == ("2.00x (2.00-2.00)", "", None)
    ceilings = [figure.reached for what, figure in by_name.items() if "no synchronisation" in what]
    assert ceilings == [True, False]
    assert by_name["8K frames/s, ring, 4 KiB pages, over shared_memory + Queue"].reached is None


# -- gaps --------------------------------------------------------------------------------------------------------------


def _at(*milliseconds: int) -> np.ndarray[Any, Any]:
    return np.array(milliseconds, dtype=np.int64) * 1_000_000


def test_survivors_are_told_apart_by_whether_the_dead_one_fed_them() -> None:
    edges = {("decode", "scale"), ("scale", "encode"), ("encode", "mux"), ("decode", "other")}
    launches = {
        "scale": _at(0, 10, 20, 500),  # the dead one itself
        "encode": _at(0, 10, 20, 200, 210),
        "mux": _at(0, 30, 60, 260),
        "other": _at(0, 10, 25, 60, 70, 400, 405),  # what is after the successor's first launch is not the death's
    }
    found = survivors(launches, edges, "scale", 22_000_000, 150_000_000)
    assert found == [
        Gap("encode", True, 0.18, 0.01),
        Gap("mux", True, 0.2, None),  # its second launch came after the death
        Gap("other", False, 0.33, 0.01),
    ]
    assert [round(gap.added, 6) for gap in found] == [0.17, 0.2, 0.32]


def test_the_survivor_that_a_death_delayed_most_counts() -> None:
    first = [Gap("a", False, 0.05, 0.04), Gap("b", False, 0.2, None), Gap("c", True, 0.9, 0.1)]
    second = [Gap("a", False, 0.3, 0.3)]
    found = worst([first, second, []], downstream=False)
    assert found == {"deaths": 2, "p50_seconds": 0.1, "max_seconds": 0.2, "longest_seconds": 0.3}
    assert worst([second], downstream=True) is None


def test_a_sibling_of_a_stopped_consumer_gets_every_frame() -> None:
    found = dataplane_stopped.measure(60, False)
    assert (found["frames"], found["lost"], found["waits"]) == (60, 0, 0)


# -- the machine -------------------------------------------------------------------------------------------------------


def test_the_number_of_huge_pages_goes_back_when_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = tmp_path / "nr_hugepages"
    setting.write_text("3\n")
    monkeypatch.setattr(dataplane_machine, "HUGE_PAGES", setting)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen = []

    def hold() -> None:
        with dataplane_machine.huge_pages(5) as problem:
            seen.append((problem, int(setting.read_text())))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hold()
    assert seen == [(None, 8)]
    assert int(setting.read_text()) == 3


# -- what is written, and when -----------------------------------------------------------------------------------------

EARLIER = {
    "date": "2020-02-02",
    "commit": "abc",
    "machine": {"processor": "P", "processors": 2, "memory_bytes": 8e9, "kernel": "6", "python": "3.11"},
    "seconds": 1.0,
    "results": {"missing": "no reason"},
}


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], dict[str, Any]]]:
    """Results and page in a folder of their own, with parts measured earlier; reads the parts."""
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    monkeypatch.setattr(report, "PAGE", tmp_path / "page.md")
    (tmp_path / "page.md").write_text("<!-- dataplane: begin -->\nold\n<!-- dataplane: end -->\n")
    (tmp_path / "dataplane.json").write_text(json.dumps({"parts": {"fan-out": EARLIER, "kills": EARLIER}}))

    def parts() -> dict[str, Any]:
        found: dict[str, Any] = json.loads((tmp_path / "dataplane.json").read_text())["parts"]
        return found

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield parts
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _parts(monkeypatch: pytest.MonkeyPatch, **parts: Callable[[Extent, Any], dict[str, Any]]) -> None:
    monkeypatch.setattr(dataplane, "PARTS", {name.replace("_", "-"): make for name, make in parts.items()})


def _fails(extent: Extent, tell: Any) -> dict[str, Any]:
    raise Failed("the machine said no")


def _interrupted(extent: Extent, tell: Any) -> dict[str, Any]:
    raise KeyboardInterrupt


def _late(extent: Extent, tell: Any) -> dict[str, Any]:
    time.sleep(0.01)
    return {"missing": "late"}


def test_what_was_measured_before_an_interruption_is_written(
    kept: Callable[[], dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _parts(monkeypatch, fan_out=_fails, kills=_interrupted)
    assert dataplane.main([]) == 130
    assert "written so far: fan-out" in capsys.readouterr().err
    parts = kept()
    assert parts["fan-out"]["results"] == {"missing": "the machine said no"}
    assert parts["fan-out"]["date"] == time.strftime("%Y-%m-%d")
    assert parts["kills"] == EARLIER
    page = (tmp_path / "page.md").read_text()
    assert "- kills: 2020-02-02, commit abc; P, 2 processors, 8 GB, kernel 6, Python 3.11." in page
    assert "not measured: the machine said no" in page


def test_one_part_alone_leaves_the_others_stamps(
    kept: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _parts(monkeypatch, fan_out=_interrupted, kills=_fails)
    assert dataplane.main(["--only", "kills"]) == 0
    parts = kept()
    assert parts["fan-out"] == EARLIER
    assert parts["kills"]["date"] != EARLIER["date"]


def test_no_part_is_begun_when_the_time_is_over(
    kept: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _parts(monkeypatch, fan_out=_late, kills=_fails)
    assert dataplane.main(["--minutes", "0.0001"]) == 0
    assert kept()["kills"] == EARLIER
    assert "no time left for kills" in capsys.readouterr().err


def test_a_quick_run_writes_nothing(kept: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    _parts(monkeypatch, fan_out=_fails)
    assert dataplane.main(["--quick"]) == 0
    assert kept()["fan-out"] == EARLIER


def test_numbers_that_cannot_be_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--minutes", "nan"], ["--kills", "0"], ["--rounds", "x"]):
        with pytest.raises(SystemExit) as ended:
            dataplane.main(words)
        assert ended.value.code == 2
