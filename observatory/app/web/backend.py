"""Where the answers come from: the platform, through its control socket, and the files of the state directory.

Everything that can wait runs in threads: the event loop never does. There are three pools, so that what is slow holds
up nothing else: quick questions to the platform, changes (opening a pipeline takes seconds), and reading.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from observatory.app.control import ControlClient
from observatory.app.packed import unpack
from observatory.app.web.frame_reading import FrameReading
from observatory.app.web.kept import Kept
from observatory.errors import ObservatoryError
from observatory.model.status import PipelineStatus, Snapshot
from observatory.model.topology import Topology

T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)

SNAPSHOT_SECONDS = 0.5
"""No snapshot that is given out is older (seconds), plus the time that the platform takes to answer."""
TOPOLOGY_SECONDS = 1.0
ASK_SECONDS = 3.0
CHANGE_SECONDS = 60.0
STATISTICS_SECONDS = 1.0
STATISTICS_SHARE = 10.0  # statistics pass over a whole run: made for at most a tenth of the time


class BadAnswer(ObservatoryError):
    """The platform answered with what this version does not understand."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A snapshot and its JSON, written once for all who get it."""

    snapshot: Snapshot
    text: str


@dataclass(frozen=True, slots=True)
class KnownTopology:
    """The platform's topology; `version` is a digest of what it says, the same as long as nothing changed."""

    topology: Topology
    version: str


class Backend:
    """Asks and reads for the routes. Belongs to one event loop; `close` it."""

    def __init__(self, control: Path, state: Path) -> None:
        self.state = state
        self.frames = FrameReading(state)
        self._control = control
        self._quick = ThreadPoolExecutor(4, thread_name_prefix="ask")
        self._changes = ThreadPoolExecutor(4, thread_name_prefix="change")
        self._readers = ThreadPoolExecutor(4, thread_name_prefix="read")
        self._costs = ThreadPoolExecutor(1, thread_name_prefix="cost")
        self._own = threading.local()  # a client for each thread: they are not for sharing
        self._clients: list[ControlClient] = []
        self._known: KnownTopology | None = None
        self._moments: Kept[Moment] = Kept()
        self._topologies: Kept[KnownTopology] = Kept()
        self._documents: Kept[bytes] = Kept()

    def close(self) -> None:
        """Let the threads go; what they still do is not waited for."""
        for pool in (self._quick, self._changes, self._readers, self._costs):
            pool.shutdown(wait=False, cancel_futures=True)
        for client in self._clients:
            client.close()
        self.frames.close()

    # The platform

    async def snapshot(self, age_seconds: float = SNAPSHOT_SECONDS) -> Moment:
        """How everything is, at most `age_seconds` old.

        Raises:
            Gone: the platform does not answer.
            BadAnswer: it is of another version.
        """

        async def make() -> Moment:
            return await self._run(self._quick, lambda: _moment(self._ask("snapshot", {}, ASK_SECONDS)))

        return await self._moments.get("snapshot", make, age_seconds)

    async def topology(self) -> KnownTopology:
        """The platform's topology, at most a second old. Raises Gone."""

        async def make() -> KnownTopology:
            return await self._run(self._quick, lambda: self._learn(self._ask("topology", {}, ASK_SECONDS)))

        return await self._topologies.get("topology", make, TOPOLOGY_SECONDS)

    async def metrics(self, openmetrics: bool) -> tuple[bytes, str]:
        """The metrics, compressed by gzip, and their content type. Raises Gone."""
        arguments = {"openmetrics": openmetrics}
        answer = await self._run(self._quick, lambda: self._ask("metrics", arguments, ASK_SECONDS))
        return unpack(answer["gzip"]), str(answer["content_type"])

    async def submit(self, arguments: dict[str, Any]) -> PipelineStatus:
        """Start a pipeline. Raises Gone, and Refused with the platform's reason."""
        return await self._change("submit", arguments)

    async def remove(self, name: str) -> PipelineStatus:
        """End a pipeline. Raises Gone, and Refused with the platform's reason."""
        return await self._change("remove", {"name": name})

    async def _change(self, command: str, arguments: dict[str, Any]) -> PipelineStatus:
        answer = await self._run(self._changes, lambda: self._ask(command, arguments, CHANGE_SECONDS))
        self._moments.forget()  # the next snapshot shows it
        return _understood(PipelineStatus, answer)

    def _ask(self, command: str, arguments: dict[str, Any], timeout_seconds: float) -> Any:
        client = getattr(self._own, "client", None)
        if client is None:
            client = self._own.client = ControlClient(self._control)
            self._clients.append(client)
        return client.ask(command, arguments, timeout_seconds)

    def _learn(self, document: Any) -> KnownTopology:
        """The topology in an answer: read only when it says something new, a large one takes a while."""
        version = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
        if self._known is None or self._known.version != version:
            self._known = KnownTopology(_understood(Topology, document), version)
        return self._known

    # Files, and what is worked out

    async def read(self, work: Callable[[], T]) -> T:
        """Run something that reads files in a thread."""
        return await self._run(self._readers, work)

    async def statistics(self, key: tuple[Any, ...], work: Callable[[], bytes]) -> bytes:
        """A document that takes a pass over a whole run: kept for a second, or ten times as long as it took."""

        async def make() -> bytes:
            return await self._run(self._readers, work)

        return await self._documents.get(("statistics", *key), make, STATISTICS_SECONDS, STATISTICS_SHARE)

    async def worked_out(self, key: tuple[Any, ...], work: Callable[[], bytes], *, takes_long: bool = False) -> bytes:
        """A document that its key says everything about: worked out once, those that take long one after the other."""

        async def make() -> bytes:
            return await self._run(self._costs if takes_long else self._readers, work)

        return await self._documents.get(("worked out", *key), make)

    @staticmethod
    async def _run(pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(pool, work)


def _understood(model: type[Model], document: Any) -> Model:
    try:
        return model.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        words = f"the platform's {model.__name__} is not what this version understands: {where}: {first['msg']}"
        raise BadAnswer(words, mend="restart the platform: its web process is of another version") from None


def _moment(document: Any) -> Moment:
    snapshot = _understood(Snapshot, document)
    return Moment(snapshot, snapshot.model_dump_json())
