"""What mux is told, and what can be found out of it before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from dataplane.errors import BadParameters
from dataplane.operators.base import Parameters
from dataplane.operators.containers import MOV_FAMILY, can_carry, can_describe, container_format
from dataplane.operators.growing import Style
from dataplane.operators.places import check_folder, check_name, is_folder, real_path
from observatory.model.media import AudioFormat, PacketFormat, PortFormat


class MuxParameters(Parameters):
    """Parameters of mux."""

    path: str = Field(min_length=1, description="The file to write; its folder exists")
    format: Literal["mp4", "mov", "matroska", "webm", "mpegts"] | None = Field(
        default=None, description="Container; by the path's suffix if absent"
    )
    audio: Literal["copy", "none"] = Field(
        default="copy",
        description="copy: the source's audio is written as it is (DTS and TrueHD cannot be); none: it is left out",
    )
    faststart: bool = Field(
        default=False,
        description="mp4, mov: put the index at the front, for playing while downloading; at the end the file is "
        "copied once, and takes its room twice until that is done",
    )
    fragmented: bool = Field(
        default=False,
        description="mp4, mov: write fragments that begin with key frames, of a second or more; a cut file stays "
        "playable",
    )

    @property
    def container(self) -> str:
        """Libavformat's name of the container. Raises BadParameters."""
        return container_format(self.path, self.format)

    @property
    def style(self) -> Style:
        """How an MP4 or MOV file is laid out."""
        return "faststart" if self.faststart else "fragmented" if self.fragmented else "plain"


def check(wanted: MuxParameters, inputs: Sequence[PortFormat]) -> None:
    """Raises BadParameters when the file or its streams are not possible."""
    container = wanted.container
    if (wanted.faststart or wanted.fragmented) and container not in MOV_FAMILY:
        raise BadParameters(f"mux: {container} has neither faststart nor fragments", mend="use .mp4 or .mov")
    if wanted.faststart and wanted.fragmented:
        raise BadParameters("mux: faststart and fragmented exclude each other")
    _check_place(real_path(wanted.path))
    videos = [form for form in inputs if isinstance(form, PacketFormat)]
    if len(videos) + sum(isinstance(form, AudioFormat) for form in inputs) != len(inputs):
        raise BadParameters("mux takes encoded video, not raw frames", mend="put an encode operator before it")
    for form in inputs:
        if isinstance(form, PacketFormat):
            _check_codec(container, form.codec, "choose another container or encoder")
        elif isinstance(form, AudioFormat):
            for stream in form.streams:
                _check_codec(container, stream.codec, "set audio: none, or choose another container")


def _check_place(path: Path) -> None:
    """Find out before anything runs whether the file can be made. Raises BadParameters."""
    check_name("mux", path.name)
    check_folder("mux", path.parent)
    if is_folder(path):
        raise BadParameters(f"mux: {path} is a folder", mend="give the path of a file")


def _check_codec(container: str, codec: str, mend: str) -> None:
    if not can_carry(container, codec):
        raise BadParameters(f"mux: {container} cannot carry {codec}", mend=mend)
    if not can_describe(codec):
        raise BadParameters(f"mux: {codec} cannot be written with this build of libavcodec", mend=mend)
