"""Answers kept for a moment: many who ask at once cost one asking."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Entry(Generic[T]):
    task: asyncio.Task[T]
    asked_seconds: float  # monotonic, when the asking began
    took_seconds: float = 0.0

    @property
    def failed(self) -> bool:
        return self.task.done() and (self.task.cancelled() or self.task.exception() is not None)


class Kept(Generic[T]):
    """The latest answer by key. One event loop only.

    Who asks while an answer is being made waits for that one. Failures are told to all who wait, and not kept. An
    asker who leaves does not take the answer away from the others.
    """

    def __init__(self, most: int = 64) -> None:
        self._entries: OrderedDict[Hashable, _Entry[T]] = OrderedDict()
        self._most = most

    async def get(
        self,
        key: Hashable,
        make: Callable[[], Awaitable[T]],
        age_seconds: float | None = None,
        times_its_cost: float = 0.0,
    ) -> T:
        """The answer, made anew when it is older than `age_seconds` (None: never).

        With `times_its_cost` it is also kept for that multiple of the time that it took: dear answers are then made
        for at most one part in `times_its_cost` of the time, however many ask.
        """
        entry = self._entries.get(key)
        if entry is None or entry.failed or self._old(entry, age_seconds, times_its_cost):
            entry = self._entries[key] = self._begin(make)
        self._entries.move_to_end(key)
        while len(self._entries) > self._most:
            self._entries.popitem(last=False)
        return await asyncio.shield(entry.task)

    def forget(self) -> None:
        """Make every answer anew when it is next asked for."""
        self._entries.clear()

    @staticmethod
    def _old(entry: _Entry[T], age_seconds: float | None, times_its_cost: float) -> bool:
        if age_seconds is None or not entry.task.done():
            return False
        age = time.monotonic() - entry.asked_seconds
        return age > max(age_seconds, entry.took_seconds * times_its_cost)

    @staticmethod
    def _begin(make: Callable[[], Awaitable[T]]) -> _Entry[T]:
        async def run() -> T:
            return await make()

        entry = _Entry(asyncio.ensure_future(run()), time.monotonic())

        def done(task: asyncio.Task[T]) -> None:
            entry.took_seconds = time.monotonic() - entry.asked_seconds
            if not task.cancelled():
                task.exception()  # seen: nobody may be left to hear it

        entry.task.add_done_callback(done)
        return entry
