"""Whether each receiver works on this machine: the runner that runs them for real opens and polls each once."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path

from observatory.app.doctor import Finding
from observatory.model.observation import Seen
from observatory.receivers.discovery import discover
from observatory.receivers.runner import Limits, Runner, Settings
from observatory.receivers.status import ReceiverState, ReceiverStatus

_LONGEST_SECONDS = 8.0
_ONE_LOOK = Settings(limits=Limits(open_seconds=5.0, poll_seconds=5.0, unavailable_seconds=600.0))
_UNDECIDED = (ReceiverState.STARTING, ReceiverState.HANGING)


def check_receivers(but: Collection[str] = ()) -> dict[str, Finding]:
    """What each receiver that is installed finds here, by name, but for those named; broken plug-ins too."""
    found = discover(but=but)
    seen: defaultdict[str, list[Seen]] = defaultdict(list)

    def take(name: str, batch: Sequence[Seen]) -> None:
        seen[name] += batch

    settings = dict.fromkeys(found.receivers, _ONE_LOOK)
    runner = Runner(found.receivers, "here", take, root=_root(), settings=settings)
    runner.start()
    try:
        deadline = time.monotonic() + _LONGEST_SECONDS
        while any(s.state in _UNDECIDED for s in runner.statuses()) and time.monotonic() < deadline:
            time.sleep(0.01)
        statuses = runner.statuses()
    finally:
        runner.stop(1.0)
    broken = {
        name: Finding(works=False, reason=reason, mend="reinstall or remove the plug-in")
        for name, reason in found.broken.items()
    }
    return {status.name: _finding(status, seen[status.name]) for status in statuses} | broken


def _finding(status: ReceiverStatus, seen: Sequence[Seen]) -> Finding:
    if status.state is not ReceiverState.WORKING:
        reason = status.reason or "it did not answer in time"
        return Finding(works=False, reason=reason, mend=status.mend)
    nonsense = sum(status.refused.values())
    refused = f"; {nonsense} of what it told made no sense ({', '.join(sorted(status.refused))})" if nonsense else ""
    if status.period_seconds is None:
        return Finding(works=True, reason=f"opened it, and hears what it tells from now on{refused}")
    told = [one for one in seen if getattr(one, "value", 0) is not None]
    subjects = len({one.subject for one in seen})
    milliseconds = status.cpu_seconds / max(1, status.polls) * 1e3
    words = f"read {len(told)} values of {subjects} part(s) of it in {milliseconds:.1f} ms of processor time"
    unknown = f"; {len(seen) - len(told)} not known" if len(seen) > len(told) else ""
    return Finding(works=True, reason=f"{words}{unknown}{refused}")


def _root() -> Path:
    """What stands before /sys: SYSFS_ROOT may name the /sys of a recorded or emulated machine."""
    sysfs = Path(os.environ.get("SYSFS_ROOT", "/sys"))
    return sysfs.parent if sysfs.name == "sys" else Path("/")
