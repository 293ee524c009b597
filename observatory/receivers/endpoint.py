"""An exporter that is there already, dcgm-exporter's or node_exporter's: what it tells, as if we had measured it.

Options: `url`, several apart by spaces (`http://127.0.0.1:9400/metrics http://127.0.0.1:9100/metrics`); `node_label`,
the label that names the machine where an endpoint speaks for several (`Hostname`).

All are asked at the same time, each with a time limit of its own; where one does not answer, what the others tell is
told, and the log says which one is missed. Network interfaces of software are left out, as they come and go.

Values are as old as the exporter's own look: dcgm-exporter's is 30 s old unless it is told otherwise. An Xid is told
when the last one changes; two alike in a row look like one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

import httpx

from observatory.model.observation import Address, AddressKind, HardwareEvent, Observation, Seen
from observatory.receivers.errors import ReceiverFailed, ReceiverUnavailable
from observatory.receivers.exporter_names import (
    SERIES,
    THROTTLE_NAMES,
    THROTTLING,
    WANTED,
    XID_NAMES,
    Subject,
    is_of_software,
)
from observatory.receivers.exposition_text import Sample, samples
from observatory.receivers.kernel_log_rules import pci_address
from observatory.receivers.protocol import ReceiverContext
from observatory.topology.importers.sysfs.pci import BUS_ID

_log = logging.getLogger("observatory.receivers")

_LARGEST_ANSWER = 32 << 20
_TIMEOUT_SECONDS = 1.5
_MOST_NAME = 256
_MOST_REMEMBERED = 4096
_ACTIVE = 4.0  # state of an InfiniBand port

# dcgm_structs.h: blank, not found, not supported, not permitted; of 32 bits, of 64, and of floating point.
_BLANK_32 = (2147483632.0, 2147483635.0)
_BLANK_64 = 9.223372036854774e18
_BLANK_FLOAT = (140737488355328.0, 140737488355331.0)

_xids: dict[tuple[str, str], float] = {}
"""By endpoints and GPU. A receiver is made anew when it is opened again: a change in between is told, too."""


class Endpoint:
    """One or several exporters of one machine."""

    name: ClassVar[str] = "endpoint"
    period_seconds: ClassVar[float] = 1.0

    def __init__(self) -> None:
        self._client: httpx.AsyncClient | None = None
        self._news: list[Seen] = []
        self.failures: dict[str, str] = {}
        """By endpoint, what those that did not answer at the last look failed with."""

    async def open(self, context: ReceiverContext) -> None:
        """Ask each endpoint once."""
        self._context = context
        self._urls = context.options.get("url", "").split()
        self._node_label = context.options.get("node_label")
        if not self._urls:
            raise ReceiverUnavailable(
                "no endpoint is named", mend="give the option url, like http://127.0.0.1:9400/metrics"
            )
        self._client = httpx.AsyncClient(timeout=_TIMEOUT_SECONDS, trust_env=False)
        try:
            seen = await self.poll()
        except ReceiverFailed as failure:
            raise ReceiverUnavailable(
                failure.message, mend="start the exporter, or correct the option url"
            ) from failure
        self._news = [one for one in seen if isinstance(one, HardwareEvent)]

    async def poll(self) -> Sequence[Seen]:
        """What the endpoints tell. Raises ReceiverFailed where none answers."""
        answers = await asyncio.gather(*(self._get(url) for url in self._urls), return_exceptions=True)
        seen, self._news = self._news, []
        failures: dict[str, str] = {}
        for url, answer in zip(self._urls, answers, strict=True):
            if isinstance(answer, str):
                seen += self._read(answer)
            elif isinstance(answer, ReceiverFailed):
                failures[url] = answer.message
            else:
                raise answer
        self._say_failures(failures)
        if len(failures) == len(set(self._urls)):
            raise ReceiverFailed("; ".join(failures.values()))
        return _once(seen)

    def _say_failures(self, failures: dict[str, str]) -> None:
        for url, message in failures.items():
            if url not in self.failures:
                _log.warning("endpoint: %s", message)
        for url in self.failures.keys() - failures.keys():
            _log.warning("endpoint: %s answers again", url)
        self.failures = failures

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _get(self, url: str) -> str:
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                return await self._fetch(url)
        except TimeoutError:
            raise ReceiverFailed(f"{url} did not answer within {_TIMEOUT_SECONDS:g} s") from None

    async def _fetch(self, url: str) -> str:
        if self._client is None:
            raise ReceiverFailed("it is not open")
        body = bytearray()
        try:
            async with self._client.stream("GET", url, headers={"Accept": "text/plain;version=0.0.4"}) as answer:
                if answer.status_code != httpx.codes.OK:
                    raise ReceiverFailed(f"{url} answers {answer.status_code}")
                async for chunk in answer.aiter_bytes():
                    body += chunk
                    if len(body) > _LARGEST_ANSWER:
                        raise ReceiverFailed(f"{url} answers with more than {_LARGEST_ANSWER >> 20} MB")
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as failure:
            raise ReceiverFailed(f"{url}: {type(failure).__name__} {failure}".rstrip()) from failure
        return body.decode("utf-8", "replace")

    def _read(self, text: str) -> list[Seen]:
        seen: list[Seen] = []
        now_ns = time.monotonic_ns()
        states: dict[Address, dict[str, float]] = {}
        for sample in samples(text, WANTED):
            if sample.name in SERIES:
                series = SERIES[sample.name]
                subject = self._subject(series.subject, sample.labels)
                if subject is not None:
                    value = known(sample.value)
                    value = None if value is None or value < 0 else value * series.unit
                    seen.append(Observation(subject, series.metric, value, now_ns, self.name, series.attributes))
            elif sample.name in THROTTLE_NAMES:
                seen += self._throttling(sample, now_ns)
            elif sample.name in XID_NAMES:
                seen += self._xid(sample, now_ns)
            else:
                kind = Subject.PORT if sample.name.startswith("node_infiniband") else Subject.INTERFACE
                subject = self._subject(kind, sample.labels)
                if subject is not None:
                    states.setdefault(subject, {})[sample.name] = sample.value
        seen += [Observation(s, "hw.network.up", _up(told), now_ns, self.name) for s, told in states.items()]
        return seen

    def _throttling(self, sample: Sample, now_ns: int) -> list[Seen]:
        subject = self._subject(Subject.GPU, sample.labels)
        value = known(sample.value)
        if subject is None or (value is not None and not 0 <= value < 1 << 53):
            return []
        return [
            Observation(
                subject,
                "gpu.throttled",
                None if value is None else float(bool(int(value) & bit)),
                now_ns,
                self.name,
                {"reason": reason},
            )
            for bit, reason in THROTTLING.items()
        ]

    def _xid(self, sample: Sample, now_ns: int) -> list[Seen]:
        subject = self._subject(Subject.GPU, sample.labels)
        value = known(sample.value)
        if subject is None or value is None or not 0 <= value < 1e6:
            return []
        key = (" ".join(self._urls), str(subject))
        before = _xids.get(key)
        if len(_xids) < _MOST_REMEMBERED or before is not None:
            _xids[key] = value
        if before is None or value in (0.0, before):  # when the first one came nobody knows
            return []
        text = f"{sample.name} is {value:.0f}"
        return [HardwareEvent(subject, "xid", text, now_ns, self.name, code=f"{value:.0f}")]

    # -- whose value it is -----------------------------------------------------------------------------------------

    def _subject(self, kind: Subject, labels: Mapping[str, str]) -> Address | None:
        node = labels.get(self._node_label or "") or self._context.node
        key = _key(kind, labels)
        if key is None or len(key[1]) > _MOST_NAME or len(node) > _MOST_NAME:
            return None
        if kind is Subject.INTERFACE and is_of_software(key[1]):
            return None
        return Address(node, *key)


def known(value: float) -> float | None:
    """A value; None for DCGM's blanks and for what is no number."""
    if not -_BLANK_64 < value < _BLANK_64:  # NaN too
        return None
    blank = _BLANK_32[0] <= value <= _BLANK_32[1] or _BLANK_FLOAT[0] <= value <= _BLANK_FLOAT[1]
    return None if blank else value


