"""The frame store of a platform: compacted at the start when that gains something, then swept as long as it runs."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from observatory.frames.compaction import shrink
from observatory.frames.errors import FrameStoreError
from observatory.frames.retention import Retention, RetentionPolicy
from observatory.frames.retention_thread import RetentionStatus, RetentionThread
from observatory.frames.store import FrameStore


class Keeping:
    """Sweeps the frame store under a state directory. A context manager.

    Raises:
        FrameStoreError: the store cannot be opened or made.
    """

    def __init__(self, state: Path, policy: RetentionPolicy, check_seconds: float) -> None:
        self.notes: tuple[str, ...] = self._compact(state, policy)
        self._store = FrameStore.open(state, write=True)
        self._thread = RetentionThread(Retention(self._store, policy), check_seconds)

    @staticmethod
    def _compact(state: Path, policy: RetentionPolicy) -> tuple[str, ...]:
        """What compacting the store had to say; that it cannot be done now is no reason not to start."""
        if policy.disk_budget_bytes is None:
            return ()
        try:
            done = shrink(state, policy.disk_budget_bytes)
        except FrameStoreError as error:
            return (f"the frame store was not compacted: {error}",)
        if done is None:
            return ()
        return (f"frame store compacted from {done.before_bytes / 1e6:.0f} to {done.after_bytes / 1e6:.0f} MB",)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.stop()
        self._store.close()

    def change(self, policy: RetentionPolicy, check_seconds: float) -> None:
        """What is kept from now on."""
        self._thread.policy = policy
        self._thread.check_seconds = check_seconds

    @property
    def status(self) -> RetentionStatus:
        """How it is doing."""
        return self._thread.status()
