"""What one GPU tells through NVML beside its NVLinks: heat, power, clocks, use, memory, errors, PCI Express."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pynvml

from observatory.model.observation import Address, AddressKind, HardwareEvent, Observation, Seen
from observatory.receivers.nvml_fields import FieldQuestion, FieldSet
from observatory.receivers.nvml_library import NOT_THERE, concerns_all, pci_key
from observatory.receivers.nvml_nvlink import Nvlinks
from observatory.receivers.nvml_rows import RowRemapping

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

_SICK = frozenset({pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_RESET_REQUIRED})
_SICK_SHARE = 0.8  # of all questions: the GPU answers nearly nothing

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
    """A call and what its answer means. `unknown`: what is told as None where it is not answered."""

    name: str
    ask: Callable[[Any], Sequence[Value]]
    unknown: Sequence[tuple[str, Mapping[str, str]]] = field(default_factory=tuple)


class Gpu:
    """One GPU. Raises pynvml.NVMLError from the constructor where not even its address is known.

    What it does not answer is not known at that look. Where it answers nearly nothing it is told as failed.
    """

    def __init__(self, index: int, node: str, source: str) -> None:
        self.index = index
        self.handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        self.subject = Address(node, AddressKind.PCI, pci_key(pynvml.nvmlDeviceGetPciInfo(self.handle).busId))
        self.uuid = self._find_uuid()
        self.lost = False
        self.call_seconds: dict[str, float] = {}
        self.errors_seconds = math.inf
        self._source = source
        self._questions = list(_questions())
        self._rows: RowRemapping | None = RowRemapping(self.handle, self.subject, source)
        self._results: Counter[int] = Counter()  # of this look
        self._does_not_answer = False
        self._has_byte_counters = False
        self._measures_throughput = True
        self._nvlinks: Nvlinks | None = None
        self._fields = FieldSet(self.handle, list(self._field_questions()), source)
        self.first = self.look()

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

    def _find_uuid(self) -> str:
        try:
            return str(pynvml.nvmlDeviceGetUUID(self.handle))
        except pynvml.NVMLError as error:
            if concerns_all(error):
                raise
            return "UUID not known"

    # -- again and again -------------------------------------------------------------------------------------------

    def look(self) -> list[Seen]:
        """Everything that it tells now; of a GPU that was lost, that. Raises pynvml.NVMLError where none answers."""
        self._results.clear()
        at_ns = time.monotonic_ns()
        try:
            seen: list[Seen] = [*self._ask_all(at_ns), *self._look_at_rows(at_ns), *self._look_at_fields(at_ns)]
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_GPU_IS_LOST:
                raise
            return self._gone()
        sick = sum(count for result, count in self._results.items() if result in _SICK)
        self._does_not_answer = sick >= _SICK_SHARE * self._results.total()
        # Some calls answer what they remember of a GPU that is lost: only a whole look shows that it is back.
        self.lost = self.lost and self._does_not_answer
        return [*seen, *self.status()]

    def _ask_all(self, at_ns: int) -> list[Observation]:
        """All questions; what the chip does not support is told once and not asked again."""
        seen: list[Observation] = []
        for question in tuple(self._questions):
            began = time.perf_counter()
            try:
                values = question.ask(self.handle)
                self._results[pynvml.NVML_SUCCESS] += 1
            except pynvml.NVMLError as error:
                if self._is_never(error):
                    self._questions.remove(question)
                values = [(metric, None, attributes) for metric, attributes in question.unknown]
            self._cost(question.name, began)
            seen += self._observations(values, at_ns)
        return seen

    def _look_at_rows(self, at_ns: int) -> list[HardwareEvent]:
        if self._rows is None:
            return []
        began = time.perf_counter()
        events: list[HardwareEvent] = []
        try:
            events = self._rows.look(at_ns)
        except pynvml.NVMLError as error:
            if self._is_never(error):
                self._rows = None
        self._cost("nvmlDeviceGetRemappedRows", began)
        return events

    def _look_at_fields(self, at_ns: int) -> list[Observation]:
        self._find_nvlinks()
        began = time.perf_counter()
        try:
            fields = self._fields.read(at_ns)
        except pynvml.NVMLError as error:
            self._is_never(error)
            return self._fields.unknown(at_ns)
        self._cost("nvmlDeviceGetFieldValues", began)
        self._has_byte_counters |= any(o.metric == "hw.gpu.io" and o.value is not None for o in fields)
        if self._nvlinks is None:
            return fields
        self._nvlinks.errors_seconds = self.errors_seconds
        links = self._nvlinks.look(fields, at_ns)
        self.call_seconds.setdefault("nvmlDeviceGetNvLinkErrorCounter", self._nvlinks.error_call_seconds)
        return [*fields, *links]

    def _find_nvlinks(self) -> None:
        if self._nvlinks is not None:
            return
        try:
            self._nvlinks = Nvlinks(self.handle, self.subject, self._source)
        except pynvml.NVMLError as error:
            self._is_never(error)
            return
        questions = [*self._field_questions(), *self._nvlinks.fields]
        self._fields = FieldSet(self.handle, questions, self._source)

    def _is_never(self, error: pynvml.NVMLError) -> bool:
        """Whether that answer stays. Raises it again where nothing more need be asked of this GPU, or of any."""
        if error.value == pynvml.NVML_ERROR_GPU_IS_LOST or concerns_all(error):
            raise error
        self._results[error.value] += error.value not in NOT_THERE
        return error.value in NOT_THERE

    def _cost(self, call: str, began: float) -> None:
        self.call_seconds.setdefault(call, time.perf_counter() - began)

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
            if concerns_all(error):
                raise
            if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
                return []
            self._measures_throughput = error.value not in NOT_THERE
        self.call_seconds["nvmlDeviceGetPcieThroughput"] = time.perf_counter() - began
        values: list[Value] = [("link.throughput", value, {"network.io.direction": direction})]
        return list(self._observations(values, time.monotonic_ns()))

    def status(self) -> list[Observation]:
        """Whether it is there, and answers."""
        is_bad = self.lost or self._does_not_answer
        states = {"ok": not is_bad, "failed": is_bad}
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
