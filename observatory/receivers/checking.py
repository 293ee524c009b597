"""Whether what a receiver says makes sense: a source may lie, and a plug-in may be wrong."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from observatory.model.hardware_metrics import METRICS, Instrument
from observatory.model.observation import Address, AddressKind, HardwareEvent, Observation, Seen
from observatory.receivers.errors import ReceiverFailed

_LONGEST_TEXT = 4096
_LONGEST_NAME = 256
_MOST_ATTRIBUTES = 16
_AHEAD_NS = 1_000_000_000  # the kernel's log has a clock of its own, milliseconds apart


def sensible(batch: object, source: str, refused: Counter[str], most: int) -> tuple[list[Seen], int]:
    """What of a batch makes sense, at most the first `most`, and how many came after those.

    What makes none is counted in `refused` by reason.

    Raises:
        ReceiverFailed: it is no sequence at all.
    """
    if not isinstance(batch, Sequence) or isinstance(batch, str | bytes):
        raise ReceiverFailed(f"gave {type(batch).__name__} in place of a sequence")
    latest_ns = time.monotonic_ns() + _AHEAD_NS
    items: Iterable[object] = batch if len(batch) <= most else islice(batch, most)
    kept: list[Seen] = []
    for seen in items:
        reason = _nonsense(seen, source, latest_ns)
        if reason is None:
            kept.append(seen)  # type: ignore[arg-type]  # looked at just now
        else:
            refused[reason] += 1
    return kept, max(0, len(batch) - most)


def _nonsense(seen: object, source: str, latest_ns: int) -> str | None:
    """Why it makes no sense; None where it does."""
    if type(seen) is Observation:
        wrong = _wrong_value(seen)
    elif type(seen) is HardwareEvent:
        wrong = _wrong_event(seen)
    else:
        return "wrong_type"
    if wrong is not None:
        return wrong
    if seen.source != source:
        return "wrong_source"
    if type(seen.at_ns) is not int or not 0 <= seen.at_ns <= latest_ns:
        return "wrong_time"
    if not _is_address(seen.subject):
        return "wrong_subject"
    return None if not seen.attributes or _are_attributes(seen.attributes) else "wrong_attributes"


def _wrong_value(seen: Observation) -> str | None:
    metric = METRICS.get(seen.metric) if type(seen.metric) is str else None
    if metric is None:
        return "unknown_metric"
    value = seen.value
    if value is None:
        return None
    if type(value) is not float and type(value) is not int:
        return "wrong_type"
    if not math.isfinite(value):
        return "not_finite"
    return "negative" if value < 0 and metric.instrument is Instrument.COUNTER else None


def _wrong_event(seen: HardwareEvent) -> str | None:
    if not _is_name(seen.kind) or not (seen.code is None or _is_name(seen.code)):
        return "wrong_type"
    return None if type(seen.text) is str and len(seen.text) <= _LONGEST_TEXT else "wrong_type"


def _is_address(subject: object) -> bool:
    return (
        type(subject) is Address
        and type(subject.kind) is AddressKind
        and type(subject.key) is str
        and len(subject.key) <= _LONGEST_NAME
        and _is_name(subject.node)
    )


def _are_attributes(attributes: object) -> bool:
    if not isinstance(attributes, Mapping) or len(attributes) > _MOST_ATTRIBUTES:
        return False
    return all(_is_name(k) and type(v) is str and len(v) <= _LONGEST_NAME for k, v in attributes.items())


def _is_name(text: object) -> bool:
    return type(text) is str and 0 < len(text) <= _LONGEST_NAME
