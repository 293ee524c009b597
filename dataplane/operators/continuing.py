"""What a source remembers for whoever continues its work, and what it knows of those whose work it continues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue

from dataplane.operators.anchors import FRAMES_BETWEEN, SOUND_BETWEEN, Anchor
from dataplane.operators.base import Context, Loss, Published, Resume

if TYPE_CHECKING:
    from av.audio.stream import AudioStream
    from av.packet import Packet

    from dataplane.operators.losses import Report

GIVE_UP_SECONDS = 1  # sound that far behind the last of it that is known: that will not come again


class Notes:
    """Checkpoints of a source: the last key frame that work can begin with, and which sound is out."""

    def __init__(self, state: Mapping[str, JsonValue] | None = None) -> None:
        said: Mapping[str, Any] = state or {}
        self.anchor = Anchor.from_json(said.get("anchor"))
        self.heard: dict[int, int] = {int(place): time for place, time in said.get("heard", {}).items()}
        self.live: bool | None = said.get("live")
        self._unsaid = 0

    def say_live(self, live: bool, context: Context) -> None:
        """What kind of input it turned out to be, before anything of it is published."""
        if live != self.live:
            self.live = live
            self._checkpoint(context)

    def frame_published(self, anchor: Anchor | None, index: int, context: Context) -> None:
        """That frame is out; with `anchor`, decoding can begin with it."""
        if anchor is not None and (self.anchor is None or index >= self.anchor.index + FRAMES_BETWEEN):
            self.anchor = replace(anchor, index=index)
            self._checkpoint(context)

    def sound_published(self, place: int, packet: Packet[AudioStream], context: Context) -> None:
        """That packet is out."""
        time = time_of(packet)
        if time is not None:
            self.heard[place] = time
            self._unsaid += 1
            if self._unsaid >= SOUND_BETWEEN:
                self._checkpoint(context)

    def _checkpoint(self, context: Context) -> None:
        self._unsaid = 0
        heard: dict[str, JsonValue] = {str(place): time for place, time in self.heard.items()}
        anchor = None if self.anchor is None else self.anchor.as_json()
        context.checkpoint({"anchor": anchor, "heard": heard, "live": self.live})


class AlreadyOut:
    """What other instances published and reported, so that it is not done twice when it is read again."""

    def __init__(self, resume: Resume | None = None, notes: Notes | None = None) -> None:
        self.video = Published() if resume is None else resume.on("video")
        self._lost = Counter(_key(loss) for loss in (() if resume is None else resume.lost))
        self.heard: dict[int, int] = {}
        if resume is not None and notes is not None:
            self.heard = {**notes.heard, **resume.on("audio").last_dts}
        self._passing = dict(self.heard)

    @property
    def next_index(self) -> int:
        """The source index of the first frame that is not out."""
        return self.video.next_source_index

    def has_sound(self, place: int, packet: Packet[AudioStream]) -> bool:
        """Whether this packet is out: all are, up to the one that was published last."""
        last = self._passing.get(place)
        time = time_of(packet)
        if last is None or time is None:
            return False
        if time >= last:
            given_up = (time - last) * packet.time_base > GIVE_UP_SECONDS
            if time == last or given_up:
                del self._passing[place]
            return not given_up
        return True

    def without_reported(self, report: Report) -> Report:
        """`report`, but for what was reported before."""

        def reported(source_index: int | None, pts: int | None, reason: str) -> None:
            key = _key(Loss(source_index, pts, reason))
            if self._lost[key]:
                self._lost[key] -= 1
            else:
                report(source_index, pts, reason)

        return reported


def _key(loss: Loss) -> tuple[int | None, int | None, str]:
    """The reason may be said in other words by who began later."""
    known = loss.source_index is not None or loss.pts is not None
    return loss.source_index, loss.pts, "" if known else loss.reason


def time_of(packet: Packet[AudioStream]) -> int | None:
    """By which packets of a sound are known again: as in `Published.last_dts`."""
    return packet.dts if packet.dts is not None else packet.pts
