"""Frame records: one frame crossing one edge (mirror of dataplane/abi/record.h).

PTS is not an identity: scalers keep it, muxers and filters rebase it. The identity is (stream, epoch, source index,
hop); look-up by PTS goes through (PTS, time base) of any hop to the source index. Spans are derived, never stored.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from observatory.model.kinds import RECORD_VERSION, EventKind, RecordFlag
from observatory.model.media import TimeBase

__all__ = [
    "RECORD_DTYPE",
    "RECORD_VERSION",
    "FrameView",
    "HopLink",
    "HopView",
    "Lineage",
    "LostFrame",
    "RecordFlag",
]

RECORD_DTYPE = np.dtype(
    [
        ("stream", "<u4"),
        ("epoch", "<u4"),
        ("source_index", "<u8"),
        ("pts", "<i8"),
        ("time_base_num", "<u4"),
        ("time_base_den", "<u4"),
        ("hop", "<u4"),
        ("slot", "<u4"),
        ("bytes", "<u4"),
        ("producer_device", "<u2"),
        ("consumer_device", "<u2"),
        ("producer_real_device", "<u2"),
        ("consumer_real_device", "<u2"),
        ("flags", "<u2"),
        ("version", "<u2"),
        ("times_ns", "<i8", (len(EventKind),)),
    ]
)
"""Structured dtype of `struct mo_frame_record`, 120 bytes."""


class Lineage(BaseModel):
    """Where a frame came from when that is more, or other, than its own source index (merge, split, drop)."""

    model_config = ConfigDict(frozen=True)

    hop: str
    source_index: int
    parents: tuple[int, ...]


class HopLink(BaseModel):
    """The links between a hop's two devices, when they are emulated: LINK_START and LINK_END are of no real machine."""

    model_config = ConfigDict(frozen=True)

    label: Literal["emulated"]
    time_scale: float = Field(description="How many times longer than on the links described everything took")
    seed: int | None = Field(description="What their true properties were drawn from; null: they are as advertised")
    path: tuple[str, ...] = Field(description="Ids of the links crossed, in order")


class HopView(BaseModel):
    """One record with its names resolved: what people and `--json` see. Unknown values are None."""

    model_config = ConfigDict(frozen=True)

    edge: str
    producer_device: str | None
    consumer_device: str | None
    producer_real_device: str | None
    consumer_real_device: str | None
    bytes: int | None
    slot: int | None
    pts: int | None
    time_base: str | None
    events: dict[str, int | None]
    incomplete: bool = False
    dropped: bool = False
    link: HopLink | None = Field(default=None, description="Null where the hop crossed no link")


class FrameView(BaseModel):
    """The life of one frame: all its hops, in the order of the DAG."""

    model_config = ConfigDict(frozen=True)

    stream: str
    epoch: int
    source_index: int
    pts: int | None
    time_base: str | None
    end_to_end_seconds: float | None = Field(description="first launch to last release")
    hops: tuple[HopView, ...]


class LostFrame(BaseModel):
    """A frame that did not come through, and why. PTS and source index may be unknown."""

    model_config = ConfigDict(frozen=True)

    source_index: int | None
    pts: int | None
    time_base: TimeBase | None
    operator: str
    reason: str
