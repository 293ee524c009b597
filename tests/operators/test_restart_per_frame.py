"""Operators that make a frame from a frame, killed everywhere: what comes out is the same, byte by byte."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dataplane._ring import Descriptor
from dataplane.operators.base import Operator
from dataplane.operators.convert import Convert
from dataplane.operators.crop import Crop
from dataplane.operators.scale import Scale
from dataplane.operators.super_res import SuperRes
from dataplane.operators.watermark import Watermark
from observatory.model.media import PayloadKind
from tests.operators.harness import Payload
from tests.operators.media import pictures
from tests.operators.restarts import Account, Lives, Move
from tests.operators.test_per_frame import raw, video_format

SIZE = (96, 64)
FORMAT = video_format(SIZE)
KINDS: list[tuple[type[Operator], Mapping[str, Any]]] = [
    (Scale, {"width": 48, "height": 32}),
    (Crop, {"width": 32, "height": 18, "x": 4, "y": 2}),
    (Convert, {"pixel_format": "p010le"}),
    (SuperRes, {}),
    (Watermark, {"text": "10:32\n7", "size": 16}),
]


def inputs(count: int = 5) -> list[Payload]:
    """Frames, one of which was lost before it came here."""
    payloads = raw(list(pictures(count, SIZE)), FORMAT)
    gone = payloads[2].descriptor
    mark = Descriptor(
        payload_kind=PayloadKind.FRAME_LOST, source_index=gone.source_index, pts=gone.pts, time_base=gone.time_base
    )
    payloads[2] = Payload(mark, payloads[2].data)
    return payloads


def essence(account: Account) -> list[tuple[int, int, int, int, bytes]]:
    found = []
    for payload in account.frames():
        said = payload.descriptor
        found.append((said.source_index, said.pts, said.duration, said.flags, payload.data.tobytes()))
    return found


@pytest.mark.parametrize(("kind", "params"), KINDS, ids=lambda value: "" if isinstance(value, dict) else value.op)
def test_a_death_anywhere_changes_nothing(kind: type[Operator], params: Mapping[str, Any]) -> None:
    lives = Lives(kind, params, FORMAT, inputs())
    undisturbed = lives.live()
    assert [said[0] for said in essence(undisturbed)] == [100, 101, 103, 104]

    for point in range(undisturbed.points):
        account = lives.live(point)
        assert essence(account) == essence(undisturbed), f"killed at point {point}"
        assert account.lives == 2
        assert not account.lost


@pytest.mark.parametrize(("first", "second"), [(7, 3), (7, 0), (3, 7), (12, 8)])
def test_the_successor_may_die_too(first: int, second: int) -> None:
    lives = Lives(Scale, {"width": 48, "height": 32}, FORMAT, inputs())

    account = lives.live(first, second)

    assert account.lives == 3
    assert essence(account) == essence(lives.live())


@pytest.mark.parametrize(("kind", "params"), KINDS, ids=lambda value: "" if isinstance(value, dict) else value.op)
def test_it_says_that_it_can(kind: type[Operator], params: Mapping[str, Any]) -> None:
    said = kind.restart(kind.Params.model_validate(params))
    assert (said.after_death, said.migration, said.cut) == (True, True, "any")


def test_it_can_be_moved() -> None:
    lives = Lives(Scale, {"width": 48, "height": 32}, FORMAT, inputs())

    account = lives.live(Move(1), Move(2, flushed=False))

    assert essence(account) == essence(lives.live())
    assert account.lives == 3
