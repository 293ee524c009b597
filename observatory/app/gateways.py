"""The gateways of a job: where libavformat does not speak a source's protocol, something else receives it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Self

from dataplane.operators.base import SourceRequest
from dataplane.srt_gateway import PROGRAM, SrtGateway
from observatory.model.errors import MediaObservatoryError
from observatory.model.pipeline import Pipeline

SRT = "srt://"


class Gateways:
    """Started before the inputs are opened, closed when the job has ended. A context manager."""

    def __init__(self) -> None:
        self._running: dict[str, SrtGateway] = {}  # by source

    def lead(self, pipeline: Pipeline, requests: Mapping[str, SourceRequest]) -> dict[str, SourceRequest]:
        """The same requests, with the addresses at which their sources are really read.

        Raises:
            BadMedia: a gateway's program is not installed.
            WrongAddress: an address that cannot be, or that another program has.
        """
        params = {node.name: node.params for node in pipeline.operators}
        return {name: self._lead(name, request, params[name].get("path")) for name, request in requests.items()}

    def _lead(self, source: str, request: SourceRequest, path: object) -> SourceRequest:
        location = path if request.input is None else request.input
        if not isinstance(location, str) or not location.lower().startswith(SRT):
            return request
        gateway = SrtGateway(location)
        gateway.start()
        self._running[source] = gateway
        return replace(request, input=location, address=gateway.address)

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """What a gateway complained about belongs to the error that an input could not be opened."""
        try:
            yield
        except MediaObservatoryError as error:
            said = [gateway.last_words for gateway in self._running.values() if gateway.last_words]
            if said:
                error.message = f"{error.message}; {PROGRAM}: {'; '.join(said)}"
            raise

    @property
    def restarts(self) -> int:
        """How often their programs were started again."""
        return sum(gateway.restarts for gateway in self._running.values())

    def hand_over(self, source: str) -> Gateways:
        """That of one source, if it has any, for somebody else to close."""
        handed = Gateways()
        if source in self._running:
            handed._running[source] = self._running.pop(source)
        return handed

    def close(self) -> None:
        """End them all; a second call does nothing."""
        while self._running:
            self._running.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
