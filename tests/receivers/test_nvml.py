"""The NVML receiver on emulated machines. It has never run on real GPUs: there are none where these tests run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from chaos.machine.machine import EmulatedMachine
from dataplane.fabric import Fabric
from observatory.model.hardware_metrics import METRICS
from observatory.model.observation import AddressKind, HardwareEvent, Observation, Seen
from observatory.receivers.errors import ReceiverFailed, ReceiverUnavailable
from observatory.receivers.nvml import Nvml
from observatory.receivers.nvml_events import NvmlEvents
from observatory.receivers.nvml_library import pci_key
from observatory.receivers.protocol import EventReceiver, Receiver, ReceiverContext
from observatory.topology.load import load_topology
from tests.machine.machines import NVLINK, fabric_of, move, two_gpus

Result = TypeVar("Result")


def run(call: Coroutine[Any, Any, Result]) -> Result:
    """In a thread of its own: behind the last test of a process the main one may have a loop (tests/conftest.py)."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, asyncio.wait_for(call, 60)).result()


class Watched:
    """A machine and a receiver that was opened on it."""

    def __init__(self, machine: EmulatedMachine, fabric: Fabric) -> None:
        self.machine = machine
        self.fabric = fabric
        self.receiver = Nvml()
        run(self.receiver.open(ReceiverContext(machine.node, machine.root)))
        self.first = list(self.poll())

    def poll(self) -> Sequence[Seen]:
        return run(self.receiver.poll())

    def values(self, metric: str, kind: AddressKind, key: str) -> list[float | None]:
        """Of one poll."""
        seen = [o for o in self.poll() if isinstance(o, Observation) and o.metric == metric]
        return [o.value for o in seen if o.subject.kind is kind and o.subject.key == key]

    def bus_id(self, device: str) -> str:
        found = self.machine.topology.device(device)
        assert found is not None
        return str(found.pci_bus_id)


@pytest.fixture
def a100s(tmp_path: Path) -> Iterator[Watched]:
    yield from watched(tmp_path, two_gpus())


@pytest.fixture
def h100s(tmp_path: Path) -> Iterator[Watched]:
    yield from watched(tmp_path, load_topology())


def watched(folder: Path, topology: Any) -> Iterator[Watched]:
    fabric = fabric_of(topology)
    with EmulatedMachine(topology, fabric, folder / "machine") as machine:
        found = Watched(machine, fabric)
        yield found
        run(found.receiver.close())


def test_it_is_a_receiver() -> None:
    assert isinstance(Nvml(), Receiver)
    assert isinstance(NvmlEvents(), EventReceiver)


def test_it_measures_only_what_has_a_name_and_an_address(h100s: Watched) -> None:
    for seen in [*h100s.first, *h100s.poll()]:
        assert seen.source == "nvml"
        assert seen.subject.node == "n0"
        if isinstance(seen, Observation):
            assert seen.metric in METRICS
            assert {name for name in seen.attributes if name != "link.peer"} <= set(METRICS[seen.metric].attributes)


def test_values_are_in_the_units_of_their_metrics(h100s: Watched) -> None:
    h100s.machine.set(
        "gpu0",
        {"temperature": "71", "power": "512W", "utilization": "83", "decoder": "12", "memory": "20GB", "clock": "1755"},
    )
    key = h100s.bus_id("n0/gpu0")
    values = {
        (o.metric, *sorted(o.attributes.values())): o.value
        for o in h100s.poll()
        if isinstance(o, Observation) and o.subject.key == key
    }
    assert values["hw.temperature", "gpu"] == 71
    assert values["hw.temperature", "memory"] == 48
    assert values["hw.power",] == 512
    assert values["hw.gpu.utilization", "general"] == 0.83
    assert values["hw.gpu.utilization", "decoder"] == 0.12
    assert values["hw.gpu.memory.limit",] == 80e9
    assert values["hw.gpu.memory.usage",] == 20e9
    assert values["gpu.clock", "sm"] == 1755e6
    assert values["link.width",] == 16
    assert values["link.width.best",] == 16
    assert values["link.speed",] == 32e9
    assert values["hw.status", "ok"] == 1
    assert values["hw.status", "failed"] == 0


