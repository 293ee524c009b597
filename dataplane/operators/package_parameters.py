"""What package is told, and what can be found out of it before anything runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from dataplane.errors import BadParameters
from dataplane.operators.base import Parameters
from dataplane.operators.boundaries import exact
from dataplane.operators.containers import can_describe
from dataplane.operators.places import check_folder, check_name, is_folder, real_path
from dataplane.operators.presentation import MASTER
from observatory.model.media import AudioFormat, PacketFormat, PortFormat

SUFFIX = {"cmaf": "m4s", "mpegts": "ts"}

# What RFC 8216 section 3 and Apple's authoring specification know in each, and libavformat writes.
_VIDEO = {"cmaf": frozenset({"h264", "hevc", "av1", "vp9"}), "mpegts": frozenset({"h264", "hevc"})}
_AUDIO = {
    "cmaf": frozenset({"aac", "mp3", "ac3", "eac3", "opus", "flac"}),
    "mpegts": frozenset({"aac", "mp3", "ac3", "eac3"}),
}


class PackageParameters(Parameters):
    """Parameters of package."""

    folder: str = Field(
        min_length=1,
        description="Where the playlists and segments go; made if absent, its parent exists. master.m3u8 is played",
    )
    container: Literal["cmaf", "mpegts"] = Field(
        default="cmaf", description="Of the segments: fragmented MP4 (H.264, HEVC, AV1, VP9), or MPEG-TS (H.264, HEVC)"
    )
    segment_seconds: float = Field(
        default=4.0,
        ge=0.5,
        le=60,
        json_schema_extra={"unit": "seconds"},
        description="Length of a segment; a whole multiple of keyframe_seconds of every encoder before it",
    )
    window_segments: int = Field(
        default=0,
        ge=0,
        le=100_000,
        json_schema_extra={"unit": "segments"},
        description="Segments that a playlist names; older ones are removed, after as many again. 0: all are kept",
    )
    audio: Literal["copy", "none"] = Field(
        default="copy",
        description="copy: the source's audio, as it is, is a rendition of its own; none: it is left out",
    )
    existing: Literal["continue", "replace"] = Field(
        default="continue",
        description="What becomes of a presentation in the folder that was never ended (its run was killed): it goes "
        "on behind a discontinuity, or is replaced. One that was ended is always replaced",
    )

    @property
    def master(self) -> str:
        """The playlist that names the others, as outputs are reported."""
        return os.path.join(self.folder, MASTER)  # noqa: PTH118 - as it was written, not normalised


def check(wanted: PackageParameters, inputs: Sequence[PortFormat]) -> None:
    """Raises BadParameters when the folder, the streams or the length of a segment are not possible."""
    _check_place(real_path(wanted.folder))
    for form in inputs:
        if isinstance(form, PacketFormat):
            _check_video(wanted, form)
        elif isinstance(form, AudioFormat):
            for stream in form.streams:
                _check_audio(wanted.container, stream.codec)
        else:
            mend = "put an encode operator before it"
            raise BadParameters("package takes encoded video, not raw frames", mend=mend)


def _check_place(folder: Path) -> None:
    check_name("package", folder.name)
    if folder.exists() and not is_folder(folder):
        raise BadParameters(f"package: {folder} is no folder", mend="give the path of a folder")
    check_folder("package", folder if is_folder(folder) else folder.parent)


def _check_video(wanted: PackageParameters, form: PacketFormat) -> None:
    known = _VIDEO[wanted.container]
    if form.codec not in known:
        mend = f"choose an encoder of {', '.join(sorted(known))}" + ("" if wanted.container == "cmaf" else ", or cmaf")
        raise BadParameters(f"package: {wanted.container} segments cannot carry {form.codec}", mend=mend)
    mend = f"set keyframe_seconds: {wanted.segment_seconds:g} in the params of every encoder before it"
    if form.keyframe_seconds is None:
        raise BadParameters("package: nothing says that a segment can begin with a key frame", mend=mend)
    if exact(wanted.segment_seconds) % exact(form.keyframe_seconds):
        raise BadParameters(
            f"package: a segment of {wanted.segment_seconds:g} s is no whole multiple of the "
            f"{form.keyframe_seconds:g} s between key frames",
            mend=mend,
        )


def _check_audio(container: str, codec: str) -> None:
    if codec not in _AUDIO[container] or not can_describe(codec):
        raise BadParameters(f"package: {container} segments cannot carry {codec}", mend="set audio: none")
