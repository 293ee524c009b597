"""Pressure stall information: the share of time that tasks waited for processors, memory or disks.

    /proc/pressure/{cpu,memory,io,irq}, and with the option `cgroup` = PATH that control group's cpu.pressure, ... too

    some avg10=80.77 avg60=25.33 avg300=13.46 total=8135352834

`some`: at least one task waited; `full`: all that were not idle did. Averages are percents, the total microseconds
(Documentation/accounting/psi.rst).
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from observatory.model.observation import Address, AddressKind, Observation, Seen
from observatory.receivers.errors import ReceiverFailed, ReceiverUnavailable
from observatory.receivers.polled_files import PolledFile, PolledFiles
from observatory.receivers.protocol import ReceiverContext

_RESOURCES = ("cpu", "memory", "io", "irq")
_WINDOWS = ("10s", "60s", "300s")
_LINE = re.compile(
    rb"^(some|full) avg10=(\d{1,3}\.\d{1,4}) avg60=(\d{1,3}\.\d{1,4}) avg300=(\d{1,3}\.\d{1,4}) total=(\d{1,20})$",
    re.MULTILINE,
)


@dataclass(slots=True)
class _Source:
    file: PolledFile
    attributes: dict[str, str]  # the resource, and the control group of one


class Pressure:
    """The stalls of one machine, and of one control group."""

    name: ClassVar[str] = "pressure"
    period_seconds: ClassVar[float] = 1.0

    def __init__(self) -> None:
        self._files: PolledFiles | None = None
        self._sources: list[_Source] = []

    async def open(self, context: ReceiverContext) -> None:
        """Find the files."""
        self._subject = Address(context.node, AddressKind.NODE)
        files = self._files = PolledFiles(context.root)
        self._add(files, "proc/pressure", "", {})
        cgroup = context.options.get("cgroup")
        if cgroup is not None:
            self._add(files, _below(context.root, cgroup), ".pressure", {"cgroup": cgroup})
        if not self._readable():
            raise ReceiverUnavailable(
                f"{context.root / 'proc/pressure'} tells nothing",
                mend="start the kernel with psi=1 (CONFIG_PSI_DEFAULT_DISABLED), or one with CONFIG_PSI",
            )

    async def poll(self) -> Sequence[Seen]:
        """Every resource's averages and totals."""
        seen: list[Seen] = []
        for source in self._sources:
            data = source.file.read() or b""
            now_ns = time.monotonic_ns()
            for scope, averages, total in stalls(data):
                told = {**source.attributes, "scope": scope}
                seen += [
                    Observation(self._subject, "node.pressure", share, now_ns, self.name, {**told, "window": window})
                    for window, share in zip(_WINDOWS, averages, strict=True)
                ]
                seen.append(Observation(self._subject, "node.stalled", total, now_ns, self.name, told))
        if not seen:
            raise ReceiverFailed("/proc/pressure tells nothing any more")
        return seen

    async def close(self) -> None:
        """Close the files."""
        if self._files is not None:
            self._files.close()
            self._files = None
        self._sources = []

    def _add(self, files: PolledFiles, folder: str, suffix: str, attributes: dict[str, str]) -> None:
        for resource in _RESOURCES:
            file = files.existing(f"{folder}/{resource}{suffix}")
            if file is not None:
                self._sources.append(_Source(file, {"resource": resource, **attributes}))

    def _readable(self) -> bool:
        """The files are there on a kernel that has it switched off too, and answer with an error."""
        return any(stalls(source.file.read() or b"") for source in self._sources)


def stalls(data: bytes) -> list[tuple[str, tuple[float, float, float], float]]:
    """Of each line the scope, the shares of the last 10, 60 and 300 s, and the seconds since the start."""
    return [
        (m[1].decode(), (float(m[2]) / 100, float(m[3]) / 100, float(m[4]) / 100), int(m[5]) / 1e6)
        for m in _LINE.finditer(data)
    ]


def _below(root: Path, cgroup: str) -> str:
    """The folder of a control group relative to the root. Raises ReceiverUnavailable where it leads out of it."""
    base = root / "sys/fs/cgroup"
    folder = (base / cgroup.lstrip("/")).resolve()
    if not folder.is_relative_to(base.resolve()):
        raise ReceiverUnavailable(f"{cgroup!r} is no control group", mend="give its path below /sys/fs/cgroup")
    return f"sys/fs/cgroup/{folder.relative_to(base.resolve())}"
