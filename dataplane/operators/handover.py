"""A `Resume` as JSON, small enough for one control message even with thousands of frames and losses in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from pydantic import JsonValue

from dataplane.operators.base import Loss, Published, Resume


def resume_as_json(resume: Resume) -> dict[str, JsonValue]:
    """Source indices as runs without gaps, reasons of losses once each, equal losses as a number."""
    reasons = list(dict.fromkeys(loss.reason for loss in resume.lost))
    number = {reason: at for at, reason in enumerate(reasons)}
    lost: list[JsonValue] = [
        [loss.source_index, loss.pts, number[loss.reason], sum(1 for _ in equal)]
        for loss, equal in groupby(resume.lost)
    ]
    return {
        "incarnation": resume.incarnation,
        "reason": resume.reason,
        "state": None if resume.state is None else dict(resume.state),
        "published": {port: _published(said) for port, said in resume.published.items()},
        "reasons": [*reasons],
        "lost": lost,
    }


def resume_from_json(said: Mapping[str, Any]) -> Resume:
    """Inverse of `resume_as_json`."""
    reasons = said["reasons"]
    lost = [Loss(index, pts, reasons[reason]) for index, pts, reason, count in said["lost"] for _ in range(count)]
    return Resume(
        incarnation=said["incarnation"],
        reason=said["reason"],
        state=said["state"],
        published={port: _published_from(known) for port, known in said["published"].items()},
        lost=tuple(lost),
    )


def _published(said: Published) -> dict[str, JsonValue]:
    recent: list[JsonValue] = [[*run] for run in _runs(sorted(said.recent))]
    return {
        "next_source_index": said.next_source_index,
        "last_epoch": said.last_epoch,
        "last_pts": said.last_pts,
        "last_dts": {str(stream): time for stream, time in said.last_dts.items()},
        "recent": recent,
    }


def _published_from(said: Mapping[str, Any]) -> Published:
    return Published(
        next_source_index=said["next_source_index"],
        last_epoch=said["last_epoch"],
        last_pts=said["last_pts"],
        last_dts={int(stream): time for stream, time in said["last_dts"].items()},
        recent=frozenset((epoch, index) for epoch, first, end in said["recent"] for index in range(first, end)),
    )


def _runs(recent: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """(epoch, first source index, one past the last) of what is sorted."""
    run: tuple[int, int, int] | None = None
    for epoch, index in recent:
        if run is not None and (epoch, index) == (run[0], run[2]):
            run = (epoch, run[1], index + 1)
            continue
        if run is not None:
            yield run
        run = (epoch, index, index + 1)
    if run is not None:
        yield run
