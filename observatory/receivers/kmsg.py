"""The kernel's log as it is written: /dev/kmsg, each record as soon as it is there.

The records from before are passed over, unless the option `since` is `boot`. What the kernel overwrote before it was
read is counted in `lost`: it says so itself (EPIPE), and its numbers have gaps. Only root, or CAP_SYSLOG where
kernel.dmesg_restrict is set, may read it. In an emulated machine a pipe may be in its place, or a file that grows,
which is looked at every 20 ms: both give lines instead of records.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from observatory.model.observation import HardwareEvent, Seen
from observatory.receivers.errors import ReceiverFailed, ReceiverUnavailable
from observatory.receivers.kernel_log import Recogniser
from observatory.receivers.kernel_log_lines import KernelMessage, parse_record
from observatory.receivers.protocol import ReceiverContext

_RECORD_BYTES = 8192  # of /dev/kmsg; a shorter buffer makes the read fail
_PIPE_BYTES = 1 << 16
_LONGEST_LINE = 1 << 14
_MOST_AT_ONCE = 512  # records between two deliveries, however fast they come
_FILE_SECONDS = 0.02
_CLOCKS_APART_NS = 1_000_000_000  # the log's clock and CLOCK_MONOTONIC drift apart, by little in weeks


class Kmsg:
    """The kernel's log of one machine."""

    name: ClassVar[str] = "kmsg"

    def __init__(self) -> None:
        self.lost = 0
        self.records = 0
        self._descriptor = -1
        self._kind = stat.S_IFCHR
        self._waiting: list[bytes] = []
        self._rest = b""
        self._last: int | None = None
        self._is_live = False  # everything from before is read

    async def open(self, context: ReceiverContext) -> None:
        """Open it at its end."""
        path = context.root / "dev/kmsg"
        self._recogniser = Recogniser(context.node, self.name)
        try:
            self._kind = stat.S_IFMT(path.stat().st_mode)
            if self._kind not in (stat.S_IFCHR, stat.S_IFIFO, stat.S_IFREG):
                raise ReceiverUnavailable(f"{path} is neither a device nor a pipe nor a file")
            # A pipe is opened for writing too: it then has no end when a writer goes.
            access = os.O_RDWR if self._kind == stat.S_IFIFO else os.O_RDONLY
            self._descriptor = os.open(path, access | os.O_NONBLOCK | os.O_CLOEXEC)
            self._is_live = context.options.get("since") != "boot"
            if self._kind != stat.S_IFIFO:
                os.lseek(self._descriptor, 0, os.SEEK_END if self._is_live else os.SEEK_SET)
            if self._kind == stat.S_IFCHR:
                self._waiting = self._read_device()  # a kernel that lets nobody read says so only now
        except OSError as error:
            raise ReceiverUnavailable(f"{path}: {error.strerror}", mend=_mend(path, error)) from error

    async def events(self) -> AsyncIterator[Sequence[Seen]]:
        """What the log says of hardware."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        if self._kind != stat.S_IFREG:
            loop.add_reader(self._descriptor, readable.set)
        try:
            while True:
                found = self._read()
                if found:
                    yield found
                elif found is not None:
                    await asyncio.sleep(0)
                elif self._kind == stat.S_IFREG:
                    await asyncio.sleep(_FILE_SECONDS)
                else:
                    readable.clear()
                    await readable.wait()
        finally:
            with suppress(OSError, ValueError):
                loop.remove_reader(self._descriptor)

    async def close(self) -> None:
        """Close it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    # -- reading ---------------------------------------------------------------------------------------------------

    def _read(self) -> list[Seen] | None:
        """The events of what is there now; None where nothing is."""
        records = self._waiting or (self._read_device() if self._kind == stat.S_IFCHR else self._read_lines())
        self._waiting = []
        if not records:
            self._is_live = True
            return None
        seen: list[Seen] = []
        for record in records:
            self.records += 1
            event = self._event(parse_record(record))
            if event is not None:
                seen.append(event)
        return seen

    def _read_device(self) -> list[bytes]:
        records: list[bytes] = []
        while len(records) < _MOST_AT_ONCE:
            try:
                records.append(os.read(self._descriptor, _RECORD_BYTES))
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten: the next read gives the oldest that is left
                    continue
                raise ReceiverFailed(f"the kernel's log cannot be read any more: {error.strerror}") from error
        return records

    def _read_lines(self) -> list[bytes]:
        try:
            data = os.read(self._descriptor, _PIPE_BYTES)
        except BlockingIOError:
            return []
        if (
            not data
            and self._kind == stat.S_IFREG
            and os.lseek(self._descriptor, 0, os.SEEK_CUR) > _size(self._descriptor)
        ):
            os.lseek(self._descriptor, 0, os.SEEK_SET)  # somebody began it anew
        data = self._rest + data
        *lines, self._rest = data.split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            self._rest = b""
            self.lost += 1
        return lines

    def _event(self, message: KernelMessage | None) -> HardwareEvent | None:
        if message is None:
            return None
        now_ns = time.monotonic_ns()
        if message.sequence is not None:
            if self._last is not None and message.sequence > self._last + 1:
                self.lost += message.sequence - self._last - 1
            self._last = message.sequence
        event = self._recogniser.feed(message, now_ns)
        if event is None:
            return None
        too_old = self._is_live and now_ns - event.at_ns > _CLOCKS_APART_NS
        return replace(event, at_ns=now_ns) if too_old or event.at_ns > now_ns else event


def _size(descriptor: int) -> int:
    return os.fstat(descriptor).st_size


def _mend(path: Path, error: OSError) -> str:
    if error.errno in (errno.EPERM, errno.EACCES):
        return "run as root, give the capability CAP_SYSLOG, or sysctl kernel.dmesg_restrict=0"
    return f"make {path} (mknod -m 600 {path} c 1 11); a container often has none"
