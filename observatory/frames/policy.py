"""What a frame store keeps. Needs no NumPy: the configuration has it too."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """What to keep.

    Args:
        keep_all_seconds: every frame is kept so long after its last event.
        keep_one_in: then one frame in so many, by its source index, besides the slow, lost and incident ones.
        slow_seconds: frames that took longer from first launch to last release are slow; None: those above the 99th
            percentile of their stream.
        disk_budget_bytes: what the store may take on the disk; None: no limit.
    """

    keep_all_seconds: float = 600.0
    keep_one_in: int = 100
    slow_seconds: float | None = None
    disk_budget_bytes: int | None = 10 * 10**9

    def __post_init__(self) -> None:
        """Refuse what makes no sense. Raises ValueError."""
        budget = self.disk_budget_bytes
        if not (self.keep_all_seconds >= 0 and self.keep_one_in >= 1 and (budget is None or budget > 0)):
            raise ValueError(f"no such retention: {self}")
