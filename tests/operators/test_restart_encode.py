"""encode, killed everywhere: every frame is coded once, in groups that can be decoded, by times that rise."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dataplane.operators.base import Operator
from dataplane.operators.encode import Encode, _resolve
from dataplane.operators.encoder import open_encoder
from dataplane.operators.prefix import decoding_time
from observatory.model.media import CodecParameters, PayloadKind
from tests.operators.harness import Payload
from tests.operators.media import pictures, planes_of
from tests.operators.restarts import Account, Lives, Move
from tests.operators.test_encode import _at as moved
from tests.operators.test_encode import decode_all
from tests.operators.test_per_frame import raw, video_format

SIZE = (128, 96)
FORMAT = video_format(SIZE)
COUNT = 20
STEP = 3600  # ticks from frame to frame

# Threads and look-ahead short enough that packets come out while frames go in.
PYRAMID = {
    "preset": "veryfast",
    "threads": 1,
    "look_ahead": 2,
    "options": {"x264-params": "bframes=3:b-pyramid=normal"},
}
CASES: dict[str, dict[str, Any]] = {
    "x264 with a pyramid": PYRAMID,
    "x264 without B-frames": {"threads": 1, "options": {"tune": "zerolatency"}},
    "x265": {"codec": "libx265", "preset": "ultrafast", "threads": 1, "look_ahead": 4},
    "x265 with boundaries": {"codec": "libx265", "preset": "ultrafast", "threads": 1, "keyframe_seconds": 0.4},
    "VP9": {"codec": "libvpx-vp9", "preset": "8", "threads": 1},
    "VP9 with alternate references": {"codec": "libvpx-vp9", "preset": "4", "threads": 1, "look_ahead": 6},
    "SVT-AV1": {
        "codec": "libsvtav1",
        "preset": "12",
        "threads": 1,
        "options": {"svtav1-params": "hierarchical-levels=2"},
    },
}


def inputs(count: int = COUNT) -> list[Payload]:
    return raw(list(pictures(count, SIZE)), FORMAT)


def uneven(count: int = COUNT) -> list[Payload]:
    """Frames whose distances change: 1 ms, then 40 ms, then half a second, and again."""
    payloads, pts = [], 0
    for number, payload in enumerate(inputs(count)):
        payloads.append(Payload(moved(payload, pts), payload.data))
        pts += (90, 3600, 45_000)[number // 2 % 3]
    return payloads


def check(account: Account, payloads: list[Payload]) -> None:
    """Each frame once; decoded by one decoder that is never told of the restart, without an error, into its picture."""
    said, packets = parameters(account), account.frames()
    assert len({p.data.tobytes() for p in account.made["video"] if p.kind == PayloadKind.CODEC_PARAMETERS}) == 1
    by_time = sorted(packets, key=lambda payload: payload.pts)
    assert [p.descriptor.source_index for p in by_time] == [p.descriptor.source_index for p in payloads]
    assert [p.pts for p in by_time] == [p.pts for p in payloads]
    dts = [p.descriptor.dts for p in packets]
    assert all(a < b for a, b in pairwise(dts))
    assert all(p.descriptor.dts <= p.pts for p in packets)
    decoded = decode_all(said, packets)
    assert [frame.pts for frame in decoded] == [p.pts for p in payloads]
    assert not any(frame.is_corrupt for frame in decoded)
    for frame, original in zip(decoded, payloads, strict=True):
        error = planes_of(frame)[0].astype(float) - original.planes()[0].ravel()
        assert np.sqrt((error**2).mean()) < 22


def parameters(account: Account) -> CodecParameters:
    first = account.made["video"][0]
    assert first.kind == PayloadKind.CODEC_PARAMETERS
    return CodecParameters.model_validate_json(first.data.tobytes())


def check_begin(account: Account) -> None:
    """A later instance says its parameters first, and then begins with a key frame."""
    for begun in account.begun[1:]:
        later = account.made["video"][begun:]
        if later:
            assert later[0].kind == PayloadKind.CODEC_PARAMETERS
        packets = [p for p in later if p.kind == PayloadKind.VIDEO_PACKET]
        if packets:
            assert packets[0].descriptor.flags & 1


@pytest.mark.parametrize("case", CASES)
def test_a_death_anywhere_loses_nothing(case: str) -> None:
    payloads = inputs()
    lives = Lives(Encode, CASES[case], FORMAT, payloads)
    undisturbed = lives.live()
    check(undisturbed, payloads)
    stride = 1 if case.startswith("x264") else 7  # the others take longer to open

    for point in range(0, undisturbed.points, stride):
        account = lives.live(point)
        check(account, payloads)
        check_begin(account)
        assert not account.lost
        assert not account.warnings
        assert account.lives == 2


def test_the_pyramid_is_one() -> None:
    """Or the test above would not test what it should."""
    packets = Lives(Encode, PYRAMID, FORMAT, inputs()).live().frames()
    order = [p.descriptor.source_index - 100 for p in packets]
    assert order[:5] == [0, 4, 2, 1, 3]


@settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.generate], derandomize=True)
@given(st.lists(st.integers(0, 90), min_size=2, max_size=5), st.sampled_from(["x264 with a pyramid", "VP9"]))
def test_successors_die_too(deaths: list[int], case: str) -> None:
    payloads = uneven()

    lives = Lives(Encode, CASES[case], FORMAT, payloads)
    account = lives.live(*deaths)

    check(account, payloads)
    check_begin(account)
    assert not account.lost


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("flushed", [True, False])
def test_it_can_be_moved(case: str, flushed: bool) -> None:
    payloads = uneven()
    account = Lives(Encode, CASES[case], FORMAT, payloads).live(Move(9, flushed), Move(1, flushed), Move(0, flushed))

    check(account, payloads)
    check_begin(account)
    assert account.lives == 4
    assert not account.lost
    assert not account.warnings


@pytest.mark.parametrize(
    ("said", "last", "used"),
    [
        (60, None, 60),
        (60, 40, 60),
        (60, 60, 61),
        (60, 70, 71),
        (7452451791589667652, 70, 71),  # seen of x265 after a single frame
        (7452451791589667652, None, 80),
        (-6148914691236618366, None, 80),
        (-6148914691236618366, 70, 71),
    ],
)
def test_decoding_times_rise_and_are_not_behind_the_picture(said: int, last: int | None, used: int) -> None:
    assert decoding_time(said, pts=100, last=last, early=20, far=90_000) == used


@pytest.mark.parametrize("point", [9, 25, 40, 55, 63, 71])
def test_key_frames_stay_where_all_renditions_have_them(point: int) -> None:
    lives = Lives(Encode, PYRAMID | {"keyframe_seconds": 0.24, "gop": 100}, FORMAT, inputs())
    usual = {p.descriptor.source_index for p in lives.live().frames() if p.descriptor.flags & 1}
    assert usual == {100, 106, 112, 118}  # every sixth frame of 25 in a second

    account = lives.live(point)

    check(account, inputs())
    keys = {p.descriptor.source_index for p in account.frames() if p.descriptor.flags & 1}
    assert usual <= keys
    assert len(keys - usual) <= 1


def test_frames_acknowledged_early_are_listed_when_they_are_lost() -> None:
    """An encoder that holds more than it said must give frames back before their packets are out."""

    def hold_less(operator: Operator) -> None:
        assert isinstance(operator, Encode)
        operator._most_held = 3

    payloads = inputs()
    lives = Lives(Encode, PYRAMID, FORMAT, payloads, change=hold_less)
    points = lives.live().points
    some_lost = 0

    for point in range(points):
        account = lives.live(point, 30)
        made = [p.descriptor.source_index for p in account.frames()]
        lost = [loss.source_index for loss in account.lost if loss.source_index is not None]
        assert sorted(made + lost) == [p.descriptor.source_index for p in payloads], f"killed at point {point}"
        assert all("acknowledged early" in loss.reason for loss in account.lost)
        some_lost += bool(lost)

    assert some_lost > points // 2


def test_groups_without_room_are_published_in_parts_and_said() -> None:
    """Noise, lossless: more bytes than the slots are meant for. What a death takes out of a group is listed."""
    size = (640, 480)
    form = video_format(size)
    noise = np.random.default_rng(3)
    payloads = [
        Payload(p.descriptor, noise.integers(0, 255, p.data.size, np.uint8))
        for p in raw(list(pictures(10, size)), form)
    ]
    params = {**PYRAMID, "crf": 1, "options": {"x264-params": "bframes=5:b-adapt=0:scenecut=0"}}
    lives = Lives(Encode, params, form, payloads)
    undisturbed = lives.live()
    assert any("too big" in said for said in undisturbed.warnings)
    holes = 0

    for point in range(0, undisturbed.points, 3):
        account = lives.live(point)
        made = [p.descriptor.source_index for p in account.frames()]
        lost = [loss.source_index for loss in account.lost if loss.source_index is not None]
        assert sorted(made + lost) == [p.descriptor.source_index for p in payloads], f"killed at point {point}"
        holes += bool(lost)

    assert holes


def test_other_codec_parameters_are_said() -> None:
    account = Lives(Encode, PYRAMID, FORMAT, inputs()).live(60)
    assert not account.warnings
    lives = Lives(Encode, PYRAMID, FORMAT, inputs(), change=_count_and_change())

    account = lives.live(60)

    assert len(account.warnings) == 1
    assert "other codec parameters" in account.warnings[0]


def _count_and_change() -> Any:
    """The second instance opens its encoder otherwise."""
    seen: list[Operator] = []

    def change(operator: Operator) -> None:
        seen.append(operator)
        if len(seen) == 2:
            assert isinstance(operator, Encode)
            other = Encode(Encode.Params.model_validate({"preset": "ultrafast"}))
            operator._encoder = open_encoder(*_resolve(other.params), FORMAT)

    return change


def test_it_says_that_it_can() -> None:
    said = Encode.restart(Encode.Params.model_validate({}))
    assert (said.after_death, said.migration, said.cut) == (True, True, "any")
