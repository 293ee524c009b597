"""Recorded files of real machines, labelled by reading them (labels.yaml): which incidents the watch finds in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from observatory.anomalies.kinds import KINDS
from observatory.anomalies.recorded.judging import judge
from tests.anomalies.feeding import DATA

CASES: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "labels.yaml").read_text())

NOT_FOUND = {
    # An MTU that differs is a setting and no state of the hardware: there is no metric for it.
    "dgx-a100-ethernet-mtu": {"port_misconfigured interface:enp225s0f0", "port_misconfigured interface:enp97s0f0"},
}
INVENTED: dict[str, set[str]] = {}

pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the recorded files are not here")


def test_what_is_judged_wrong_is_what_is_known_to_be() -> None:
    score = judge(CASES, DATA)
    assert {j.case: set(j.missed) for j in score.judgements if j.missed} == NOT_FOUND
    assert {j.case: set(j.invented) for j in score.judgements if j.invented} == INVENTED


def test_precision_and_recall_are_what_is_aimed_at() -> None:
    score = judge(CASES, DATA)
    assert score.precision >= 0.95
    assert score.recall >= 0.93


def test_the_table_is_in_order() -> None:
    names = [case["case"] for case in CASES]
    assert len(names) == len(set(names))
    listed = [file for case in CASES for file in case["files"]]
    assert [file for file in listed if not (DATA / file).is_file()] == []
    assert all(case["because"] for case in CASES)
    expected = {line.split()[0] for case in CASES for line in case["expect"]}
    assert expected - set(KINDS) == {"port_misconfigured"}
