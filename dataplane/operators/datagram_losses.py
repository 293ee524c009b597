"""What the kernel threw away because this process did not read its sockets in time, and whether it could help it."""

from __future__ import annotations

import re
import time
from pathlib import Path

from dataplane.operators.addresses import RECEIVE_BUFFER_BYTES

EVERY_SECONDS = 1.0
_TABLES = ("/proc/self/net/udp", "/proc/self/net/udp6")
_LIMIT = "/proc/sys/net/core/rmem_max"
ENOUGH_BYTES = RECEIVE_BUFFER_BYTES // 2  # a second of 10 Mbit/s; the kernel counts a datagram twice and more


def small_buffer_warning() -> str | None:
    """Words for people where the kernel's receive buffers are too small for a live source."""
    try:
        limit = int(Path(_LIMIT).read_text())
    except (OSError, ValueError):
        return None
    if limit >= ENOUGH_BYTES:
        return None
    return (
        f"the kernel keeps at most {limit} bytes of what comes over the network: a busy machine loses datagrams; "
        f"sysctl -w net.core.rmem_max={RECEIVE_BUFFER_BYTES}"
    )


class DatagramLosses:
    """Watches the datagrams that the kernel dropped on this process's own UDP sockets."""

    def __init__(self) -> None:
        self._looked = time.monotonic()
        self._dropped = 0
        self._told = 0

    def news(self) -> str | None:
        """Words for people about new losses, at most once for each power of two; looks once in EVERY_SECONDS."""
        if time.monotonic() - self._looked < EVERY_SECONDS:
            return None
        self._looked = time.monotonic()
        self._dropped = max(self._dropped, dropped_datagrams())
        if self._dropped < max(1, 2 * self._told):
            return None
        self._told = self._dropped
        return f"{self._dropped} datagrams of the source were lost in this machine: it is too busy to read them in time"


def dropped_datagrams() -> int:
    """Datagrams dropped on the UDP sockets that this process has open now."""
    mine = _own_sockets()
    return sum(drops for inode, drops in _drops() if inode in mine)


def _own_sockets() -> set[str]:
    found = set()
    for fd in Path("/proc/self/fd").iterdir():
        try:
            target = str(fd.readlink())
        except OSError:
            continue  # closed meanwhile
        if inode := re.fullmatch(r"socket:\[(\d+)\]", target):
            found.add(inode[1])
    return found


def _drops() -> list[tuple[str, int]]:
    """(inode, drops) of every UDP socket of this network namespace."""
    found = []
    for table in _TABLES:
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if len(fields) > 12:
                found.append((fields[9], int(fields[12])))
    return found
