"""One rendition of a presentation: how it is cut and written, what players are told of it, and who continues it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from dataplane.operators.playlists import Sound, Variant
from dataplane.operators.rendition import Rendition
from dataplane.operators.segments import Segmenter
from observatory.model.media import CodecParameters


@dataclass(slots=True)
class PackageTrack:
    """One elementary stream: an input edge's picture, or one of its sounds."""

    edge: str
    media: Literal["video", "audio"]
    segmenter: Segmenter
    rendition: Rendition
    codec: str | None = None  # as RFC 6381 names it
    frames: int = 0
    ended: bool = False

    def state(self, following: int) -> dict[str, Any]:
        """All but the packets of the open segment; data. `following`: the number of the record that comes next."""
        return {
            "segmenter": self.segmenter.state(following),
            "rendition": self.rendition.state(),
            "codec": self.codec,
            "frames": self.frames,
            "ended": self.ended,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """As `state` said it. Raises OSError, ValueError when files are gone."""
        self.segmenter.restore(state["segmenter"])
        self.rendition.restore(state["rendition"])
        self.codec, self.frames, self.ended = state["codec"], state["frames"], state["ended"]

    def variant(self) -> Variant:
        """A picture in the master playlist."""
        said, rates = cast(CodecParameters, self.segmenter.said), self.rendition.rates
        return Variant(
            uri=self.rendition.playlist,
            peak_bits_per_second=max(rates.peak, said.bit_rate or 0),
            average_bits_per_second=rates.average,
            codec=self.codec,
            width=said.width,
            height=said.height,
            frames_per_second=said.frames_per_second,
            transfer=said.color_transfer,
        )

    def sound(self, number: int) -> Sound:
        """A sound in the master playlist."""
        said, rates = cast(CodecParameters, self.segmenter.said), self.rendition.rates
        language = said.language if said.language not in ("", "und") else None
        return Sound(
            uri=self.rendition.playlist,
            name=f"{language} {number}" if language else f"audio {number}",
            language=language,
            channels=said.channels,
            codec=self.codec,
            peak_bits_per_second=rates.peak,
            average_bits_per_second=rates.average,
        )
