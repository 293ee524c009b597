"""The NVLinks of one GPU through NVML.

NVML tells of each link by itself, and no width: how many links to one peer carry traffic is counted here. Errors are
fields of their own for each link on chips before Hopper, which answer 0 for ever on later ones. Those have others, and
all have `nvmlDeviceGetNvLinkErrorCounter`: the fields are read, and the call is made where there is none.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pynvml

from observatory.model.observation import Address, AddressKind, Observation
from observatory.receivers.nvml_fields import UNCHANGED_EVERY_NS, FieldQuestion
from observatory.receivers.nvml_library import NOT_THERE, concerns_all, pci_key
from observatory.topology.addresses import PEER

_KIBIBYTE = 1024.0
_MEGA = 1e6
_ERRORS = {
    "replay": pynvml.NVML_NVLINK_ERROR_DL_REPLAY,
    "recovery": pynvml.NVML_NVLINK_ERROR_DL_RECOVERY,
    "crc_flit": pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT,
    "crc_data": pynvml.NVML_NVLINK_ERROR_DL_CRC_DATA,
    "ecc_data": pynvml.NVML_NVLINK_ERROR_DL_ECC_DATA,
}
_STATES = {
    pynvml.NVML_NVLINK_STATE_INACTIVE: 0.0,
    pynvml.NVML_NVLINK_STATE_ACTIVE: 1.0,
    pynvml.NVML_NVLINK_STATE_SLEEP: 1.0,  # it saves power, and wakes when there is something to send
    pynvml.NVML_NVLINK_STATE_ACTIVE_TRAFFIC_DISABLED: 0.0,
}
_ERROR_FIELDS = {
    "replay": pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY,
    "recovery": pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
    "crc_flit": pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC,
}
"""The same as fields of one link, on chips that have them: all of a GPU in one call."""
_ENDS = frozenset({pynvml.NVML_ERROR_INVALID_ARGUMENT, *NOT_THERE})
"""What a link answers that the chip does not have."""


class Nvlinks:
    """All NVLinks of one GPU. `fields` are what is asked of them together with the GPU's other fields.

    Raises pynvml.NVMLError from the constructor where the GPU does not tell how many it has.
    """

    def __init__(self, handle: Any, gpu: Address, source: str) -> None:
        self._handle = handle
        self._gpu = gpu
        self._source = source
        self._states: dict[int, bool | None] = {}  # None: not known this time
        self._called: list[int] = []  # links whose state is no field
        self._find()
        self._numbers = {subject: link for link, subject in self._subjects.items()}
        self.fields: list[FieldQuestion] = [question for link in self._links for question in self._questions(link)]
        self._errors = [(link, kind) for link in self._links for kind in _ERRORS]
        self._told: dict[tuple[int, str], tuple[float | None, int]] | None = None  # None: not looked at yet
        self._next_error = 0
        self.error_call_seconds = 0.0  # of one call
        self.errors_seconds = math.inf

    def _find(self) -> None:
        self._links: list[int] = []
        self._peers: dict[int, str] = {}
        self._subjects: dict[int, Address] = {}
        failure: pynvml.NVMLError | None = None
        answered = False
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            try:
                pynvml.nvmlDeviceGetNvLinkState(self._handle, link)
                answered = True
            except pynvml.NVMLError as error:
                if error.value in _ENDS:
                    break
                if _ends_the_look(error):
                    raise
                failure = error  # the chip has this link, but does not know its state this time
            self._links.append(link)
        if failure is not None and not answered:
            raise failure
        for link in self._links:
            self._subjects[link] = Address(self._gpu.node, AddressKind.NVLINK, f"{self._gpu.key}/{link}")
            peer = self._peer(link)
            if peer is not None:
                self._peers[link] = peer

    def _peer(self, link: int) -> str | None:
        try:
            return pci_key(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(self._handle, link).busId)
        except pynvml.NVMLError as error:
            if _ends_the_look(error):
                raise
            return None

    def _attributes(self, link: int, **more: str) -> dict[str, str]:
        named = {name.replace("__", "."): value for name, value in more.items()}
        return named | ({PEER: self._peers[link]} if link in self._peers else {})

    def _questions(self, link: int) -> Iterator[FieldQuestion]:
        subject, plain = self._subjects[link], self._attributes(link)
        yield FieldQuestion(
            pynvml.NVML_FI_DEV_NVLINK_GET_STATE,
            subject,
            "link.up",
            scope=link,
            attributes=plain,
            is_rare=True,
            has_other_source=True,
            meanings=_STATES,
        )
        yield FieldQuestion(
            pynvml.NVML_FI_DEV_NVLINK_GET_SPEED, subject, "link.bandwidth", _MEGA, link, plain, is_rare=True
        )
        for identifier, direction in (
            (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, "transmit"),
            (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, "receive"),
        ):
            attributes = self._attributes(link, network__io__direction=direction)
            yield FieldQuestion(identifier, subject, "link.io", _KIBIBYTE, link, attributes)
        for kind, identifier in _ERROR_FIELDS.items():
            attributes = self._attributes(link, error__type=kind)
            yield FieldQuestion(
                identifier, subject, "link.errors", 1.0, link, attributes, is_rare=True, has_other_source=True
            )

    def look(self, fields: Sequence[Observation], at_ns: int) -> list[Observation]:
        """What they tell now beside the `fields` that were just read. Raises pynvml.NVMLError."""
        if not self._links:
            return []
        found = list(self._read_states(fields, at_ns))
        found += self._widths(at_ns)
        if self._told is None:
            by_field = {(o.subject, o.attributes.get("error.type")) for o in fields if o.metric == "link.errors"}
            self._errors = [(n, kind) for n, kind in self._errors if (self._subjects[n], kind) not in by_field]
            self._told = {}
        found += self._read_errors(at_ns)
        return found

    def _read_states(self, fields: Sequence[Observation], at_ns: int) -> Iterator[Observation]:
        """By field where that has changed; older drivers have no field for a link's state, but a call for each."""
        for seen in fields:
            if seen.metric == "link.up" and seen.subject in self._numbers:
                self._states[self._numbers[seen.subject]] = None if seen.value is None else seen.value == 1.0
        if self._told is None:
            self._called = [link for link in self._links if link not in self._states]
        for link in self._called:
            up = self._state(link)
            self._states[link] = None if up is None else bool(up)
            yield Observation(self._subjects[link], "link.up", up, at_ns, self._source, self._attributes(link))

    def _state(self, link: int) -> float | None:
        try:
            return _STATES.get(pynvml.nvmlDeviceGetNvLinkState(self._handle, link))
        except pynvml.NVMLError as error:
            if _ends_the_look(error):
                raise
            return None

    def _widths(self, at_ns: int) -> Iterator[Observation]:
        best = Counter(self._peers.get(link, "") for link in self._links)
        active = Counter(self._peers.get(link, "") for link in self._links if self._states[link])
        doubtful = {self._peers.get(link, "") for link in self._links if self._states[link] is None}
        for peer, count in best.items():
            key = f"{self._gpu.key}/{peer}" if peer else self._gpu.key
            subject = Address(self._gpu.node, AddressKind.NVLINK, key)
            attributes = {PEER: peer} if peer else {}
            width = None if peer in doubtful else active[peer]
            yield Observation(subject, "link.width", width, at_ns, self._source, attributes)
            yield Observation(subject, "link.width.best", count, at_ns, self._source, attributes)

    def _read_errors(self, at_ns: int) -> list[Observation]:
        """As many of the counters as may be read at one poll, in turn."""
        found = []
        missing = []
        began = time.perf_counter()
        asked = self._errors_to_read()
        for link, kind in asked:
            value: float | None = None
            try:
                value = pynvml.nvmlDeviceGetNvLinkErrorCounter(self._handle, link, _ERRORS[kind])
            except pynvml.NVMLError as error:
                if _ends_the_look(error):
                    raise
                if error.value in _ENDS:
                    missing.append((link, kind))
            if self._is_news(link, kind, value, at_ns):
                attributes = self._attributes(link, error__type=kind)
                found.append(Observation(self._subjects[link], "link.errors", value, at_ns, self._source, attributes))
        if asked:  # the least seen: a poll that was kept waiting says nothing of the calls
            seconds = (time.perf_counter() - began) / len(asked)
            self.error_call_seconds = min(seconds, self.error_call_seconds or seconds)
        if missing:
            self._errors = [one for one in self._errors if one not in missing]
        return found

    def _is_news(self, link: int, kind: str, value: float | None, at_ns: int) -> bool:
        told = {} if self._told is None else self._told
        before, told_ns = told.get((link, kind), (None, -UNCHANGED_EVERY_NS))
        if value == before and at_ns - told_ns < UNCHANGED_EVERY_NS:
            return False
        told[link, kind] = value, at_ns
        return True

    def _errors_to_read(self) -> list[tuple[int, str]]:
        affordable = self.errors_seconds / self.error_call_seconds if self.error_call_seconds else math.inf
        if affordable >= len(self._errors):
            return self._errors
        begin = self._next_error % len(self._errors)
        chosen = (self._errors + self._errors)[begin : begin + max(1, int(affordable))]
        self._next_error = begin + len(chosen)
        return chosen


def _ends_the_look(error: pynvml.NVMLError) -> bool:
    """Whether nothing more need be asked of this GPU; another error is one question's."""
    return error.value == pynvml.NVML_ERROR_GPU_IS_LOST or concerns_all(error)
