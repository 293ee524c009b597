"""Look-ups: across time bases and epochs, neighbours, lost frames, what to say when there is nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from observatory.frames import lookup
from observatory.frames.errors import FrameStoreDamaged, NoFrameStore, NoSuchFrame, NoSuchStream
from observatory.frames.store import FrameStore
from observatory.model.errors import ExitCode
from observatory.model.kinds import UNKNOWN_I64, EventKind, RecordFlag
from observatory.model.media import TimeBase
from observatory.model.record import FrameView, Lineage, LostFrame
from tests.frames.support import WHOLE_FRAME_SECONDS, begin, life, record, whole_frame


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FrameStore]:
    with FrameStore.open(tmp_path, write=True) as opened:
        yield opened


def test_a_frame_over_all_its_hops_in_the_order_of_the_dag(store: FrameStore) -> None:
    (run,) = begin(store)
    store.append(np.concatenate([whole_frame(run, index) for index in range(5)]))
    frame = lookup.find(store, 3)
    assert (frame.stream, frame.epoch, frame.source_index, frame.pts, frame.time_base) == ("ladder", 1, 3, 3, "1/25")
    assert [hop.edge for hop in frame.hops] == ["decode->hd", "decode->sd", "hd->enc", "enc->mux"]
    assert frame.end_to_end_seconds == WHOLE_FRAME_SECONDS
    assert frame.state == "complete"
    # The manifest read its clocks at 1 us (monotonic) and 2000.000001 s (wall): 2000 s apart. First event: 219 ms.
    assert frame.began_unix_seconds == 2000.219
    hop = frame.hops[0]
    assert (hop.producer_device, hop.consumer_device) == ("n0/gpu0", "n0/gpu1")
    assert (hop.producer_real_device, hop.consumer_real_device) == ("n0/cpu0", "n0/cpu0")
    assert hop.events == {
        "DMA_BUF_ALLOC": 219_000_000,
        "PRODUCER_KERNEL_LAUNCH": 220_000_000,
        "FENCE_SIGNAL": 222_000_000,
        "LINK_START": None,
        "LINK_END": None,
        "CONSUMER_WAIT_FENCE": 221_500_000,
        "CONSUMER_KERNEL_LAUNCH": 223_000_000,
        "SLOT_RELEASE": 226_000_000,
    }
    assert lookup.find_source_index(store, 3) == frame


def test_the_shared_model_says_the_same(store: FrameStore) -> None:
    (run,) = begin(store)
    store.append(whole_frame(run, 1))
    frame = lookup.find(store, 1)
    view = frame.view()
    assert isinstance(view, FrameView)
    document = frame.as_dict()
    for name, value in view.model_dump(exclude={"hops"}).items():
        assert document[name] == value
    for hop, shown in zip(view.hops, document["hops"], strict=True):
        assert hop.model_dump().items() <= shown.items()


@pytest.mark.parametrize(
    ("pts", "base"),
    [(7, None), (7, (1, 25)), (3584, (1, 12800)), (25200, (1, 90000)), (14, (1, 50)), (70, (4, 1000)), (1, (7, 25))],
)
def test_the_same_point_in_time_in_any_time_base(store: FrameStore, pts: int, base: tuple[int, int] | None) -> None:
    (run,) = begin(store)
    store.append(np.concatenate([whole_frame(run, index) for index in range(10)]))
    assert lookup.find(store, pts, time_base=base).source_index == 7


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(-(10**9), 10**9), st.integers(1, 10**5), st.integers(1, 10**5), st.integers(1, 1000))
def test_a_frame_is_found_exactly_at_its_own_time(tmp_path: Path, pts: int, num: int, den: int, factor: int) -> None:
    with FrameStore.open(tmp_path, write=True) as store:
        (run,) = begin(store)
        store.append(record(run, 1, 2, pts=pts, time_base_num=num, time_base_den=den, times=life(1, 1, 1, 1)))
        assert lookup.find(store, pts * factor, time_base=(num, den * factor)).epoch == run.epoch
        with pytest.raises(NoSuchFrame):
            lookup.find(store, pts * factor + 1, time_base=(num, den * factor * 2 + 1), epoch=run.epoch)


def test_a_rebased_pts_is_found_with_its_time_base_and_hinted_at_without(store: FrameStore) -> None:
    (run,) = begin(store)
    for index in range(100, 110):
        store.append(whole_frame(run, index))
        store.append(record(run, index, 3, pts=512 * (index - 100), time_base_den=12800))
    assert lookup.find(store, 512, time_base=(1, 12800)).source_index == 101
    with pytest.raises(NoSuchFrame) as caught:
        lookup.find(store, 512)
    assert "--time-base 1/12800" in (caught.value.mend or "")
    # The source's own PTS in a finer time base is not confused with it.
    assert lookup.find(store, 101 * 3600, time_base=(1, 90000)).source_index == 101
    # What a muxer wrote has first say in the muxer's own time base.
    assert lookup.find(store, 0, time_base=(1, 12800)).source_index == 100


def test_the_newest_run_answers_unless_told_otherwise(store: FrameStore) -> None:
    (first,) = begin(store, run_id="one")
    store.append(np.concatenate([whole_frame(first, index) for index in range(20)]))
    (second,) = begin(store, run_id="two")
    store.append(np.concatenate([whole_frame(second, index) for index in range(10)]))
    begin(store, run_id="three")  # began, and has no frame yet
    assert lookup.find(store, 5).epoch == 2
    assert lookup.find(store, 5, epoch=1).epoch == 1
    with pytest.raises(NoSuchFrame) as caught:
        lookup.find(store, 15)
    assert "epoch 1 has it: --epoch 1" in (caught.value.mend or "")
    with pytest.raises(NoSuchStream, match="no epoch 9"):
        lookup.find(store, 5, epoch=9)
    with pytest.raises(NoSuchFrame) as caught:
        lookup.find(store, 5, epoch=3)
    assert caught.value.nearest == ()


def test_not_found_names_the_neighbours(store: FrameStore) -> None:
    (run,) = begin(store)
    for index, pts in enumerate([-8, -4, 0, 10, 20]):
        store.append(record(run, index, 2, pts=pts))
    expectations: dict[tuple[int, tuple[int, int] | None], list[int]] = {
        (12, None): [10, 20],
        (-5, None): [-8, -4],
        (-100, None): [-8],
        (100, None): [20],
        (10**30, None): [20],
        (6001, (1, 12800)): [5120, 10240],
    }
    for (pts, base), nearest in expectations.items():
        with pytest.raises(NoSuchFrame) as caught:
            lookup.find(store, pts, time_base=base)
        error = caught.value
        assert [n["pts"] for n in error.nearest] == nearest
        assert error.exit_code == ExitCode.JOB_FAILED
        assert f"PTS {pts}" in str(error)
        assert error.mend == "the nearest: " + " and ".join(f"PTS {n}" for n in nearest)
        assert error.as_dict()["nearest"] == list(error.nearest)
    with pytest.raises(NoSuchFrame) as caught:  # 1/25 cannot be said in 1/7 s: neighbours in their own time base
        lookup.find(store, 3, time_base=(1, 7))
    assert [(n["pts"], n["time_base"]) for n in caught.value.nearest] == [(10, "1/25"), (20, "1/25")]


def test_a_lost_frame_says_why(store: FrameStore) -> None:
    (run,) = begin(store)
    store.append(np.concatenate([whole_frame(run, index) for index in (0, 1, 3)]))
    base = TimeBase(num=1, den=25)
    store.add_lost(
        run.id,
        run.epoch,
        [
            LostFrame(source_index=2, pts=2, time_base=base, operator="decode", reason="corrupt packet"),
            LostFrame(source_index=3, pts=None, time_base=None, operator="enc", reason="dropped"),
            LostFrame(source_index=None, pts=None, time_base=None, operator="decode", reason="no key frame"),
        ],
    )
    with pytest.raises(NoSuchFrame, match="was lost in decode: corrupt packet") as caught:
        lookup.find(store, 1024, time_base=(1, 12800))
    assert caught.value.lost is not None
    assert [n["source_index"] for n in caught.value.nearest] == [1, 3]
    with pytest.raises(NoSuchFrame, match="was lost in decode: corrupt packet"):
        lookup.find_source_index(store, 2)
    found = lookup.find(store, 3)  # it left records, and is in the table
    assert found.state == "lost"
    assert [entry["reason"] for entry in found.lost] == ["dropped"]
    assert len(lookup.lost_frames(store)) == 3


def test_no_such_source_index_names_the_neighbours(store: FrameStore) -> None:
    (run,) = begin(store)
    store.append(np.concatenate([whole_frame(run, index) for index in (10, 20)]))
    for index, nearest in ((15, [10, 20]), (3, [10]), (99, [20]), (2**64 + 5, [20])):
        with pytest.raises(NoSuchFrame) as caught:
            lookup.find_source_index(store, index)
        assert [n["source_index"] for n in caught.value.nearest] == nearest


def test_streams_are_named_when_there_are_several(store: FrameStore) -> None:
    with pytest.raises(NoFrameStore):
        lookup.find(store, 1)
    runs = begin(store, "abr/left", "abr/right")
    with pytest.raises(NoSuchStream, match="no frames yet"):
        lookup.find(store, 1, stream="abr/left")
    left = {h.edge.name: n for n, h in enumerate(store.manifest(runs[0].id, 1).hops)}
    store.append(record(runs[0], 1, left["abr.left.decode->abr.left.hd"]))
    assert lookup.find(store, 1, stream="abr/left").stream == "abr/left"
    expectations: dict[str | None, str] = {
        None: "name one with --stream: abr/left, abr/right",
        "abr": "it has several inputs, each a stream: abr/left, abr/right",
        "abr/lefft": "did you mean abr/left?",
        "zzz": "known: abr/left, abr/right",
        "": "known: abr/left, abr/right",
    }
    for name, mend in expectations.items():
        with pytest.raises(NoSuchStream) as caught:
            lookup.find(store, 1, stream=name)
        assert caught.value.mend == mend
        assert caught.value.exit_code == ExitCode.BAD_INPUT


def test_unknown_values_are_none_and_a_broken_hop_has_no_latency(store: FrameStore) -> None:
    (run,) = begin(store)
    times = life(100, 2, 1, 3)
    del times[EventKind.SLOT_RELEASE]
    unknown = {"slot": 2**32 - 1, "bytes": 2**32 - 1, "producer_device": 2**16 - 1}
    store.append(
        np.concatenate(
            [
                record(run, 1, 2, times=times, flags=RecordFlag.INCOMPLETE, pts=UNKNOWN_I64, **unknown),
                record(run, 1, 1, times=life(100, 2, 0, 1)),
            ]
        )
    )
    frame = lookup.find_source_index(store, 1)
    assert frame.end_to_end_seconds is None
    assert frame.state == "incomplete"
    assert frame.missing == ("hd->enc", "enc->mux")
    assert frame.pts == 1  # from the other hop of the source
    hop = frame.hops[0]
    assert (hop.slot, hop.bytes, hop.pts, hop.producer_device, hop.incomplete) == (None, None, None, None, True)
    assert hop.events["SLOT_RELEASE"] is None


def test_a_dropped_hop_does_not_count_for_the_latency(store: FrameStore) -> None:
    (run,) = begin(store)
    dropped: dict[str, Any] = {
        "times": {EventKind.PRODUCER_KERNEL_LAUNCH: 100, EventKind.FENCE_SIGNAL: 102},
        "flags": RecordFlag.DROPPED,
    }
    store.append(np.concatenate([record(run, 1, 1, **dropped), record(run, 1, 2, times=life(100, 2, 1, 3))]))
    frame = lookup.find(store, 1)
    assert frame.state == "dropped"
    assert frame.end_to_end_seconds == 0.006


def test_parents_of_a_merged_frame(store: FrameStore) -> None:
    (run,) = begin(store)
    store.append(whole_frame(run, 4))
    store.add_lineage(run.id, run.epoch, [Lineage(hop="hd->enc", source_index=4, parents=(3, 4))])
    assert [hop.parents for hop in lookup.find(store, 4).hops] == [(4,), (4,), (3, 4), (4,)]


def test_lists(store: FrameStore) -> None:
    (run,) = begin(store)
    store.append(np.concatenate([whole_frame(run, index) for index in range(30)]))

    def listed(**options: Any) -> list[int]:
        return [frame.source_index for frame in lookup.list_frames(store, **options)]

    assert listed() == list(range(10, 30))
    assert listed(limit=3) == [27, 28, 29]
    assert listed(limit=3, last=10) == [8, 9, 10]
    assert listed(limit=3, first=4) == [4, 5, 6]
    assert listed(first=4, last=5) == [4, 5]
    assert listed(first=30) == []
    assert lookup.list_frames(store, first=2, limit=1)[0].end_to_end_seconds == WHOLE_FRAME_SECONDS


def test_records_whose_manifest_is_gone_are_damage(tmp_path: Path, store: FrameStore) -> None:
    (run,) = begin(store)
    store.append(whole_frame(run, 1))
    store._environment.write(lambda transaction: transaction.drop(store._table("runs"), delete=False))
    with pytest.raises(FrameStoreDamaged, match="manifest"):
        lookup.find(store, 1)
