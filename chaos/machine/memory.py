"""The emulated machine's memory (`dataplane/abi/machine.h`), as the one process sees it that writes it."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chaos.errors import CannotEmulate
from chaos.machine import layout
from chaos.machine.chips import NVLINK_VERSIONS
from chaos.machine.plan import GpuPlan, MachinePlan, nvlink_speed_mbps
from dataplane.fabric import BadFabric, Fabric

DRIVER_VERSION = "590.48.01"
NVML_VERSION = "13.590.48.01"
CUDA_VERSION = 13010
"""Those of the captures that the chips' numbers are from."""

DEFAULT_WIDTH = 16
MILLION = 1_000_000
GPU_IDLE = 1  # nvmlClocksEventReasonGpuIdle

_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
_FUTEX_WAKE = 1
_EVERYBODY = 2**31 - 1


class MachineMemory:
    """What telemetry reads of one machine. Changes come from one thread at a time.

    Args:
        plan: the machine.
        fabric: whose traffic its counters show; None: nothing ever crosses a link.
        path: of the file, which is made anew.

    Raises:
        CannotEmulate: the file cannot be made.
    """

    def __init__(self, plan: MachinePlan, fabric: Fabric | None, path: Path) -> None:
        self.plan = plan
        self.path = path
        self._fabric = fabric
        self._store_fence = threading.Lock()
        size = layout.MACHINE_HEADER.itemsize + len(plan.gpus) * layout.GPU.itemsize
        try:
            path.unlink(missing_ok=True)
            with path.open("xb+") as file:
                path.chmod(0o600)
                file.truncate(size)
                self._map = mmap.mmap(file.fileno(), size)
        except OSError as error:
            raise CannotEmulate(f"cannot be made: {error.strerror}", file=str(path)) from None
        self._header: Any = np.frombuffer(self._map, layout.MACHINE_HEADER, 1)[0:1]
        self._gpus: Any = np.frombuffer(self._map, layout.GPU, len(plan.gpus), layout.MACHINE_HEADER.itemsize)
        self._states = np.zeros(len(plan.gpus), layout.GPU_STATE)  # as last written
        for number, gpu in enumerate(plan.gpus):
            self._gpus["constants"][number] = self._constants(number, gpu)
            self._states[number] = self._idle(gpu)
            for copy in range(2):
                self._gpus["states"][number, copy] = self._states[number]
        self._write_header()

    def _write_header(self) -> None:
        header = self._header
        header["abi"] = layout.ABI
        header["gpus"] = len(self.plan.gpus)
        header["gpu_bytes"] = layout.GPU.itemsize
        header["owner_pid"] = os.getpid()
        header["cuda_version"] = CUDA_VERSION
        header["machine_id"] = secrets.randbits(63) | 1
        header["driver_version"] = DRIVER_VERSION
        header["nvml_version"] = NVML_VERSION
        if self._fabric is not None:
            state, traffic = self._fabric.fds
            header["fabric_path"] = f"/proc/{os.getpid()}/fd/{state}"
            header["traffic_path"] = f"/proc/{os.getpid()}/fd/{traffic}"
            header["fabric_id"] = _fabric_id(state)
        self._fence()
        header["magic"] = layout.MAGIC

    # -- what never changes ------------------------------------------------------------------------------------------

    def _constants(self, number: int, gpu: GpuPlan) -> npt.NDArray[np.void]:
        chip, bus_id = gpu.chip, gpu.bus_id
        found: Any = np.zeros((), layout.GPU_CONSTANTS)
        domain, bus, device = (int(part, 16) for part in bus_id.rpartition(".")[0].split(":"))
        values = {
            "name": chip.name,
            "uuid": gpu.uuid,
            "serial": gpu.serial,
            "part_number": chip.part_number,
            "vbios_version": chip.vbios_version,
            "bus_id": bus_id,
            "pci_domain": domain,
            "pci_bus": bus,
            "pci_device": device,
            "pci_id": chip.pci_id,
            "pci_subsystem_id": chip.subsystem_id,
            "chip_flags": int(chip.flags),
            "architecture": chip.architecture,
            "compute_major": chip.compute[0],
            "compute_minor": chip.compute[1],
            "nvlinks": len(gpu.nvlinks),
            "nvlink_version": NVLINK_VERSIONS[chip.nvlink] if gpu.nvlinks and chip.nvlink else 0,
            "encoders": chip.encoders,
            "decoders": chip.decoders,
            "jpeg_decoders": chip.jpeg_decoders,
            "pcie_generation": gpu.pcie.best_generation or chip.pcie_generation,
            "pcie_width": gpu.pcie.best_width or DEFAULT_WIDTH,
            "pcie_fabric_link": self.fabric_link(gpu.pcie.link_id),
            "pcie_toward_b": gpu.pcie.toward_b,
            "numa_node": layout.UNKNOWN_U32 if gpu.device.numa_node is None else gpu.device.numa_node,
            "power_limit_milliwatts": chip.power_limit_milliwatts,
            "clocks_mhz": chip.clocks_mhz,
            "slowdown_celsius": chip.slowdown_celsius,
            "shutdown_celsius": chip.shutdown_celsius,
            "memory_bytes": chip.memory_bytes,
            "memory_reserved_bytes": min(chip.memory_reserved_bytes, chip.memory_bytes),
        }
        for name, value in values.items():
            found[name] = value
        found["ancestor"][: len(self.plan.gpus)] = self.plan.ancestors[number]
        found["nvlink_peers"][: len(self.plan.gpus)] = self.plan.nvlink_peers[number]
        for index, link in enumerate(gpu.nvlinks):
            fabric_link = self.fabric_link(link.link_id)
            found["links"][index] = (link.remote_bus_id, link.remote_type, fabric_link, link.toward_b, 0)
        return np.asarray(found)

    def fabric_link(self, link_id: str | None) -> int:
        """The number of a link in the fabric, or NO_LINK."""
        if self._fabric is None or link_id is None:
            return layout.NO_LINK
        try:
            return self._fabric.number(link_id)
        except BadFabric:
            return layout.NO_LINK

    # -- state -------------------------------------------------------------------------------------------------------

    def _idle(self, gpu: GpuPlan) -> npt.NDArray[np.void]:
        chip = gpu.chip
        found: Any = np.zeros((), layout.GPU_STATE)
        found["temperature_celsius"] = chip.idle_celsius
        found["memory_temperature_celsius"] = layout.UNKNOWN_U64 if chip.memory_celsius is None else chip.memory_celsius
        found["power_milliwatts"] = chip.idle_milliwatts
        found["energy_at_ns"] = time.monotonic_ns()
        found["clocks_mhz"] = chip.idle_clocks_mhz
        found["clocks_event_reasons"] = GPU_IDLE
        found["pcie_generation"] = gpu.pcie.generation or gpu.pcie.best_generation or chip.pcie_generation
        found["pcie_width"] = gpu.pcie.width or DEFAULT_WIDTH
        for index, link in enumerate(gpu.nvlinks):
            found["links"][index]["active"] = link.active
            found["links"][index]["speed_mbps"] = nvlink_speed_mbps(chip)
        self._share(gpu, found)
        return np.asarray(found)

    def state(self, number: int) -> Any:
        """The record of one GPU as it was last written; a copy."""
        return self._states[number : number + 1].copy()[0]

    @contextlib.contextmanager
    def change(self, number: int) -> Iterator[Any]:
        """Change the state of one GPU: what the body does to the record that it is given is written at its end."""
        state = self.state(number)
        gpu = self.plan.gpus[number]
        self._settle(gpu, state)
        yield state
        self._share(gpu, state)
        self._states[number] = state
        self._write(number)

    def _settle(self, gpu: GpuPlan, state: Any) -> None:
        """Count what was carried and taken until now: from here on shares and power may be others."""
        now = time.monotonic_ns()
        elapsed = (now - int(state["energy_at_ns"])) / 1e9
        state["energy_millijoules"] += np.uint64(elapsed * int(state["power_milliwatts"]))
        state["energy_at_ns"] = now
        for index, link in enumerate(gpu.nvlinks):
            one = state["links"][index]
            sent, received = self.carried(link.link_id, link.toward_b)
            share = int(one["share_millionths"]) / MILLION
            one["sent_bytes"] += np.uint64(max(0, sent - int(one["sent_mark"])) * share)
            one["received_bytes"] += np.uint64(max(0, received - int(one["received_mark"])) * share)
            one["sent_mark"], one["received_mark"] = sent, received

    def _share(self, gpu: GpuPlan, state: Any) -> None:
        """Spread the bytes of each link of the topology evenly over its NVLinks that are active."""
        active: dict[str, int] = {}
        for index, link in enumerate(gpu.nvlinks):
            active[link.link_id] = active.get(link.link_id, 0) + int(state["links"][index]["active"])
        for index, link in enumerate(gpu.nvlinks):
            one = state["links"][index]
            one["share_millionths"] = MILLION // active[link.link_id] if one["active"] else 0

    def carried(self, link_id: str | None, toward_b: bool) -> tuple[int, int]:
        """Bytes sent and received over a link by the end that sends toward b (or toward a), at the machine's rate.

        As many bytes cross an emulated link in a second as cross the real one in that second over the time scale.
        """
        if self._fabric is None or link_id is None or self.fabric_link(link_id) == layout.NO_LINK:
            return 0, 0
        forward, back = (int(way.bytes * self._fabric.time_scale) for way in self._fabric.traffic(link_id))
        return (forward, back) if toward_b else (back, forward)

    def _write(self, number: int) -> None:
        """See the latch in machine.h."""
        shared, state = self._gpus[number : number + 1], self._states[number]
        sequence = int(shared["sequence"][0]) & ~1
        shared["sequence"] = sequence + 1
        self._fence()
        shared["states"][0, 0] = state
        self._fence()
        shared["sequence"] = sequence + 2
        self._fence()
        shared["states"][0, 1] = state
        self._fence()

    def _fence(self) -> None:
        # Python has no fence: a lock's release and the acquire after it keep stores before them from those after.
        with self._store_fence:
            pass
        with self._store_fence:
            pass

    # -- events ------------------------------------------------------------------------------------------------------

    def tell_xid(self, number: int, xid: int) -> None:
        """Let whoever waits for events of that GPU hear of an Xid."""
        written = int(self._header["events_written"][0])
        self._header["events"][0, written % layout.EVENTS] = (time.monotonic_ns(), number, layout.XID_EVENT, xid)
        self._fence()
        self._header["events_written"] = written + 1
        self._wake()

    def _wake(self) -> None:
        if _FUTEX is None:
            return  # they look by themselves, 20 times a second
        fields: Any = layout.MACHINE_HEADER.fields
        word = self._header.ctypes.data + fields["events_written"][1]
        ctypes.CDLL(None).syscall(
            ctypes.c_long(_FUTEX),
            ctypes.c_void_p(word),
            ctypes.c_int(_FUTEX_WAKE),
            ctypes.c_int(_EVERYBODY),
            None,
            None,
            0,
        )

    def close(self) -> None:
        """Switch the machine off: calls of NVML fail from now on. May be called twice."""
        if self._map.closed:
            return
        self._header["closed"] = 1
        self._wake()
        del self._header, self._gpus
        with contextlib.suppress(BufferError):  # somebody still holds a view
            self._map.close()
        self.path.unlink(missing_ok=True)


def _fabric_id(fd: int) -> int:
    """See `mo_fabric_header`: four words of 32 bits, then the id."""
    return int.from_bytes(os.pread(fd, 8, 16), "little")
