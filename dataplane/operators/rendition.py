"""One media playlist on disk: segments that come, segments that go, and what an earlier run left of it."""

from __future__ import annotations

import contextlib
import math
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from dataplane.operators.playlists import Entry, MediaPlaylist, read_media_playlist, target_of
from dataplane.operators.segments import Segment

NUMBER_DIGITS = 6


@dataclass(slots=True)
class BitRates:
    """Bits per second of the segments so far."""

    peak: int = 0
    _bits: int = 0
    _seconds: Fraction = Fraction(0)

    def count(self, size_bytes: int, seconds: Fraction) -> None:
        """One more segment. Segments of no length say nothing of a rate."""
        if seconds > 0:
            self.peak = max(self.peak, -int(-size_bytes * 8 // seconds))
            self._bits += size_bytes * 8
            self._seconds += seconds

    def state(self) -> list[int]:
        """What has to be known to go on counting."""
        return [self.peak, self._bits, self._seconds.numerator, self._seconds.denominator]

    def restore(self, state: Sequence[int]) -> None:
        """As `state` said it."""
        self.peak, self._bits = state[:2]
        self._seconds = Fraction(*state[2:])

    @property
    def average(self) -> int:
        """Over everything."""
        return round(self._bits / self._seconds) if self._seconds else 0


class Rendition:
    """Files of one name in a folder: `NAME.m3u8`, `NAME-000000.m4s` (or `.ts`), `NAME-init-000000.mp4`.

    Every file is written under a hidden name and renamed, media before the playlist that names it. Raises OSError.
    """

    def __init__(self, folder: Path, name: str, suffix: str, segment_seconds: float, window_segments: int) -> None:
        self.name = name
        self.rates = BitRates()
        self.published = 0  # segments of this run
        self.longer_than_promised = False
        self._folder = folder
        self.suffix = suffix
        self._window = window_segments
        self._target = target_of(segment_seconds)
        self._first_number = 0
        self._next = 0  # number of the segment that comes next
        self._discontinuities = 0  # before the first listed segment
        self._listed: deque[Entry] = deque()
        self._leaving: deque[Entry] = deque()  # players that hold an older playlist may still ask for them
        self._init: bytes | None = None
        self._init_name: str | None = None
        self._continues = False

    @property
    def playlist(self) -> str:
        """Its file's name."""
        return f"{self.name}.m3u8"

    @property
    def temporary(self) -> Path:
        """What is not complete."""
        return self._folder / f".{self.name}.part"

    def take_up(self, previous: MediaPlaylist) -> None:
        """Go on behind what an earlier run listed, with a discontinuity."""
        self._listed = deque(previous.entries)
        self._first_number = previous.first_number
        self._next = previous.first_number + len(previous.entries)
        self._discontinuities = previous.discontinuities_before
        self._target = max(self._target, previous.target_seconds)
        self._continues = bool(previous.entries)
        if self._listed and self._listed[-1].init is not None:
            self._init_name = self._listed[-1].init  # kept while it is the same: some players take no second one
            self._init = (self._folder / self._init_name).read_bytes()

    def clear(self) -> None:
        """Remove what an earlier run left and no playlist names: all of it, unless `take_up` came before."""
        named = {name for entry in self._listed for name in (entry.uri, entry.init)}
        if not self._listed:
            (self._folder / self.playlist).unlink(missing_ok=True)
        ours = re.compile(rf"{re.escape(self.name)}-(init-\d+\.mp4|\d+\.(m4s|ts))")
        for path in list(self._folder.iterdir()):
            if ours.fullmatch(path.name) and path.name not in named:
                path.unlink(missing_ok=True)
        self.temporary.unlink(missing_ok=True)

    def publish(self, segment: Segment, date: datetime | None) -> None:
        """Write a segment, then name it; what leaves the window is removed.

        One that an instance before has named is only counted.
        """
        if self._next >= self._first_number + len(self._listed):
            self._publish_new(segment, date)
        self._continues = False
        self._next += 1
        self.rates.count(len(segment.data), segment.seconds)
        self.published += 1
        self._remove_left()

    def _publish_new(self, segment: Segment, date: datetime | None) -> None:
        number = self._next
        if self.suffix == "m4s" and segment.header != self._init:
            self._init_name = f"{self.name}-init-{number:0{NUMBER_DIGITS}d}.mp4"
            self._write(self._init_name, segment.header)
            self._init = segment.header
        uri = f"{self.name}-{number:0{NUMBER_DIGITS}d}.{self.suffix}"
        self._write(uri, segment.data)
        anew = segment.discontinuity or self._continues
        self._listed.append(Entry(uri, float(segment.seconds), self._init_name, anew, date))
        rounded = math.floor(segment.seconds + Fraction(1, 2))
        if rounded > self._target:
            self._target, self.longer_than_promised = rounded, True
        self._slide()
        self._list(ended=False)

    def end(self) -> None:
        """Say that nothing more will come."""
        self._list(ended=True)

    def discard(self) -> None:
        """Remove what is not complete."""
        with contextlib.suppress(OSError):
            self.temporary.unlink(missing_ok=True)

    # -- going on elsewhere ----------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What the files do not say; data."""
        return {
            "published": self.published,
            "next": self._next,
            "rates": self.rates.state(),
            "continues": self._continues,
            "longer": self.longer_than_promised,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """As `state` said it, and as the files say: there may be one segment more than when it was said.

        Raises OSError, ValueError when the files of segments that were published are gone.
        """
        self.published = state["published"]
        self.rates.restore(state["rates"])
        self.longer_than_promised = state["longer"]
        path = self._folder / self.playlist
        if state["next"] or path.exists():
            self.take_up(read_media_playlist(path.read_text()))
            self._leaving = deque(self._left_behind())
        self._next, self._continues = state["next"], state["continues"]

    def _left_behind(self) -> Iterator[Entry]:
        """What no playlist names any more, and is not removed yet."""
        names = sorted(path.name for path in self._folder.iterdir())
        inits = [name for name in names if re.fullmatch(rf"{re.escape(self.name)}-init-\d+\.mp4", name)]
        for name in names:
            found = re.fullmatch(rf"{re.escape(self.name)}-(\d+)\.{self.suffix}", name)
            if found and int(found[1]) < self._first_number:
                before = [init for init in inits if int(init.rpartition("-")[2].partition(".")[0]) <= int(found[1])]
                yield Entry(name, 0.0, before[-1] if before else None)

    # -- internals -------------------------------------------------------------------------------------------------

    def _slide(self) -> None:
        while self._window and len(self._listed) > self._window:
            gone = self._listed.popleft()
            self._first_number += 1
            # A discontinuity is counted once the segment behind it has left, RFC 8216 section 6.2.2.
            self._discontinuities += gone.discontinuity
            self._leaving.append(gone)

    def _remove_left(self) -> None:
        """RFC 8216 section 6.2.2: a segment stays for as long as a playlist that named it lasts, and itself."""
        while len(self._leaving) > self._window + 1:
            gone = self._leaving.popleft()
            (self._folder / gone.uri).unlink(missing_ok=True)
            following = self._leaving[0].init
            if gone.init is not None and gone.init != following:
                (self._folder / gone.init).unlink(missing_ok=True)

    def _list(self, ended: bool) -> None:
        event = self._window == 0
        playlist = MediaPlaylist(
            self._target, tuple(self._listed), self._first_number, self._discontinuities, event, ended
        )
        self._write(self.playlist, playlist.text().encode())

    def _write(self, name: str, data: bytes) -> None:
        write_whole(self._folder / name, self.temporary, data)


def write_whole(path: Path, temporary: Path, data: bytes) -> None:
    """Write a file so that under its own name it is either whole or not there. Raises OSError."""
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def previous_playlist(path: Path) -> MediaPlaylist | None:
    """What an earlier run left there, up to the first segment that is gone; None when it is none of ours."""
    try:
        found = read_media_playlist(path.read_text())
        whole = list(takewhile(partial(_is_whole, path.parent), found.entries))
    except (OSError, ValueError):
        return None
    return MediaPlaylist(
        found.target_seconds, tuple(whole), found.first_number, found.discontinuities_before, found.event, found.ended
    )


def _is_whole(folder: Path, entry: Entry) -> bool:
    """Whether a segment and its header are files in the folder itself."""
    names = [name for name in (entry.uri, entry.init) if name is not None]
    return all("/" not in name and (folder / name).is_file() for name in names)
