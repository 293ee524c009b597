"""What a batch of records counts, against sums done by hand."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest

from observatory.frames.ingest import Records, sort_records
from observatory.frames.latency import FrameTracker, WholeFrames
from observatory.frames.runs import parse_run
from observatory.metrics.book import MetricsBook
from observatory.metrics.run import RunMetrics
from observatory.model.kinds import UNKNOWN_I64, UNKNOWN_U32, EventKind, RecordFlag
from tests.frames.support import record, whole_frame
from tests.metrics.support import REALTIME_OFFSET_SECONDS, RUN, manifest, scrape

DECODE_HD = {"pipeline": "ladder", "stream": "ladder", "edge": "decode->hd"}
STREAM = {"pipeline": "ladder", "stream": "ladder"}


@pytest.fixture
def book() -> MetricsBook:
    return MetricsBook(clock=lambda: 5000.0)


@pytest.fixture
def run(book: MetricsBook) -> RunMetrics:
    return book.begin(manifest())


def batch(*parts: npt.NDArray[np.void]) -> Records:
    return sort_records(np.concatenate(parts))


def test_three_frames_of_a_ladder(book: MetricsBook, run: RunMetrics) -> None:
    """A frame that starts at ms s: slots are allocated, published and released at

    decode->hd s-1, s+2, s+6; decode->sd s-1, s+2, s+3; hd->enc s+2, s+6, s+11; enc->mux s+9, s+11, s+13.
    """
    run.observe(batch(*(whole_frame(RUN, index) for index in range(3))))
    seen = scrape(book)
    by_hand = {  # edge: turnaround ms and its bucket, publishing to release ms and its bucket
        "decode->hd": (7, "0.01", 4, "0.005"),
        "decode->sd": (4, "0.005", 1, "0.001"),
        "hd->enc": (9, "0.01", 5, "0.005"),
        "enc->mux": (4, "0.005", 2, "0.002"),
    }
    for edge, (turnaround, turnaround_le, latency, latency_le) in by_hand.items():
        labels = {**STREAM, "edge": edge}
        for name, milliseconds, le in (
            ("slot_turnaround", turnaround, turnaround_le),
            ("hop_latency", latency, latency_le),
            ("fence_wait", 0.5, "0.0005"),
        ):
            metric = f"observatory_{name}_seconds"
            assert seen.buckets(metric, **labels) == {le: 3}, (name, edge)
            assert seen(f"{metric}_count", **labels) == 3
            assert seen(f"{metric}_sum", **labels) == pytest.approx(3 * milliseconds / 1e3, abs=1e-12)
            assert seen(f"{metric}_created", **labels) == 5000.0
        assert seen("observatory_hop_records_total", **labels) == 3
        assert seen("observatory_hop_records_incomplete_total", **labels) == 0
        assert seen("observatory_hop_bytes_total", **labels) == 3 * 345_600
        assert seen("observatory_frames_dropped_total", **labels) == 0


def hop(run_times: Mapping[EventKind, float], index: int = 1, **fields: object) -> npt.NDArray[np.void]:
    return record(RUN, index, 2, times=run_times, **fields)


@pytest.mark.parametrize(
    ("nanoseconds", "le"),
    [
        (1, "1e-06"),
        (1000, "1e-06"),
        (1001, "2e-06"),
        (50_000, "5e-05"),
        (999_999_999, "1.0"),
        (1_000_000_001, "2.0"),
        (10**10, "10.0"),
        (10**10 + 1, "+Inf"),
        (10**13, "+Inf"),
    ],
)
def test_a_bound_belongs_to_its_bucket(book: MetricsBook, run: RunMetrics, nanoseconds: int, le: str) -> None:
    one = hop({EventKind.DMA_BUF_ALLOC: 0})
    one["times_ns"][0, EventKind.DMA_BUF_ALLOC] = 77
    one["times_ns"][0, EventKind.SLOT_RELEASE] = 77 + nanoseconds
    run.observe(one)
    seen = scrape(book)
    assert seen.buckets("observatory_slot_turnaround_seconds", **DECODE_HD) == {le: 1}
    assert seen("observatory_slot_turnaround_seconds_sum", **DECODE_HD) == nanoseconds / 1e9


def test_a_fence_that_was_there_before_was_waited_for_no_time(book: MetricsBook, run: RunMetrics) -> None:
    late = {EventKind.FENCE_SIGNAL: 10, EventKind.CONSUMER_WAIT_FENCE: 12}
    starved = {EventKind.FENCE_SIGNAL: 13, EventKind.CONSUMER_WAIT_FENCE: 10}
    run.observe(batch(hop(late, 1), hop(starved, 2)))
    seen = scrape(book)
    assert seen.buckets("observatory_fence_wait_seconds", **DECODE_HD) == {"1e-06": 1, "0.005": 1}
    assert seen("observatory_fence_wait_seconds_sum", **DECODE_HD) == 0.003


def test_what_is_unknown_is_not_observed(book: MetricsBook, run: RunMetrics) -> None:
    no_release = hop({EventKind.DMA_BUF_ALLOC: 1, EventKind.FENCE_SIGNAL: 2}, 1, flags=RecordFlag.INCOMPLETE)
    nothing = hop({}, 2, flags=RecordFlag.INCOMPLETE, bytes=UNKNOWN_U32)
    only_wait = hop({EventKind.CONSUMER_WAIT_FENCE: 3}, 3, flags=RecordFlag.INCOMPLETE)
    backwards = hop({EventKind.DMA_BUF_ALLOC: 9, EventKind.FENCE_SIGNAL: 9, EventKind.SLOT_RELEASE: 8}, 4)
    run.observe(batch(no_release, nothing, only_wait, backwards))
    seen = scrape(book)
    for name in ("slot_turnaround", "hop_latency", "fence_wait"):
        assert seen(f"observatory_{name}_seconds_count", **DECODE_HD) == 0
        assert seen(f"observatory_{name}_seconds_sum", **DECODE_HD) == 0
    assert seen("observatory_hop_records_total", **DECODE_HD) == 4
    assert seen("observatory_hop_records_incomplete_total", **DECODE_HD) == 3
    assert seen("observatory_hop_bytes_total", **DECODE_HD) == 3 * 345_600


def test_nothing_and_hops_of_nobody_are_no_harm(book: MetricsBook, run: RunMetrics) -> None:
    run.observe(batch(whole_frame(RUN, 1))[:0])
    run.observe(batch(record(RUN, 1, 4), record(RUN, 1, 2**32 - 1)))
    assert set(scrape(book).named("observatory_hop_records_total").values()) == {0}


def test_the_newest_frame_of_each_bucket_is_its_exemplar(book: MetricsBook, run: RunMetrics) -> None:
    def turnaround(index: int, milliseconds: float, **fields: object) -> npt.NDArray[np.void]:
        begin = 1000.0 * index
        times = {EventKind.DMA_BUF_ALLOC: begin, EventKind.SLOT_RELEASE: begin + milliseconds}
        return hop(times, index, pts=index * 512, time_base_den=12800, **fields)

    run.observe(batch(turnaround(1, 3), turnaround(2, 4), turnaround(3, 30), turnaround(4, 3.5)))
    seen = scrape(book)
    name = "observatory_slot_turnaround_seconds_bucket"
    newest = seen.exemplar(name, le="0.005", **DECODE_HD)
    assert newest.labels == {"stream": "ladder", "epoch": "2", "pts": "2048", "time_base": "1/12800"}
    assert newest.value == 0.0035
    assert float(newest.timestamp or 0) == pytest.approx(REALTIME_OFFSET_SECONDS + 4 + 0.0035, abs=1e-3)
    assert seen.exemplar(name, le="0.05", **DECODE_HD).labels["pts"] == "1536"
    assert {labels for named, labels in seen.exemplars if named == name} == {
        frozenset({("le", le), *DECODE_HD.items()}) for le in ("0.005", "0.05")
    }

    run.observe(batch(turnaround(5, 31)))  # a newer one takes the place of its bucket's only,
    run.observe(batch(turnaround(2, 3.1)))  # an older one, that came late, of none
    seen = scrape(book)
    assert seen.exemplar(name, le="0.05", **DECODE_HD).labels["pts"] == "2560"
    assert seen.exemplar(name, le="0.005", **DECODE_HD) == newest
    assert seen(f"{name.removesuffix('_bucket')}_count", **DECODE_HD) == 6


def test_a_frame_without_pts_is_named_by_its_source_index(book: MetricsBook, run: RunMetrics) -> None:
    run.observe(batch(whole_frame(RUN, 77, pts=UNKNOWN_I64)))
    exemplar = scrape(book).exemplar("observatory_slot_turnaround_seconds_bucket", le="0.01", **DECODE_HD)
    assert exemplar.labels == {"stream": "ladder", "epoch": "2", "source_index": "77"}


# -- whole frames -------------------------------------------------------------------------------------------------


def track(tracker: FrameTracker, run: RunMetrics, records: Records) -> WholeFrames:
    """As the collector does it."""
    frames = tracker.add(records)
    run.observe(records)
    run.observe_frames(frames)
    return frames


def test_whole_frames_are_counted_with_the_pts_of_their_source(book: MetricsBook, run: RunMetrics) -> None:
    tracker = FrameTracker(parse_run(manifest().model_dump_json()))
    assert len(track(tracker, run, batch(*(whole_frame(RUN, index) for index in range(5)))).latency_ns) == 5
    late = whole_frame(RUN, 9)  # 13 ms; its mux rebases the PTS, and its last record comes in a batch of its own
    late[3]["pts"] = 1
    assert len(track(tracker, run, batch(late[:3])).latency_ns) == 0
    frames = track(tracker, run, batch(late[3:]))
    assert (frames.source_index.tolist(), frames.latency_ns.tolist()) == ([9], [13_000_000])
    assert (frames.stream.tolist(), frames.epoch.tolist()) == ([7], [2])
    assert frames.released_ns.tolist() == [(100 + 40 * 9 + 13) * 1_000_000]
    seen = scrape(book)
    name = "observatory_frame_latency_seconds"
    assert seen.buckets(name, **STREAM) == {"0.015": 6}
    assert seen(f"{name}_sum", **STREAM) == pytest.approx(6 * 0.013, abs=1e-12)
    assert seen("observatory_frames_total", **STREAM) == 6
    exemplar = seen.exemplar(f"{name}_bucket", le="0.015", **STREAM)
    assert exemplar.labels == {"stream": "ladder", "epoch": "2", "pts": "9", "time_base": "1/25"}
    assert exemplar.value == 0.013


def test_a_frame_of_long_ago_is_named_by_its_source_index(book: MetricsBook, run: RunMetrics) -> None:
    run.observe(batch(whole_frame(RUN, 1)))
    run.observe(batch(whole_frame(RUN, 1 + 4096)))  # takes its place
    numbers, times = np.array([7, 2], np.uint32), np.array([13_000_000, 10**9])
    run.observe_frames(WholeFrames(numbers[:1], numbers[1:], np.array([1], np.uint64), times[:1], times[1:]))
    exemplar = scrape(book).exemplar("observatory_frame_latency_seconds_bucket", le="0.015", **STREAM)
    assert exemplar.labels == {"stream": "ladder", "epoch": "2", "source_index": "1"}


def test_frames_of_a_batch_of_several_laps_are_all_told() -> None:
    tracker = FrameTracker(parse_run(manifest().model_dump_json()))
    frames = tracker.add(batch(*(whole_frame(RUN, index) for index in (1, 2, 5000, 9000))))
    assert sorted(frames.source_index.tolist()) == [1, 2, 5000, 9000]
    assert tracker.add(batch(whole_frame(RUN, 1))[:0]).latency_ns.tolist() == []
