"""Recorded files: recognised by their content, refused with a reason, read whatever is broken in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from observatory.anomalies.errors import RecordingError
from observatory.anomalies.recorded.files import _recognise, analyse, read_recordings
from observatory.app.cli.main import run_cli
from tests.anomalies.feeding import DATA

XID = "[Sun Feb 23 16:24:18 2025] NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus."
CSV = """pci.bus_id, pstate, utilization.gpu [%], pcie.link.gen.gpucurrent, pcie.link.gen.max, \
pcie.link.width.current, pcie.link.width.max, clocks_event_reasons.hw_thermal_slowdown, remapped_rows.pending, \
ecc.errors.uncorrected.volatile.total
00000000:3B:00.0, P0, 90 %, 4, 4, 8, 16, Active, Yes, 2
00000000:AF:00.0, P8, 0 %, 1, 4, 16, 16, Not Active, No, [N/A]
"""
TABLE = """+-----------------------------------------------------------------------------+
| NVIDIA-SMI 460.32.03    Driver Version: 460.32.03    CUDA Version: 11.2     |
|   0  Tesla V100-SXM2...  Off  | 00000001:00:00.0 Off |                    3 |
|   1  Tesla V100-SXM2...  Off  | 00000002:00:00.0 Off |                    0 |
"""


def found(tmp_path: Path, text: str, name: str = "file") -> list[str]:
    path = tmp_path / name
    path.write_text(text)
    return [f"{i.kind} {i.subject}" for i in analyse(read_recordings([path], "n0")).incidents]


def test_a_csv_of_nvidia_smi(tmp_path: Path) -> None:
    assert sorted(found(tmp_path, CSV)) == [
        "ecc_uncorrectable n0:pci:0000:3b:00.0",
        "gpu_throttled n0:pci:0000:3b:00.0",
        "pcie_downtrained n0:pci:0000:3b:00.0",
        "row_remap_pending n0:pci:0000:3b:00.0",
    ]


def test_the_table_of_nvidia_smi(tmp_path: Path) -> None:
    assert found(tmp_path, TABLE) == ["ecc_uncorrectable n0:pci:0001:00:00.0"]


def test_a_log_keeps_its_times(tmp_path: Path) -> None:
    later = XID.replace("16:24:18", "18:24:18").replace("): 79", "): 119")
    (tmp_path / "log").write_text(f"{XID}\n{later}\n")
    incidents = analyse(read_recordings([tmp_path / "log"])).incidents
    assert [i.kind for i in incidents] == ["gpu_lost", "xid"]
    assert incidents[0].opened_at == pytest.approx(1740327858)  # 2025-02-23 16:24:18 UTC
    assert incidents[1].opened_at - incidents[0].opened_at == pytest.approx(7200)


def test_events_of_one_trouble_hours_apart_are_two_incidents(tmp_path: Path) -> None:
    first = XID.replace("): 79", "): 119")
    assert len(found(tmp_path, f"{first}\n{first.replace('16:24:18', '23:24:18')}\n")) == 2


@pytest.mark.parametrize("text", ["", "\n\n", "{}", "[]", "hello world\n", '{"a": 1', "\x00\x01\x02" * 100, "<a/>"])
def test_what_is_of_no_known_form_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(RecordingError) as refused:
        found(tmp_path, text)
    assert refused.value.file == str(tmp_path / "file")
    assert "known are" in str(refused.value.mend)


def test_broken_and_hostile_xml_is_refused(tmp_path: Path) -> None:
    bomb = '<!DOCTYPE a [<!ENTITY b "bbbb">]><nvidia_smi_log>&b;</nvidia_smi_log>'
    for text in ("<nvidia_smi_log><gpu>", bomb):
        with pytest.raises(RecordingError):
            found(tmp_path, text)


def test_a_file_that_is_not_there_or_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(RecordingError, match="cannot be read"):
            read_recordings([path])


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_damaged_files_are_read_or_refused(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([XID, CSV, TABLE, json.dumps({"/sys/x/0000:01:00.0/current_link_width": "4"})]))
    cut = data.draw(st.integers(0, len(text)))
    junk = data.draw(st.text(max_size=30))
    for damaged in (text[:cut], text[:cut] + junk + text[cut:], junk + text):
        try:
            recording = _recognise(damaged, "n0", "file")
        except RecordingError:
            continue
        if recording is not None:
            analyse([recording])


def test_values_of_other_types_in_dumps_are_passed_over(tmp_path: Path) -> None:
    odd = {"intf_status": [1, {"ifname": None}], "link_speed": [], "phys_macaddr": None}
    assert found(tmp_path, json.dumps(odd)) == []
    manifest = {"pci": {"a": 1, "b": {"link_speed": [None], "link_width": None}}, "zone_geom": {}, "eth": 1, "ib": []}
    assert found(tmp_path, json.dumps(manifest)) == []


def test_the_command_tells_in_words_and_by_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.log").write_text(XID)
    (tmp_path / "good.log").write_text(
        "[Sun Feb 23 16:24:18 2025] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.144.03"
    )
    assert run_cli(["incidents", str(tmp_path / "bad.log"), "--node", "gpu17"]) == 1
    out = capsys.readouterr().out
    assert "gpu_lost" in out
    assert "gpu17:pci:0000:9b:00.0" in out
    assert "mend: reboot the machine" in out
    assert run_cli(["incidents", str(tmp_path / "good.log")]) == 0
    assert "no incident in 1 file" in capsys.readouterr().out


def test_the_command_prints_one_json_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.log").write_text(XID)
    assert run_cli(["incidents", str(tmp_path / "bad.log"), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["open"]["critical"] == 1
    assert document["files"] == [{"file": str(tmp_path / "bad.log"), "form": "kernel log"}]
    assert run_cli(["incidents", str(tmp_path / "none"), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "RecordingError"


@pytest.mark.skipif(not DATA.exists(), reason="the recorded files are not here")
def test_files_of_one_machine_are_judged_together(capsys: pytest.CaptureFixture[str]) -> None:
    health = DATA / "node-health"
    alone = [str(health / "gcm_cache_downlink.json")]
    assert run_cli(["incidents", *alone]) == 0
    assert run_cli(["incidents", str(health / "gcm_cache_milan.json"), *alone]) == 1
    assert "x2 of x4" in capsys.readouterr().out
