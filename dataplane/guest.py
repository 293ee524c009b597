"""One job among those that read the same operators: its side of a `dataplane.provider.Provider`.

The provider's names of operators are its own, the job has others; edges are known to the provider by job and edge.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dataplane.control import Channel
from dataplane.errors import DataplaneError
from dataplane.notices import Notice
from dataplane.shares import Shares
from dataplane.tee import Labels
from dataplane.wiring import Reader

if TYPE_CHECKING:
    from dataplane.assignment import InputAssignment
    from dataplane.process import WorkerProcess
    from dataplane.provider import Provider
    from dataplane.tee import Outlet


@dataclass(slots=True)
class Inbox:
    """Between the provider's thread, which fills it, and the job's."""

    notices: deque[Notice] = field(default_factory=deque)
    error: DataplaneError | None = None


class Guest:
    """A job's place in a provider (dataplane.foreign.Host). Made by `Provider.invite`.

    Args:
        provider: whose operators it reads.
        name: the job's; no other guest has it.
        operators: of the shared ones, the job's name -> the provider's.
        outlet: where its frame events come out.
    """

    def __init__(self, provider: Provider, name: str, operators: Mapping[str, str], outlet: Outlet) -> None:
        self.name = name
        self.operators = dict(operators)
        self.events = outlet
        self.inbox = Inbox()
        self.epoch = 0  # that the job's stream began with; 0: not known yet
        self.in_place = False  # all its edges are attached
        self.gone = False
        self.shares = Shares(outlet, provider.places)
        self.readers: dict[str, Reader] = {}  # by the key of the job's edge; the job's thread adds to it
        self.cancelled: Callable[[], bool] = lambda: False
        self._provider = provider
        self._own = {theirs: own for own, theirs in self.operators.items()}

    # -- for the job -------------------------------------------------------------------------------------------------

    def label(
        self,
        stream: int,
        epoch: int,
        device: int,
        ports: Mapping[tuple[str, str], int],
        hops: Mapping[str, int],
    ) -> None:
        """The numbers of the job's manifest: of its stream, of its ports (operator, port) and hops (edge's name)."""
        own_ports = {(self.operators[op], port): n for (op, port), n in ports.items() if op in self.operators}
        own_hops = {self.edge_there(edge): n for edge, n in hops.items()}
        self.events.label(
            Labels(
                stream=stream,
                epoch=epoch,
                device=device,
                ports={place: own_ports[key] for key, place in self._provider.places.items() if key in own_ports},
                hops={place: own_hops[key] for key, place in self._provider.hop_places.items() if key in own_hops},
                hop_ports=self._provider.hop_ports,
            )
        )
        self._provider.know_epoch(self, epoch)

    def edge_there(self, edge: str) -> str | None:
        """What the provider calls an edge between two shared operators (its name, or its key); None: it is none."""
        name, colon, port = edge.partition(":")
        producer, _, consumer = name.partition("->")
        if producer not in self.operators or consumer not in self.operators:
            return None
        return f"{self.operators[producer]}->{self.operators[consumer]}{colon}{port}"

    def slots(self, operator: str, port: str) -> int | None:
        """How many slots a port of a shared operator has, of its largest class."""
        return self._provider.slots.get((self.operators[operator], port))

    @property
    def sharers(self) -> tuple[str, ...]:
        """The names of all jobs that read the shared operators now, in the order in which they came."""
        return self._provider.guest_names

    @property
    def leads(self) -> bool:
        """Whether this is the first of them: what is to be counted once is counted there."""
        return self.sharers[:1] == (self.name,)

    @property
    def pool_bytes(self) -> int:
        """Bytes of the shared operators' pools, where they are to be counted here: 0 otherwise."""
        return self._provider.pool_bytes if self.leads else 0

    def workers(self) -> dict[str, WorkerProcess]:
        """The processes of the shared operators, by the job's names."""
        return {self._own[name]: worker for name, worker in self._provider.workers().items() if name in self._own}

    def frames(self, operator: str) -> int:
        """Frames that a shared source made for this job."""
        return self._provider.frames(self, self.operators[operator])

    # -- dataplane.foreign.Host --------------------------------------------------------------------------------------

    def attach(self, operator: str, edge: InputAssignment, page: int, channel: Channel) -> None:
        """See Host."""
        theirs = edge.model_copy(update={"producer": self.operators[edge.producer]})
        # A descriptor of our own: the job may close its end at any time.
        self.readers[edge.key] = Reader(operator, theirs, page, channel.duplicate(), job=self.name)

    def attached(self) -> None:
        """See Host."""
        self._provider.let_in(self)

    def succeed(self, edge: InputAssignment, page: int, channel: Channel) -> None:
        """See Host."""
        self._provider.succeed(self, self.readers[edge.key], page, channel.duplicate())

    def end(self) -> None:
        """See Host."""
        self._provider.end_shares(self)

    def leave(self) -> None:
        """See Host."""
        self._provider.let_go(self)

    def take_notices(self) -> list[Notice]:
        """See Host."""
        found: list[Notice] = []
        while self.inbox.notices:
            found.append(self.inbox.notices.popleft())
        if not found and self.inbox.error is not None:
            raise self.inbox.error
        return found

    def queues(self) -> dict[str, dict[str, int]]:
        """See Host."""
        found = self._provider.queues()
        own = {key: found[reader.name] for key, reader in self.readers.items() if reader.name in found}
        return own | {here: found[there] for there in found if (here := self._edge_here(there)) is not None}

    def published(self) -> dict[tuple[str, str], int]:
        """See Host."""
        counts = self._provider.published(self)
        return {(self._own[operator], port): count for (operator, port), count in counts.items()}

    def answer_epoch(self, operator: str) -> None:
        """See Host."""
        self._provider.knows_epoch(self)

    def migrate(self, operator: str) -> None:
        """See Host."""
        self._provider.migrate(self.operators[operator])

    # -- for the provider --------------------------------------------------------------------------------------------

    def tell(self, notice: Notice) -> None:
        """Pass on what the provider's supervisor said, under the job's names."""
        operator = self._own.get(notice.operator, notice.operator)
        self.inbox.notices.append(Notice(operator, notice.kind, notice.message))

    def takes_part_in(self, operator: str) -> bool:
        """Whether a shared operator (by the provider's name) is one of the job's."""
        return operator in self._own

    @property
    def ports_read(self) -> set[tuple[str, str]]:
        """The ports of shared operators that the job's own ones read."""
        return {(reader.edge.producer, reader.edge.port) for reader in self.readers.values()}

    def key_of(self, name: str) -> str | None:
        """The job's key of an edge that the provider calls so; None: it is not the job's."""
        own = next((key for key, reader in list(self.readers.items()) if reader.name == name), None)
        return own or self._edge_here(name)

    def _edge_here(self, edge: str) -> str | None:
        """What the job calls an edge between two shared operators."""
        name, colon, port = edge.partition(":")
        producer, _, consumer = name.partition("->")
        if producer not in self._own or consumer not in self._own:
            return None
        return f"{self._own[producer]}->{self._own[consumer]}{colon}{port}"