def test_nvlinks_that_are_lost_are_counted_towards_their_peer(h100s: Watched) -> None:
    h100s.machine.set("gpu2-nvswitch0", {"width": "8"})
    gpu = h100s.bus_id("n0/gpu2")
    switch = next(v.pci_bus_id for v in h100s.machine.topology.vertices if v.kind == "nvswitch")
    values = {
        (o.subject.key, o.metric): o.value
        for o in [*h100s.first, *h100s.poll()]
        if isinstance(o, Observation) and o.subject.kind is AddressKind.NVLINK
    }
    assert values[f"{gpu}/{switch}", "link.width"] == 8
    assert values[f"{gpu}/{switch}", "link.width.best"] == 18
    assert (values[f"{gpu}/7", "link.up"], values[f"{gpu}/8", "link.up"]) == (1, 0)
    assert (values[f"{gpu}/7", "link.bandwidth"], values[f"{gpu}/8", "link.bandwidth"]) == (26562e6, 0)
    assert values[f"{h100s.bus_id('n0/gpu3')}/{switch}", "link.width"] == 18


def test_every_nvlink_names_its_peer(a100s: Watched) -> None:
    gpus = [a100s.bus_id(f"n0/gpu{n}") for n in range(2)]
    peers = {
        (o.subject.key.partition("/")[0], o.attributes.get("link.peer"))
        for o in a100s.poll()
        if isinstance(o, Observation) and o.subject.kind is AddressKind.NVLINK
    }
    assert peers == {(gpus[0], gpus[1]), (gpus[1], gpus[0])}


def is_error(seen: Seen) -> bool:
    return isinstance(seen, Observation) and seen.metric == "link.errors" and bool(seen.value)


def test_counters_of_bytes_and_errors_are_given_as_read(a100s: Watched) -> None:
    gpu = a100s.bus_id("n0/gpu0")
    size = 120 << 20
    move(a100s.fabric, NVLINK, size)
    a100s.machine.set("gpu0-gpu1", {"errors": "5", "replays": "2"})
    seen = [*a100s.poll()]
    for _ in range(100):  # where calls are slow, each poll reads a part of the errors
        seen += a100s.poll()
        if len({o.attributes.get("error.type") for o in seen if o.subject.key == f"{gpu}/0" and is_error(o)}) == 2:
            break
    sent = [
        o.value or 0
        for o in a100s.poll()
        if isinstance(o, Observation)
        and o.metric == "link.io"
        and o.subject.key.startswith(f"{gpu}/")
        and o.attributes["network.io.direction"] == "transmit"
    ]
    assert len(sent) == 12
    assert sum(sent) == pytest.approx(size * a100s.fabric.time_scale, rel=1e-3)
    errors = {
        o.attributes["error.type"]: o.value
        for o in [*a100s.first, *seen]
        if isinstance(o, Observation) and o.metric == "link.errors" and o.subject.key == f"{gpu}/0"
    }
    assert errors == {"crc_flit": 5, "replay": 2, "crc_data": 0, "recovery": 0, "ecc_data": 0}


def test_errors_that_do_not_change_are_told_rarely(h100s: Watched) -> None:
    def errors(seen: Sequence[Seen]) -> dict[tuple[str, str], float | None]:
        return {
            (o.subject.key, o.attributes["error.type"]): o.value
            for o in seen
            if isinstance(o, Observation) and o.metric == "link.errors" and o.subject.kind is AddressKind.NVLINK
        }

    every = errors(h100s.first)
    assert len(every) == 8 * 18 * 5
    assert set(every.values()) == {0}
    h100s.machine.set("gpu4-nvswitch0", {"errors": "9", "recoveries": "1"})
    gpu = h100s.bus_id("n0/gpu4")
    told = errors(h100s.poll())
    assert {key: value for key, value in told.items() if value} == {
        (f"{gpu}/0", "crc_flit"): 9,
        (f"{gpu}/0", "recovery"): 1,
    }


