"""Lines of the kernel's log in every form in which they are kept: what the kernel said, without its prefix.

    6,3973,227986636,-;text                                  a record of /dev/kmsg (Documentation/ABI/testing/dev-kmsg)
    [   12.345678] text, <4>[   12.345678][  T123] text      dmesg, pstore, a serial console
    [Sun Feb 23 16:24:18 2025] text                          dmesg -T
    kern  :warn  : 2025-01-21T04:41:44,285060+00:00 text     dmesg -x --time-format iso
    May 29 10:50:24 host kernel: [   12.345678] text         journalctl, syslog
    2025-01-21T04:41:44+00:00 host kernel: text              journalctl -o short-iso, syslog of today
    [Feb 27 2025 15:10:02] [ERROR] [tid 12727] text          NVIDIA's fabric manager, which speaks for the NVSwitches

Lines of other programs in a journal are none of the kernel's, whatever they say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

_LONGEST = 4096  # a message has 2048 at most (PRINTK_MESSAGE_MAX of kernel/printk), with its prefix less than this
_SECOND_DIGITS = 10
_FACILITIES = ("kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp")
_LEVELS = {"emerg": 0, "alert": 1, "crit": 2, "err": 3, "warn": 4, "notice": 5, "info": 6, "debug": 7}
_SPEAKERS = ("kernel", "nv-fabricmanager")

_KMSG = re.compile(r"(\d{1,4}),(\d{1,20}),(\d{1,17}),([^;\n]{0,200});")
_LEVEL = re.compile(r"<(\d{1,3})>")
_CALLER = r"(?:\[ *[TC]\d{1,9}\] ?)?"
_UPTIME = re.compile(rf"\[ *(\d{{1,{_SECOND_DIGITS}}})\.(\d{{6}})\] ?{_CALLER}")
_DMESG_TIME = re.compile(rf"\[(?:\w{{3}} )?(\w{{3}} +\d{{1,2}} \d\d:\d\d:\d\d \d{{4}})\] ?{_CALLER}")
_DECODED = re.compile(r"(\w{2,8}) *:(\w{3,6}) *: ?")
_ISO = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[-+]\d\d:?\d\d)?) ")
_SYSLOG_TIME = re.compile(r"\w{3} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,9})? ")
_SPEAKER = re.compile(r"[\w.:-]{1,255} ([\w./@()-]{1,128})(?:\[\d{1,10}\])?: ")
_FABRIC_MANAGER = re.compile(r"\[\w{3} \d{1,2} \d{4} \d\d:\d\d:\d\d\] \[(\w{4,7})\] (?:\[tid \d{1,10}\] )?")
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")


@dataclass(frozen=True, slots=True)
class KernelMessage:
    """One message. What the line does not tell is None.

    `level` is 0 (emergency) to 7 (debug); `facility` is `kern` for the kernel's own, `user` for what a process wrote
    to /dev/kmsg; `monotonic_ns` is the kernel's clock since it started, which CLOCK_MONOTONIC follows within
    milliseconds; `unix_seconds` the time of day, read as UTC where the line names no zone (`dmesg -T` names none).
    """

    text: str
    level: int | None = None
    facility: str | None = None
    sequence: int | None = None
    monotonic_ns: int | None = None
    unix_seconds: float | None = None


def parse_line(text: str) -> KernelMessage | None:
    """The message in a line of any of these forms; None for a line that holds none.

    A line without a prefix that is known is taken as what the kernel said.
    """
    line = text[:_LONGEST].rstrip("\r\n\0 ")
    if not line or line[0] == " " or line.startswith("-- "):  # nothing, more about the record before, journald's notes
        return None
    if line[0].isdigit() and (record := _KMSG.match(line)) is not None:
        return _kmsg(record, line)
    if line[0] == "[" or line[0] == "<":
        return _dmesg(line)
    return _journal(line)


def parse_record(record: bytes) -> KernelMessage | None:
    """The message in what one read of /dev/kmsg gave: a line, and lines about its device after it."""
    return parse_line(record.partition(b"\n")[0].decode("utf-8", "replace"))


def _kmsg(record: re.Match[str], line: str) -> KernelMessage:
    priority = int(record[1])
    words = line[record.end() :]
    if "\\x" in words:
        words = _ESCAPE.sub(lambda m: chr(int(m[1], 16)), words)
    return KernelMessage(
        text=words,
        level=priority & 7,
        facility=_facility(priority),
        sequence=int(record[2]),
        monotonic_ns=int(record[3]) * 1000,
    )


def _dmesg(line: str) -> KernelMessage | None:
    level = facility = None
    if (prefix := _LEVEL.match(line)) is not None:
        level, facility, line = int(prefix[1]) & 7, _facility(int(prefix[1])), line[prefix.end() :]
    if (manager := _FABRIC_MANAGER.match(line)) is not None:
        return KernelMessage(text=line[manager.end() :], level={"ERROR": 3, "WARNING": 4}.get(manager[1], 6))
    words, monotonic_ns, unix_seconds = _timed(line)
    if not words:
        return None
    return KernelMessage(words, level, facility, monotonic_ns=monotonic_ns, unix_seconds=unix_seconds)


def _timed(line: str) -> tuple[str, int | None, float | None]:
    """What follows `[   12.345678] ` or `[Sun Feb 23 16:24:18 2025] `, and what time it tells."""
    if (uptime := _UPTIME.match(line)) is not None:
        return line[uptime.end() :], int(uptime[1]) * 1_000_000_000 + int(uptime[2]) * 1000, None
    if (clock := _DMESG_TIME.match(line)) is not None:
        return line[clock.end() :], None, _seconds_of(" ".join(clock[1].split()), "%b %d %H:%M:%S %Y")
    return line, None, None


def _journal(line: str) -> KernelMessage | None:
    level = facility = None
    decoded = _DECODED.match(line)
    if decoded is not None and decoded[2] in _LEVELS and decoded[1] in _FACILITIES:
        facility, level, line = decoded[1], _LEVELS[decoded[2]], line[decoded.end() :]
    iso = _ISO.match(line)
    clock = iso or _SYSLOG_TIME.match(line)
    unix_seconds = None if iso is None else _iso_seconds(iso[1])
    if clock is not None:
        line = line[clock.end() :]
        speaker = None if level is not None else _SPEAKER.match(line)
        if speaker is not None and speaker[1] not in _SPEAKERS:
            return None
        line = line if speaker is None else line[speaker.end() :]
    words, monotonic_ns, told = _timed(line)
    if not words:
        return None
    return KernelMessage(
        words, level, facility, monotonic_ns=monotonic_ns, unix_seconds=unix_seconds if told is None else told
    )


def _facility(priority: int) -> str:
    number = priority >> 3
    return _FACILITIES[number] if number < len(_FACILITIES) else f"facility{number}"


def _iso_seconds(text: str) -> float | None:
    text = text.replace(",", ".")
    head, dot, tail = text.partition(".")
    if dot:  # Python 3.11 reads at most 6 digits
        digits = tail[: len(tail) - len(tail.lstrip("0123456789"))]
        text = f"{head}.{digits[:6].ljust(6, '0')}{tail[len(digits) :]}"
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def _seconds_of(text: str, form: str) -> float | None:
    try:
        return datetime.strptime(text, form).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
