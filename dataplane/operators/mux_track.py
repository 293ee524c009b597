"""One elementary stream of a file that mux writes, and what of it is told to who continues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dataplane.operators.packets import IN_BAND
from dataplane.operators.pieces import Waiting
from observatory.model.media import CodecParameters


@dataclass(slots=True)
class MuxTrack:
    """One stream. "Written" is what is in the file; the rest is in the journal only. Times are ticks of its packets."""

    edge: str
    name: str
    media: Literal["video", "audio"]
    said: CodecParameters | None = None  # what the file says of it
    now: CodecParameters | None = None  # what was said last
    last_dts: int | None = None
    packets: int = 0
    written: int = 0
    written_dts: int | None = None
    needed: int = 0  # number of the first record that is not written

    def state(self, first: Waiting | None, following: int) -> dict[str, Any]:
        """What is written, before the packet that waits first; `following`: the number of the next record."""
        self.needed = following if first is None else first.number
        now = self.now if first is None else first.said
        return {
            "said": _dumped(self.said),
            "now": None if now is self.said else _dumped(now),
            "written": self.written,
            "dts": self.written_dts,
            "needed": self.needed,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """As an instance before said it; then come the records from number `needed` on."""
        self.said = self.now = _loaded(state["said"])
        if state["now"] is not None:
            self.now = _loaded(state["now"])
        self.packets = self.written = state["written"]
        self.last_dts = self.written_dts = state["dts"]
        self.needed = state["needed"]

    def changed(self) -> str:
        """What is said when an encoder came back with other parameters."""
        if self.now is not None and self.now.codec in IN_BAND:
            how = "its new ones come before its key frames, which some players do not follow"
        elif self.media == "video":
            how = "players have to find the new ones in its key frames"
        else:
            how = "players do not hear of the new ones"
        return f"{self.name}: the codec parameters changed in mid-stream; the file says the first ones, {how}"


def _dumped(said: CodecParameters | None) -> Any:
    return None if said is None else said.model_dump(mode="json", exclude_none=True)


def _loaded(said: Any) -> CodecParameters | None:
    return None if said is None else CodecParameters.model_validate(said)
