"""A machine that tests look at: what a receiver would tell, look by look, and what the watch makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from observatory.anomalies.settings import WatchSettings
from observatory.anomalies.subjects import Subjects
from observatory.anomalies.watch import IncidentWatch
from observatory.model.incident import Incident, IncidentState
from observatory.model.observation import Address, AddressKind, HardwareEvent, Observation, Seen

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
SECOND_NS = 1_000_000_000
PERIOD_NS = SECOND_NS // 4

GPU = Address("n0", AddressKind.PCI, "0000:3b:00.0")
DISK = Address("n0", AddressKind.PCI, "0000:c3:00.0")
PORT = Address("n0", AddressKind.PORT, "mlx5_0/1")
NODE = Address("n0", AddressKind.NODE)


def nvlink(number: int, gpu: str = "0000:3b:00.0") -> Address:
    """One NVLink of a GPU."""
    return Address("n0", AddressKind.NVLINK, f"{gpu}/{number}")


class Feed:
    """A watch and a clock: `look` tells values and steps one polling period on."""

    def __init__(self, subjects: Subjects | None = None, settings: WatchSettings | None = None) -> None:
        self.watch = IncidentWatch(subjects, settings)
        self.now_ns = SECOND_NS
        self.changed: list[Incident] = []

    def value(
        self, subject: Address, metric: str, value: float | None, source: str = "nvml", **attributes: str
    ) -> Observation:
        """An observation now; dots of attribute names are written as two underscores."""
        named = {name.replace("__", "."): text for name, text in attributes.items()}
        return Observation(subject, metric, value, self.now_ns, source, named)

    def event(
        self, subject: Address, kind: str, text: str, code: str | None = None, **attributes: str
    ) -> HardwareEvent:
        """An event now."""
        return HardwareEvent(subject, kind, text, self.now_ns, "kmsg", code, attributes)

    def look(self, *seen: Seen, step_ns: int = PERIOD_NS) -> list[Incident]:
        """One batch; what changed."""
        changed = self.watch.see(seen, self.now_ns)
        self.changed += changed
        self.now_ns += step_ns
        return changed

    def wait(self, seconds: float) -> list[Incident]:
        """Time passes in which nothing is told."""
        self.now_ns += int(seconds * SECOND_NS)
        return self.look()

    @property
    def open(self) -> list[Incident]:
        """What is open now."""
        return self.watch.open

    def kinds(self) -> list[str]:
        """Kinds of what is open, without what concerns telemetry itself."""
        return sorted(i.kind for i in self.open if i.kind not in ("telemetry_lost", "node_silent"))


def opened(incidents: Sequence[Incident]) -> list[tuple[str, str]]:
    """Kind and subject of the open ones."""
    return [(i.kind, i.subject) for i in incidents if i.state is IncidentState.OPEN]
