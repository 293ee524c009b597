"""Parameters of decode, and what they come to together with the wishes of a run."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, field_validator

from dataplane.errors import WrongAddress
from dataplane.operators.addresses import DATAGRAMS, Input, Kind
from dataplane.operators.base import Parameters, Restart, SourceRequest
from dataplane.operators.live_connection import wait_for_source
from dataplane.operators.live_feed import Patience
from dataplane.operators.reading import OPEN_SECONDS, InputDescription, describe, open_input

GENERATED_FRAMES = 300
READ_SECONDS, HLS_READ_SECONDS = 5.0, 30.0  # a playlist grows by a segment at a time


class GeneratedPicture(Parameters):
    """The generated input, libavfilter's testsrc2."""

    size: str = Field(
        default="1280x720", pattern=r"^[1-9]\d{1,4}x[1-9]\d{1,4}$", description="WIDTHxHEIGHT, luma samples"
    )
    rate: str | int = Field(default=30, description="Frames per second, as 30 or 30000/1001")

    @field_validator("rate")
    @classmethod
    def _rate(cls, value: str | int) -> str | int:
        if not re.fullmatch(r"[1-9]\d*(/[1-9]\d*)?", str(value)):
            raise ValueError(f"rate {value!r} is no number of frames per second, as 30 or 30000/1001")
        return value

    @property
    def graph(self) -> str:
        """As libavfilter writes it."""
        return f"testsrc2=size={self.size}:rate={self.rate},format=yuv420p"


class DecodeParameters(Parameters):
    """Parameters of decode."""

    path: str | None = Field(
        default=None,
        description="File or URL to read, unless the run is given another input; without both, a generated "
        "picture. Live: `udp://` (MPEG-TS), `rtp://`, an `.sdp` file, `srt://`, HLS (`.m3u8`, over http too). Pipes "
        "and image sequences are not taken",
    )
    source: GeneratedPicture = Field(
        default=GeneratedPicture(),
        description="The generated picture (testsrc2): `size` as 1280x720, `rate` in frames per second",
    )
    frames: int | None = Field(
        default=None,
        ge=0,
        json_schema_extra={"unit": "frames"},
        description="Where to stop; 0: nowhere; generated pictures end after 300",
    )
    threads: int = Field(
        default=0,
        ge=0,
        le=64,
        description="Threads of the decoder; 0: as libavcodec thinks best, and of live sources one frame at a time, so "
        "that none waits for its successors",
    )
    pace: Literal["none", "realtime"] = Field(
        default="none",
        description="`realtime`: frames of files and generated pictures come as far apart as their times say",
    )
    open_timeout_seconds: float = Field(
        default=OPEN_SECONDS,
        gt=0,
        le=3600,
        description="How long a live source is waited for before anything runs, and in each attempt to find it again",
    )
    read_timeout_seconds: float | None = Field(
        default=None,
        gt=0,
        le=3600,
        description="A live source that gives no data for so long is gone; not given: 5, for HLS 30",
    )
    reconnect_seconds: float | None = Field(
        default=None,
        ge=0,
        description="How long a live source that is gone is waited for before the job ends; not given: for ever",
    )


def source_of(params: DecodeParameters, request: SourceRequest) -> Input:
    """What is to be read."""
    location = request.input if request.input is not None else params.path
    if location is None:
        return Input(params.source.graph, generated=True)
    return Input(location, address=request.address)


def look_into(params: DecodeParameters, source: Input) -> InputDescription:
    """What is in an input; a live one is waited for. Raises BadMedia."""
    if may_be_live(source):
        return wait_for_source(source, params.open_timeout_seconds)
    with open_input(source) as container:
        return describe(source, container)


def may_be_live(source: Input) -> bool:
    """Whether a source has to be read as a live one; for playlists only they themselves tell."""
    return source.kind in DATAGRAMS or source.kind is Kind.HLS


def restart_of(source: Input) -> Restart:
    """How another process goes on with a source."""
    files = False
    if _listens(source):
        why = (
            "a live source is listened to anew, and a new epoch begins; what it sent meanwhile is gone, uncounted. It "
            "cannot be moved: two processes cannot have the port that it sends to"
        )
    elif may_be_live(source):
        why = (
            "a playlist that grows is opened anew, and a new epoch begins, with what it repeats; a complete one goes "
            "on as a file does. It cannot be moved: two readers do not stop at the same segment"
        )
    else:
        files = True
        why = (
            "files are decoded again from the last key frame before what is not published, or, where none can be found "
            "again, read from their beginning; live sources begin a new epoch, and cannot be moved"
        )
    return Restart(after_death=True, migration=files, why=why)


def _listens(source: Input) -> bool:
    """Whether it comes to a port, by itself or (SRT) by a gateway that may not be there yet."""
    try:
        return source.kind in DATAGRAMS
    except WrongAddress:
        return True


def patience_with(params: DecodeParameters, source: Input) -> Patience:
    """How long a live source is waited for."""
    usual = HLS_READ_SECONDS if source.kind is Kind.HLS else READ_SECONDS
    return Patience(params.open_timeout_seconds, params.read_timeout_seconds or usual, params.reconnect_seconds)


def frame_limit(params: DecodeParameters, request: SourceRequest, source: Input) -> int | None:
    """How many frames at most; None or 0: no limit."""
    if request.frames is not None:
        return request.frames
    if params.frames is not None:
        return params.frames
    return GENERATED_FRAMES if source.generated else None
