"""Many numbers of one GPU in one call of NVML (nvmlDeviceGetFieldValues), decoded without a Python object for each."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pynvml

from observatory.model.observation import Address, Observation
from observatory.receivers.nvml_library import NAME, NOT_THERE

ALL_LINKS = 0xFFFF_FFFF
BLANK = 0x7FFF_FFFF_FFFF_FFF0
"""From here on up are the sentinels for "not known" (DCGM's among them), and no counter's values."""

UNCHANGED_EVERY_NS = 5_000_000_000
"""How often a rare value is told that did not change: hundreds of counters stay at 0 for months."""

_VALUES = np.dtype(
    [
        ("field", "<u4"),
        ("scope", "<u4"),
        ("timestamp_us", "<i8"),
        ("latency_us", "<i8"),
        ("type", "<u4"),
        ("result", "<i4"),
        ("value", "<u8"),
    ]
)
_MASKS = np.array([2**64 - 1, 2**32 - 1, 2**64 - 1, 2**64 - 1, 2**64 - 1, 2**32 - 1, 2**16 - 1], dtype=np.uint64)
"""By NVML_VALUE_TYPE_*: double (none of the fields asked for is one), unsigned int, unsigned long, unsigned long long,
signed long long, signed int, unsigned short."""


_NEVER = frozenset({pynvml.NVML_ERROR_INVALID_ARGUMENT, *NOT_THERE})
"""Results of a field that the chip, or the driver, does not have."""


@dataclass(frozen=True, slots=True)
class FieldQuestion:
    """One field, and what its answer means: the value times `factor`, or what `meanings` says of it.

    `is_rare`: what does not change is told every few seconds only. `has_other_source`: where the chip does not answer,
    nothing is said of it, as something else may be asked.
    """

    field_id: int
    subject: Address
    metric: str
    factor: float = 1.0
    scope: int = 0
    attributes: Mapping[str, str] = field(default_factory=dict)
    is_rare: bool = False
    has_other_source: bool = False
    meanings: Mapping[int, float] | None = None


class FieldSet:
    """The fields of one GPU that it answers. What it does not support is told once, as None, and not asked again."""

    def __init__(self, handle: Any, questions: Sequence[FieldQuestion], source: str) -> None:
        self._handle = handle
        self._source = source
        # Of the library that is loaded already; nvidia-ml-py's own call makes an object of every value.
        self._call = ctypes.CDLL(NAME).nvmlDeviceGetFieldValues
        self._prepare(questions)

    def _prepare(self, questions: Sequence[FieldQuestion]) -> None:
        self._questions = list(questions)
        self._array = (pynvml.c_nvmlFieldValue_t * max(1, len(questions)))()
        self._values = np.frombuffer(self._array, dtype=_VALUES, count=len(questions))
        self._values["field"] = [q.field_id for q in questions]
        self._values["scope"] = [q.scope for q in questions]
        self._before: list[int | None] = [None] * len(questions)
        self._all_due_ns = 0

    def __len__(self) -> int:
        return len(self._questions)

    def read(self, at_ns: int) -> list[Observation]:
        """What they are now, None where one is not known this time. Raises pynvml.NVMLError: none is, or it is lost."""
        if not self._questions:
            return []
        code = self._call(self._handle, len(self._questions), self._array)
        if code != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(code)
        raw = self._values["value"] & _MASKS[np.minimum(self._values["type"], len(_MASKS) - 1)]
        results = self._values["result"].tolist()
        if pynvml.NVML_ERROR_GPU_IS_LOST in results:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        values = raw.tolist()
        told_all = at_ns >= self._all_due_ns
        if told_all:
            self._all_due_ns = at_ns + UNCHANGED_EVERY_NS
        found = [
            Observation(q.subject, q.metric, _meaning(q, value, result), at_ns, self._source, q.attributes)
            for q, result, value, before in zip(self._questions, results, values, self._before, strict=True)
            if (told_all or not q.is_rare or result or value != before)
            and not (result in _NEVER and q.has_other_source)
        ]
        self._before = [None if result else value for result, value in zip(results, values, strict=True)]
        if _NEVER.intersection(results):
            self._prepare([q for q, result in zip(self._questions, results, strict=True) if result not in _NEVER])
        return found

    def unknown(self, at_ns: int) -> list[Observation]:
        """All of them as not known this time."""
        self._before = [None] * len(self._questions)
        return [
            Observation(q.subject, q.metric, None, at_ns, self._source, q.attributes)
            for q in self._questions
            if not q.has_other_source
        ]


def _meaning(question: FieldQuestion, value: int, result: int) -> float | None:
    if result != pynvml.NVML_SUCCESS or value >= BLANK:
        return None
    return value * question.factor if question.meanings is None else question.meanings.get(value)
