"""What the processes of one operator leave to the next one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from pydantic import JsonValue

from dataplane.operators.base import MOST_LOSSES_KEPT, NOTHING, Loss, Published, Resume

if TYPE_CHECKING:
    from dataplane._ring import Descriptor


@dataclass(slots=True)
class Legacy:
    """Kept by the supervisor. `incarnation` is the number of the newest; `published` is of rings that have ended."""

    incarnation: int = 1
    state: Mapping[str, JsonValue] | None = None
    published: dict[str, Published] = field(default_factory=dict)
    lost: list[Loss] = field(default_factory=list)

    def note_loss(self, loss: Loss) -> None:
        """A frame was reported as lost."""
        self.lost.append(loss)
        del self.lost[:-MOST_LOSSES_KEPT]

    def note_published(self, trails: Mapping[str, Iterable[Descriptor]]) -> None:
        """The rings of an instance have ended; by port, what they still have."""
        for port, trail in trails.items():
            self.published[port] = self.published.get(port, NOTHING).followed_by(trail)

    def resume(self, reason: Literal["died", "migrated"]) -> Resume:
        """For the newest incarnation."""
        return Resume(self.incarnation, reason, self.state, dict(self.published), tuple(self.lost))
