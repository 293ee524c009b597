"""Everything that `observatory up` looks at an emulated machine with: what is well is not reported, what is set is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.machine.machine import EmulatedMachine
from observatory.app.telemetry import Look, Telemetry
from observatory.model.incident import Incident
from observatory.model.link import LinkState
from observatory.topology.load import load_topology
from tests.machine.machines import fabric_of
from tests.receivers.waiting import wait_until

RECEIVERS = ("infiniband", "interfaces", "kmsg", "numa", "nvml", "nvml-events", "sysfs-pcie")
LATE = {"telemetry_lost", "node_silent"}  # of receivers that this host leaves waiting: no matter of the machine
BETWEEN_TWO_POLLS = {"telemetry_unreliable"}  # NVML has seen a change that sysfs was not asked for yet
POLLED = frozenset(RECEIVERS) - {"kmsg", "nvml-events"}


class Looked:
    def __init__(self, folder: Path) -> None:
        topology = load_topology()
        self.incidents: list[Incident] = []
        self.machine = EmulatedMachine(topology, fabric_of(topology), folder).start()
        self.telemetry = Telemetry(
            self.machine.topology,
            [Look(self.machine.node, self.machine.root, RECEIVERS)],
            emulated=True,
            period_seconds=0.1,
            on_incident=self.incidents.append,
        )
        self.telemetry.start()

    def wait_for_polls(self, count: int) -> None:
        """So many more of each receiver that polls."""
        began = {s.name: s.polls for s in self.telemetry.statuses()}

        def enough() -> bool:
            return all(s.polls >= began[s.name] + count for s in self.telemetry.statuses() if s.name in POLLED)

        wait_until(enough, "polls")

    def kinds_of(self, subject: str) -> set[str]:
        return {incident.kind for incident in self.incidents if incident.subject == subject}

    def close(self) -> None:
        self.telemetry.close()
        self.machine.close()


@pytest.fixture
def looked(tmp_path: Path) -> Iterator[Looked]:
    found = Looked(tmp_path / "machine")
    yield found
    found.close()


def test_a_machine_that_is_well_has_no_incident(looked: Looked) -> None:
    looked.wait_for_polls(5)
    assert [incident for incident in looked.incidents if incident.kind not in LATE] == []
    statuses = looked.telemetry.statuses()
    assert {s.name: s.state.value for s in statuses} == dict.fromkeys(RECEIVERS, "working")
    assert {s.name: dict(s.refused) for s in statuses} == {name: {} for name in RECEIVERS}
    links = looked.telemetry.topology().links
    assert not [link.id for link in links if link.state in (LinkState.DEGRADED, LinkState.DOWN)]


def test_what_is_set_becomes_an_incident_of_that_part(looked: Looked) -> None:
    looked.wait_for_polls(2)
    nvlink, bus = "n0/gpu0--n0/nvswitch0:nvlink", "n0/gpu1--n0/pcie0:pcie"
    looked.machine.set("gpu0-nvswitch0", {"width": "8"})
    looked.machine.set("gpu1-pcie0", {"width": "4"})
    looked.machine.set("gpu3", {"lost": "yes"})
    wait_until(lambda: looked.kinds_of(nvlink) == {"nvlink_degraded"}, "the NVLinks")
    wait_until(lambda: looked.kinds_of(bus) == {"pcie_downtrained"}, "the bus")
    wait_until(lambda: looked.kinds_of("n0/gpu3") == {"gpu_lost"}, "the GPU")
    links = {link.id: link for link in looked.telemetry.topology().links}
    assert (links[nvlink].width, links[bus].width) == (8, 4)
    looked.wait_for_polls(2)
    told = {i.subject for i in looked.incidents if i.kind not in LATE | BETWEEN_TWO_POLLS}
    assert told == {nvlink, bus, "n0/gpu3"}


def test_a_lost_gpu_has_no_links_until_it_answers_again(looked: Looked) -> None:
    def states() -> set[LinkState]:
        links = looked.telemetry.topology().links
        return {link.state for link in links if "n0/gpu3" in (link.a, link.b)}

    def all_down() -> bool:
        return states() == {LinkState.DOWN}

    looked.wait_for_polls(2)
    before = states()
    assert LinkState.DOWN not in before
    looked.machine.set("gpu3", {"xid": "79", "lost": "yes"})
    wait_until(all_down, "its links")
    others = [x.state for x in looked.telemetry.topology().links if "n0/gpu3" not in (x.a, x.b)]
    assert LinkState.DOWN not in others
    looked.machine.set("gpu3", {"lost": "no"})
    wait_until(lambda: states() == before, "its links to be back")


def test_nvlinks_carry_what_the_data_sheet_says(looked: Looked) -> None:
    """NVML tells 26.562 GB/s of each: the live topology has 18 of 25 GB/s, as `topology set` says."""
    looked.wait_for_polls(2)
    nvlink = next(x for x in looked.telemetry.topology().links if x.id == "n0/gpu0--n0/nvswitch0:nvlink")
    assert (nvlink.width, nvlink.bandwidth_bytes_per_second, nvlink.state) == (18, 450e9, LinkState.UP)
