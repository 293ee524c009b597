"""NVIDIA's own binding of NVML runs unchanged on the emulated machine."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml as nvml
import pytest

from chaos.machine.machine import EmulatedMachine
from dataplane.fabric import Fabric
from observatory.model.topology import Topology
from observatory.topology.load import load_topology
from tests.machine.machines import NVLINK, fabric_of, move, two_gpus

ALL_LINKS = 0xFFFF_FFFF


class Started:
    """A machine that is on, with NVML started on it."""

    def __init__(self, topology: Topology, folder: Path) -> None:
        self.fabric: Fabric = fabric_of(topology)
        self.machine = EmulatedMachine(topology, self.fabric, folder).start()
        ctypes.CDLL(str(self.machine.nvml_library))
        nvml.nvmlInit()

    def handle(self, index: int = 0) -> Any:
        return nvml.nvmlDeviceGetHandleByIndex(index)

    def close(self) -> None:
        nvml.nvmlShutdown()
        self.machine.close()


@pytest.fixture
def h100s(tmp_path: Path) -> Iterator[Started]:
    started = Started(load_topology(), tmp_path / "machine")
    yield started
    started.close()


@pytest.fixture
def a100s(tmp_path: Path) -> Iterator[Started]:
    started = Started(two_gpus(), tmp_path / "machine")
    yield started
    started.close()


def fields(handle: Any, *wanted: int | tuple[int, int]) -> list[tuple[int, int]]:
    """(result, value) of each."""
    return [(f.nvmlReturn, f.value.ullVal) for f in nvml.nvmlDeviceGetFieldValues(handle, list(wanted))]


def test_it_tells_the_gpus_of_the_topology(h100s: Started) -> None:
    assert nvml.nvmlDeviceGetCount() == 8
    assert nvml.nvmlSystemGetCudaDriverVersion() == 13010
    assert nvml.nvmlSystemGetDriverVersion().split(".")[0] == "590"
    handle = h100s.handle(3)
    assert nvml.nvmlDeviceGetName(handle) == "NVIDIA H100 80GB HBM3"
    assert nvml.nvmlDeviceGetUUID(handle).startswith("GPU-")
    assert nvml.nvmlDeviceGetSerial(handle).isdigit()
    assert nvml.nvmlDeviceGetCudaComputeCapability(handle) == (9, 0)
    pci = nvml.nvmlDeviceGetPciInfo(handle)
    assert pci.pciDeviceId == 0x233010DE
    device = next(d for d in h100s.machine.topology.devices if d.id == "n0/gpu3")
    assert pci.busId.lower().endswith(str(device.pci_bus_id))
    for found in (
        nvml.nvmlDeviceGetHandleByUUID(nvml.nvmlDeviceGetUUID(handle)),
        nvml.nvmlDeviceGetHandleByPciBusId(pci.busId),
        nvml.nvmlDeviceGetHandleBySerial(nvml.nvmlDeviceGetSerial(handle)),
    ):
        assert nvml.nvmlDeviceGetIndex(found) == 3
    assert len({nvml.nvmlDeviceGetUUID(h100s.handle(n)) for n in range(8)}) == 8


def test_memory_of_both_versions_adds_up(h100s: Started) -> None:
    h100s.machine.set("gpu0", {"memory": "40GB"})
    second = nvml.nvmlDeviceGetMemoryInfo(h100s.handle(), nvml.nvmlMemory_v2)
    assert second.total == 80_000_000_000
    assert second.used == 40_000_000_000
    assert second.free + second.used + second.reserved == second.total
    first = nvml.nvmlDeviceGetMemoryInfo(h100s.handle())
    assert first.used == second.used + second.reserved  # as NVML's first version has it
    assert first.free == second.free


def test_chips_differ_as_real_ones_do(a100s: Started) -> None:
    handle = a100s.handle()
    assert nvml.nvmlDeviceGetEncoderSessions(handle) == []
    with pytest.raises(nvml.NVMLError_NotSupported):  # A100, H100 and H200 have no encoder
        nvml.nvmlDeviceGetEncoderCapacity(handle, nvml.NVML_ENCODER_QUERY_H264)
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlDeviceGetMigMode(handle)
    with pytest.raises(nvml.NVMLError_NotSupported):  # it remaps rows
        nvml.nvmlDeviceGetRetiredPages(handle, 0)
    assert nvml.nvmlDeviceGetRemappedRows(handle) == (0, 0, 0, 0)
    assert fields(handle, 197, 163, (164, 0), 91) == [(3, 0), (3, 0), (0, 25000), (0, 12)]


def test_errors_of_nvlinks_count_where_the_chip_counts_them(a100s: Started) -> None:
    a100s.machine.set("gpu0-gpu1", {"errors": "7", "replays": "3", "recoveries": "2"})
    handle = a100s.handle()
    assert fields(handle, 38, 32, 33, 45, 52, 59) == [(0, 7), (0, 7), (0, 0), (0, 0), (0, 3), (0, 2)]
    assert nvml.nvmlDeviceGetNvLinkErrorCounter(handle, 0, nvml.NVML_NVLINK_ERROR_DL_CRC_FLIT) == 7


def test_old_fields_of_errors_stay_at_zero_on_hopper(h100s: Started) -> None:
    h100s.machine.set("gpu0-nvswitch0", {"errors": "7", "replays": "3"})
    handle = h100s.handle()
    assert fields(handle, 38, 45, 52, 59) == [(0, 0)] * 4
    assert fields(handle, (161, 0), (163, 0)) == [(0, 3), (0, 7)]
    assert nvml.nvmlDeviceGetNvLinkErrorCounter(handle, 0, nvml.NVML_NVLINK_ERROR_DL_REPLAY) == 3


def test_nvlinks_lead_where_the_topology_says(h100s: Started, tmp_path: Path) -> None:
    handle = h100s.handle()
    assert nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, 0) == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
    switch = next(v for v in h100s.machine.topology.vertices if v.kind == "nvswitch")
    assert nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, 17).busId.lower().endswith(str(switch.pci_bus_id))
    assert nvml.nvmlDeviceGetNvLinkVersion(handle, 0) == nvml.NVML_NVLINK_VERSION_4_0
    assert nvml.nvmlDeviceGetNvLinkCapability(handle, 0, nvml.NVML_NVLINK_CAP_P2P_SUPPORTED) == 1
    with pytest.raises(nvml.NVMLError_InvalidArgument):  # beyond the chip's own count
        nvml.nvmlDeviceGetNvLinkState(handle, 18)
    assert fields(handle, (165, 18)) == [(nvml.NVML_ERROR_INVALID_ARGUMENT, 0)]


def test_a_width_shows_as_links_that_are_not_active(h100s: Started) -> None:
    h100s.machine.set("gpu0-nvswitch0", {"width": "8"})
    handle = h100s.handle()
    assert [nvml.nvmlDeviceGetNvLinkState(handle, n) for n in range(18)] == [1] * 8 + [0] * 10
    assert fields(handle, (164, 7), (164, 8), (165, 8)) == [(0, 26562), (0, 0), (0, 0)]
    assert all(nvml.nvmlDeviceGetNvLinkState(h100s.handle(1), n) for n in range(18))


def test_a_link_cut_in_the_fabric_alone_shows_at_once(h100s: Started) -> None:
    h100s.fabric.take_down("n0/gpu0--n0/nvswitch0:nvlink")
    assert not any(nvml.nvmlDeviceGetNvLinkState(h100s.handle(), n) for n in range(18))
    h100s.fabric.restore("n0/gpu0--n0/nvswitch0:nvlink")
    assert all(nvml.nvmlDeviceGetNvLinkState(h100s.handle(), n) for n in range(18))


def test_counters_are_of_what_crossed_the_fabric(a100s: Started) -> None:
    size = 120 << 20
    move(a100s.fabric, NVLINK, size)
    scaled_kib = size * a100s.fabric.time_scale / 1024
    sender, receiver = a100s.handle(0), a100s.handle(1)
    (_, sent), (_, received) = fields(sender, (138, ALL_LINKS), (139, ALL_LINKS))
    assert sent == pytest.approx(scaled_kib, rel=1e-3)
    assert received == 0
    assert fields(receiver, (139, ALL_LINKS))[0][1] == pytest.approx(scaled_kib, rel=1e-3)
    assert fields(sender, (138, 5))[0][1] == pytest.approx(scaled_kib / 12, rel=1e-3)
    # After it is halved, the same again: six links carry it, and no counter falls.
    a100s.machine.set("gpu0-gpu1", {"width": "6"})
    move(a100s.fabric, NVLINK, size)
    assert fields(sender, (138, ALL_LINKS))[0][1] == pytest.approx(2 * scaled_kib, rel=1e-3)
    assert fields(sender, (138, 0))[0][1] == pytest.approx(scaled_kib / 12 + scaled_kib / 6, rel=1e-3)
    assert fields(sender, (138, 11))[0][1] == pytest.approx(scaled_kib / 12, rel=1e-3)


def test_pcie_throughput_takes_20_ms_and_tells_what_crossed_meanwhile(a100s: Started) -> None:
    link = "n0/gpu0--n0/pcie0:pcie"
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            move(a100s.fabric, link, 1 << 20)

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        began = time.monotonic()
        told = max(nvml.nvmlDeviceGetPcieThroughput(a100s.handle(), nvml.NVML_PCIE_UTIL_TX_BYTES) for _ in range(5))
        assert time.monotonic() - began >= 5 * 0.02
        assert 0 < told * 1000 <= 31.5e9 * 1.5  # of the link's advertised rate; a message is counted at its end
        assert nvml.nvmlDeviceGetPcieThroughput(a100s.handle(), nvml.NVML_PCIE_UTIL_RX_BYTES) == 0
    finally:
        stop.set()
        thread.join()


def test_pcie_width_and_speed_follow_a_change(a100s: Started) -> None:
    a100s.machine.set("gpu1-pcie1", {"width": "8", "speed": "8 GT/s", "replays": "5"})
    handle = a100s.handle(1)
    assert nvml.nvmlDeviceGetCurrPcieLinkWidth(handle) == 8
    assert nvml.nvmlDeviceGetMaxPcieLinkWidth(handle) == 16
    assert nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle) == 3
    assert nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle) == 4
    assert nvml.nvmlDeviceGetPcieReplayCounter(handle) == 5


def test_gpus_are_joined_as_in_the_topology(h100s: Started) -> None:
    def level(a: int, b: int) -> int:
        return int(nvml.nvmlDeviceGetTopologyCommonAncestor(h100s.handle(a), h100s.handle(b)))

    assert level(0, 1) == nvml.NVML_TOPOLOGY_SINGLE  # on one switch
    assert level(0, 2) == nvml.NVML_TOPOLOGY_NODE  # on one socket
    assert level(0, 7) == nvml.NVML_TOPOLOGY_SYSTEM
    assert nvml.nvmlDeviceGetP2PStatus(h100s.handle(0), h100s.handle(7), nvml.NVML_P2P_CAPS_INDEX_NVLINK) == 0
    nearest = nvml.nvmlDeviceGetTopologyNearestGpus(h100s.handle(0), nvml.NVML_TOPOLOGY_SINGLE)
    assert [nvml.nvmlDeviceGetIndex(h) for h in nearest] == [1]


def test_a_lost_gpu_answers_nothing(h100s: Started) -> None:
    handle = h100s.handle(2)
    h100s.machine.set("gpu2", {"lost": "yes"})
    calls: list[Callable[[], Any]] = [
        lambda: nvml.nvmlDeviceGetName(handle),
        lambda: nvml.nvmlDeviceGetTemperature(handle, 0),
        lambda: nvml.nvmlDeviceGetNvLinkState(handle, 0),
        lambda: nvml.nvmlDeviceGetFieldValues(handle, [91]),
        lambda: nvml.nvmlDeviceGetPcieThroughput(handle, 0),
        lambda: nvml.nvmlDeviceGetTopologyCommonAncestor(h100s.handle(0), handle),
        lambda: h100s.handle(2),
    ]
    for call in calls:
        with pytest.raises(nvml.NVMLError_GpuIsLost):
            call()
    assert nvml.nvmlDeviceGetCount() == 8
    assert nvml.nvmlDeviceGetTemperature(h100s.handle(3), 0) > 0
    h100s.machine.set("gpu2", {"lost": "no"})
    assert nvml.nvmlDeviceGetTemperature(handle, 0) > 0


def test_an_event_set_hears_of_the_xids_of_its_gpus(h100s: Started) -> None:
    events = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(h100s.handle(1), nvml.nvmlEventTypeXidCriticalError, events)
    with pytest.raises(nvml.NVMLError_Timeout):
        nvml.nvmlEventSetWait_v2(events, 1)
    h100s.machine.set("gpu0", {"xid": "31"})
    timer = threading.Timer(0.05, lambda: h100s.machine.set("gpu1", {"xid": "48"}))
    timer.start()
    data = nvml.nvmlEventSetWait_v2(events, 60_000)
    timer.join()
    assert (nvml.nvmlDeviceGetIndex(data.device), data.eventType, data.eventData) == (1, 8, 48)
    h100s.machine.set("gpu1", {"lost": "yes"})
    assert nvml.nvmlEventSetWait_v2(events, 60_000).eventData == 79
    with pytest.raises(nvml.NVMLError_GpuIsLost):
        nvml.nvmlEventSetWait_v2(events, 60_000)
    nvml.nvmlEventSetFree(events)


def test_energy_grows_with_the_power_taken(h100s: Started) -> None:
    h100s.machine.set("gpu0", {"power": "700W"})
    handle = h100s.handle()
    before, began = nvml.nvmlDeviceGetTotalEnergyConsumption(handle), time.monotonic()
    while nvml.nvmlDeviceGetTotalEnergyConsumption(handle) < before + 10_000:
        assert time.monotonic() - began < 60
        time.sleep(0.001)
    assert time.monotonic() - began >= 10 / 700 * 0.9  # 10 J at 700 W


def test_readers_never_see_half_a_change(h100s: Started) -> None:
    """All 18 links go up and down together: a reader of one moment sees all or none."""
    handle, stop = h100s.handle(), threading.Event()
    wanted = [(165, n) for n in range(18)]

    def change() -> None:
        while not stop.is_set():
            h100s.machine.set("gpu0-nvswitch0", {"width": "0"})
            h100s.machine.set("gpu0-nvswitch0", {"width": "18"})

    thread = threading.Thread(target=change)
    thread.start()
    try:
        seen = {sum(f.value.ullVal for f in nvml.nvmlDeviceGetFieldValues(handle, wanted)) for _ in range(300)}
    finally:
        stop.set()
        thread.join()
    assert seen <= {0, 18}


def test_a_machine_that_is_switched_off_has_no_driver(tmp_path: Path) -> None:
    started = Started(two_gpus(), tmp_path / "machine")
    handle = started.handle()
    started.machine.close()
    with pytest.raises(nvml.NVMLError_DriverNotLoaded):
        nvml.nvmlDeviceGetName(handle)
    nvml.nvmlShutdown()
    with pytest.raises(nvml.NVMLError_DriverNotLoaded):
        nvml.nvmlInit()


@pytest.mark.parametrize("content", [b"", b"\0" * 100_000, b"no machine" * 10_000])
def test_a_file_that_is_no_machine_is_no_driver(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EmulatedMachine(two_gpus(), None, tmp_path / "machine") as machine:
        ctypes.CDLL(str(machine.nvml_library))
    path = tmp_path / "file"
    path.write_bytes(content)
    monkeypatch.setenv("MEDIA_OBSERVATORY_MACHINE", str(path))
    with pytest.raises(nvml.NVMLError_DriverNotLoaded):
        nvml.nvmlInit()


def test_another_version_of_the_memory_is_refused(tmp_path: Path) -> None:
    with EmulatedMachine(two_gpus(), None, tmp_path / "machine") as machine:
        ctypes.CDLL(str(machine.nvml_library))
        with machine.memory_path.open("r+b") as file:
            file.seek(4)
            file.write(b"\x63\0\0\0")
        with pytest.raises(nvml.NVMLError) as raised:
            nvml.nvmlInit()
        assert raised.value.value == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
