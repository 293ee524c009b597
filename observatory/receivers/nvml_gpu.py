"""What one GPU tells through NVML beside its NVLinks: heat, power, clocks, use, memory, errors, PCI Express."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pynvml

from observatory.model.observation import Address, AddressKind, HardwareEvent, Observation, Seen
from observatory.receivers.nvml_fields import FieldQuestion, FieldSet
from observatory.receivers.nvml_library import NOT_THERE, pci_key
from observatory.receivers.nvml_nvlink import Nvlinks

_SPEEDS = (2.5e9, 5e9, 8e9, 16e9, 32e9, 64e9)  # T/s and lane of PCI Express generations 1 to 6
_KILOBYTE = 1000.0  # of nvmlDeviceGetPcieThroughput: KB/s
_THROTTLING: Mapping[str, int] = {
    "sw_power_cap": pynvml.nvmlClocksEventReasonSwPowerCap,
    "hw_slowdown": pynvml.nvmlClocksEventReasonHwSlowdown,
    "sync_boost": pynvml.nvmlClocksEventReasonSyncBoost,
    "sw_thermal": pynvml.nvmlClocksEventReasonSwThermalSlowdown,
    "hw_thermal": pynvml.nvmlClocksEventReasonHwThermalSlowdown,
    "hw_power_brake": pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
}
"""Reasons for a lower clock that somebody should know; a GPU that is idle, or was told to, is not held back."""

_CLOCKS = {
    "graphics": pynvml.NVML_CLOCK_GRAPHICS,
    "sm": pynvml.NVML_CLOCK_SM,
    "memory": pynvml.NVML_CLOCK_MEM,
    "video": pynvml.NVML_CLOCK_VIDEO,
}

Value = tuple[str, float | None, Mapping[str, str]]
"""Metric, value, attributes."""


@dataclass(slots=True)
class _Question:
    """A call and what its answer means. `alone`: told as None once where the chip does not answer it."""

    name: str
    ask: Callable[[Any], Sequence[Value]]
    unknown: Sequence[tuple[str, Mapping[str, str]]] = field(default_factory=tuple)


class Gpu:
    """One GPU. Raises pynvml.NVMLError from the constructor where it cannot be asked at all."""

    def __init__(self, index: int, node: str, source: str) -> None:
        self.index = index
        self.handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        self.subject = Address(node, AddressKind.PCI, pci_key(pynvml.nvmlDeviceGetPciInfo(self.handle).busId))
        self.uuid = str(pynvml.nvmlDeviceGetUUID(self.handle))
        self.lost = False
        self.call_seconds: dict[str, float] = {}
        self._source = source
        self._questions = list(_questions())
        self._has_byte_counters = False
        self._measures_throughput = True
        self._nvlinks = Nvlinks(self.handle, self.subject, source)
        self._fields = FieldSet(self.handle, [*self._field_questions(), *self._nvlinks.fields], source)
        self.first = self._first_look()

    # -- at the beginning ------------------------------------------------------------------------------------------

    def _field_questions(self) -> Iterator[FieldQuestion]:
        subject = self.subject
        yield FieldQuestion(
            pynvml.NVML_FI_DEV_MEMORY_TEMP, subject, "hw.temperature", attributes={"hw.sensor_location": "memory"}
        )
        for identifier, kind in (
            (pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL, "ecc_corrected"),
            (pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL, "ecc_uncorrected"),
            (pynvml.NVML_FI_DEV_REMAPPED_COR, "rows_remapped_corrected"),
            (pynvml.NVML_FI_DEV_REMAPPED_UNC, "rows_remapped_uncorrected"),
        ):
            yield FieldQuestion(identifier, subject, "hw.errors", attributes={"error.type": kind})
        for identifier, direction in (
            (pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, "transmit"),
            (pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, "receive"),
        ):
            yield FieldQuestion(identifier, subject, "hw.gpu.io", attributes={"network.io.direction": direction})
        yield FieldQuestion(
            pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER, subject, "link.errors", attributes={"error.type": "pcie_replay"}
        )

    def _first_look(self) -> list[Seen]:
        """Ask everything once, with the time that each call takes; what is not supported is dropped."""
        seen: list[Seen] = list(self.status())
        kept = []
        for question in self._questions:
            began = time.perf_counter()
            try:
                values = question.ask(self.handle)
                kept.append(question)
            except pynvml.NVMLError as error:
                if error.value not in NOT_THERE:
                    raise
                values = [(metric, None, attributes) for metric, attributes in question.unknown]
            self.call_seconds[question.name] = time.perf_counter() - began
            seen += self._observations(values, time.monotonic_ns())
        self._questions = kept
        began = time.perf_counter()
        fields = self._fields.read(time.monotonic_ns())
        self.call_seconds["nvmlDeviceGetFieldValues"] = time.perf_counter() - began
        self._has_byte_counters = any(o.metric == "hw.gpu.io" and o.value is not None for o in fields)
        links = self._nvlinks.look(fields, time.monotonic_ns())
        self.call_seconds["nvmlDeviceGetNvLinkErrorCounter"] = self._nvlinks.error_call_seconds
        return [*seen, *fields, *links]

    def take_no_longer_than(self, seconds: float) -> None:
        """Let the error counters of its NVLinks cost so much at one poll."""
        self._nvlinks.errors_seconds = seconds

    # -- again and again -------------------------------------------------------------------------------------------

    def look(self) -> list[Seen]:
        """Everything that it tells now; of a GPU that was lost or came back, that."""
        try:
            if self.lost:
                pynvml.nvmlDeviceGetPciInfo(self.handle)  # the cheapest question: does it answer again?
                self.lost = False
            at_ns = time.monotonic_ns()
            seen: list[Seen] = [o for q in self._questions for o in self._observations(q.ask(self.handle), at_ns)]
            fields = self._fields.read(at_ns)
            return [*seen, *fields, *self._nvlinks.look(fields, at_ns), *self.status()]
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_GPU_IS_LOST:
                raise
            return self._gone()

    def _gone(self) -> list[Seen]:
        already = self.lost
        self.lost = True
        seen: list[Seen] = list(self.status())
        if not already:
            words = f"NVML: GPU {self.index} ({self.uuid}) is lost"
            now = time.monotonic_ns()
            seen.append(HardwareEvent(self.subject, "gpu_lost", words, now, self._source))
        return seen

    @property
    def wants_throughput(self) -> bool:
        """Whether what crosses its PCI Express link is known by a call of 20 ms only."""
        return self._measures_throughput and not self._has_byte_counters and not self.lost

    def measure_throughput(self, direction: str) -> list[Seen]:
        """`transmit` or `receive` of its PCI Express link; blocks for 20 ms."""
        counter = pynvml.NVML_PCIE_UTIL_TX_BYTES if direction == "transmit" else pynvml.NVML_PCIE_UTIL_RX_BYTES
        began = time.perf_counter()
        value: float | None = None
        try:
            value = pynvml.nvmlDeviceGetPcieThroughput(self.handle, counter) * _KILOBYTE
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
                return []
            if error.value not in NOT_THERE:
                raise
            self._measures_throughput = False
        self.call_seconds["nvmlDeviceGetPcieThroughput"] = time.perf_counter() - began
        values: list[Value] = [("link.throughput", value, {"network.io.direction": direction})]
        return list(self._observations(values, time.monotonic_ns()))

    def status(self) -> list[Observation]:
        """Whether it is there."""
        states = {"ok": not self.lost, "failed": self.lost}
        values: list[Value] = [("hw.status", float(is_so), {"hw.state": state}) for state, is_so in states.items()]
        return list(self._observations(values, time.monotonic_ns()))

    def _observations(self, values: Sequence[Value], at_ns: int) -> Iterator[Observation]:
        for metric, value, attributes in values:
            yield Observation(self.subject, metric, value, at_ns, self._source, attributes)


# -- the questions -----------------------------------------------------------------------------------------------------


def _questions() -> Iterator[_Question]:
    gpu, board = {"hw.sensor_location": "gpu"}, dict[str, str]()
    yield _Question(
        "nvmlDeviceGetTemperature",
        lambda h: [("hw.temperature", pynvml.nvmlDeviceGetTemperature(h, pynvml.NVML_TEMPERATURE_GPU), gpu)],
        [("hw.temperature", gpu)],
    )
    yield _Question(
        "nvmlDeviceGetPowerUsage",
        lambda h: [("hw.power", pynvml.nvmlDeviceGetPowerUsage(h) / 1e3, board)],
        [("hw.power", board)],
    )
    yield _Question(
        "nvmlDeviceGetTotalEnergyConsumption",
        lambda h: [("hw.energy", pynvml.nvmlDeviceGetTotalEnergyConsumption(h) / 1e3, board)],
        [("hw.energy", board)],
    )
    yield _Question(
        "nvmlDeviceGetMemoryInfo", _memory, [("hw.gpu.memory.limit", board), ("hw.gpu.memory.usage", board)]
    )
    yield _Question(
        "nvmlDeviceGetUtilizationRates",
        _utilisation,
        [("hw.gpu.utilization", _task("general")), ("hw.gpu.utilization", _task("memory"))],
    )
    for task, call in (
        ("encoder", pynvml.nvmlDeviceGetEncoderUtilization),
        ("decoder", pynvml.nvmlDeviceGetDecoderUtilization),
        ("jpeg", pynvml.nvmlDeviceGetJpgUtilization),
    ):
        yield _Question(call.__name__, _engine(task, call), [("hw.gpu.utilization", _task(task))])
    for domain, clock in _CLOCKS.items():
        yield _Question(f"nvmlDeviceGetClockInfo/{domain}", _clock(domain, clock), [("gpu.clock", _domain(domain))])
    yield _Question(
        "nvmlDeviceGetCurrentClocksEventReasons",
        _throttling,
        [("gpu.throttled", {"reason": reason}) for reason in _THROTTLING],
    )
    for name, metric in (
        ("nvmlDeviceGetCurrPcieLinkWidth", "link.width"),
        ("nvmlDeviceGetMaxPcieLinkWidth", "link.width.best"),
    ):
        yield _Question(name, _number(metric, getattr(pynvml, name)), [(metric, board)])
    for name, metric in (
        ("nvmlDeviceGetCurrPcieLinkGeneration", "link.speed"),
        ("nvmlDeviceGetMaxPcieLinkGeneration", "link.speed.best"),
    ):
        yield _Question(name, _speed(metric, getattr(pynvml, name)), [(metric, board)])
    for cause, kind in (
        (pynvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS, "pages_retired_corrected"),
        (pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR, "pages_retired_uncorrected"),
    ):
        attributes = {"error.type": kind}
        yield _Question(f"nvmlDeviceGetRetiredPages/{kind}", _retired(cause, attributes), [("hw.errors", attributes)])


def _task(name: str) -> Mapping[str, str]:
    return {"hw.gpu.task": name}


def _domain(name: str) -> Mapping[str, str]:
    return {"gpu.clock.domain": name}


def _memory(handle: Any) -> Sequence[Value]:
    """Reserved memory is no usage: the second version tells it apart, where the driver has that."""
    try:
        found = pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
    except pynvml.NVMLError as error:
        if error.value not in NOT_THERE:
            raise
        found = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return [("hw.gpu.memory.limit", found.total, {}), ("hw.gpu.memory.usage", found.used, {})]


def _utilisation(handle: Any) -> Sequence[Value]:
    found = pynvml.nvmlDeviceGetUtilizationRates(handle)
    return [
        ("hw.gpu.utilization", found.gpu / 100, _task("general")),
        ("hw.gpu.utilization", found.memory / 100, _task("memory")),
    ]


def _engine(task: str, call: Callable[[Any], Sequence[int]]) -> Callable[[Any], Sequence[Value]]:
    attributes = _task(task)
    return lambda handle: [("hw.gpu.utilization", call(handle)[0] / 100, attributes)]


def _clock(domain: str, clock: int) -> Callable[[Any], Sequence[Value]]:
    attributes = _domain(domain)
    return lambda handle: [("gpu.clock", pynvml.nvmlDeviceGetClockInfo(handle, clock) * 1e6, attributes)]


def _number(metric: str, call: Callable[[Any], int]) -> Callable[[Any], Sequence[Value]]:
    return lambda handle: [(metric, call(handle), {})]


def _speed(metric: str, call: Callable[[Any], int]) -> Callable[[Any], Sequence[Value]]:
    def ask(handle: Any) -> Sequence[Value]:
        generation = call(handle)
        return [(metric, _SPEEDS[generation - 1] if 1 <= generation <= len(_SPEEDS) else None, {})]

    return ask


def _throttling(handle: Any) -> Sequence[Value]:
    reasons = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)  # also where drivers have no newer name for it
    return [("gpu.throttled", float(bool(reasons & bit)), {"reason": name}) for name, bit in _THROTTLING.items()]


def _retired(cause: int, attributes: Mapping[str, str]) -> Callable[[Any], Sequence[Value]]:
    return lambda handle: [("hw.errors", len(pynvml.nvmlDeviceGetRetiredPages(handle, cause)), attributes)]
