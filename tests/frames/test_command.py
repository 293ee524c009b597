"""`observatory frames` as it is typed: documents, exit codes, the waterfall."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from observatory.app.cli.main import run_cli
from observatory.app.cli.waterfall import draw
from observatory.frames import lookup
from observatory.frames.store import FrameStore, StreamRun
from observatory.frames.views import Frame
from observatory.model.kinds import EventKind, RecordFlag
from observatory.model.media import TimeBase
from observatory.model.record import LostFrame
from tests.frames.support import ROOT, begin, life, record, whole_frame

EVENTS = [kind.name for kind in EventKind]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Frames 0 to 9 are whole, 10 is lost, 11 broke off on hd->enc, decode->sd dropped 12."""
    with FrameStore.open(tmp_path, write=True) as store:
        (run,) = begin(store)
        store.append(np.concatenate([whole_frame(run, index) for index in range(10)]))
        store.append(broken_frame(run, 11))
        store.append(dropped_frame(run, 12))
        lost = LostFrame(
            source_index=10, pts=10, time_base=TimeBase(num=1, den=25), operator="decode", reason="corrupt packet"
        )
        store.add_lost(run.id, run.epoch, [lost])
    return tmp_path


def broken_frame(run: StreamRun, index: int) -> Any:
    """Its end on hd->enc is not known, nor its beginning on decode->hd; enc->mux never came."""
    frame = whole_frame(run, index)[:3]
    frame["times_ns"][2, EventKind.SLOT_RELEASE] = frame["times_ns"][0, EventKind.DMA_BUF_ALLOC] = -(2**63)
    frame["flags"][2] = frame["flags"][0] = RecordFlag.INCOMPLETE
    return frame


def dropped_frame(run: StreamRun, index: int) -> Any:
    frame = whole_frame(run, index)
    frame["times_ns"][1, EventKind.CONSUMER_WAIT_FENCE :] = -(2**63)
    frame["flags"][1] = RecordFlag.DROPPED
    return frame


@pytest.fixture
def command(state: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = run_cli(["frames", *arguments, "--state", str(state)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_find_as_json(command: Any) -> None:
    code, out, err = command("find", "--pts", "7", "--json")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert {k: document[k] for k in ("stream", "epoch", "source_index", "pts", "time_base")} == {
        "stream": "ladder",
        "epoch": 1,
        "source_index": 7,
        "pts": 7,
        "time_base": "1/25",
    }
    assert document["end_to_end_seconds"] == 0.013
    assert [hop["edge"] for hop in document["hops"]] == ["decode->hd", "decode->sd", "hd->enc", "enc->mux"]
    hop = document["hops"][0]
    assert hop["producer_device"] == "n0/gpu0"
    assert hop["consumer_device"] == "n0/gpu1"
    assert hop["producer_real_device"] == hop["consumer_real_device"] == "n0/cpu0"
    assert (hop["bytes"], hop["slot"], hop["pts"], hop["time_base"]) == (345_600, 3, 7, "1/25")
    assert list(hop["events"]) == EVENTS
    assert hop["events"]["LINK_START"] is None
    assert hop["events"]["SLOT_RELEASE"] == 386_000_000


@pytest.mark.parametrize(
    "arguments", [("--pts", "3584", "--time-base", "1/12800"), ("--source-index", "7"), ("--pts", "7", "--epoch", "1")]
)
def test_find_by_other_names(command: Any, arguments: tuple[str, ...]) -> None:
    code, out, _ = command("find", *arguments, "--json")
    assert (code, json.loads(out)["source_index"]) == (0, 7)


def test_not_found(command: Any) -> None:
    code, out, err = command("find", "--pts", "-3", "--json")
    error = json.loads(out)["error"]
    assert code == 1
    assert error["kind"] == "NoSuchFrame"
    assert error["nearest"] == [{"pts": 0, "time_base": "1/25", "source_index": 0, "epoch": 1}]
    assert "no frame has PTS -3" in err
    assert "the nearest: PTS 0" in err

    code, out, err = command("find", "--pts", "10")
    assert (code, out) == (1, "")
    assert "was lost in decode: corrupt packet" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("find",), "--pts or --source-index"),
        (("find", "--pts", "1", "--source-index", "1"), "--pts or --source-index"),
        (("find", "--source-index", "1", "--time-base", "1/25"), "goes with --pts"),
        (("find", "--pts", "1", "--time-base", "0.04"), "1/90000"),
        (("find", "--pts", "1", "--time-base", "1/0"), "from 1 to"),
        (("find", "--pts", "one"), "not a valid integer"),
        (("find", "--pts", "1", "--stream", "laddr"), "did you mean ladder?"),
        (("find", "--pts", "1", "--epoch", "7"), "no epoch 7"),
        (("list", "--limit", "0"), "--limit"),
    ],
)
def test_bad_usage(command: Any, arguments: tuple[str, ...], words: str) -> None:
    for extra in ((), ("--json",)):
        code, out, err = command(*arguments, *extra)
        assert code == 2
        assert words in err
        assert (json.loads(out)["error"]["message"] != "") if extra else (out == "")


