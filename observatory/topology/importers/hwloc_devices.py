"""What an hwloc file tells of PCI functions, and the devices that they are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from observatory.model.data_sheets import NVSWITCHES, gpu_sheet
from observatory.model.device import DeviceKind, Port
from observatory.model.hardware import NumaNode, PciFunction
from observatory.model.link import Link, LinkKind, LinkState
from observatory.model.topology import VertexKind
from observatory.topology.importers.building import TopologyBuilder, stated
from observatory.topology.importers.hwloc_objects import HwlocObject, number
from observatory.topology.importers.sysfs.accelerators import accelerator_kind
from observatory.topology.importers.sysfs.buses import PciBuses
from observatory.topology.importers.sysfs.pci import Function, bus_number, name_the_ports
from observatory.topology.importers.sysfs.pci_names import class_name
from observatory.topology.importers.sysfs.pcie_link import LinkEnd
from observatory.topology.importers.sysfs.processors import to_nearest
from observatory.topology.importers.xml_tree import Element

_TYPE = re.compile(
    r"([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\](?: \[[0-9a-f]{4}:[0-9a-f]{4}\])?"
    r"(?: [0-9a-f]{2}(?: ([0-9a-f]{2}))?)?"
)
_KIBIBYTES = re.compile(r"(\d{1,16})(?:KiB)?\Z")
_LARGEST_LINK = 1000.0  # GB/s
_STORAGE, _MEMORY, _NETWORK, _OPENFABRICS = "storage", "memory", "network", "openfabrics"
_KINDS_BEFORE_3 = {0: {_STORAGE}, 2: {_NETWORK}, 3: {_OPENFABRICS}, 6: {_MEMORY}}
_BITS = {0: _STORAGE, 1: _MEMORY, 4: _NETWORK, 5: _OPENFABRICS}
_NIC_CLASSES = ("02", "0c06")
_MOST_PORTS = 16


def os_device_kinds(thing: HwlocObject) -> set[str]:
    """Of what kinds an OS device is: by number up to version 2, by bits from version 3 on. GPUs are told by PCI."""
    told = number(thing.element, "osdev_type")
    if told is None:
        return set()
    if thing.version < 3:
        return _KINDS_BEFORE_3.get(told, set())
    return {kind for bit, kind in _BITS.items() if told >> bit & 1}


class HwlocDevices:
    """Functions, vertices and devices of one file."""

    def __init__(
        self, build: TopologyBuilder, node: str, objects: Sequence[HwlocObject], sockets: Mapping[int, tuple[int, ...]]
    ) -> None:
        self.build = build
        self.node = node
        self.sockets = sockets
        self.by_bus_id: dict[str, HwlocObject] = {}
        self.os_devices: dict[str | None, list[HwlocObject]] = {}
        self.shown: dict[str, str] = {}
        self.ends: dict[int, str] = {}  # gp_index -> the device or vertex that stands for it
        functions: dict[str, Function] = {}
        for thing in objects:
            if thing.kind in ("Bridge", "PCIDev") and thing.bus_id is not None:
                function = self._function(thing)
                if function is None:
                    continue
                if function.bus_id in functions:
                    build.warn(
                        "bus ids told twice, the first is read", f"{function.bus_id} on line {thing.element.line}"
                    )
                    continue
                functions[function.bus_id] = function
                self.by_bus_id[function.bus_id] = thing
            elif thing.kind == "OSDev":
                self.os_devices.setdefault(thing.place.function, []).append(thing)
        self.functions = dict(sorted(functions.items(), key=lambda item: item[1].number))
        name_the_ports(self.functions)
        self.buses = PciBuses(self.functions, node)

    def add(self, root: Element) -> None:
        """Put all of it into the topology."""
        for function in self.functions.values():
            if not function.is_bridge:
                self._device(function)
        self._hosts()
        self.build.adopt((), self.buses.vertices, [self._with_rate(link) for link in self.buses.links], ())
        self._between_gpus(root)
        self.build.pci_functions += [self._told(f) for f in self.functions.values()]
        for thing in self.os_devices.get(None, ()):
            if _NETWORK in os_device_kinds(thing) or _OPENFABRICS in os_device_kinds(thing):
                self._nic([thing], None, None)
            elif _STORAGE in os_device_kinds(thing) and thing.info("DAXType") is None:
                self._disk(thing, None)

    # -- functions -------------------------------------------------------------------------------------------------

    def _function(self, thing: HwlocObject) -> Function | None:
        bus_id = thing.bus_id or ""
        order = bus_number(bus_id)
        match = _TYPE.match((thing.element.get("pci_type") or "").lower())
        if order is None:
            self.build.warn("PCI bus ids that make no sense", f"{bus_id[:20]!r} on line {thing.element.line}")
            return None
        code = None if match is None else f"{match[1]}{match[4] or '00'}"
        if thing.kind == "Bridge":
            code = "060400" if code in (None, "000000") else code
        names = [o.element.get("name") for o in self.os_devices.get(bus_id, ())]
        parts = thing.place.folder.split("/")
        above = parts[-2] if len(parts) > 1 and bus_number(parts[-2]) else None
        nodes = thing.place.nodes
        return Function(
            bus_id=bus_id,
            number=order,
            folder=thing.place.folder,
            parent=above,
            host_bridge=thing.place.host_bridge,
            class_code=code,
            pci_id=None if match is None or match[2] == "0000" else f"{match[2]}:{match[3]}",
            numa_node=nodes[0] if len(nodes) == 1 else None,
            local_cpus=thing.place.cpus or None,
            physical_function=None,
            link=LinkEnd(),
            os_names=[name for name in names if name],
        )

    def _told(self, function: Function) -> PciFunction:
        return PciFunction(
            node=self.node,
            bus_id=function.bus_id,
            parent=function.parent,
            host_bridge=function.host_bridge,
            class_code=function.class_code,
            class_name=class_name(function.class_code),
            pci_id=function.pci_id,
            name=_named(self.by_bus_id[function.bus_id]),
            numa_node=function.numa_node,
            os_names=tuple(o.element.get("name") or "?" for o in self.os_devices.get(function.bus_id, ())),
            shown_as=self.shown.get(function.bus_id) or self.buses.stands_for(function.bus_id),
        )

    def _hosts(self) -> None:
        """Host bridges hang on the package that hwloc draws them in."""
        for vertex in self.buses.vertices:
            if vertex.kind is VertexKind.HOST_BRIDGE:
                inside = next((f for f in self.functions.values() if f.host_bridge == vertex.name), None)
                local = set(inside.local_cpus or ()) if inside else set()
                near = [s for s, cpus in self.sockets.items() if local and local <= set(cpus)]
                if len(self.sockets) == 1:
                    near = list(self.sockets)
                if len(near) == 1 and f"{self.node}/socket{near[0]}" in self.build.vertices:
                    self.buses.links.append(Link(a=vertex.id, b=f"{self.node}/socket{near[0]}", kind=LinkKind.PCIE))
                else:
                    self.build.warn("host bridges of no known socket", vertex.name)

    def _with_rate(self, link: Link) -> Link:
        bus_id = next((b for b, name in self.shown.items() if name == link.a), None)
        if bus_id is None:
            bus_id = next((v.pci_bus_id for v in self.buses.vertices if v.id == link.a), None)
        speed = _speed(self.by_bus_id[bus_id].element) if bus_id in self.by_bus_id else None
        if speed is None or link.kind is not LinkKind.PCIE:
            return link
        return link.model_copy(update=stated(speed))

    # -- devices ---------------------------------------------------------------------------------------------------

    def _device(self, function: Function) -> None:
        thing = self.by_bus_id[function.bus_id]
        names = self.os_devices.get(function.bus_id, [])
        kinds = {kind for name in names for kind in os_device_kinds(name)}
        code = function.class_code or ""
        card = accelerator_kind(function, None)
        cxl = next((n for n in names if (n.element.get("subtype") or "") == "CXLMem"), None)
        disks = [n for n in names if _STORAGE in os_device_kinds(n) and n.info("DAXType") is None and n is not cxl]
        if thing.element.get("subtype") == "NVSwitch" or function.pci_id in NVSWITCHES:
            name = self.build.vertex(
                self.node, "nvswitch", VertexKind.NVSWITCH, pci_bus_id=function.bus_id, name=_named(thing)
            )
        elif cxl is not None:
            sizes = [_kibibytes(cxl.info(i)) for i in ("CXLRAMSize", "CXLPMEMSize")]
            name = self._plain(function, DeviceKind.CXL_MEMORY, memory_bytes=sum(s or 0 for s in sizes) or None)
        elif card is not None:
            name = self._card(function, card, names)
        elif {_NETWORK, _OPENFABRICS} & kinds or code.startswith(_NIC_CLASSES):
            name = self._nic([n for n in names if {_NETWORK, _OPENFABRICS} & os_device_kinds(n)], function, thing)
        elif disks:
            self._disks(function, thing, disks)
            return
        else:
            return
        self.shown[function.bus_id] = name
        self.ends |= {gp: name for o in (thing, *names) if (gp := number(o.element, "gp_index")) is not None}
        self.buses.hang(name, function, LinkKind.CXL if cxl is not None else LinkKind.PCIE)

    def _plain(self, function: Function, kind: DeviceKind, **fields: Any) -> str:
        told: dict[str, Any] = {
            "name": _named(self.by_bus_id[function.bus_id]),
            "numa_node": function.numa_node,
            "pci_bus_id": function.bus_id,
            "pci_id": function.pci_id,
            "os_names": tuple(o.element.get("name") or "?" for o in self.os_devices.get(function.bus_id, ())),
        }
        return self.build.device(self.node, kind, **(told | fields))

    def _card(self, function: Function, kind: DeviceKind, names: Sequence[HwlocObject]) -> str:
        model = next((m for n in names if (m := n.info("GPUModel", "CoProcModel"))), None)
        model = model or _named(self.by_bus_id[function.bus_id])
        sheet = gpu_sheet(pci_id=function.pci_id, name=model) if kind is DeviceKind.GPU else None
        sizes = [_kibibytes(n.info("CUDAGlobalMemorySize", "RSMIVRAMSize")) for n in names]
        return self._plain(
            function,
            kind,
            name=model or (sheet.name if sheet else None),
            memory_bytes=next(filter(None, sizes), None),
            engines=sheet.device_engines() if sheet else (),
        )

    def _nic(self, names: Sequence[HwlocObject], function: Function | None, thing: HwlocObject | None) -> str:
        ports: list[Port] = []
        verbs = [n for n in names if n.infos("NodeGUID") or n.info("Port1State") or n.info("Port1GID0")]
        for device in verbs:
            guid = _guid(device.info("NodeGUID"))
            for index in range(1, _MOST_PORTS):
                if (state := device.info(f"Port{index}State")) is not None:
                    up = LinkState.UP if state == "4" else LinkState.DOWN
                    ports.append(Port(name=f"{device.element.get('name')}/{index}", guid=guid, state=up))
        covered = any(p.name for p in ports)
        for device in names:
            name = device.element.get("name") or "?"
            if device not in verbs and not (covered and name.startswith("ib")):
                ports.append(Port(name=name))
        os_names = tuple(n.element.get("name") or "?" for n in names)
        if function is None:
            return self.build.device(self.node, DeviceKind.NIC, os_names=os_names, ports=tuple(ports))
        return self._plain(function, DeviceKind.NIC, ports=tuple(ports), os_names=os_names)

    def _disks(self, function: Function, thing: HwlocObject, disks: Sequence[HwlocObject]) -> None:
        """A disk that is the function itself (NVMe, virtio), or a controller with disks on a bus of its own."""
        if len(disks) == 1 and (disks[0].element.get("name") or "").startswith(("nvme", "vd")):
            self.shown[function.bus_id] = self._disk(disks[0], function)
            self.buses.hang(self.shown[function.bus_id], function)
            return
        vertex = self.build.vertex(
            self.node,
            "controller",
            VertexKind.STORAGE_CONTROLLER,
            name=_named(thing),
            pci_bus_id=function.bus_id,
        )
        self.shown[function.bus_id] = vertex
        self.buses.hang(vertex, function)
        for disk in disks:
            self.build.link(self._disk(disk, function), vertex, LinkKind.STORAGE)

    def _disk(self, disk: HwlocObject, function: Function | None) -> str:
        return self.build.device(
            self.node,
            DeviceKind.STORAGE,
            name=disk.info("Model"),
            numa_node=None if function is None else function.numa_node,
            pci_bus_id=None if function is None else function.bus_id,
            pci_id=None if function is None else function.pci_id,
            os_names=(disk.element.get("name") or "?",),
            capacity_bytes=_kibibytes(disk.info("Size")),
        )

    # -- between GPUs ----------------------------------------------------------------------------------------------

    def _between_gpus(self, root: Element) -> None:
        for matrix in (*root.of("distances2hetero"), *root.of("distances2")):
            kind = {"NVLinkBandwidth": LinkKind.NVLINK, "XGMIBandwidth": LinkKind.XGMI}.get(matrix.get("name") or "")
            if kind is None:
                continue
            words = [w for e in matrix.of("indexes") for w in e.text.split()]
            values = [v for e in matrix.of("u64values") for v in e.text.split()]
            ends = [
                self.ends.get(int(n)) if (n := w.rpartition(":")[2]).isdigit() and len(n) < 12 else None for w in words
            ]
            if len(values) != len(ends) ** 2 or not all(v.isdigit() and len(v) < 12 for v in values):
                self.build.warn(f"a matrix {matrix.get('name')} that makes no sense", f"line {matrix.line}")
                continue
            for i, a in enumerate(ends):
                for j, b in enumerate(ends):
                    rate = int(values[i * len(ends) + j]) * 1e6
                    if i != j and rate > 0 and a is not None and b is not None:
                        self.build.link(a, b, kind, **stated(rate))

    # -- memory without processors -----------------------------------------------------------------------------------

    @staticmethod
    def add_memory(build: TopologyBuilder, node: str, numa: Sequence[tuple[NumaNode, Element]]) -> None:
        """NUMA nodes that have memory and no processors of their own: CXL, high-bandwidth, a GPU's."""
        processors = [d for d in build.devices.values() if d.kind is DeviceKind.CPU]
        for here, element in numa:
            if here.cpus or not here.memory_bytes:
                continue
            told = element.get("subtype")
            device = build.device(
                node,
                DeviceKind.CXL_MEMORY,
                name=f"{told} memory" if told else "memory without processors",
                numa_node=here.number,
                memory_bytes=here.memory_bytes,
            )
            build.adopt((), (), to_nearest(device, here, processors, LinkKind.MEMORY), ())
            build.warn("NUMA nodes with memory and no processors of their own, shown as cxl_memory", str(here.number))


def _named(thing: HwlocObject) -> str | None:
    vendor, device = thing.info("PCIVendor"), thing.info("PCIDevice")
    return " ".join(filter(None, (vendor, device))) if device else None


def _speed(element: Element) -> float | None:
    text = element.get("pci_link_speed") or ""
    if re.fullmatch(r"\d{1,6}(\.\d{1,12})?", text) is None:
        return None
    speed = float(text)
    return speed * 1e9 if 0 < speed <= _LARGEST_LINK else None


def _kibibytes(text: str | None) -> int | None:
    match = _KIBIBYTES.match(text or "")
    return int(match[1]) * 1024 if match else None


def _guid(text: str | None) -> str | None:
    digits = (text or "").replace(":", "").replace("0x", "").lower()
    return digits if re.fullmatch(r"[0-9a-f]{16}", digits) and int(digits, 16) else None
