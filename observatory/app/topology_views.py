"""A topology looked at again and again: each view with what has changed since the one before.

`observatory topology watch` draws views and cares not where they are from: from a platform or a description that is
asked again (`views_of_readings`), or from what receivers see (`views_of_batches`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from observatory.app.control import ControlClient
from observatory.app.errors import NotRunning
from observatory.app.state_lock import platform_socket
from observatory.model.observation import Seen
from observatory.model.topology import Topology
from observatory.topology.diff import Change, ChangeKind, compare
from observatory.topology.errors import BadTopology
from observatory.topology.live import LinkChange, LiveTopology
from observatory.topology.load import REAL, load_topology, shipped_names

ASK_SECONDS = 10.0
LIVE = "live"
"""Name of the topology that a running platform keeps up to date."""


@dataclass(frozen=True, slots=True)
class View:
    """A topology at a moment (seconds since 1970), and what has changed since the view before."""

    topology: Topology
    changes: tuple[Change, ...]
    at: float


def platform_reading(state: Path) -> Callable[[], Topology]:
    """Asks the platform that runs on this state directory for its live topology. Raises NotRunning."""
    client = ControlClient(platform_socket(state))
    return lambda: Topology.model_validate(client.ask("topology", timeout_seconds=ASK_SECONDS))


def chosen_topology(choice: str, state: Path) -> Topology:
    """What `choice` names: `live`, the topology of the platform on this state directory; what `load_topology` knows;
    or one that `topology import --save` stored there.

    Raises NotRunning, BadTopology, MachineUnreadable.
    """
    if choice == LIVE:
        return platform_reading(state)()
    if choice in (REAL, *shipped_names()) or Path(choice).exists():
        return load_topology(choice)
    folder = state / "topologies"
    stored = {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    if choice in stored:
        return load_topology(stored[choice])
    try:
        return load_topology(choice)
    except BadTopology as error:
        more = "" if not stored else f"; stored in {folder}: {', '.join(stored)}"
        raise BadTopology(error.message, file=choice, mend=f"{error.mend or ''}{more}") from None


def live_or_real(state: Path) -> tuple[Topology, str]:
    """The topology of the platform that runs on this state directory, without one this machine; and which it is."""
    try:
        return platform_reading(state)(), "the live topology of the running platform"
    except NotRunning:
        return load_topology(REAL), "this machine"


def views_of_readings(
    read: Callable[[], Topology],
    interval_seconds: float,
    duration_seconds: float | None,
    sleep: Callable[[float], None] | None = None,
) -> Iterator[View]:
    """Read a topology every so often, for a time or for ever. Raises what `read` raises."""
    before = read()
    yield View(before, (), time.time())
    began = due = time.monotonic()
    while duration_seconds is None or due + interval_seconds - began <= duration_seconds:
        due = max(due + interval_seconds, time.monotonic())
        (sleep or time.sleep)(max(0.0, due - time.monotonic()))
        now = read()
        yield View(now, compare(before, now), time.time())
        before = now


def views_of_batches(live: LiveTopology, batches: Iterable[Sequence[Seen]]) -> Iterator[View]:
    """Put what receivers see into a live topology, batch by batch."""
    version = live.version
    yield View(live.snapshot(), (), time.time())
    for batch in batches:
        live.apply(batch)
        changes = tuple(map(_change, live.changes(version)))
        version = live.version
        yield View(live.snapshot(), changes, time.time())


def _change(change: LinkChange) -> Change:
    return Change(ChangeKind.CHANGED, "link", change.link, change.name, change.before, change.after)
