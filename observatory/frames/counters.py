"""What a run counted, per stream and epoch: stored beside the records, and the only place that says "finished"."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from observatory.frames.errors import FrameStoreDamaged


@dataclass(slots=True)
class StreamCounters:
    """Counts of one stream in one epoch.

    `events_lost` and `unmatched` are counted per event ring and per run: with several streams in one process they are
    the figures of all of them, an upper bound for each.
    """

    records: int = 0
    incomplete_records: int = 0
    frames_seen: int = 0  # source frames of which at least one hop was recorded
    frames: int = 0  # ... of which every hop was, whole
    frames_lost: int = 0
    events_lost: int = 0
    unmatched: int = 0
    records_dropped: int = 0  # could not be stored (disk full)
    finished: bool = False
    latency_p50_seconds: float | None = None
    latency_p99_seconds: float | None = None
    latency_max_seconds: float | None = None
    latency_histogram: list[tuple[int, int]] = field(default_factory=list)  # (bucket, count), see `latency`

    def to_bytes(self) -> bytes:
        """As stored: JSON."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, raw: bytes) -> StreamCounters:
        """Inverse of `to_bytes`; fields of a later version are ignored. Raises FrameStoreDamaged."""
        try:
            values = json.loads(raw)
            return cls(**{name: values[name] for name in cls.__dataclass_fields__ if name in values})
        except (ValueError, TypeError) as error:
            raise FrameStoreDamaged(f"the counters of a stream are not readable: {error!r}") from None
