"""Rows of a GPU's memory that wait for being replaced by spare ones, or that cannot be, through NVML.

Both last until the GPU is reset or replaced. They are told as events when they begin, and again every few minutes
while they last. How many rows were replaced is a number of its own (`hw.errors`).
"""

from __future__ import annotations

from typing import Any

import pynvml

from observatory.model.observation import Address, HardwareEvent

_AGAIN_NS = 300_000_000_000  # half of the time after which nothing said is taken for the end
_WORDS = {
    "pending": "a row of memory is to be remapped at the next reset",
    "failed": "a row of memory could not be remapped",
}


class RowRemapping:
    """The two states of one GPU."""

    def __init__(self, handle: Any, gpu: Address, source: str) -> None:
        self._handle = handle
        self._gpu = gpu
        self._source = source
        self._told_ns: dict[str, int] = {}

    def look(self, at_ns: int) -> list[HardwareEvent]:
        """What began, or has lasted for minutes since it was told. Raises pynvml.NVMLError."""
        _, _, pending, failed = pynvml.nvmlDeviceGetRemappedRows(self._handle)
        return [
            event
            for code, is_so in (("pending", pending), ("failed", failed))
            for event in self._tell(code, is_so, at_ns)
        ]

    def _tell(self, code: str, is_so: int, at_ns: int) -> list[HardwareEvent]:
        if not is_so:
            self._told_ns.pop(code, None)
            return []
        told_ns = self._told_ns.get(code)
        if told_ns is not None and at_ns - told_ns < _AGAIN_NS:
            return []
        self._told_ns[code] = at_ns
        return [HardwareEvent(self._gpu, "row_remap", f"NVML: {_WORDS[code]}", at_ns, self._source, code)]
