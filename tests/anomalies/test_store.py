"""The table of incidents in audit.db: kept over crashes, readable by others, beside the decisions."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
from pathlib import Path

import pytest

from observatory.anomalies import store as store_module
from observatory.anomalies.errors import StoreError
from observatory.anomalies.store import IncidentStore
from observatory.model.incident import Evidence, Incident, IncidentState, Severity


def incident(number: int, state: IncidentState = IncidentState.OPEN) -> Incident:
    return Incident(
        id=f"inc-{number:04}", kind="link_down", subject=f"n0:port:mlx5_{number}/1", severity=Severity.CRITICAL,
        state=state, words="the link is down", confidence=0.85, sources=("infiniband",),
        evidence=(Evidence(at_ns=number, source="infiniband", subject="x", words="the link is down"),),
        opened_at=1000.0 + number, closed_at=2000.0 + number if state is IncidentState.CLOSED else None,
        noticed_ns=number,
    )  # fmt: skip


def test_an_incident_comes_back_as_it_was_and_is_replaced_by_its_newer_self(tmp_path: Path) -> None:
    with IncidentStore(tmp_path) as store:
        store.save([incident(1), incident(2)])
        store.save([incident(1, IncidentState.CLOSED)])
        assert [i.id for i in store.list()] == ["inc-0002", "inc-0001"]
        assert store.list(IncidentState.OPEN) == [incident(2)]
        assert store.find("inc-0001") == incident(1, IncidentState.CLOSED)
        assert store.find("inc-9999") is None


def test_nothing_was_ever_stored(tmp_path: Path) -> None:
    assert IncidentStore(tmp_path).list() == []
    assert not (tmp_path / "audit.db").exists()


def test_it_lives_beside_the_decisions(tmp_path: Path) -> None:
    from scheduler.audit import AuditStore

    with IncidentStore(tmp_path) as store, AuditStore(tmp_path) as decisions:
        store.save([incident(1)])
        assert decisions.list() == []
        store.save([incident(2)])
        with sqlite3.connect(tmp_path / "audit.db") as raw:
            names = {row[0] for row in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        raw.close()
    assert names == {"incidents", "decisions"} or names == {"incidents"}


def test_only_the_newest_closed_ones_are_kept_and_all_open_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "KEPT_CLOSED", 3)
    with IncidentStore(tmp_path) as store:
        store.save([incident(n, IncidentState.CLOSED) for n in range(10)] + [incident(n) for n in range(20, 25)])
        assert [i.id for i in store.list(IncidentState.CLOSED)] == ["inc-0009", "inc-0008", "inc-0007"]
        assert len(store.list(IncidentState.OPEN)) == 5


def test_what_a_dead_platform_left_open_is_closed(tmp_path: Path) -> None:
    with IncidentStore(tmp_path) as store:
        store.save([incident(1), incident(2, IncidentState.CLOSED)])
        assert store.close_left_open(5000.0) == 1
        closed = store.find("inc-0001")
    assert closed is not None
    assert (closed.state, closed.closed_at) == ("closed", 5000.0)
    assert "ended while it was open" in closed.words


def _write_for_ever(state: Path) -> None:
    with IncidentStore(state) as store:
        number = 0
        while True:
            store.save([incident(number), incident(number + 1)])
            number += 2


def test_a_writer_that_is_killed_leaves_whole_incidents(tmp_path: Path) -> None:
    writer = multiprocessing.get_context("spawn").Process(target=_write_for_ever, args=(tmp_path,))
    writer.start()
    with IncidentStore(tmp_path) as reader:
        while writer.is_alive() and len(reader.list(limit=50)) < 50:
            pass
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        found = reader.list(limit=-1)
    assert len(found) >= 50
    assert len(found) % 2 == 0  # what is saved together is there together


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "audit.db").write_bytes(b"no database at all, but long enough to look like one" * 100)
    with pytest.raises(StoreError):
        IncidentStore(tmp_path).save([incident(1)])


def test_a_record_of_another_version(tmp_path: Path) -> None:
    with IncidentStore(tmp_path) as store:
        store.save([incident(1)])
        with sqlite3.connect(tmp_path / "audit.db") as raw:
            raw.execute("UPDATE incidents SET record = '{}'")
        raw.close()
        with pytest.raises(StoreError, match="another version"):
            store.list()
