"""HLS playlists (RFC 8216) as text, and a media playlist read back."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

_ATTRIBUTE = re.compile(r'([A-Z0-9-]+)=("[^"]*"|[^",]*)(?:,|$)')
_RANGES = {16: "PQ", 18: "HLG"}  # by H.273 transfer characteristic
VERSION = 7  # the first that knows EXT-X-MAP and EXT-X-INDEPENDENT-SEGMENTS in every playlist


@dataclass(frozen=True, slots=True)
class Entry:
    """One segment as a playlist names it."""

    uri: str
    seconds: float
    init: str | None = None
    discontinuity: bool = False
    date: datetime | None = None  # when its first picture was taken in, with a time zone


@dataclass(frozen=True, slots=True)
class MediaPlaylist:
    """The segments of one rendition, from `first_number` on. `event`: nothing is ever taken out of it."""

    target_seconds: int
    entries: tuple[Entry, ...]
    first_number: int = 0
    discontinuities_before: int = 0
    event: bool = False
    ended: bool = False

    def text(self) -> str:
        """As a player reads it."""
        lines = [
            "#EXTM3U",
            f"#EXT-X-VERSION:{VERSION}",
            f"#EXT-X-TARGETDURATION:{self.target_seconds}",
            f"#EXT-X-MEDIA-SEQUENCE:{self.first_number}",
            f"#EXT-X-DISCONTINUITY-SEQUENCE:{self.discontinuities_before}",
            *(["#EXT-X-PLAYLIST-TYPE:EVENT"] if self.event else []),
            "#EXT-X-INDEPENDENT-SEGMENTS",
        ]
        init = None
        for entry in self.entries:
            if entry.discontinuity:
                lines.append("#EXT-X-DISCONTINUITY")
            if entry.init is not None and entry.init != init:
                lines.append(f'#EXT-X-MAP:URI="{entry.init}"')
                init = entry.init
            if entry.date is not None:
                lines.append(f"#EXT-X-PROGRAM-DATE-TIME:{entry.date.isoformat(timespec='milliseconds')}")
            lines += [f"#EXTINF:{entry.seconds:.6f},", entry.uri]
        if self.ended:
            lines.append("#EXT-X-ENDLIST")
        return "\n".join(lines) + "\n"


def target_of(seconds: float) -> int:
    """The EXT-X-TARGETDURATION of segments of about that length: whole seconds, at least what each rounds to."""
    return max(1, math.ceil(seconds))


def read_media_playlist(text: str) -> MediaPlaylist:
    """What `MediaPlaylist.text` wrote. Raises ValueError for anything else."""
    lines = text.splitlines()
    if not lines or lines[0] != "#EXTM3U":
        raise ValueError("no playlist: it does not begin with #EXTM3U")
    head = {"TARGETDURATION": 0, "MEDIA-SEQUENCE": 0, "DISCONTINUITY-SEQUENCE": 0}
    entries: list[Entry] = []
    init, seconds, discontinuity, date = None, None, False, None
    flags = set()
    for line in lines[1:]:
        tag, _, value = line.removeprefix("#EXT-X-").partition(":")
        if line.startswith("#EXTINF:"):
            seconds = float(line.removeprefix("#EXTINF:").partition(",")[0])
        elif line and not line.startswith("#"):
            if seconds is None or not math.isfinite(seconds):
                raise ValueError(f"{line}: a segment without a duration")
            entries.append(Entry(line, seconds, init, discontinuity, date))
            seconds, discontinuity, date = None, False, None
        elif tag in head:
            head[tag] = int(value)
        elif tag == "MAP":
            init = attributes(value).get("URI")
        elif tag == "DISCONTINUITY":
            discontinuity = True
        elif tag == "PROGRAM-DATE-TIME":
            date = datetime.fromisoformat(value)
        else:
            flags.add(tag)
    return MediaPlaylist(
        target_seconds=head["TARGETDURATION"],
        entries=tuple(entries),
        first_number=head["MEDIA-SEQUENCE"],
        discontinuities_before=head["DISCONTINUITY-SEQUENCE"],
        event="PLAYLIST-TYPE" in flags,
        ended="ENDLIST" in flags,
    )


def attributes(text: str) -> dict[str, str]:
    """An attribute list, quotes taken off."""
    return {name: value.strip('"') for name, value in _ATTRIBUTE.findall(text)}


@dataclass(frozen=True, slots=True)
class Variant:
    """One picture of the master playlist; the bit rates are those of the picture alone, in bits per second."""

    uri: str
    peak_bits_per_second: int
    average_bits_per_second: int
    codec: str | None
    width: int | None
    height: int | None
    frames_per_second: float | None
    transfer: int | None  # H.273


@dataclass(frozen=True, slots=True)
class Sound:
    """One sound of the master playlist."""

    uri: str
    name: str
    language: str | None
    channels: int | None
    codec: str | None
    peak_bits_per_second: int
    average_bits_per_second: int


def master_playlist(variants: Sequence[Variant], sounds: Sequence[Sound]) -> str:
    """The playlist that names the others. The first sound is played unless a user chooses another one."""
    lines = ["#EXTM3U", f"#EXT-X-VERSION:{VERSION}", "#EXT-X-INDEPENDENT-SEGMENTS"]
    for number, sound in enumerate(sounds):
        said = ["TYPE=AUDIO", 'GROUP-ID="audio"', f'NAME="{sound.name}"']
        said += [f'LANGUAGE="{sound.language}"'] if sound.language else []
        said += [f"DEFAULT={'NO' if number else 'YES'}", "AUTOSELECT=YES"]
        said += [f'CHANNELS="{sound.channels}"'] if sound.channels else []
        lines.append(f'#EXT-X-MEDIA:{",".join(said)},URI="{sound.uri}"')
    for variant in variants:
        lines += [f"#EXT-X-STREAM-INF:{','.join(_stream_info(variant, sounds))}", variant.uri]
    return "\n".join(lines) + "\n"


def _stream_info(variant: Variant, sounds: Sequence[Sound]) -> list[str]:
    peak = max((sound.peak_bits_per_second for sound in sounds), default=0)
    average = max((sound.average_bits_per_second for sound in sounds), default=0)
    said = [
        f"BANDWIDTH={variant.peak_bits_per_second + peak}",
        f"AVERAGE-BANDWIDTH={variant.average_bits_per_second + average}",
    ]
    codecs = [variant.codec, *dict.fromkeys(sound.codec for sound in sounds)]
    if None not in codecs:  # one that is not known makes the list a lie
        said.append(f'CODECS="{",".join(str(codec) for codec in codecs)}"')
    if variant.width and variant.height:
        said.append(f"RESOLUTION={variant.width}x{variant.height}")
    if variant.frames_per_second:
        said.append(f"FRAME-RATE={variant.frames_per_second:.3f}")
    if variant.transfer is not None:
        said.append(f"VIDEO-RANGE={_RANGES.get(variant.transfer, 'SDR')}")
    return said + (['AUDIO="audio"'] if sounds else [])
