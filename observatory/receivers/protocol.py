"""What a receiver is: it opens a source, looks at it again and again or waits for its events, and closes it.

Receivers are found by entry point (group `media_observatory.receivers`). They are run by
`observatory.receivers.runner`, which owns everything about failure: time limits, back-off, staleness, counting. A
receiver that cannot go on raises; it keeps no thread or descriptor after `close`.

Each receiver has a thread and an event loop of its own there, so its methods may read files and call libraries that
block. It is made anew, without arguments, each time that it is opened again. One that knows of things that were lost
before it could read them counts them in an attribute `lost: int`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

from observatory.model.observation import Seen


@dataclass(frozen=True, slots=True)
class ReceiverContext:
    """Where a receiver looks. `root` stands before /sys, /proc and /dev: a recorded or emulated machine has its own.

    `options` are the receiver's own, as the configuration gives them.
    """

    node: str
    root: Path = Path("/")
    options: dict[str, str] = field(default_factory=dict)


@runtime_checkable
class Receiver(Protocol):
    """A source that is polled."""

    name: ClassVar[str]
    period_seconds: ClassVar[float]  # unless the configuration says otherwise

    async def open(self, context: ReceiverContext) -> None:
        """Find the source. Raises ReceiverUnavailable where this machine has none, with the mend."""

    async def poll(self) -> Sequence[Seen]:
        """Everything that the source tells now. Raises ReceiverFailed where it does not answer any more."""

    async def close(self) -> None:
        """Let go of it; may be called twice, and after a failed `open`."""


@runtime_checkable
class EventReceiver(Protocol):
    """A source that tells by itself."""

    name: ClassVar[str]

    async def open(self, context: ReceiverContext) -> None:
        """As `Receiver.open`."""

    def events(self) -> AsyncIterator[Sequence[Seen]]:
        """What the source tells, in the order in which it does, what came together in one."""

    async def close(self) -> None:
        """As `Receiver.close`."""
