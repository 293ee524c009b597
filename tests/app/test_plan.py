"""`observatory plan`: the decision record, the table, and the store."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from observatory.app.cli.main import run_cli
from observatory.model.plan import DecisionRecord
from scheduler.audit import AuditStore
from scheduler.decision_schema import schema

PIPELINE = """\
apiVersion: media.observatory/v1
kind: MediaPipeline
metadata: {name: small}
spec:
  operators:
    - {name: decode, op: decode}
    - {name: hd, op: scale, inputs: [decode], params: {width: 640, height: 360}}
    - {name: enc, op: encode, inputs: [hd], params: {codec: libx264}}
    - {name: out, op: mux, inputs: [enc], params: {path: out.mp4}}
"""


def written(folder: Path, text: str) -> str:
    path = folder / "p.yaml"
    path.write_text(text)
    return str(path)


def test_json_is_the_decision_record_and_it_is_kept(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code = run_cli(["plan", written(tmp_path, PIPELINE), "--json", "--state", str(tmp_path / "s")])
    shown = json.loads(capsys.readouterr().out)
    assert code == 0
    jsonschema.validate(shown, schema())
    assert set(shown["final_placement"]) == {"small/decode", "small/hd", "small/enc", "small/out"}
    assert shown["final_placement"]["small/out"].startswith("n0/cpu")
    assert shown["trigger"] == "plan"
    assert shown["predicted_cost"] == pytest.approx(sum(e["predicted_seconds"] for e in shown["edges"]))
    with AuditStore(tmp_path / "s") as store:
        assert store.load(shown["id"]) == DecisionRecord.model_validate(shown)
    assert not (tmp_path / "out.mp4").exists()


def test_the_table_names_operators_edges_and_totals(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run_cli(["plan", written(tmp_path, PIPELINE), "--state", str(tmp_path / "s")]) == 0
    out = capsys.readouterr().out
    assert "small on two-socket-8gpu" in out
    for words in ("decode->hd", "hd->enc", "enc->out", "transfer ", "makespan ", "runner-up ", "decision "):
        assert words in out


def test_this_machine(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["plan", written(tmp_path, PIPELINE), "--topology", "real", "--json", "--state", str(tmp_path / "s")]
    assert run_cli(arguments) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {d.partition("/")[2].rstrip("0123456789") for d in shown["final_placement"].values()} == {"cpu"}


def test_an_impossible_placement_says_file_line_and_why(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pinned = PIPELINE.replace("{name: enc, op: encode,", "{name: enc, op: encode, device: n0/gpu0,")
    path = written(tmp_path, pinned)
    assert run_cli(["plan", path, "--json", "--state", str(tmp_path / "s")]) == 2
    shown = capsys.readouterr()
    error = json.loads(shown.out)["error"]
    assert (error["kind"], error["file"], error["line"]) == ("ImpossiblePlacement", path, 8)
    assert "enc (encode) can run nowhere" in error["message"]
    assert "it has no encode engine" in shown.err
    assert not (tmp_path / "s" / "audit.db").exists()


def test_a_state_that_cannot_be_written_is_a_warning(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "audit.db").mkdir()
    assert run_cli(["plan", written(tmp_path, PIPELINE), "--json", "--state", str(tmp_path / "s")]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["final_placement"]
    assert "the decision is not kept" in shown.err


def test_the_shipped_ladder_is_planned_by_default(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run_cli(["plan", "--json", "--state", str(tmp_path / "s")]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert len(shown["final_placement"]) == 8
    assert all(k.startswith("abr-ladder/") for k in shown["final_placement"])
