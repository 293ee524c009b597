"""The emulated machine's /sys as it is built: processors, NUMA nodes, PCI functions, network cards, disks.

What only a driver or an operator would ask for is not there. Files that change later are written by `sysfs.SysfsFace`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from chaos.machine.pci_tree import Function
from chaos.machine.plan import MachinePlan
from chaos.machine.ports import interfaces, rdma_ports
from observatory.model.device import Device, DeviceKind, EngineKind
from observatory.model.hardware import CacheKind, NumaNode
from observatory.model.link import LinkKind
from observatory.model.topology import VertexKind
from observatory.topology.cpulist import format_cpulist

_REMOTE_DISTANCE = 20  # where a machine tells some distances and not this one
_SECTOR_BYTES = 512
_CACHE_TYPES = {CacheKind.DATA: "Data", CacheKind.INSTRUCTION: "Instruction", CacheKind.UNIFIED: "Unified"}
_ROOT_PORT, _UPSTREAM, _DOWNSTREAM, _BRIDGE = 4, 5, 6, 7
_CAPABILITY_AT = 0x40
_PADDED = 32  # bytes of a file: a value that is written over it later is no longer


class SysfsTreeWriter:
    """Writes the tree of one machine below `root` (which stands before /sys)."""

    def __init__(self, plan: MachinePlan, root: Path) -> None:
        self._plan = plan
        self._topology = plan.topology
        self._root = root
        self._sys = root / "sys"
        self._devices = {d.id: d for d in plan.topology.devices if d.node == plan.node}
        self._cpus = _processors(plan)
        self._made: set[Path] = set()

    def write(self) -> None:
        """Everything. Raises OSError."""
        self._processors()
        self._numa()
        self._caches()
        for function in self._plan.tree.functions.values():
            self._function(function)
        for device in self._devices.values():
            if device.kind is DeviceKind.NIC:
                self._card(device)
            elif device.kind is DeviceKind.STORAGE:
                self._disk(device)
        for told in self._topology.pci_functions:
            for name in told.os_names if told.node == self._plan.node else ():
                if name.startswith(("card", "renderD")):
                    self._file(self.folder(told.bus_id) / "drm" / name, "dev", "226:0")
                    self._link(self._sys / "class/drm" / name, self.folder(told.bus_id) / "drm" / name)
        self._loopback()
        for folder in ("class/net", "class/infiniband", "bus/pci/devices"):
            (self._sys / folder).mkdir(parents=True, exist_ok=True)

    # -- files -------------------------------------------------------------------------------------------------------

    def _file(self, folder: Path, name: str, text: str | int) -> None:
        if folder not in self._made:
            folder.mkdir(parents=True, exist_ok=True)
            self._made.add(folder)
        descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            os.write(descriptor, padded(str(text)))
        finally:
            os.close(descriptor)

    def _files(self, folder: Path, files: Mapping[str, str | int]) -> None:
        for name, text in files.items():
            self._file(folder, name, text)

    def _link(self, link: Path, target: Path) -> None:
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(target, link.parent))

    # -- processors and memory ---------------------------------------------------------------------------------------

    def _processors(self) -> None:
        base = self._sys / "devices/system/cpu"
        every = tuple(sorted(cpu for cpus in self._cpus.values() for cpu in cpus)) or (0,)
        for name in ("online", "possible", "present"):
            self._file(base, name, format_cpulist(every))
        sockets = _sockets(self._plan)
        for device_id, cpus in self._cpus.items():
            cores = self._cores(device_id, cpus)
            for cpu in cpus:
                siblings = cores[cpu]
                self._files(
                    base / f"cpu{cpu}" / "topology",
                    {
                        "physical_package_id": sockets[device_id],
                        "core_id": siblings[0],
                        "core_cpus_list": format_cpulist(siblings),
                    },
                )
        names = [d.name for d in self._devices.values() if d.kind is DeviceKind.CPU]
        lines = [f"processor\t: {cpu}\nmodel name\t: {names[0] or 'emulated'}\n" for cpu in every if names]
        self._file(self._root / "proc", "cpuinfo", "\n".join(lines) if names and names[0] else "")

    def _cores(self, device_id: str, cpus: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
        """Processor -> the processors of its core: as many cores as the device has compute engines."""
        engine = self._devices[device_id].engine(EngineKind.COMPUTE)
        count = len(cpus) if engine is None or not 0 < engine.count <= len(cpus) else engine.count
        groups = [cpus[first::count] for first in range(count)]
        return {cpu: group for group in groups for cpu in group}

    def _numa(self) -> None:
        nodes = self._numa_nodes()
        base = self._sys / "devices/system/node"
        self._file(base, "online", format_cpulist(tuple(n.number for n in nodes)))
        for node in nodes:
            files = {
                "cpulist": format_cpulist(node.cpus) if node.cpus else "",
                "numastat": "numa_hit 0\nnuma_miss 0\nnuma_foreign 0\ninterleave_hit 0\nlocal_node 0\nother_node 0",
            }
            if node.memory_bytes is not None:
                lines = [
                    f"Node {node.number} {name}: {node.memory_bytes // 1024} kB" for name in ("MemTotal", "MemFree")
                ]
                files["meminfo"] = "\n".join(lines)
            if node.distances:
                files["distance"] = " ".join(str(node.distances.get(n.number, _REMOTE_DISTANCE)) for n in nodes)
            self._files(base / f"node{node.number}", files)

    def _numa_nodes(self) -> list[NumaNode]:
        """As told, else one for every number that a processor or card has."""
        told = [n for n in self._topology.numa_nodes if n.node == self._plan.node]
        if told:
            return told
        found: dict[int, NumaNode] = {}
        for device_id, cpus in self._cpus.items():
            device = self._devices[device_id]
            number = device.numa_node or 0
            before = found.get(number)
            memory = (device.memory_bytes or 0) + ((before.memory_bytes or 0) if before else 0)
            every = (*(before.cpus if before else ()), *cpus)
            found[number] = NumaNode(node=self._plan.node, number=number, cpus=every, memory_bytes=memory or None)
        return [found[number] for number in sorted(found)]

    def _caches(self) -> None:
        count: dict[int, int] = {}
        for cache in self._topology.caches:
            if cache.node != self._plan.node:
                continue
            for cpu in cache.cpus:
                index = count.get(cpu, 0)
                count[cpu] = index + 1
                files: dict[str, str | int] = {
                    "level": cache.level,
                    "type": _CACHE_TYPES[cache.kind],
                    "shared_cpu_list": format_cpulist(cache.cpus),
                }
                if cache.size_bytes is not None:
                    files["size"] = f"{cache.size_bytes // 1024}K"
                self._files(self._sys / f"devices/system/cpu/cpu{cpu}/cache/index{index}", files)

    # -- PCI ---------------------------------------------------------------------------------------------------------

    def folder(self, bus_id: str) -> Path:
        """Of a function."""
        tree = self._plan.tree
        return self._sys / tree.path(tree.functions[bus_id])

    def _function(self, function: Function) -> None:
        folder = self.folder(function.bus_id)
        vendor, _, device = function.pci_id.partition(":")
        numa = -1 if function.numa_node is None else function.numa_node
        local = self._local_cpus(function.numa_node)
        files: dict[str, str | int] = {
            "class": f"0x{function.class_code}",
            "vendor": f"0x{vendor}",
            "device": f"0x{device}",
            "numa_node": numa,
            "local_cpulist": format_cpulist(local),
        }
        shown = self._devices.get(function.stands_for or "")
        if shown is not None and shown.kind is DeviceKind.GPU and vendor == "1002":  # as amdgpu does
            if shown.name is not None:
                files["product_name"] = shown.name
            if shown.memory_bytes is not None:
                files["mem_info_vram_total"] = shown.memory_bytes
        self._files(folder, files)
        if function.is_bridge:
            (folder / "config").write_bytes(_config(self._port_type(function)))
        if function.physical_function is not None:
            self._link(folder / "physfn", self.folder(function.physical_function))
        self._link(self._sys / "bus/pci/devices" / function.bus_id, folder)

    def _local_cpus(self, numa: int | None) -> tuple[int, ...]:
        nodes = {n.number: n.cpus for n in self._numa_nodes()}
        return nodes.get(-1 if numa is None else numa) or tuple(sorted(c for cpus in self._cpus.values() for c in cpus))

    def _port_type(self, function: Function) -> int:
        kinds = {v.id: v.kind for v in self._topology.vertices}
        kind = kinds.get(function.stands_for or "")
        if kind is VertexKind.ROOT_PORT or (kind is None and function.parent is None):
            return _ROOT_PORT
        if kind is VertexKind.PCIE_SWITCH:
            vertex = next(v for v in self._topology.vertices if v.id == function.stands_for)
            return _DOWNSTREAM if function.bus_id in vertex.ports else _UPSTREAM
        return _DOWNSTREAM if kind is None else _BRIDGE

    def _loopback(self) -> None:
        """Every machine has it."""
        folder = self._sys / "devices/virtual/net/lo"
        files: dict[str, str | int] = {"operstate": "unknown", "carrier": 1, "carrier_down_count": 0}
        files |= {
            "type": 772,
            "address": "00:00:00:00:00:00",
            "mtu": 65536,
            "ifindex": 1,
            "flags": "0x9",
            "addr_len": 6,
        }
        self._files(folder, files)
        counters = [f"{way}_{what}" for way in ("rx", "tx") for what in ("bytes", "packets", "errors", "dropped")]
        self._files(folder / "statistics", dict.fromkeys(counters, 0))
        self._link(self._sys / "class/net/lo", folder)

    # -- cards and disks ---------------------------------------------------------------------------------------------

    def _home(self, device: Device) -> Path:
        if device.pci_bus_id is not None and device.pci_bus_id in self._plan.tree.functions:
            return self.folder(device.pci_bus_id)
        return self._sys / "devices/platform" / device.id.rpartition("/")[2]

    def _card(self, card: Device) -> None:
        home = self._home(card)
        for index, interface in enumerate(interfaces(card)):
            folder = home / "net" / interface.name
            self._files(
                folder,
                {
                    "type": 32 if interface.is_infiniband else 1,
                    "address": f"02:00:00:00:{index:02x}:{len(self._made) & 0xFF:02x}",
                    "mtu": 4092 if interface.is_infiniband else 9000,
                    "ifindex": len(self._made) + 2,
                    "flags": "0x1003",
                    "addr_len": 20 if interface.is_infiniband else 6,
                    "dev_id": "0x0",
                    "duplex": "full",
                    "speed": interface.megabits,
                },
            )
            self._link(folder / "device", home)
            self._link(self._sys / "class/net" / interface.name, folder)
        for port in rdma_ports(card):
            folder = home / "infiniband" / port.device
            self._files(
                folder,
                {"board_id": "MT_0000000838", "fw_ver": "28.39.1002", "hca_type": "MT4129", "node_type": "1: CA"},
            )
            self._files(folder / "ports" / port.number, {"link_layer": port.link_layer, "rate": port.rate})
            if not (folder / "device").is_symlink():
                self._link(folder / "device", home)
                self._link(self._sys / "class/infiniband" / port.device, folder)

    def _disk(self, disk: Device) -> None:
        home = self._home(disk)
        controllers = {v.id: v.pci_bus_id for v in self._topology.vertices if v.kind is VertexKind.STORAGE_CONTROLLER}
        behind = [
            controllers[end]
            for x in self._topology.links
            if disk.id in (x.a, x.b)
            for end in (x.a, x.b)
            if end in controllers
        ]
        for name in disk.os_names:
            if behind and behind[0] is not None:
                number = len([path for path in self._made if path.parent.name == "block"])
                holder = self.folder(behind[0]) / f"host{number}" / f"target{number}:0:0" / f"{number}:0:0:0"
                folder = holder / "block" / name
            elif name.startswith("nvme"):
                holder = home / "nvme" / f"nvme{name[4:].partition('n')[0]}"
                folder = holder / name
            else:
                holder = home / "virtio0"
                folder = holder / "block" / name
            size = 0 if disk.capacity_bytes is None else disk.capacity_bytes // _SECTOR_BYTES
            self._files(folder, {"size": size})
            if disk.rotational is not None:
                self._file(folder / "queue", "rotational", int(disk.rotational))
            if disk.name is not None:
                self._file(holder, "model", disk.name)
            self._link(folder / "device", holder)
            self._link(self._sys / "class/block" / name, folder)


def padded(text: str) -> bytes:
    """A file's bytes, with room to write a longer value over it in one go."""
    return f"{text}\n".encode().ljust(_PADDED)


