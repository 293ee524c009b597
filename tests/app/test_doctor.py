"""What `observatory doctor` says of the tracers is true of the module that was built."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dataplane import _ring
from observatory.app import doctor


def noted_probes() -> int:
    """USDT notes of ours in the native module, by binutils."""
    notes = subprocess.run(["readelf", "-nW", _ring.__file__], capture_output=True, text=True, check=True).stdout
    return notes.count("Provider: observatory")


def test_what_is_said_of_the_probes_is_true_of_the_module() -> None:
    command = [str(Path(sys.executable).with_name("observatory")), "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    tracers = json.loads(done.stdout)["tracers"]
    assert list(tracers) == ["shm", "usdt", "lttng"]
    assert _ring.probes_built()["usdt"] is (noted_probes() == 8)
    if tracers["usdt"]["works"]:
        assert os.geteuid() == 0
        assert noted_probes() == 8
    if tracers["lttng"]["works"]:
        assert Path(_ring.__file__).with_name("libobservatory-lttng.so").exists()
        assert "OBSERVATORY_LTTNG=1" in tracers["lttng"]["reason"]


def test_a_module_without_probes_says_what_was_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ring, "probes_built", lambda: {"usdt": False, "lttng": False})
    for check, package in ((doctor._usdt_tracer, "systemtap-sdt-dev"), (doctor._lttng_tracer, "liblttng-ust-dev")):
        finding = check()
        assert not finding.works
        assert "built without" in finding.reason
        assert finding.mend is not None
        assert package in finding.mend


def test_the_encoders_leave_the_scheduling_of_this_process_as_it_was() -> None:
    before = os.sched_getscheduler(0)
    try:
        assert doctor._encoder("libsvtav1").works
        assert os.sched_getscheduler(0) == before
    finally:
        os.sched_setscheduler(0, before, os.sched_param(0))
