"""From the receivers' threads to whoever wants what they saw: one thread calls, however slow the called one is."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence

from observatory.model.observation import Seen

Deliver = Callable[[str, Sequence[Seen]], None]
"""Called with the receiver's name and what it saw, never twice at a time."""

_MOST_WAITING = 64  # batches of one receiver
_log = logging.getLogger("observatory.receivers")


class Delivery:
    """A queue with a bound for each receiver, and the thread that empties it. Too much: the oldest drops out."""

    def __init__(self, deliver: Deliver, *, most_waiting: int = _MOST_WAITING) -> None:
        self._deliver = deliver
        self._most_waiting = most_waiting
        self._waiting: deque[tuple[str, Sequence[Seen]]] = deque()
        self._counts: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="receivers-delivery", daemon=True)
        self.failures = 0  # times that the called one raised

    def start(self) -> None:
        """Begin to deliver."""
        self._thread.start()

    def put(self, name: str, batch: Sequence[Seen]) -> int:
        """Hand over a batch; returns how many things fell out for it, 0 where the other side keeps up."""
        dropped = 0
        with self._changed:
            if self._stopping:
                return len(batch)
            if self._counts[name] >= self._most_waiting:
                dropped = self._drop_oldest(name)
            self._waiting.append((name, batch))
            self._counts[name] += 1
            self._changed.notify()
        return dropped

    def stop(self, timeout_seconds: float) -> bool:
        """Deliver what waits, then end. False where the called one has not come back in time."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _drop_oldest(self, name: str) -> int:
        for index, (owner, batch) in enumerate(self._waiting):
            if owner == name:
                del self._waiting[index]
                self._counts[name] -= 1
                return len(batch)
        return 0

    def _run(self) -> None:
        while (next_one := self._next()) is not None:
            name, batch = next_one
            try:
                self._deliver(name, batch)
            except Exception:  # whatever it is, the others still want theirs
                self.failures += 1
                if self.failures == 1:
                    _log.exception("what the receiver %s saw could not be taken in (said once)", name)

    def _next(self) -> tuple[str, Sequence[Seen]] | None:
        with self._changed:
            while not self._waiting and not self._stopping:
                self._changed.wait()
            if not self._waiting:
                return None
            name, batch = self._waiting.popleft()
            self._counts[name] -= 1
            return name, batch