def test_throttling_is_told_by_reason(h100s: Watched) -> None:
    h100s.machine.set("gpu0", {"throttle": "thermal"})
    key = h100s.bus_id("n0/gpu0")
    reasons = {
        o.attributes["reason"]: o.value
        for o in h100s.poll()
        if isinstance(o, Observation) and o.metric == "gpu.throttled" and o.subject.key == key
    }
    assert [reason for reason, value in reasons.items() if value] == ["hw_slowdown", "hw_thermal"]


def test_what_a_chip_does_not_support_is_told_once_as_unknown(a100s: Watched) -> None:
    def unknown(seen: Sequence[Seen]) -> set[str]:
        return {
            f"{o.metric} {' '.join(o.attributes.values())}"
            for o in seen
            if isinstance(o, Observation) and o.value is None
        }

    assert unknown(a100s.first) == {
        "hw.gpu.io transmit",
        "hw.gpu.io receive",
        "hw.errors pages_retired_corrected",
        "hw.errors pages_retired_uncorrected",
    }
    second = a100s.poll()
    assert unknown(second) == set()
    assert not [o for o in second if isinstance(o, Observation) and o.metric == "hw.gpu.io"]


def test_the_call_that_blocks_is_made_for_one_gpu_and_direction_at_a_poll(a100s: Watched) -> None:
    def one() -> tuple[str, str]:
        while True:  # a poll too soon after another asks nothing
            found = [o for o in a100s.poll() if isinstance(o, Observation) and o.metric == "link.throughput"]
            if found:
                assert len(found) == 1
                return found[0].subject.key, found[0].attributes["network.io.direction"]

    seen = [one() for _ in range(4)]
    gpus = [a100s.bus_id(f"n0/gpu{n}") for n in range(2)]
    assert set(seen) == {(gpu, way) for gpu in gpus for way in ("transmit", "receive")}
    assert a100s.receiver.call_seconds["nvmlDeviceGetPcieThroughput"] >= 0.02


def test_chips_with_counters_of_bytes_are_never_asked_what_blocks(h100s: Watched) -> None:
    for _ in range(3):
        assert not [o for o in h100s.poll() if isinstance(o, Observation) and o.metric == "link.throughput"]
    assert "nvmlDeviceGetPcieThroughput" not in h100s.receiver.call_seconds


def test_it_tells_what_its_calls_cost(h100s: Watched) -> None:
    costs = {
        o.attributes["receiver.call"]: o.value
        for o in h100s.first
        if isinstance(o, Observation) and o.metric == "receiver.call.duration"
    }
    assert costs.keys() == h100s.receiver.call_seconds.keys()
    assert all(value is not None and 0 < value < 60 for value in costs.values())


def test_a_lost_gpu_is_told_and_the_others_go_on(h100s: Watched) -> None:
    h100s.machine.set("gpu5", {"lost": "yes"})
    key = h100s.bus_id("n0/gpu5")
    seen = h100s.poll()
    [event] = [s for s in seen if isinstance(s, HardwareEvent)]
    assert (event.kind, event.subject.key) == ("gpu_lost", key)
    about = {
        (o.metric, *o.attributes.values()): o.value for o in seen if o.subject.key == key and isinstance(o, Observation)
    }
    assert about == {("hw.status", "ok"): 0, ("hw.status", "failed"): 1}
    assert len({o.subject.key for o in seen if isinstance(o, Observation) and o.metric == "hw.power"}) == 7
    assert not [s for s in h100s.poll() if isinstance(s, HardwareEvent)]  # told once
    h100s.machine.set("gpu5", {"lost": "no"})
    assert h100s.values("hw.power", AddressKind.PCI, key) == [69.85]