def _key(kind: Subject, labels: Mapping[str, str]) -> tuple[AddressKind, str] | None:
    if kind is Subject.NODE:
        return AddressKind.NODE, ""
    if kind is Subject.GPU:
        return _gpu(labels)
    if kind is Subject.PCI:
        parts = [labels.get(name, "") for name in ("segment", "bus", "device", "function")]
        bus_id = f"{parts[0]}:{parts[1]}:{parts[2]}.{parts[3]}"
        return (AddressKind.PCI, bus_id) if BUS_ID.match(bus_id) else None
    names = {
        Subject.PORT: (AddressKind.PORT, "{device}/{port}"),
        Subject.INTERFACE: (AddressKind.INTERFACE, "{device}"),
        Subject.NUMA: (AddressKind.NUMA, "{node}"),
        Subject.CONTROLLER: (AddressKind.MEMORY, "mc{controller}"),
        Subject.CPU: (AddressKind.CPU, "{cpu}"),
    }
    address, pattern = names[kind]
    try:
        return address, pattern.format_map(labels)
    except KeyError:
        return None


def _gpu(labels: Mapping[str, str]) -> tuple[AddressKind, str] | None:
    """By bus id where it is told; a part of a card (MIG) by the card's UUID and its own number."""
    part = labels.get("GPU_I_ID")
    uuid = labels.get("UUID") or labels.get("uuid")
    if part:
        return (AddressKind.GPU, f"{uuid}/{part}") if uuid else None
    bus_id = (labels.get("pci_bus_id") or "").lower()
    if BUS_ID.match(bus_id):
        return pci_address(bus_id)
    return (AddressKind.GPU, uuid) if uuid else None


def _up(told: Mapping[str, float]) -> float | None:
    """node_exporter's `up` is 0 for `lo` and for drivers without an operstate: the carrier knows better."""
    if "node_infiniband_state_id" in told:
        return float(told["node_infiniband_state_id"] == _ACTIVE)
    value = told.get("node_network_carrier", told.get("node_network_up"))
    return value if value in (0.0, 1.0) else None


def _once(seen: Iterable[Seen]) -> list[Seen]:
    """Each series once: an exporter with old and new names, or one that repeats itself, tells some twice."""
    found: list[Seen] = []
    told: set[tuple[Address, str, tuple[str, ...]]] = set()
    for one in seen:
        if isinstance(one, Observation):
            key = (one.subject, one.metric, tuple(one.attributes.values()))
            if key in told:
                continue
            told.add(key)
        found.append(one)
    return found
