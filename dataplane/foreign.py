"""What a job asks of the supervisor of another one, whose operators produce what some of its edges read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from dataplane.assignment import InputAssignment
    from dataplane.control import Channel
    from dataplane.notices import Notice


class Host(Protocol):
    """A job's place among the readers of operators that it does not run itself (dataplane.guest).

    Everything is for the thread that supervises the job; names of operators and edges are the job's own.
    """

    def attach(self, operator: str, edge: InputAssignment, page: int, channel: Channel) -> None:
        """An operator of the job reads that edge, with this page (ours from now on), and hears at that channel.

        Raises DataplaneError: the producers failed; Stopped: it is not wanted any more.
        """

    def attached(self) -> None:
        """All edges of the job are: let them in together. Raises as `attach` does."""

    def succeed(self, edge: InputAssignment, page: int, channel: Channel) -> None:
        """Another process reads an edge where the one before it died."""

    def end(self) -> None:
        """Nothing more is for this job: its edges end behind what is published now."""

    def leave(self) -> None:
        """The job needs nothing any more. A second call does nothing."""

    def take_notices(self) -> list[Notice]:
        """What there is to know of the producers since the last call. Raises DataplaneError: they failed, and why."""

    def queues(self) -> dict[str, dict[str, int]]:
        """Of the job's edges; see `Wiring.queues`."""

    def published(self) -> dict[tuple[str, str], int]:
        """Per (operator, port): payloads published for this job."""

    def answer_epoch(self, operator: str) -> None:
        """The job knows the epoch that a notice announced."""

    def migrate(self, operator: str) -> None:
        """Let another process go on with one of the producers. Raises CannotMigrate."""
