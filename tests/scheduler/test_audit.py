"""The audit store: what goes in comes out, from several processes, and damaged files are refused in words."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from observatory.model.cost import CostParameters
from observatory.model.plan import DecisionRecord
from scheduler.audit import SCHEMA_VERSION, AuditStore
from scheduler.errors import AuditError, NoSuchDecision
from scheduler.solver import place
from tests.scheduler.support import device, job, star


def decision(number: int = 0) -> DecisionRecord:
    work = job([("a", "scale", []), ("b", "mux", ["a"])])
    _, record = place(work.pipeline, work.edges, star([device("n0/cpu0", compute=2)]), CostParameters(), work.types)
    return record.model_copy(update={"id": f"d{number}", "created_unix_seconds": 1000.0 + number})


def test_a_decision_comes_back_whole(tmp_path: Path) -> None:
    record = decision()
    with AuditStore(tmp_path / "new" / "state") as store:
        store.save(record)
        assert store.load("d0") == record
    with AuditStore(tmp_path / "new" / "state") as store:
        assert store.load("d0") == record


def test_the_list_is_newest_first(tmp_path: Path) -> None:
    with AuditStore(tmp_path) as store:
        for number in (1, 3, 2):
            store.save(decision(number))
        assert [line.id for line in store.list()] == ["d3", "d2", "d1"]
        assert [line.id for line in store.list(limit=1)] == ["d3"]
        assert store.list()[0].pipeline == "test"


def test_an_unknown_decision_is_named(tmp_path: Path) -> None:
    with AuditStore(tmp_path) as store:
        with pytest.raises(NoSuchDecision):
            store.load("d0")
        assert not store.path.exists()  # looking makes no file
        assert store.list() == []
        store.save(decision(7))
        with pytest.raises(NoSuchDecision) as caught:
            store.load("d8")
    assert caught.value.exit_code == 2
    assert "d7" in (caught.value.mend or "")


def test_a_file_that_is_none_of_ours(tmp_path: Path) -> None:
    (tmp_path / "audit.db").write_bytes(b"not a database at all" * 100)
    with AuditStore(tmp_path) as store, pytest.raises(AuditError, match="cannot be used"):
        store.save(decision())


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    with AuditStore(tmp_path) as store:
        store.save(decision())
    connection = sqlite3.connect(tmp_path / "audit.db")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    with AuditStore(tmp_path) as store, pytest.raises(AuditError, match="newer version"):
        store.load("d0")


def test_a_state_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with AuditStore(tmp_path / "state") as store, pytest.raises(AuditError) as caught:
        store.save(decision())
    assert "--state" in (caught.value.mend or "")


def test_many_writers_at_once(tmp_path: Path) -> None:
    records = [decision(n) for n in range(24)]

    def write(part: list[DecisionRecord]) -> None:
        with AuditStore(tmp_path) as store:
            for record in part:
                store.save(record)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, [records[i::6] for i in range(6)]))
    with AuditStore(tmp_path) as store:
        assert len(store.list()) == 24


def test_the_oldest_of_a_pipeline_go_and_those_of_others_stay(tmp_path: Path) -> None:
    with AuditStore(tmp_path) as store:
        store.save(decision(0))
    fill = sqlite3.connect(tmp_path / "audit.db")
    rows = [(f"other{n}", n, "other") for n in range(1500)] + [(f"test{n}", 1000.0 + n, "test") for n in range(1, 1200)]
    with fill:
        fill.execute("DROP INDEX decisions_by_pipeline")  # as a store of before
        fill.executemany("INSERT INTO decisions VALUES (?, ?, ?, 'submission', 0.0, '{}')", rows)
    with AuditStore(tmp_path) as store:
        store.save(decision(1200))
        kept = [line.id for line in store.list(limit=10_000)]
        assert [one for one in kept if one.startswith("other")] == [f"other{n}" for n in reversed(range(1500))]
        assert [one for one in kept if not one.startswith("other")] == [
            "d1200",
            *(f"test{n}" for n in reversed(range(201, 1200))),
        ]
        store.save(decision(-500))  # the clock was set back: what was just decided is kept all the same
        assert store.load("d-500").id == "d-500"
    fill.close()


def test_one_that_is_just_being_made_is_waited_for(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "audit.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.2, other.rollback)
    timer.start()
    with AuditStore(tmp_path) as store:
        store.save(decision())
        assert [line.id for line in store.list()] == ["d0"]
    timer.join()
    other.close()


def test_a_killed_writer_leaves_a_sound_store(tmp_path: Path) -> None:
    script = (
        "import sys, os, signal, pathlib\n"
        "from scheduler.audit import AuditStore\n"
        "from observatory.model.plan import DecisionRecord\n"
        "record = DecisionRecord.model_validate_json(sys.stdin.read())\n"
        "store = AuditStore(pathlib.Path(sys.argv[1])); store.save(record)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], input=decision(5).model_dump_json(), text=True, check=False
    )
    with AuditStore(tmp_path) as store:
        assert store.load("d5") == decision(5).model_copy(update={"solve_seconds": store.load("d5").solve_seconds})
