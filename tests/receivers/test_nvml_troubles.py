"""GPUs that do not answer as they should: the others, and the other questions, go on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pynvml
import pytest

from chaos.machine.machine import EmulatedMachine
from observatory.anomalies.subjects import TopologySubjects
from observatory.anomalies.watch import IncidentWatch
from observatory.model.observation import AddressKind, HardwareEvent, Observation, Seen
from observatory.receivers import nvml
from observatory.receivers.errors import ReceiverFailed, ReceiverUnavailable
from observatory.receivers.nvml import Nvml
from observatory.receivers.nvml_events import NvmlEvents
from observatory.receivers.protocol import ReceiverContext
from observatory.topology.addresses import AddressBook
from tests.machine.machines import two_gpus

_CALLS_OF_ADDRESSES = ("nvmlDeviceGetCount", "nvmlDeviceGetHandle", "nvmlDeviceGetPciInfo")


def _fail(
    patch: pytest.MonkeyPatch, call: str, error: int, bus_id: str, when: Callable[[], bool] = lambda: True
) -> None:
    """Let one call fail of one GPU."""
    right: Callable[..., Any] = getattr(pynvml, call)
    bus_id_of = pynvml.nvmlDeviceGetPciInfo

    def wrong(handle: Any, *more: Any) -> Any:
        if when() and bus_id_of(handle).busId.lower().endswith(bus_id):
            raise pynvml.NVMLError(error)
        return right(handle, *more)

    wrong.__name__ = call
    patch.setattr(pynvml, call, wrong)


def _is_question(name: str) -> bool:
    return name.startswith("nvmlDeviceGet") and not name.startswith(_CALLS_OF_ADDRESSES)


def _bus_ids(machine: EmulatedMachine) -> list[str]:
    return [str(device.pci_bus_id) for device in machine.topology.devices if device.kind == "gpu"]


def _polls(machine: EmulatedMachine, *between: Callable[[], object]) -> list[Sequence[Seen]]:
    async def look() -> list[Sequence[Seen]]:
        receiver = Nvml()
        await receiver.open(ReceiverContext("n0", machine.root))
        try:
            found = [await receiver.poll()]
            for change in between:
                change()
                found.append(await receiver.poll())
            return found
        finally:
            await receiver.close()

    return asyncio.run(look())


def _values(seen: Sequence[Seen], metric: str, *attributes: str) -> dict[str, float | None]:
    return {
        o.subject.key: o.value
        for o in seen
        if isinstance(o, Observation) and o.metric == metric and tuple(o.attributes.values()) == attributes
    }


def _events(seen: Sequence[Seen]) -> list[tuple[str, str | None, str]]:
    return [(s.kind, s.code, s.subject.key) for s in seen if isinstance(s, HardwareEvent)]


@pytest.mark.parametrize(
    "error",
    [
        pynvml.NVML_ERROR_UNKNOWN,
        pynvml.NVML_ERROR_RESET_REQUIRED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_IRQ_ISSUE,
        pynvml.NVML_ERROR_TIMEOUT,
    ],
)
def test_a_question_that_one_gpu_does_not_answer_is_unknown_that_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    with EmulatedMachine(two_gpus(), None, tmp_path / "machine") as machine:
        sick, well = _bus_ids(machine)
        _fail(monkeypatch, "nvmlDeviceGetTemperature", error, sick)
        _fail(monkeypatch, "nvmlDeviceGetUUID", error, sick)
        first, second, third = _polls(machine, lambda: None, monkeypatch.undo)
    for seen in (first, second):
        temperatures = _values(seen, "hw.temperature", "gpu")
        assert temperatures[sick] is None
        assert temperatures[well] is not None
        assert None not in _values(seen, "hw.power").values()
        assert _values(seen, "hw.status", "failed") == {sick: 0, well: 0}
    assert _values(third, "hw.temperature", "gpu")[sick] is not None


def test_a_gpu_that_answers_nearly_nothing_is_failed_until_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_broken = threading.Event()
    with EmulatedMachine(two_gpus(), None, tmp_path / "machine") as machine:
        sick, well = _bus_ids(machine)
        for call in filter(_is_question, dir(pynvml)):
            _fail(monkeypatch, call, pynvml.NVML_ERROR_RESET_REQUIRED, sick, is_broken.is_set)
        _, broken, again = _polls(machine, is_broken.set, is_broken.clear)
    assert _values(broken, "hw.status", "failed") == {sick: 1, well: 0}
    assert _values(again, "hw.status", "failed") == {sick: 0, well: 0}


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (pynvml.NVML_ERROR_IRQ_ISSUE, [("gpu_driver", "init_failed", "")]),
        (pynvml.NVML_ERROR_NO_PERMISSION, []),
    ],
)
def test_a_gpu_without_a_handle_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, told: list[tuple[str, str, str]]
) -> None:
    right = pynvml.nvmlDeviceGetHandleByIndex

    def wrong(index: int) -> Any:
        if index == 0:
            raise pynvml.NVMLError(error)
        return right(index)

    async def xids(machine: EmulatedMachine) -> str | None:
        receiver = NvmlEvents()
        await receiver.open(ReceiverContext("n0", machine.root))
        try:
            machine.set("gpu1", {"xid": "48"})
            [event] = await anext(aiter(receiver.events()))
            return event.code if isinstance(event, HardwareEvent) else None
        finally:
            await receiver.close()

    with EmulatedMachine(two_gpus(), None, tmp_path / "machine") as machine:
        monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", wrong)
        [seen] = _polls(machine)
        assert asyncio.run(asyncio.wait_for(xids(machine), 60)) == "48"
        assert list(_values(seen, "hw.power")) == _bus_ids(machine)[1:]
    assert _events(seen) == told


def test_a_gpu_that_gets_its_handle_later_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = pynvml.nvmlDeviceGetHandleByIndex
    is_well = threading.Event()

    def late(index: int) -> Any:
        if index == 0 and not is_well.is_set():
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
        return right(index)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", late)
    monkeypatch.setattr(nvml, "_MISSING_EVERY_SECONDS", 0.0)
    with EmulatedMachine(two_gpus(), None, tmp_path / "machine") as machine:
        first, missed, found = _polls(machine, lambda: None, is_well.set)
        gpus = set(_bus_ids(machine))
    assert [kind for kind, _, _ in _events(first)] == ["gpu_driver"]
    assert _events(missed) == []
    assert set(_values(found, "hw.status", "ok")) == gpus


def test_a_driver_that_does_not_fit_its_library_is_everybodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with EmulatedMachine(two_gpus(), None, tmp_path / "machine") as machine:
        _fail(monkeypatch, "nvmlDeviceGetPowerUsage", pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, _bus_ids(machine)[0])
        with pytest.raises((ReceiverFailed, ReceiverUnavailable)):
            _polls(machine)


def test_a_lost_gpu_that_answers_what_is_remembered_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EmulatedMachine(two_gpus(), None, tmp_path / "machine") as machine:
        sick, _ = _bus_ids(machine)

        def lose_it() -> None:  # PCI info, the UUID and the temperature go on being answered
            _fail(monkeypatch, "nvmlDeviceGetPowerUsage", pynvml.NVML_ERROR_GPU_IS_LOST, sick)

        _, lost, still, later, again = _polls(machine, lose_it, lambda: None, lambda: None, monkeypatch.undo)
    assert _events(lost) == [("gpu_lost", None, sick)]
    for seen in (still, later):
        assert _events(seen) == []
        assert _values(seen, "hw.status", "failed")[sick] == 1
    assert _values(again, "hw.status", "failed")[sick] == 0


@pytest.mark.parametrize(
    ("change", "code", "kind", "severity"),
    [
        ("remapping_failed", "failed", "row_remap_failed", "critical"),
        ("remapping_pending", "pending", "row_remap_pending", "warning"),
    ],
)
def test_rows_that_wait_or_cannot_be_replaced_are_incidents(
    tmp_path: Path, change: str, code: str, kind: str, severity: str
) -> None:
    with EmulatedMachine(two_gpus(), None, tmp_path / "machine") as machine:
        watch = IncidentWatch(TopologySubjects(machine.topology, AddressBook(machine.topology)))
        polls = _polls(
            machine,
            lambda: machine.set("gpu1", {change: "yes"}),
            lambda: None,
            lambda: machine.set("gpu1", {change: "no"}),
            lambda: machine.set("gpu1", {change: "yes"}),
        )
        bus_id = _bus_ids(machine)[1]
    told = [("row_remap", code, bus_id)]
    assert [_events(seen) for seen in polls] == [[], told, [], [], told]
    at_ns = max(s.at_ns for s in polls[1])
    opened = watch.see(polls[1], at_ns)
    assert [(i.kind, i.severity, i.subject) for i in opened] == [(kind, severity, "n0/gpu1")]


def test_rows_that_failed_before_anybody_looked_are_told_too(tmp_path: Path) -> None:
    with EmulatedMachine(two_gpus(), None, tmp_path / "machine") as machine:
        machine.set("gpu0", {"remapping_failed": "yes"})  # before anybody looked
        [seen] = _polls(machine)
    [event] = [s for s in seen if isinstance(s, HardwareEvent)]
    assert (event.kind, event.code, event.subject.kind) == ("row_remap", "failed", AddressKind.PCI)
