"""Keeps incidents in the audit store, from a thread of its own: the disk may be slow, or full."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

from observatory.anomalies.errors import StoreError
from observatory.anomalies.store import IncidentStore
from observatory.model.incident import Incident

AGAIN_SECONDS = 5.0  # after a write that failed
END_SECONDS = 10.0


class IncidentLog:
    """Writes what it is given, in order. `error` says why the last write failed; None: it did not.

    Args:
        say: told when writing begins to fail.
    """

    def __init__(self, state: Path, say: Callable[[str], None]) -> None:
        self.error: str | None = None
        self._say = say
        self._state = state
        self._waiting: queue.SimpleQueue[Incident | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="incident-log", daemon=True)
        self._closing = threading.Event()

    def start(self) -> None:
        """Begin; what an earlier platform left open is closed first."""
        self._thread.start()

    def put(self, incident: Incident) -> None:
        """Keep an incident as it is now. Does not wait."""
        self._waiting.put(incident)

    def close(self) -> None:
        """Write what waits, once more if that failed, and end."""
        self._closing.set()
        self._waiting.put(None)
        if self._thread.is_alive():
            self._thread.join(END_SECONDS)  # a disk that hangs does not keep the platform from ending

    def _run(self) -> None:
        with IncidentStore(self._state) as store:
            while not self._try(lambda: store.close_left_open(time.time())) and not self._closing.wait(AGAIN_SECONDS):
                pass
            more = True
            while more:
                batch, more = self._batch()
                while batch and not self._try(lambda found=batch: store.save(found)):
                    if self._closing.is_set():
                        break
                    self._closing.wait(AGAIN_SECONDS)
            self._try(lambda: store.close_left_open(time.time()))  # nobody looks any more

    def _batch(self) -> tuple[list[Incident], bool]:
        """Everything that waits, of each incident the newest state; False: the end was among it."""
        found: dict[str, Incident] = {}
        one = self._waiting.get()
        while one is not None:
            found.pop(one.id, None)
            found[one.id] = one
            try:
                one = self._waiting.get_nowait()
            except queue.Empty:
                return list(found.values()), True
        return list(found.values()), False

    def _try(self, write: object) -> bool:
        assert callable(write)
        try:
            write()
        except Exception as error:  # whatever it is, the next one may be kept
            words = str(error) if isinstance(error, StoreError) else f"{type(error).__name__}: {error}"
            if self.error is None:
                self._say(f"incidents cannot be kept, and are tried again: {words}")
            self.error = f"incidents cannot be kept: {words}"
            return False
        self.error = None
        return True
