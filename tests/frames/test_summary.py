"""Statistics and the slowest frames, against numbers worked out apart from the code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from observatory.frames import summary
from observatory.frames.counters import StreamCounters
from observatory.frames.errors import NoFrameStore, NoSuchStream
from observatory.frames.store import FrameStore
from observatory.model.kinds import EventKind, RecordFlag
from observatory.model.record import LostFrame
from tests.frames.support import begin, life, record, whole_frame


def test_phases_of_a_hop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "CHUNK", 7)  # frames straddle no chunk, and there are many
    waits = np.random.default_rng(2).uniform(0.1, 20, 50)
    with FrameStore.open(tmp_path, write=True) as store:
        (run,) = begin(store)
        parts = [record(run, i, 2, times=life(100 + i, 2, float(wait), 3)) for i, wait in enumerate(waits)]
        parts += [record(run, i, 1, times=life(100 + i, 2, 0, 1)) for i in range(50)]
        parts.append(record(run, 50, 1, flags=RecordFlag.DROPPED, times={EventKind.FENCE_SIGNAL: 160}))
        store.append(np.concatenate(parts))
        store.add_lost(
            run.id, run.epoch, [LostFrame(source_index=50, pts=None, time_base=None, operator="sd", reason="dropped")]
        )
        store.put_counters({(run.id, run.epoch): StreamCounters(events_lost=3, finished=True)})
        (found,) = summary.stats(store)
    assert (found.stream, found.epoch, found.records, found.frames, found.lost) == ("ladder", 1, 101, 51, 1)
    by_edge = {hop.edge: hop for hop in found.hops}
    assert list(by_edge) == ["decode->hd", "decode->sd", "hd->enc", "enc->mux"]
    hd = by_edge["decode->hd"]
    assert (hd.records, hd.bytes, hd.incomplete, hd.dropped) == (50, 50 * 345_600, 0, 0)
    assert by_edge["decode->sd"].dropped == 1
    assert by_edge["enc->mux"].records == 0
    milliseconds = np.round(waits * 1e6) / 1e6
    expectations = {
        "allocate": np.full(50, 1.0),
        "produce": np.full(50, 2.0),
        "hand_over": milliseconds,
        "consume": np.full(50, 3.0),
        "slot_turnaround": milliseconds + 6,
    }
    for name, values in expectations.items():
        phase = hd.phases[name]
        assert phase["count"] == 50
        assert phase["p50_seconds"] == pytest.approx(np.percentile(values, 50) / 1e3, rel=1e-6)
        assert phase["p99_seconds"] == pytest.approx(np.percentile(values, 99) / 1e3, rel=1e-6)
        assert phase["max_seconds"] == pytest.approx(values.max() / 1e3, rel=1e-6)
    assert hd.phases["link"] == {"count": 0, "p50_seconds": None, "p99_seconds": None, "max_seconds": None}
    # End to end of a frame: decode launches, hd releases last: 2 + wait + 3 (sd is done after 2 + 0 + 1).
    assert found.end_to_end["count"] == 50
    assert found.end_to_end["p50_seconds"] == pytest.approx((5 + np.median(milliseconds)) / 1e3, rel=1e-6)
    document = found.as_dict()
    assert (document["events_lost"], document["finished"]) == (3, True)


def test_quantiles_turn_from_exact_to_within_one_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "EXACT_VALUES", 1000)
    values = np.random.default_rng(3).lognormal(14, 1, 5000).astype(np.int64)
    few, many = summary.Quantiles(), summary.Quantiles()
    few.add(values[:1000])
    many.add(values)
    assert few.quantile(0.99) == pytest.approx(np.percentile(values[:1000], 99) / 1e9, rel=1e-12)
    exact = float(np.quantile(values, 0.99, method="inverted_cdf")) / 1e9
    assert many.quantile(0.99) == pytest.approx(exact, rel=0.01)
    assert many.quantile(0.99) != exact


def test_the_slowest_frames_in_order(tmp_path: Path) -> None:
    with FrameStore.open(tmp_path, write=True) as store:
        (run,) = begin(store)
        frames = [whole_frame(run, index) for index in range(30)]
        for index, extra in ((4, 9), (17, 5), (18, 5), (2, 1)):
            frames[index]["times_ns"][3, EventKind.SLOT_RELEASE] += extra * 1_000_000
        store.append(np.concatenate(frames))
        found = summary.slowest(store, 4)
    assert [(f.source_index, f.end_to_end_seconds) for f in found] == [(4, 0.022), (17, 0.018), (18, 0.018), (2, 0.014)]


def test_all_streams_or_one(tmp_path: Path) -> None:
    with FrameStore.open(tmp_path, write=True) as store:
        with pytest.raises(NoFrameStore):
            summary.stats(store)
        runs = begin(store, "a", "b", "quiet")
        store.append(np.concatenate([record(runs[0], 1, 2), record(runs[1], 1, 6)]))
        assert [s.stream for s in summary.stats(store)] == ["a", "b"]
        assert [s.stream for s in summary.stats(store, stream="b")] == ["b"]
        with pytest.raises(NoSuchStream):
            summary.stats(store, stream="c")
        with pytest.raises(NoSuchStream, match="3 streams"):
            summary.slowest(store)
        assert summary.slowest(store, stream="a") == []
