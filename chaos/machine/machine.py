"""The emulated machine: a topology's hardware as telemetry sees it, where there is none.

Below its folder:

    root/              what stands before /sys and /dev for its receivers
      usr/lib/         libnvidia-ml.so.1, and the memory that it reads
      sys, proc        files as the kernel shows them
      dev/kmsg         a pipe with the kernel's lines
    machine            the memory (dataplane/abi/machine.h)

The links' states and traffic are the fabric's. What links really do, which the fabric hides, is in none of these files.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from chaos.errors import BadChange, CannotEmulate
from chaos.machine.device_state import MachineDevices
from chaos.machine.home import make_home, remove_home
from chaos.machine.kernel_log import KernelLog
from chaos.machine.library import NVML_NAME, nvml_library
from chaos.machine.link_state import LinkNow, MachineLinks
from chaos.machine.memory import MachineMemory
from chaos.machine.plan import MachinePlan, plan_machine, speed_of
from chaos.machine.sysfs import SysfsFace
from chaos.machine.targets import find_target
from dataplane.fabric import Fabric
from observatory.model.link import LinkKind
from observatory.model.topology import Topology

REFRESH_SECONDS = 0.25
"""How often files follow counters. What `set` changes is in them before it returns."""

VARIABLE = "MEDIA_OBSERVATORY_MACHINE"
"""Environment variable that names the memory to NVML in this process, and in those that it starts."""


class EmulatedMachine:
    """One machine of a topology. Any thread may call anything.

    Args:
        topology: any that can be imported.
        fabric: the links as they are emulated; None: nothing ever crosses them.
        folder: leads to its files, which are in memory; what a killed machine left there is removed.
        node: which of the topology's machines; None: the first.

    Raises:
        CannotEmulate: a topology without machines, or a folder that cannot hold it.
    """

    def __init__(self, topology: Topology, fabric: Fabric | None, folder: Path, node: str | None = None) -> None:
        self.plan: MachinePlan = plan_machine(topology, node)
        self.folder = folder
        self._fabric = fabric
        self._lock = threading.Lock()
        self._stack = contextlib.ExitStack()
        self._links: MachineLinks | None = None
        self._devices: MachineDevices | None = None
        self._sysfs: SysfsFace | None = None
        self._stopping = threading.Event()

    @property
    def topology(self) -> Topology:
        """The topology with the addresses that were made up for it: those that telemetry uses."""
        return self.plan.topology

    @property
    def node(self) -> str:
        """Its name in the topology."""
        return self.plan.node

    @property
    def root(self) -> Path:
        """What stands before /sys and /dev for its receivers."""
        return self.folder / "root"

    @property
    def nvml_library(self) -> Path:
        """Its libnvidia-ml.so.1. Loaded by its path before nvidia-ml-py looks for NVIDIA's, it stands in for that."""
        return self.root / "usr" / "lib" / NVML_NAME

    @property
    def memory_path(self) -> Path:
        """What the environment variable of `VARIABLE` names in processes that are to see this machine."""
        return self.folder / "machine"

    def start(self) -> Self:
        """Switch it on: make its files, and let NVML in this process and in those that it starts find it.

        Raises:
            CannotEmulate: the folder cannot hold it.
        """
        make_home(self.folder)
        try:
            self.nvml_library.parent.mkdir(parents=True)
            self.nvml_library.symlink_to(nvml_library())
            (self.nvml_library.parent / "machine").symlink_to(self.memory_path.resolve())
        except OSError as error:
            remove_home(self.folder)
            raise CannotEmulate(f"cannot be made: {error.strerror}", file=str(self.folder)) from None
        with contextlib.ExitStack() as stack:
            stack.callback(remove_home, self.folder)
            memory = MachineMemory(self.plan, self._fabric, self.memory_path)
            stack.callback(memory.close)
            log = KernelLog(self.root / "dev" / "kmsg")
            stack.callback(log.close)
            self._links = MachineLinks(self.plan, self._fabric, memory, log)
            self._devices = MachineDevices(self.plan, memory, log)
            try:
                self._sysfs = SysfsFace(self.plan, self.root, memory, self._links, self._devices)
            except OSError as error:
                raise CannotEmulate(f"cannot be made: {error.strerror}", file=str(self.folder)) from None
            self._stopping.clear()
            thread = threading.Thread(target=self._keep_up, name="emulated-machine", daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(self._stopping.set)
            os.environ[VARIABLE] = str(self.memory_path.resolve())
            stack.callback(self._forget_variable)
            self._stack = stack.pop_all()
        return self

    def _keep_up(self) -> None:
        """Counters grow with what crosses the fabric, and links are cut there by others."""
        while not self._stopping.wait(REFRESH_SECONDS):
            with self._lock:
                self._refresh()

    def _refresh(self) -> None:
        if self._sysfs is not None:
            with contextlib.suppress(OSError):  # somebody removed the folder: there is nothing to keep up
                self._sysfs.refresh()

    def _forget_variable(self) -> None:
        if os.environ.get(VARIABLE) == str(self.memory_path.resolve()):
            del os.environ[VARIABLE]

    def close(self) -> None:
        """Switch it off: NVML has no driver any more, and the files are removed. May be called twice."""
        with self._lock:
            self._links = self._devices = self._sysfs = None
            stack = self._stack.pop_all()
        stack.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- changes -----------------------------------------------------------------------------------------------------

    def set(self, target: str, changes: Mapping[str, str]) -> dict[str, Any]:
        """Change a link or a device, by any of its names; what it is then, for people and for JSON.

        Raises:
            NoSuchPart: there is no such link or device.
            BadChange: it has no such property or value; nothing is changed then.
            CannotEmulate: the machine is off.
        """
        if not changes:
            raise BadChange("nothing to change", mend="write for example width=8")
        found = find_target(self.topology, self.node, target)
        with self._lock:
            links, devices = self._parts()
            if found.link is not None:
                links.change(found.link, changes)
                document = link_document(links.now(found.link.id))
            else:
                assert found.device is not None
                device = found.device
                document = {"device": device.id, "kind": device.kind.value, **devices.change(device, changes)}
            self._refresh()
            return document

    def link(self, link_id: str) -> LinkNow:
        """A link as it is now. Raises CannotEmulate: the machine is off."""
        with self._lock:
            return self._parts()[0].now(link_id)

    def _parts(self) -> tuple[MachineLinks, MachineDevices]:
        if self._links is None or self._devices is None:
            raise CannotEmulate("the emulated machine is off")
        return self._links, self._devices


def shown_in(now: LinkNow) -> list[str]:
    """Where a real machine would show how that link is; what is only slower shows in what crosses it."""
    found = []
    if now.link.kind is LinkKind.NVLINK:
        inactive = (now.best_width or 0) - (0 if now.down else now.width or 0)
        if inactive:
            found.append(f"NVML: {inactive} of {now.best_width} NVLinks are not active")
        if now.down:
            found.append("the kernel's log and NVML's events: Xid 74")
        if now.errors:
            found.append("NVML: error counters of the first NVLink")
    elif now.link.kind in (LinkKind.PCIE, LinkKind.CXL):
        if now.down:
            found.append("sysfs: the device does not answer; of a GPU also NVML: it is lost, Xid 79")
        elif now.width != now.best_width or now.generation != now.best_generation:
            found.append("sysfs: current_link_width, current_link_speed; of a GPU also NVML")
        if now.errors:
            found.append("sysfs: aer_dev_*; the kernel's log; of a GPU also NVML")
    elif now.down or now.loss:
        found.append("sysfs: state and counters of the ports at its ends")
    if now.bandwidth_share < 1 or now.added_latency_seconds > 0:
        found.append("what crosses it, and how long that takes: nowhere else")
    return found


def link_document(now: LinkNow) -> dict[str, Any]:
    """A link as it is now. `bandwidth_bytes_per_second` is the advertised one less what was taken away."""
    whole = now.link.bandwidth_bytes_per_second
    return {
        "link": now.link.id,
        "kind": now.link.kind.value,
        "state": now.state.value,
        "width": now.width,
        "best_width": now.best_width,
        "speed": None if now.generation is None else f"{speed_of(now.generation):.1f} GT/s",
        "bandwidth_share": now.share,
        "bandwidth_bytes_per_second": None if whole is None else whole * now.share,
        "added_latency_seconds": now.added_latency_seconds,
        "loss": now.loss,
        "errors": dict(now.errors),
        "shown_in": shown_in(now),
    }
