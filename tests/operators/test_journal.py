"""The journal of sinks: what was written whole comes back, and no more."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataplane._ring import Descriptor
from dataplane.operators import journal
from dataplane.operators.journal import Journal, Record
from observatory.model.media import PayloadKind


class Lease:
    """What the journal asks of a payload."""

    def __init__(self, number: int, size: int = 50) -> None:
        self.sequence = number
        self.array = np.full(size, number % 251, np.uint8)


def described(number: int) -> Descriptor:
    return Descriptor(
        payload_kind=PayloadKind.VIDEO_PACKET,
        source_index=number,
        pts=number * 10,
        dts=number * 10 - 5,
        duration=10,
        time_base=(1, 1000),
        flags=number % 2,
        epoch=3,
    )


def take(kept: Journal, number: int, size: int = 50) -> int:
    return kept.take(Lease(number, size), described(number), 1)  # type: ignore[arg-type]


@pytest.fixture
def made(tmp_path: Path) -> Callable[[str], Journal]:
    def journal_called(name: str) -> Journal:
        return Journal((tmp_path / f"{name}-a", tmp_path / f"{name}-b"))

    return journal_called


def recovered(kept: Journal) -> tuple[dict[str, Any] | None, list[Record]]:
    try:
        return kept.recover()
    finally:
        kept.close()


def test_what_was_written_comes_back(made: Any) -> None:
    kept = made("j")
    kept.create()
    take(kept, 0)
    kept.snapshot({"a": 1}, 0)
    numbers = [take(kept, number) for number in (1, 2)]
    kept.close()

    state, records = recovered(made("j"))

    assert state == {"a": 1}
    assert [record.sequence for record in records] == [0, 1, 2]
    assert [record.number for record in records[1:]] == numbers
    last = records[-1]
    assert (last.track, last.epoch, last.source_index, last.pts, last.dts) == (1, 3, 2, 20, 15)
    assert (last.duration, last.time_base, last.key_frame, last.payload) == (10, (1, 1000), False, bytes([2]) * 50)


def test_a_record_that_is_torn_or_spoilt_is_none(tmp_path: Path, made: Any) -> None:
    """At every byte: what comes before it is whole, and writing goes on there."""
    kept = made("j")
    kept.create()
    take(kept, 0)
    before = (tmp_path / "j-a").stat().st_size
    take(kept, 1)
    kept.close()
    whole = (tmp_path / "j-a").read_bytes()
    for at in range(before, len(whole)):
        for name, data in (("torn", whole[:at]), ("spoilt", whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])):
            (tmp_path / f"{name}-a").write_bytes(data)
            shutil.copy(tmp_path / "j-b", tmp_path / f"{name}-b")
            again = made(name)
            _, records = again.recover()
            assert [record.sequence for record in records] == [0], (name, at)
            take(again, 7)
            again.close()
            assert [record.sequence for record in recovered(made(name))[1]] == [0, 7]


def test_two_files_take_turns_and_stay_small(tmp_path: Path, made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "CHUNK_BYTES", 2000)
    kept = made("j")
    kept.create()
    largest = 0
    for number in range(0, 1000, 10):
        numbers = [take(kept, number + n) for n in range(10)]
        kept.snapshot({"upto": number}, numbers[5])  # the last five are needed on
        largest = max(largest, *((tmp_path / f"j-{letter}").stat().st_size for letter in "ab"))
        copies = made(f"c{number}")
        for letter in "ab":
            shutil.copy(tmp_path / f"j-{letter}", tmp_path / f"c{number}-{letter}")
        state, records = recovered(copies)
        assert state == {"upto": number}
        assert [record.sequence for record in records][-5:] == [number + n for n in range(5, 10)]
    kept.close()
    assert largest < 3 * 2000
    assert {path.name for path in tmp_path.glob("j*")} == {"j-a", "j-b"}


def test_damage_in_the_middle_is_said(tmp_path: Path, made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The older of the two files was not being written when death came: nothing in it can be torn."""
    monkeypatch.setattr(journal, "CHUNK_BYTES", 500)
    kept = made("j")
    kept.create()
    for number in range(20):
        kept.snapshot({}, take(kept, number))
    before = {path: path.read_bytes() for path in (tmp_path / "j-a", tmp_path / "j-b")}
    take(kept, 20)
    kept.close()
    (older,) = (path for path, data in before.items() if path.read_bytes() == data)
    assert recovered(made("j"))[1]
    older.write_bytes(before[older][:-20])

    with pytest.raises(OSError, match="damaged"):
        recovered(made("j"))
