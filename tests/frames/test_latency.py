"""The latency histogram against NumPy's percentiles, and the tracker against sums done by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from observatory.frames.ingest import sort_records
from observatory.frames.latency import BUCKETS, RELATIVE_ERROR, WINDOW, FrameTracker, Histogram, buckets_of, value_of
from observatory.frames.runs import parse_run
from observatory.frames.store import StreamRun
from observatory.model.kinds import EventKind, RecordFlag
from tests.frames.support import WHOLE_FRAME_SECONDS, life, manifest, record, whole_frame

RUN = StreamRun("ladder", 7, 2)


@given(st.integers(100, 10**14))
def test_a_bucket_s_value_is_within_one_percent_of_what_is_in_it(value: int) -> None:
    bucket = int(buckets_of(np.array([value]))[0])
    assert abs(value_of(bucket) - value) <= RELATIVE_ERROR * value * (1 + 1e-9)


def test_what_is_beyond_the_range_lands_in_the_outer_buckets() -> None:
    assert buckets_of(np.array([-5, 0, 1, 10**18])).tolist() == [0, 0, 0, BUCKETS - 1]


@pytest.mark.parametrize("shape", ["lognormal", "bimodal", "constant", "few"])
@pytest.mark.parametrize("q", [0.0, 0.01, 0.5, 0.9, 0.99, 0.999, 1.0])
def test_quantiles_are_within_one_percent_of_numpy(shape: str, q: float) -> None:
    random = np.random.default_rng(5)
    values = {
        "lognormal": random.lognormal(16, 1.5, 200_000),
        "bimodal": np.concatenate([random.normal(8e6, 1e5, 90_000), random.normal(4e8, 1e7, 10_000)]),
        "constant": np.full(1000, 12_345_678.0),
        "few": np.array([1e6, 2e6, 3e6]),
    }[shape].astype(np.int64)
    histogram = Histogram()
    for part in np.array_split(values, 7):
        histogram.add(part)
    exact = float(np.quantile(values, q, method="inverted_cdf")) / 1e9
    found = histogram.quantile(q)
    assert found is not None
    assert abs(found - exact) <= RELATIVE_ERROR * exact


def test_histograms_merge_and_travel() -> None:
    values = np.random.default_rng(1).lognormal(15, 1, 10_000).astype(np.int64)
    whole, one, other = Histogram(), Histogram(), Histogram()
    whole.add(values)
    one.add(values[:3000])
    other.add(values[3000:])
    one.merge(Histogram.from_sparse(other.sparse(), other.largest_ns / 1e9))
    assert one.count == 10_000
    assert [one.quantile(q) for q in (0.1, 0.5, 0.99)] == [whole.quantile(q) for q in (0.1, 0.5, 0.99)]
    assert Histogram().quantile(0.5) is None
    assert Histogram.from_sparse([]).count == 0


def tracker() -> FrameTracker:
    return FrameTracker(parse_run(manifest([RUN]).model_dump_json()))


def test_a_frame_is_complete_when_all_its_hops_are() -> None:
    frames = tracker()
    hops = sort_records(np.concatenate([whole_frame(RUN, index) for index in (1, 2)]))
    assert frames.add(hops[:3]).source_index.tolist() == []
    assert frames.take_seen() == [((7, 2), 1)]
    whole = frames.add(hops[3:6])
    assert (whole.source_index.tolist(), frames.take_seen()) == ([1], [((7, 2), 1)])
    assert whole.latency_ns.tolist() == [WHOLE_FRAME_SECONDS * 1e9]
    assert frames.add(hops[6:]).source_index.tolist() == [2]
    assert frames.add(hops).source_index.tolist() == []  # again: they are not counted twice
    assert frames.take_seen() == []


def test_frames_that_lack_a_hop_or_a_release_are_not_complete() -> None:
    frames = tracker()
    times = life(1, 1, 1, 1)
    del times[EventKind.SLOT_RELEASE]
    lacking = whole_frame(RUN, 1)
    lacking[2:3] = record(RUN, 1, 0, times=times, flags=RecordFlag.INCOMPLETE)
    dropped = whole_frame(RUN, 2)
    dropped["flags"][1] = RecordFlag.DROPPED
    whole = frames.add(sort_records(np.concatenate([lacking, dropped, whole_frame(RUN, 3)[:3]])))
    assert (frames.take_seen(), len(whole.stream)) == ([((7, 2), 3)], 0)


def test_frames_beyond_the_window_are_forgotten_not_mixed_up() -> None:
    frames = tracker()
    indices = [5, 5 + WINDOW, 6, 5 + 2 * WINDOW]
    whole = frames.add(sort_records(np.concatenate([whole_frame(RUN, index) for index in indices])))
    assert sorted(whole.source_index.tolist()) == sorted(indices)
    half = whole_frame(RUN, 9)
    assert len(frames.add(sort_records(half[:2])).stream) == 0
    assert frames.add(sort_records(whole_frame(RUN, 9 + WINDOW))).source_index.tolist() == [9 + WINDOW]
    assert len(frames.add(sort_records(half[2:])).stream) == 0  # its first half was given up


def test_streams_are_kept_apart_and_strangers_are_told() -> None:
    runs = [StreamRun("b", 9, 1), StreamRun("a", 4, 3)]
    frames = FrameTracker(parse_run(manifest(runs).model_dump_json()))
    own = np.concatenate([record(runs[0], 1, 0), record(runs[1], 1, 4)])
    strange = np.concatenate([record(StreamRun("c", 5, 1), 1, 0), record(StreamRun("a", 4, 2), 1, 4)])
    assert frames.own(np.concatenate([own, strange])).tolist() == [True, True, False, False]
    frames.add(sort_records(own))
    assert sorted(frames.take_seen()) == [((4, 3), 1), ((9, 1), 1)]


def test_a_frame_that_crosses_the_begin_of_an_epoch_is_put_together_in_its_own() -> None:
    frames = tracker()
    later = StreamRun("ladder", 7, 5)
    frames.add_epoch(7, 5)
    before, after = whole_frame(RUN, 10), whole_frame(later, 11)
    assert frames.own(np.concatenate([before, after, whole_frame(StreamRun("ladder", 7, 3), 12)])).sum() == 8
    assert len(frames.add(sort_records(np.concatenate([before[:2], after[:3]]))).stream) == 0
    whole = frames.add(sort_records(np.concatenate([after[3:], before[2:]])))
    assert sorted(zip(whole.epoch.tolist(), whole.source_index.tolist(), strict=True)) == [(2, 10), (5, 11)]
    assert sorted(frames.take_seen()) == [((7, 2), 1), ((7, 5), 1)]