def _processors(plan: MachinePlan) -> dict[str, tuple[int, ...]]:
    """Device -> its logical processors, made up where the topology tells only how many cores there are."""
    found: dict[str, tuple[int, ...]] = {}
    following = 0
    for device in plan.topology.devices:
        if device.kind is not DeviceKind.CPU or device.node != plan.node:
            continue
        engine = device.engine(EngineKind.COMPUTE)
        count = 1 if engine is None else engine.count
        cpus = device.cpus or tuple(range(following, following + count))
        following = max(following, *(cpu + 1 for cpu in cpus))
        found[device.id] = cpus
    return found


def _sockets(plan: MachinePlan) -> dict[str, int]:
    """Device -> number of its socket: that of the socket it is linked to, else one each."""
    names = [v.id for v in plan.topology.vertices if v.kind is VertexKind.SOCKET and v.node == plan.node]
    numbers = {name: int(name.rpartition("socket")[2]) for name in names if name.rpartition("socket")[2].isdigit()}
    found = {device: position for position, device in enumerate(_processors(plan))}
    for link in plan.topology.links:
        if link.kind is LinkKind.MEMORY:
            for cpu, socket in ((link.a, link.b), (link.b, link.a)):
                if cpu in found and socket in numbers:
                    found[cpu] = numbers[socket]
    return found


def _config(port_type: int) -> bytes:
    """The configuration space of a bridge: as much of it as tells what kind of port it is (PCI Express 5.0, 7.5.3)."""
    data = bytearray(256)
    data[0:2] = b"\x86\x80"
    data[0x06] = 0x10  # there is a list of capabilities
    data[0x0E] = 0x01  # a bridge
    data[0x34] = _CAPABILITY_AT
    data[_CAPABILITY_AT : _CAPABILITY_AT + 3] = bytes([0x10, 0x00, port_type << 4 | 2])
    return bytes(data)
