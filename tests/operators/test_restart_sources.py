"""A source that is not decode: what the interface asks of operators that others write."""

from __future__ import annotations

from typing import Any

import pytest

from dataplane._ring import Descriptor
from dataplane.operators.base import MOST_RECENT_KEPT, Loss, Operator, Parameters, Published, Resume
from observatory.model.media import PayloadKind
from tests.app.jumping_source import STEP, Jumping
from tests.operators.restarts import Account, Lives


def frames(account: Account) -> list[tuple[int, int]]:
    return [(p.descriptor.source_index, p.pts) for p in account.frames()]


@pytest.mark.parametrize("lose", [None, 0, 3, 5])
def test_every_number_comes_once_or_is_listed(lose: int | None) -> None:
    lives = Lives(Jumping, {"first": [0, 500, 70], "frames": 3, "lose": lose})
    usual = lives.live()
    assert frames(usual) == [(n, n * STEP) for n in range(9) if n != lose]

    for point in range(usual.points):
        for second in (None, 0, 4):
            account = lives.live(point) if second is None else lives.live(point, second)
            assert frames(account) == frames(usual), (point, second)
            assert account.lost == usual.lost
            epochs = [p.descriptor.epoch for p in account.frames()]
            assert epochs == sorted(epochs)
            assert len(set(epochs)) == 3


def test_operators_that_say_nothing_cannot_go_on() -> None:
    said = Operator.restart.__func__(type("Own", (Operator,), {"op": "own"}), Parameters())  # type: ignore[attr-defined]

    assert not said.possible
    assert "own" in said.why


def packet(kind: PayloadKind, **fields: Any) -> Descriptor:
    return Descriptor(payload_kind=kind, time_base=(1, 1000), **fields)


def test_what_was_published_is_added_up_over_rings() -> None:
    first = Published().followed_by(
        [
            packet(PayloadKind.CODEC_PARAMETERS),
            packet(PayloadKind.VIDEO_PACKET, source_index=0, pts=0, dts=-80),
            packet(PayloadKind.VIDEO_PACKET, source_index=3, pts=120, dts=-40, epoch=2),
            packet(PayloadKind.VIDEO_PACKET, source_index=1, pts=40, dts=0),
            packet(PayloadKind.FRAME_LOST, source_index=2, pts=80),
            packet(PayloadKind.AUDIO_PACKET, stream_index=1, pts=77),
        ]
    )
    assert first == Published(4, 0, 120, {0: 0, 1: 77}, frozenset({(0, 0), (2, 3), (0, 1), (0, 2)}))

    second = first.followed_by([packet(PayloadKind.VIDEO_FRAME, source_index=4, pts=160, epoch=2)])

    assert second.next_source_index == 5
    assert second.last_epoch == 2
    assert second.last_dts == {0: 0, 1: 77}
    resume = Resume(2, "died", None, {"video": second}, (Loss(9, None, "x"),))
    assert resume.was_published("video", 2, 4)
    assert resume.was_published("video", 0, 1)
    assert not resume.was_published("video", 2, 1)
    assert not resume.was_published("audio", 0, 1)
    assert resume.on("audio") == Published()


def test_what_is_recent_is_bounded_and_what_is_older_still_counts_as_published() -> None:
    many = [packet(PayloadKind.VIDEO_FRAME, source_index=n, pts=n) for n in range(MOST_RECENT_KEPT + 10)]

    published = Published().followed_by(many)

    assert len(published.recent) == MOST_RECENT_KEPT
    assert (0, MOST_RECENT_KEPT + 9) in published.recent
    assert published.covers(0, 3)
    assert not published.covers(0, MOST_RECENT_KEPT + 10)
    gap = Published(6, 0, 5, {}, frozenset({(0, 3), (0, 5)}))
    assert [gap.covers(0, n) for n in range(7)] == [True, True, True, True, False, True, False]
