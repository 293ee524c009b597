"""What hangs on the buses and is shown as a device: accelerators, network cards, disks; and what each function is.

Ids count in bus order, what hangs on no PCI bus last. A virtual function is no device: its card names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from observatory.model.device import Device, DeviceKind
from observatory.model.hardware import PciFunction
from observatory.model.link import Link, LinkKind
from observatory.model.topology import Vertex, VertexKind
from observatory.topology.importers.sysfs.accelerators import (
    accelerator_kind,
    card_memory_bytes,
    card_name,
    read_cards,
)
from observatory.topology.importers.sysfs.block import Disk, read_disks
from observatory.topology.importers.sysfs.buses import PciBuses
from observatory.topology.importers.sysfs.names import OsName
from observatory.topology.importers.sysfs.nics import ports_of, read_infiniband, read_net
from observatory.topology.importers.sysfs.pci import Function
from observatory.topology.importers.sysfs.pci_names import class_name, pci_names
from observatory.topology.importers.sysfs.tree import SysfsTree

_NETWORK = ("02", "0c06")
_NVME = "0108"


class Endpoints:
    """Devices of one machine other than processors and memory, with their vertices and links."""

    def __init__(
        self,
        tree: SysfsTree,
        functions: Mapping[str, Function],
        buses: PciBuses,
        node: str,
        databases: Sequence[Path],
    ) -> None:
        self.devices: list[Device] = []
        self.vertices: list[Vertex] = []
        self.links: list[Link] = []
        self._tree = tree
        self._functions = functions
        self._buses = buses
        self._node = node
        self._names = pci_names({f.pci_id for f in functions.values() if f.pci_id}, databases)
        self._counts: dict[str, int] = {}
        self._shown: dict[str, str] = {}
        self._net = read_net(tree)
        self._infiniband = read_infiniband(tree)
        self._disks = read_disks(tree)
        self._cards = read_cards(tree)
        self._give_names()
        for function in functions.values():
            if function.physical_function is None and not function.is_bridge:
                self._function(function)
        self._without_pci()

    def functions(self, also_shown: Mapping[str, str]) -> tuple[PciFunction, ...]:
        """All functions as read, with the device or vertex that stands for each."""
        return tuple(
            PciFunction(
                node=self._node,
                bus_id=f.bus_id,
                parent=f.parent,
                host_bridge=f.host_bridge,
                class_code=f.class_code,
                class_name=class_name(f.class_code),
                pci_id=f.pci_id,
                name=self._names.get(f.pci_id or ""),
                numa_node=f.numa_node,
                os_names=tuple(f.os_names),
                physical_function=f.physical_function,
                shown_as=self._shown.get(f.bus_id) or also_shown.get(f.bus_id) or self._buses.stands_for(f.bus_id),
            )
            for f in self._functions.values()
        )

    def _give_names(self) -> None:
        named: list[OsName | Disk] = [*self._cards, *self._net, *self._infiniband, *self._disks]
        for entry in named:
            function = self._functions.get(entry.bus_id or "")
            if function is not None:
                function.os_names.append(entry.name)

    def _id(self, kind: str) -> str:
        number = self._counts.get(kind, 0)
        self._counts[kind] = number + 1
        return f"{self._node}/{kind}{number}"

    # -- on PCI buses ----------------------------------------------------------------------------------------------

    def _function(self, function: Function) -> None:
        kind = accelerator_kind(function, self._tree.link_name(f"{function.folder}/driver"))
        net = [e for e in self._net if e.bus_id == function.bus_id]
        infiniband = [e for e in self._infiniband if e.bus_id == function.bus_id]
        disks = [d for d in self._disks if d.bus_id == function.bus_id]
        code = function.class_code or ""
        if kind is not None:
            self._card(function, kind)
        elif net or infiniband or code.startswith(_NETWORK):
            self._card(function, DeviceKind.NIC, net, infiniband)
        elif disks:
            self._hang_disks(function, disks)
        elif code.startswith(_NVME):
            self._card(function, DeviceKind.STORAGE)  # no driver has it

    def _card(
        self, function: Function, kind: DeviceKind, net: Sequence[OsName] = (), infiniband: Sequence[OsName] = ()
    ) -> None:
        virtual = [f.bus_id for f in self._functions.values() if f.physical_function == function.bus_id]
        self._device(
            function,
            Device(
                id=self._id(kind.value),
                kind=kind,
                node=self._node,
                name=card_name(self._tree, function) or self._named(function),
                numa_node=function.numa_node,
                pci_bus_id=function.bus_id,
                pci_id=function.pci_id,
                memory_bytes=card_memory_bytes(self._tree, function),
                os_names=tuple(function.os_names),
                ports=ports_of(self._tree, list(net), list(infiniband)),
                virtual_functions=tuple(virtual),
            ),
        )

    def _device(self, function: Function, device: Device) -> None:
        """A device that is the function itself."""
        self.devices.append(device)
        self._shown[function.bus_id] = device.id
        self._buses.hang(device.id, function)

    def _hang_disks(self, function: Function, disks: Sequence[Disk]) -> None:
        """Disks on their own bus, or several, share the function; a single NVMe or virtio disk is it."""
        if len(disks) == 1 and not disks[0].has_own_bus:
            self._device(function, self._disk(disks[0], function))
            return
        vertex = Vertex(
            id=self._id("controller"),
            kind=VertexKind.STORAGE_CONTROLLER,
            node=self._node,
            name=self._named(function),
            pci_bus_id=function.bus_id,
        )
        self.vertices.append(vertex)
        self._shown[function.bus_id] = vertex.id
        self._buses.hang(vertex.id, function)
        for disk in disks:
            device = self._disk(disk, function)
            self.devices.append(device)
            self.links.append(Link(a=device.id, b=vertex.id, kind=LinkKind.STORAGE))

    def _disk(self, disk: Disk, function: Function | None) -> Device:
        named = None if function is None else self._named(function)
        return Device(
            id=self._id(DeviceKind.STORAGE.value),
            kind=DeviceKind.STORAGE,
            node=self._node,
            name=disk.model or (None if disk.has_own_bus else named),
            numa_node=None if function is None else function.numa_node,
            pci_bus_id=None if function is None else function.bus_id,
            pci_id=None if function is None else function.pci_id,
            os_names=(disk.name,),
            capacity_bytes=disk.capacity_bytes,
            rotational=disk.rotational,
        )

    def _named(self, function: Function) -> str | None:
        return self._names.get(function.pci_id or "", function.pci_id)

    # -- elsewhere -------------------------------------------------------------------------------------------------

    def _without_pci(self) -> None:
        """Devices on other buses (a board's own, USB's): nothing is known of how they are linked."""
        gpus: dict[str, list[str]] = {}
        for entry in self._cards:
            if entry.bus_id not in self._functions and "/drm/" in entry.folder:
                gpus.setdefault(entry.folder.partition("/drm/")[0], []).append(entry.name)
        for folder, names in gpus.items():
            if any(name.startswith("renderD") for name in names):
                name = folder.rpartition("/")[2]
                self.devices.append(
                    Device(id=self._id("gpu"), kind=DeviceKind.GPU, node=self._node, name=name, os_names=tuple(names))
                )
        for entry in (*self._net, *self._infiniband):
            if entry.bus_id not in self._functions:
                verbs = entry in self._infiniband
                ports = ports_of(self._tree, [] if verbs else [entry], [entry] if verbs else [])
                self.devices.append(
                    Device(
                        id=self._id("nic"),
                        kind=DeviceKind.NIC,
                        node=self._node,
                        pci_bus_id=entry.bus_id,
                        os_names=(entry.name,),
                        ports=ports,
                    )
                )
        for disk in self._disks:
            if disk.bus_id not in self._functions:
                self.devices.append(self._disk(disk, None))
