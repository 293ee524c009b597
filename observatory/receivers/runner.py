"""Runs receivers, each in a thread of its own, and delivers what they see.

    with Runner(found.receivers, "n0", deliver) as runner:    # deliver(name, [Observation | HardwareEvent, ...])
        ...
        runner.statuses()

A receiver that hangs, floods, lies, ends or raises leaves the others, the delivery and the end of the process alone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from observatory.receivers.delivery import Deliver, Delivery
from observatory.receivers.protocol import ReceiverContext
from observatory.receivers.status import ReceiverStatus
from observatory.receivers.supervised import Factory, Limits, Settings, Supervised

__all__ = ["Deliver", "Factory", "Limits", "Runner", "Settings"]


class Runner:
    """Starts receivers and stops them. `root` stands before /sys, /proc and /dev."""

    def __init__(
        self,
        receivers: Mapping[str, Factory],
        node: str,
        deliver: Deliver,
        *,
        root: Path = Path("/"),
        settings: Mapping[str, Settings] | None = None,
    ) -> None:
        self._delivery = Delivery(deliver)
        chosen = settings or {}
        self._supervised = {
            name: Supervised(
                name,
                make,
                ReceiverContext(node=node, root=root, options=dict(chosen.get(name, Settings()).options)),
                chosen.get(name, Settings()),
                self._delivery.put,
            )
            for name, make in receivers.items()
        }

    def start(self) -> None:
        """Begin; returns at once."""
        self._delivery.start()
        for supervised in self._supervised.values():
            supervised.start()

    def stop(self, timeout_seconds: float = 5.0) -> tuple[str, ...]:
        """End all within the time. Returns those that hang and were left behind: they end with the process."""
        deadline = time.monotonic() + timeout_seconds
        for supervised in self._supervised.values():
            supervised.ask_to_stop()
        left = tuple(
            name for name, one in self._supervised.items() if not one.join(max(0.0, deadline - time.monotonic()))
        )
        self._delivery.stop(max(0.1, deadline - time.monotonic()))
        return left

    def statuses(self) -> tuple[ReceiverStatus, ...]:
        """How each fares now; may be called from any thread, also after `stop`."""
        return tuple(supervised.status() for supervised in self._supervised.values())

    @property
    def delivery_failures(self) -> int:
        """Times that `deliver` raised."""
        return self._delivery.failures

    def __enter__(self) -> Runner:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
