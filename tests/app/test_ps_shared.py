"""How `ps` shows a worker that several pipelines read."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from observatory.app.cli.ps import show_shared, slowest_reader
from observatory.model.status import EdgeStatus, PipelineStatus, WorkerStatus


def pipeline(name: str, source: str, queued: int, held: int = 0) -> PipelineStatus:
    workers = [
        WorkerStatus(
            pid=pid,
            operator=operator,
            op="decode" if operator == source else "scale",
            device="n0/gpu0",
            real_device="n0/cpu0",
            state="running",
            restarts=0,
            frames=7,
            shared_by=("one", "two") if operator == source else (),
        )
        for pid, operator in ((10, source), (11, "small"))
    ]
    edges = [
        EdgeStatus(edge=f"{source}->small", producer=source, consumer="small", queued=queued, held=held),
        EdgeStatus(edge="small->enc", producer="small", consumer="enc", queued=99, held=0),
    ]
    return PipelineStatus(
        name=name, state="running", submitted_unix_seconds=0.0, workers=tuple(workers), edges=tuple(edges)
    )


def test_a_shared_worker_is_one_row_with_both_its_names() -> None:
    out = StringIO()
    show_shared(Console(file=out, width=120), [pipeline("one", "decode", 1), pipeline("two", "src", 2)])
    assert "shared by one, two" in out.getvalue()
    (row,) = [line for line in out.getvalue().splitlines() if "n0/gpu0" in line]
    assert row.split()[:5] == ["10", "decode", "=", "src", "decode"]


def test_the_slowest_reader_is_that_with_most_before_it() -> None:
    found = slowest_reader(("one", "two"), [pipeline("one", "decode", 1, held=4), pipeline("two", "src", 3)])
    assert found == "slowest reader: one, decode->small: 1 queued, 4 held"
    assert slowest_reader(("one", "two"), []) is None
