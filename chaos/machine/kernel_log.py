"""The kernel log of the emulated machine: a pipe in the place of /dev/kmsg, with lines in its form.

Like the kernel's buffer it keeps the latest lines for who comes later, and drops the oldest when nobody reads. Form of
a line: Documentation/ABI/testing/dev-kmsg.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from enum import IntEnum
from pathlib import Path

from chaos.errors import CannotEmulate

_PIPE_BYTES = 1 << 16
_MOST_TRIES = 32


class Level(IntEnum):
    """The kernel's."""

    CRITICAL = 2
    ERROR = 3
    WARNING = 4
    INFO = 6


class KernelLog:
    """Lines for whoever reads the pipe at `path`. From one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sequence = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            os.mkfifo(path, 0o600)
            # For reading too: so it opens without a reader, and old lines can be taken out.
            self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise CannotEmulate(f"cannot be made: {error.strerror}", file=str(path)) from None

    def write(self, level: Level, text: str) -> None:
        """One message, as the kernel's own."""
        line = f"{int(level)},{self._sequence},{time.monotonic_ns() // 1000},-;{text}\n".encode()
        self._sequence += 1
        for _ in range(_MOST_TRIES):
            try:
                os.write(self._descriptor, line)
                return
            except OSError as error:
                if error.errno != errno.EAGAIN:
                    return
                with contextlib.suppress(OSError):  # full: nobody reads, and the oldest lines go
                    os.read(self._descriptor, _PIPE_BYTES // 2)

    def xid(self, bus_id: str, code: int, words: str) -> None:
        """An error of an NVIDIA GPU, as its driver writes it."""
        self.write(Level.ERROR, f"NVRM: Xid (PCI:{bus_id.rpartition('.')[0]}): {code}, {words}")

    def aer(self, bus_id: str, port: str | None, severity: str, layer: str) -> None:
        """A PCI Express error that a device reports: `Correctable`, `Uncorrectable (Non-Fatal)` or `(Fatal)`.

        Lines of drivers/pci/pcie/aer.c, Linux 6.12.
        """
        short = severity.partition(" ")[0]
        if port is not None:
            self.write(Level.INFO, f"pcieport {port}: AER: {severity} error message received from {bus_id}")
        level = Level.WARNING if short == "Correctable" else Level.ERROR
        agent = "Receiver ID" if short == "Correctable" else "Requester ID"
        self.write(level, f"pci {bus_id}: PCIe Bus Error: severity={severity}, type={layer}, ({agent})")

    def interface(self, name: str, state: str) -> None:
        """A network interface's link, as mlx5 writes it: `up` or `down`."""
        self.write(Level.INFO, f"mlx5_core: {name}: Link {state}")

    def close(self) -> None:
        """Remove the pipe. May be called twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self.path.unlink(missing_ok=True)
