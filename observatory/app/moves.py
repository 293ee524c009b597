"""Moves of operators to other processes, as somebody asked for them: between the asking thread and the job's own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from typing import Any

from dataplane.errors import CannotMigrate, DataplaneError
from dataplane.notices import Notice
from dataplane.supervisor import Supervisor

MOVE_SECONDS = 60.0


class _Wish:
    """One that was asked for, until it is answered."""

    def __init__(self, operator: str) -> None:
        self.operator = operator
        self.settled = threading.Event()
        self.withdrawn = False  # nobody waits for it any more
        self.moved: dict[str, Any] | None = None
        self.error: DataplaneError | None = None

    def settle(self, moved: dict[str, Any] | None = None, error: DataplaneError | None = None) -> None:
        self.moved, self.error = moved, error
        self.settled.set()


class Moves:
    """Of one job. `ask` is for any thread; everything else for the one that polls the supervisor."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[_Wish] = queue.SimpleQueue()
        self._under_way: dict[str, _Wish] = {}
        self._over = False

    def ask(self, operator: str) -> Mapping[str, Any]:
        """Let another process go on with an operator's work; returns when it does, with what `Notice` says of it.

        Raises:
            CannotMigrate: it stays where it is; why.
        """
        wish = _Wish(operator)
        self._asked.put(wish)
        if self._over:
            raise CannotMigrate(f"operator {operator} was not moved: the job ends")
        if not wish.settled.wait(MOVE_SECONDS):
            wish.withdrawn = True
            words = f"operator {operator} is not moved yet after {MOVE_SECONDS:g} s, and may still be"
            raise CannotMigrate(words, mend="see its pid: observatory ps")
        if wish.error is not None:
            raise wish.error
        assert wish.moved is not None
        return wish.moved

    def begin(self, supervisor: Supervisor) -> None:
        """Start those that were asked for."""
        while not self._asked.empty():
            wish = self._asked.get()
            if wish.withdrawn:
                continue
            if wish.operator not in supervisor.operators:
                known = ", ".join(supervisor.operators)
                wish.settle(error=CannotMigrate(f"there is no operator {wish.operator}", mend=f"there are: {known}"))
                continue
            try:
                supervisor.migrate(wish.operator)
                self._under_way[wish.operator] = wish
            except DataplaneError as error:
                wish.settle(error=error)

    def note(self, notice: Notice) -> None:
        """One came to its end."""
        wish = self._under_way.pop(notice.operator, None)
        if wish is None:
            return
        if notice.kind == "migrated":
            wish.settle(moved=notice.message)
        else:
            why = notice.message["why"]
            wish.settle(error=CannotMigrate(f"operator {notice.operator} stays where it is: {why}"))

    def close(self) -> None:
        """The job ends: nobody waits any longer."""
        self._over = True
        while not self._asked.empty():
            self._asked.get().settle(error=CannotMigrate("the job ends"))
        for wish in self._under_way.values():
            wish.settle(error=CannotMigrate(f"operator {wish.operator} was not moved: the job ends"))