def test_nothing_recorded_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["frames", "list", "--state", str(tmp_path / "none")]) == 1
    assert "no frames were recorded yet" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_list_slowest_and_stats_as_json(command: Any) -> None:
    code, out, _ = command("list", "--limit", "3", "--json")
    document = json.loads(out)
    assert code == 0
    assert [(f["source_index"], f["state"]) for f in document["frames"]] == [
        (9, "complete"),
        (11, "incomplete"),
        (12, "dropped"),
    ]
    assert [f["reason"] for f in document["lost"]] == ["corrupt packet"]
    _, out, _ = command("list", "--from", "2", "--to", "4", "--json")
    assert [f["source_index"] for f in json.loads(out)["frames"]] == [2, 3, 4]

    _, out, _ = command("slowest", "--count", "2", "--json")
    assert [f["end_to_end_seconds"] for f in json.loads(out)["frames"]] == [0.013, 0.013]

    _, out, _ = command("stats", "--json")
    (stream,) = json.loads(out)["streams"]
    assert (stream["frames"], stream["lost"], stream["records"]) == (12, 1, 47)
    assert [hop["edge"] for hop in stream["hops"]] == ["decode->hd", "decode->sd", "hd->enc", "enc->mux"]


def test_tables_for_people(command: Any) -> None:
    for arguments in (("list",), ("slowest",), ("stats",), ("find", "--pts", "7", "--events")):
        code, out, err = command(*arguments)
        assert (code, err) == (0, "")
        assert "ladder" in out
        assert "\x1b" not in out  # no colour where nobody sees it


@pytest.mark.parametrize("arguments", [(), ("find",), ("list",), ("slowest",), ("stats",)])
def test_help_has_examples(command: Any, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    assert run_cli(["frames", *arguments, "--help"]) == 0
    assert "Examples:\n" in capsys.readouterr().out


# The waterfall


def drawn(frame: Frame, *, width: int = 80, encoding: str = "utf-8") -> list[str]:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, errors="strict")
    draw(Console(file=file, width=width, highlight=False, markup=False), frame)
    file.flush()
    return raw.getvalue().decode(encoding).splitlines()


@pytest.fixture
def frames(state: Path) -> dict[int, Frame]:
    with FrameStore.open(state) as store:
        return {frame.source_index: frame for frame in lookup.list_frames(store)}


