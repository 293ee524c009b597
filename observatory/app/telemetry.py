"""Receivers of one platform, and what is made of what they see: the live topology, incidents, the latest values.

Receivers deliver from one thread, which feeds all three in turn; whoever asks gets what is known then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from observatory.anomalies.subjects import TopologySubjects
from observatory.anomalies.watch import IncidentWatch
from observatory.metrics.hardware import LatestValues
from observatory.metrics.incidents import IncidentSeries
from observatory.metrics.receivers import ReceiverSeries
from observatory.model.incident import Incident
from observatory.model.observation import Address, Seen
from observatory.model.status import ReceiverBrief, TelemetryStatus
from observatory.model.topology import Topology
from observatory.receivers.discovery import discover
from observatory.receivers.runner import Runner, Settings
from observatory.receivers.status import ReceiverState, ReceiverStatus
from observatory.topology.addresses import AddressBook
from observatory.topology.live import LiveTopology

MOST_SHOWN = 50  # open incidents in one snapshot
QUIET_SECONDS = 0.5  # how long nothing may be seen until the watch is told of the time
END_SECONDS = 5.0  # for who may wait for a disk that hangs
STALE_SECONDS = 30.0  # how long a value is shown that nobody has seen again


@dataclass(frozen=True, slots=True)
class Look:
    """What looks at one machine: receivers by name, which node that is, and what stands before /sys and /proc."""

    node: str
    root: Path
    receivers: tuple[str, ...]
    options: Mapping[str, dict[str, str]] = field(default_factory=dict)


class Telemetry:
    """Runs receivers from `start` to `close`. Any thread may ask.

    Args:
        topology: what the receivers look at, as it was described.
        looks: who looks where.
        emulated: what they look at is the emulated machine.
        period_seconds: between two polls; None: each receiver's own.
        on_incident: told of each that opened, changed or closed, from the thread that delivers; it must not wait.
    """

    def __init__(
        self,
        topology: Topology,
        looks: Sequence[Look],
        *,
        emulated: bool,
        period_seconds: float | None,
        on_incident: Callable[[Incident], None],
    ) -> None:
        self.emulated = emulated
        self.on_incident = on_incident
        self._lock = threading.Lock()  # the watch and the live topology
        self._live = LiveTopology(topology)
        book = AddressBook(topology)
        self._watch = IncidentWatch(TopologySubjects(topology, book), unix_at_zero=time.time() - time.monotonic())
        stale = max(STALE_SECONDS, 3 * (period_seconds or 0.0))
        self.values = LatestValues(stale, lambda address: _place(book, address))
        self.incidents = IncidentSeries()
        self._last_ns = time.monotonic_ns()
        self._stopping = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="telemetry-clock", daemon=True)
        self._broken: list[ReceiverStatus] = []
        self._runners = [self._runner(look, period_seconds) for look in looks]
        self.receivers = ReceiverSeries(self.statuses)

    def _runner(self, look: Look, period_seconds: float | None) -> Runner:
        found = discover(look.receivers)
        missing = {name: "there is no such receiver" for name in look.receivers if name not in found.receivers}
        for name, reason in (missing | found.broken).items():
            self._broken.append(_unusable(name, reason))
        settings = {
            name: Settings(period_seconds=period_seconds, options=look.options.get(name, {}))
            for name in found.receivers
        }
        return Runner(found.receivers, look.node, self._deliver, root=look.root, settings=settings)

    def start(self) -> None:
        """Begin to look; returns at once."""
        for runner in self._runners:
            runner.start()
        self._ticker.start()

    def close(self) -> tuple[str, ...]:
        """End all receivers. Returns those that hang and were left behind."""
        self._stopping.set()
        left = [name for runner in self._runners for name in runner.stop()]
        if self._ticker.is_alive():
            self._ticker.join(END_SECONDS)
        return tuple(left)

    # -- what is seen ----------------------------------------------------------------------------------------------

    def _deliver(self, _receiver: str, batch: Sequence[Seen]) -> None:
        self.values.see(batch)
        self._see(batch)

    def _see(self, batch: Sequence[Seen]) -> None:
        with self._lock:
            self._last_ns = time.monotonic_ns()
            self._live.apply(batch)
            for incident in self._watch.see(batch, self._last_ns):
                self.incidents.see(incident)
                self.on_incident(incident)  # under the lock: so that they come in their order

    def _tick(self) -> None:
        """Silence is noticed only when somebody looks."""
        while not self._stopping.wait(QUIET_SECONDS):
            if time.monotonic_ns() - self._last_ns > QUIET_SECONDS * 1e9:
                self._see(())

    # -- what is known ---------------------------------------------------------------------------------------------

    def statuses(self) -> list[ReceiverStatus]:
        """How each receiver fares, those that cannot be used at all too."""
        return [*(status for runner in self._runners for status in runner.statuses()), *self._broken]

    def topology(self) -> Topology:
        """The topology with what is known of its links now."""
        with self._lock:
            return self._live.snapshot()

    def status(self) -> TelemetryStatus:
        """For the snapshot."""
        with self._lock:
            found, version = self._watch.open, self._live.version
        return TelemetryStatus(
            emulated=self.emulated,
            receivers=tuple(map(_brief, self.statuses())),
            topology_version=version,
            incidents_open=len(found),
            incidents=tuple(found[:MOST_SHOWN]),
        )

    def render(self, openmetrics: bool) -> str:
        """Hardware series, incidents and receivers for /metrics, without an end mark."""
        return "".join(part.render(openmetrics) for part in (self.values, self.incidents, self.receivers))


def _place(book: AddressBook, address: Address) -> tuple[str, str] | None:
    found = book.place(address)
    return None if found is None else (str(found.kind), found.id)


def _unusable(name: str, reason: str) -> ReceiverStatus:
    return ReceiverStatus(
        name=name,
        state=ReceiverState.UNAVAILABLE,
        reason=reason,
        mend="name one of those that `observatory doctor` lists",
        period_seconds=None,
        stale=True,
        age_seconds=None,
        polls=0,
        failures=0,
        timeouts=0,
        seconds=0.0,
        cpu_seconds=0.0,
        observations=0,
        events=0,
        refused={},
        dropped=0,
        lost=0,
    )


def _brief(status: ReceiverStatus) -> ReceiverBrief:
    return ReceiverBrief.model_validate(
        {name: getattr(status, name) for name in ReceiverBrief.model_fields} | {"state": str(status.state)}
    )
