"""What a supervisor tells its caller while a job runs."""

from __future__ import annotations

from typing import Any


class Notice:
    """One thing a worker said while running, or the supervisor itself.

    `kind` is lost, dropped, source, warning, output, mapped, pool, terminated, done or epoch: the worker of a source
    waits for `Supervisor.answer_epoch` then. The supervisor says died (`how`, `pid`, and `delay_seconds` until
    it is succeeded), succeeded (`pid`, `incarnation`, `seconds` since the death was seen) and perished (of an `edge`
    under drop_oldest: `source_indices` that its dead consumer held). Of moves it says events (another `ring` of events,
    to be read from now on), events_end (the process that wrote into that `ring` is gone: whoever hears it closes the
    ring), migrated (`pid`, `old_pid`, `cut`: the first sequence by edge, `warming_seconds`, `cut_over_seconds`) and
    stayed (`why`). Of consumers that other jobs have it says admitted and share_ended (of a `port` and some `edges`: at
    which `sequence`, before which `source_index`); dataplane.provider hears these.
    """

    __slots__ = ("kind", "message", "operator")

    def __init__(self, operator: str, kind: str, message: dict[str, Any]) -> None:
        self.operator = operator
        self.kind = kind
        self.message = message