def test_a_waterfall_of_80_columns(frames: dict[int, Frame]) -> None:
    lines = drawn(frames[7])
    # 14 ms over 59 columns: the slot was there 1 ms before the first launch.
    assert lines[0] == "ladder   PTS 7 at 1/25   13.00 ms end to end"
    assert lines[1].startswith("source index 7 · epoch 1 · 1970-01-01 ")
    assert lines[1].endswith(" · really on n0/cpu0")
    bars = {line.split()[0]: line for line in lines if "▓" in line and "→" in line}
    assert list(bars) == ["decode→hd", "decode→sd", "hd→enc", "enc→mux"]
    hd, mux = bars["decode→hd"], bars["enc→mux"]
    assert hd.rstrip().endswith("7.00 ms")
    first = hd.index("░")
    for glyph, milliseconds in (("░", 1), ("█", 2), ("─", 1), ("▓", 3)):
        assert hd.count(glyph) == pytest.approx(milliseconds / 14 * 59, abs=1.01)
    assert mux.index("█") - first == pytest.approx(11 / 14 * 59, abs=1.01)
    assert lines[lines.index(hd) + 1] == "  n0/gpu0 → n0/gpu1, 346 kB"
    assert "░░ allocate   ██ produce   ── wait   ▓▓ consume" in lines
    assert lines[-1] == "longest work: hd, 3.00 ms; longest wait: hd→enc, 4.00 ms"


@pytest.mark.parametrize("index", [7, 11, 12])
@pytest.mark.parametrize("width", [40, 60, 80, 109, 110, 160, 300])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_every_row_fits_and_starts_at_one_column(
    frames: dict[int, Frame], index: int, width: int, encoding: str
) -> None:
    lines = drawn(frames[index], width=width, encoding=encoding)
    ruler = next(at for at, line in enumerate(lines) if line.strip() and set(line.strip()) <= set("┬─+-"))
    rows = lines[ruler : lines.index("", ruler)]
    assert all(cell_len(line) <= width for line in rows)
    assert len(rows) == (1 + 4 if width >= 110 else 1 + 4 + len(frames[index].hops))


def test_what_is_not_known_is_shown_as_such(frames: dict[int, Frame]) -> None:
    lines = drawn(frames[11])
    assert lines[0] == "ladder   PTS 11 at 1/25   incomplete"
    rows = {line.split()[0]: line for line in lines if line[:1].isalpha() and "→" in line.split()[0]}
    assert "?█" in rows["decode→hd"]
    assert rows["decode→hd"].rstrip().endswith("6.00 ms")  # from the launch on
    assert rows["hd→enc"].count("?") == 2  # where it breaks off, and for its total
    assert rows["hd→enc"].endswith("? ms")
    assert rows["enc→mux"].split() == ["enc→mux", "no", "record"]
    assert any("? not recorded" in line for line in lines)

    lines = drawn(frames[12])
    assert "dropped" in lines[0]
    assert any("dropped" in line and line.startswith("decode→sd") for line in lines)


def test_a_frame_without_any_record_is_drawn_too(frames: dict[int, Frame]) -> None:
    from dataclasses import replace

    empty = replace(frames[7], hops=(), end_to_end_seconds=None, began_unix_seconds=None, pts=None)
    assert drawn(empty)[-1] == "no hop of this frame was recorded"
    blank = replace(frames[7].hops[0], events=dict.fromkeys(EVENTS), slot=None, bytes=None, producer_device=None)
    assert "?" in "".join(drawn(replace(frames[7], hops=(blank,))))


def test_one_instant_does_not_divide_by_zero(tmp_path: Path) -> None:
    with FrameStore.open(tmp_path, write=True) as store:
        (run,) = begin(store)
        store.append(record(run, 1, 2, times=dict.fromkeys(life(1, 1, 1, 1), 5)))
        assert drawn(lookup.find(store, 1))[0] == "ladder   PTS 1 at 1/25   0.00 ms end to end   partial"


def test_find_needs_neither_numpy_nor_pydantic(state: Path) -> None:
    script = (
        "import sys\n"
        "from observatory.app.cli.main import run_cli\n"
        f"assert run_cli(['frames', 'find', '--pts', '7', '--json', '--state', {str(state)!r}]) == 0\n"
        "print([m for m in ('numpy', 'pydantic', 'av', 'networkx', 'yaml') if m in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stderr.strip() == "[]"