def test_a_gpu_lost_before_it_was_opened_is_told_of_the_machine(tmp_path: Path) -> None:
    with EmulatedMachine(two_gpus(), None, tmp_path / "machine") as machine:
        machine.set("gpu0", {"lost": "yes"})
        receiver = Nvml()
        run(receiver.open(ReceiverContext("n0", machine.root)))
        seen = run(receiver.poll())
        run(receiver.close())
    assert [(s.kind, s.subject.kind) for s in seen if isinstance(s, HardwareEvent)] == [("gpu_lost", AddressKind.NODE)]


def test_a_driver_that_goes_away_is_a_failure(tmp_path: Path) -> None:
    machine = EmulatedMachine(two_gpus(), None, tmp_path / "machine").start()
    receiver = Nvml()
    run(receiver.open(ReceiverContext("n0", machine.root)))
    machine.close()
    with pytest.raises(ReceiverFailed, match="Driver Not Loaded"):
        run(receiver.poll())
    run(receiver.close())
    run(receiver.close())


def test_a_machine_without_nvml_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(ReceiverUnavailable, match=r"has no libnvidia-ml\.so\.1"):
        run(Nvml().open(ReceiverContext("n0", tmp_path)))
    receiver = NvmlEvents()
    with pytest.raises(ReceiverUnavailable):
        run(receiver.open(ReceiverContext("n0", tmp_path)))
    run(receiver.close())


def test_a_machine_without_gpus_is_unavailable(tmp_path: Path) -> None:
    topology = two_gpus(with_nvlink=False)
    without = topology.model_copy(
        update={
            "devices": tuple(d for d in topology.devices if d.kind != "gpu"),
            "links": tuple(link for link in topology.links if "gpu" not in link.id),
        }
    )
    with (
        EmulatedMachine(without, None, tmp_path / "machine") as machine,
        pytest.raises(ReceiverUnavailable, match="no GPU"),
    ):
        run(Nvml().open(ReceiverContext("n0", machine.root)))


async def collect(receiver: NvmlEvents, count: int) -> list[Seen]:
    found: list[Seen] = []
    async for batch in receiver.events():
        found += batch
        if len(found) >= count:
            break
    return found


def test_xids_come_as_events_and_no_thread_stays(tmp_path: Path) -> None:
    async def watch(machine: EmulatedMachine) -> list[Seen]:
        receiver = NvmlEvents()
        await receiver.open(ReceiverContext("n0", machine.root))
        listening = asyncio.ensure_future(collect(receiver, 3))
        await asyncio.to_thread(machine.set, "gpu0", {"xid": "48"})
        await asyncio.to_thread(machine.set, "gpu1", {"lost": "yes"})
        await asyncio.to_thread(machine.set, "gpu0", {"xid": "63"})
        found = await listening
        await receiver.close()
        await receiver.close()
        return found

    with EmulatedMachine(two_gpus(), None, tmp_path / "machine") as machine:
        seen = run(watch(machine))
        gpus = [str(device.pci_bus_id) for device in machine.topology.devices if device.kind == "gpu"]
    assert [(s.subject.key, s.kind, s.code) for s in seen if isinstance(s, HardwareEvent)] == [
        (gpus[0], "xid", "48"),
        (gpus[1], "xid", "79"),
        (gpus[0], "xid", "63"),
    ]
    assert "nvml-events" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize(
    ("nvml", "key"),
    [("00000000:3B:00.0", "0000:3b:00.0"), ("0000:3B:00.0", "0000:3b:00.0"), ("00010000:E1:00.0", "00010000:e1:00.0")],
)
def test_bus_ids_are_written_as_the_kernel_does(nvml: str, key: str) -> None:
    assert pci_key(nvml) == key
