"""Logs of the kernel, of journald and of NVIDIA's fabric manager, line by line (`observatory.receivers.kernel_log`).

A panic is told here and not by the receiver: who panics reads no log any more, but pstore and a serial console keep it.
"""

from __future__ import annotations

import re

from observatory.anomalies.recorded.recording import Look, Recording
from observatory.model.observation import Address, AddressKind, HardwareEvent
from observatory.receivers.kernel_log import Recogniser
from observatory.receivers.kernel_log_lines import KernelMessage, parse_line

SOURCE = "kernel-log"
_PANIC = "Kernel panic - not syncing"
_PREFIX = re.compile(
    r"\d{1,4},\d{1,20},\d{1,17},[^;]*;"  # /dev/kmsg
    r"|(?:<\d{1,3}>)?\[ *\d{1,10}\.\d{6}\]"  # dmesg
    r"|\[(?:\w{3} )?\w{3} +\d{1,2} (?:\d{4} )?\d\d:\d\d:\d\d(?: \d{4})?\]"  # dmesg -T, fabric manager
    r"|kern *:\w+ *:"  # dmesg -x
    r"|\w{3} [ \d]\d \d\d:\d\d:\d\d \S+ [\w./@()-]+(?:\[\d+\])?: "  # syslog
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S* \S+ [\w./@()-]+(?:\[\d+\])?: "
    r"|NVRM: Xid |nvidia-nvswitch\d+: SXid ",
    re.ASCII,
)
_LINES_LOOKED_AT = 50
_BEGINNING = 1 << 16
_TOGETHER_NS = 100_000_000  # what is said within this time is one look
_LINE_NS = 1_000_000  # between lines that tell no time


def is_log(text: str) -> bool:
    """Whether one of the first lines has the prefix of a log."""
    lines = text[:_BEGINNING].splitlines()[:_LINES_LOOKED_AT]
    return any(_PREFIX.match(line) for line in lines)


def read_log(text: str, node: str) -> Recording:
    """The events of a log, each at its time."""
    recogniser = Recogniser(node, SOURCE)
    recording = Recording("kernel log")
    last_ns = 0
    for line in text.splitlines():
        message = parse_line(line)
        if message is None:
            continue
        at_ns = max(_time_of(message) or last_ns + _LINE_NS, last_ns)
        event = recogniser.feed(message, at_ns) or _panic(message, node, at_ns)
        if event is not None:
            last = recording.looks[-1] if recording.looks else None
            if last is not None and at_ns - last.at_ns < _TOGETHER_NS:
                last.seen.append(event)
            else:
                recording.looks.append(Look(at_ns, [event]))
            last_ns = at_ns
    return recording


def _time_of(message: KernelMessage) -> int | None:
    if message.monotonic_ns is not None:
        return message.monotonic_ns
    return None if message.unix_seconds is None else int(message.unix_seconds * 1e9)


def _panic(message: KernelMessage, node: str, at_ns: int) -> HardwareEvent | None:
    if not message.text.startswith(_PANIC):
        return None
    return HardwareEvent(Address(node, AddressKind.NODE), "panic", message.text[:1000], at_ns, SOURCE)
