"""What looks at the hardware under a platform: which machine, which receivers, and who is told of incidents."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos.machine.machine import EmulatedMachine
from dataplane.fabric import Fabric
from observatory.app.config.sections import OtlpSection, TelemetrySection
from observatory.app.errors import NotEmulated
from observatory.app.incident_log import IncidentLog
from observatory.app.telemetry import Look, Telemetry
from observatory.metrics.otlp import OtlpSeries
from observatory.model.incident import Incident, IncidentState
from observatory.model.topology import Topology
from observatory.topology.load import REAL

if TYPE_CHECKING:
    from observatory.export.otlp import OtlpExport

OF_THE_HOST = frozenset({"pressure", "ebpf-links", "endpoint"})
"""Receivers that look at this host also where the machine is emulated: it is what operators really run on."""

HOST_ROOT = Path("/")


class Hardware:
    """The machine, its receivers, and what keeps incidents. Begins to look when made; `close` it.

    Attributes:
        machine: the emulated one; None where the real one is looked at.
        topology: the platform's, with the addresses that the emulated machine made up for it.

    Args:
        choice: how the platform's topology was named.
        fabric: the links as they are emulated; None: nothing ever crosses them.
        say: told of incidents: words, and whether they are bad.
    """

    def __init__(
        self,
        section: TelemetrySection,
        otlp: OtlpSection,
        topology: Topology,
        choice: str | None,
        fabric: Fabric | None,
        state: Path,
        say: Callable[[str, bool], None],
    ) -> None:
        self._say = say
        self._stack = contextlib.ExitStack()
        self._told: set[str] = set()  # incidents that are open
        self.machine: EmulatedMachine | None = None
        self.topology = topology
        with contextlib.ExitStack() as stack:
            if is_emulated(section, topology, choice):
                self.machine = stack.enter_context(EmulatedMachine(topology, fabric, state / "run" / "machine"))
                self.topology = self.machine.topology
            self.log = IncidentLog(state, lambda words: say(words, True))
            self.log.start()
            stack.callback(self.log.close)
            self.telemetry = Telemetry(
                self.topology,
                _looks(section, self.topology, self.machine),
                emulated=self.machine is not None,
                period_seconds=section.period_seconds,
                on_incident=self._on_incident,
            )
            self._export = self._exporting(otlp, stack)
            stack.callback(self.telemetry.close)
            self.telemetry.start()
            self._stack = stack.pop_all()

    def _exporting(self, otlp: OtlpSection, stack: contextlib.ExitStack) -> OtlpExport | None:
        settings = otlp.settings()
        if settings is None:
            return None
        from observatory.export.otlp import OtlpExport  # takes a fifth of a second to import

        node = self.topology.nodes[0].id if self.topology.nodes else socket.gethostname()
        export = OtlpExport(settings, self.telemetry.values.series, node, version("media-observatory"))
        export.start()
        stack.callback(export.stop)
        return export

    def render(self, openmetrics: bool) -> str:
        """What `/metrics` shows of it."""
        text = self.telemetry.render(openmetrics)
        return text if self._export is None else text + OtlpSeries(self._export.status).render(openmetrics)

    def _on_incident(self, incident: Incident) -> None:
        """From the thread that delivers what receivers see: nothing here waits."""
        self.log.put(incident)
        if self._export is not None:
            self._export.incident(incident)
        if incident.state is IncidentState.CLOSED:
            self._told.discard(incident.id)
            self._say(f"over: {incident.words} ({incident.subject})", False)
        elif incident.id not in self._told:
            self._told.add(incident.id)
            self._say(f"{incident.severity}: {incident.words} ({incident.subject})", incident.severity != "info")

    @property
    def words(self) -> str:
        """What is looked at, in one line for people."""
        if self.machine is None:
            return "receivers look at this machine"
        name = self.topology.name or "the topology"
        return f"receivers look at an emulated {name}, which `observatory topology set` changes"

    @property
    def warnings(self) -> list[str]:
        """What somebody should know who looks at the platform."""
        status = None if self._export is None else self._export.status()
        found = [self.log.error, None if status is None else status.error]
        return [words for words in found if words is not None]

    def change(self, target: str, changes: Mapping[str, str]) -> dict[str, Any]:
        """Change a link or a device of the emulated machine; what it is then.

        Raises:
            NotEmulated: the real machine is looked at.
            MachineError: there is no such part, or it cannot be changed so.
        """
        if self.machine is None:
            raise NotEmulated(
                "the platform looks at the real machine, which no command changes",
                mend='start the platform on an emulated one: --topology FILE, or telemetry.machine = "emulated"',
            )
        return self.machine.set(target, changes)

    def close(self) -> None:
        """Stop looking, then switch the machine off."""
        self._stack.close()


def is_emulated(section: TelemetrySection, topology: Topology, choice: str | None) -> bool:
    """Whether the emulated machine of that topology is to be looked at."""
    if section.machine != "auto":
        return section.machine == "emulated"
    here = socket.gethostname()
    return choice != REAL and all(here not in (node.id, node.hostname) for node in topology.nodes)


def _looks(section: TelemetrySection, topology: Topology, machine: EmulatedMachine | None) -> list[Look]:
    options = {"endpoint": {"url": " ".join(section.endpoints)}}
    names = [*section.receivers, *(["endpoint"] if section.endpoints and "endpoint" not in section.receivers else [])]
    here = socket.gethostname()
    node = next((n.id for n in topology.nodes if here in (n.id, n.hostname)), None)
    if machine is None:
        own = node or (topology.nodes[0].id if topology.nodes else here)
        return [Look(own, HOST_ROOT, tuple(names), options)]
    of_host = tuple(name for name in names if name in OF_THE_HOST)
    of_machine = tuple(name for name in names if name not in OF_THE_HOST)
    return [
        Look(machine.node, machine.root, of_machine),
        Look(node or machine.node, HOST_ROOT, of_host, options),
    ]
