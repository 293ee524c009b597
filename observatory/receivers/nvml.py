"""NVIDIA GPUs through NVML: what each tells of itself, of its NVLinks and of its PCI Express link.

What a call costs is measured when the receiver is opened and told as `receiver.call.duration`. Most take microseconds;
`nvmlDeviceGetPcieThroughput` blocks for 20 ms, as it counts for so long: it is asked only where the chip has no
counters of bytes (fields 197 and 198), one GPU and direction at a poll, in turn. Where reading the error counters of
all NVLinks would take longer than a share of the period, each poll reads a part of them, in turn. States, speeds and
error counters of NVLinks that did not change are told every 5 seconds. What a chip does not support is told once, as
unknown, and not asked again. A GPU that is lost is told as failed, and asked if it is back. A question that one GPU
does not answer is unknown that time, and one that has no address yet is looked for again; the others go on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar

import pynvml

from observatory.model.observation import Address, AddressKind, HardwareEvent, Observation, Seen
from observatory.receivers import nvml_library
from observatory.receivers.errors import ReceiverUnavailable
from observatory.receivers.nvml_gpu import Gpu
from observatory.receivers.protocol import ReceiverContext

_DIRECTIONS = ("transmit", "receive")
_THROUGHPUT_EVERY_SECONDS = 0.25
_ERRORS_SECONDS = 0.0125  # of all GPUs' NVLinks at one poll: a twentieth of its period
_MISSING_EVERY_SECONDS = 10.0
_LOST = pynvml.NVML_ERROR_GPU_IS_LOST
_NOT_ITS_FAULT = frozenset(
    {pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_NOT_SUPPORTED}
)


class Nvml:
    """The GPUs of one machine."""

    name: ClassVar[str] = "nvml"
    period_seconds: ClassVar[float] = 0.25

    def __init__(self) -> None:
        self._started = False
        self._gpus: list[Gpu] = []
        self._news: list[Seen] = []
        self._turn = 0
        self._throughput_due = 0.0
        self._missing: set[int] = set()
        self._missing_due = 0.0

    async def open(self, context: ReceiverContext) -> None:
        """Start NVML and ask every GPU everything once."""
        nvml_library.start(context)
        self._started = True
        self._node = context.node
        self._missing_due = time.monotonic() + _MISSING_EVERY_SECONDS
        try:
            with nvml_library.answers():
                count = pynvml.nvmlDeviceGetCount()
                self._gpus = [gpu for index in range(count) if (gpu := self._find(index, context.node)) is not None]
                self._share_time()
            if count == 0:
                raise ReceiverUnavailable("NVML tells of no GPU")
        except BaseException:
            await self.close()
            raise
        self._news += [seen for gpu in self._gpus for seen in gpu.first]
        self._news += self._costs(context.node)

    def _find(self, index: int, node: str) -> Gpu | None:
        try:
            return Gpu(index, node, self.name)
        except pynvml.NVMLError as error:
            if nvml_library.concerns_all(error):
                raise
            if index not in self._missing and error.value not in _NOT_ITS_FAULT:
                # It has no address that could be asked for.
                kind, code = ("gpu_lost", None) if error.value == _LOST else ("gpu_driver", "init_failed")
                words = f"NVML: GPU {index} is lost" if error.value == _LOST else f"NVML: GPU {index}: {error}"
                machine = Address(node, AddressKind.NODE)
                self._news.append(HardwareEvent(machine, kind, words, time.monotonic_ns(), self.name, code))
            self._missing.add(index)
            return None

    def _find_missing(self) -> None:
        """Those that told no address at first, from time to time."""
        now = time.monotonic()
        if not self._missing or now < self._missing_due:
            return
        self._missing_due = now + _MISSING_EVERY_SECONDS
        for index in sorted(self._missing):
            gpu = self._find(index, self._node)
            if gpu is not None:
                self._missing.discard(index)
                self._gpus.append(gpu)
                self._news += gpu.first
        self._share_time()

    def _share_time(self) -> None:
        for gpu in self._gpus:
            gpu.errors_seconds = _ERRORS_SECONDS / len(self._gpus)

    @property
    def call_seconds(self) -> dict[str, float]:
        """What each call took at its first time, the longest of any GPU."""
        longest: dict[str, float] = {}
        for gpu in self._gpus:
            for call, seconds in gpu.call_seconds.items():
                longest[call] = max(seconds, longest.get(call, 0.0))
        return longest

    def _costs(self, node: str) -> list[Observation]:
        machine, now = Address(node, AddressKind.NODE), time.monotonic_ns()
        return [
            Observation(machine, "receiver.call.duration", seconds, now, self.name, {"receiver.call": call})
            for call, seconds in self.call_seconds.items()
        ]

    async def poll(self) -> Sequence[Seen]:
        """Everything that the GPUs tell now. Raises ReceiverFailed where NVML does not answer any more."""
        with nvml_library.answers():
            self._find_missing()
            seen, self._news = self._news, []
            for gpu in self._gpus:
                seen += gpu.look()
            seen += self._throughput()
        return seen

    def _throughput(self) -> list[Seen]:
        """Of the GPU and direction whose turn it is."""
        asked = [gpu for gpu in self._gpus if gpu.wants_throughput]
        now = time.monotonic()
        if not asked or now < self._throughput_due:
            return []
        self._throughput_due = now + _THROUGHPUT_EVERY_SECONDS / 2  # a faster poll does not make it ask more often
        self._turn += 1
        gpu = asked[(self._turn // len(_DIRECTIONS)) % len(asked)]
        return gpu.measure_throughput(_DIRECTIONS[self._turn % len(_DIRECTIONS)])

    async def close(self) -> None:
        """Stop NVML."""
        self._gpus = []
        if self._started:
            self._started = False
            nvml_library.stop()
