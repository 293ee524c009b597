"""Topology files of NCCL and RCCL: what `NCCL_TOPO_DUMP_FILE` writes and `NCCL_TOPO_FILE` reads.

Elements, as in NCCL's src/graph/xml.cc and topo.cc and RCCL's additions:

    <system> <cpu numaid affinity vendor familyid modelid>
        <pci busid class vendor device link_speed link_width>     nested; class 0x0604.. is a switch
            <gpu dev sm|gcn rank> <nvlink|xgmi|c2c target count tclass>
            <nic> <net name dev speed (Mb/s) port guid latency>

Cloud providers write files by hand, without <gpu> and with made-up bus ids (`ffff:ff:01.0`) for switches. NCCL writes
the lesser of what both ends of a PCI Express link can do, not what it runs at, so its state is unknown. A `guid` of
InfiniBand is written with its bytes turned round.
"""

from __future__ import annotations

from dataclasses import replace

from observatory.model.data_sheets import (
    NVLINK_OF_COMPUTE_CAPABILITY,
    XGMI_OF_GCN,
    GpuSheet,
    gpu_sheet,
    nvlink_bytes_per_second,
    pcie_bytes_per_second,
    xgmi_bytes_per_second,
)
from observatory.model.device import DeviceKind, Port
from observatory.model.link import LinkKind
from observatory.model.topology import Topology, VertexKind
from observatory.topology.cpulist import parse_cpumask
from observatory.topology.importers.building import TopologyBuilder, data_sheet, negotiated, stated
from observatory.topology.importers.source import Format, Source
from observatory.topology.importers.sysfs.pcie_link import (
    parse_link_speed,
    parse_link_width,
    speed_text,
)
from observatory.topology.importers.xml_tree import Element, read_xml, root_name

_BRIDGE = "0x0604"
_GPU_CLASSES = ("0x0302", "0x0300", "0x0380", "0x1200")
_NIC_CLASSES = ("0x02",)
_NVSWITCH = "0x068000"
_POWER_BRIDGE = "0x068001"  # IBM's NVLink bridge: the link leads to the processor
_MEGABIT = 1e6
_FASTEST_PORT_MEGABITS = 3_200_000  # twice the fastest Ethernet of today (1.6 Tb/s)
_MOST_MEGABYTES = 10_000_000
_SOFTWARE = ("veth", "virbr", "docker", "br-", "cni", "flannel", "lo")
_SMALLEST_GUID = 1 << 32  # smaller ones are counters of a network plug-in


def _read(source: Source) -> Topology:
    root = read_xml(source)
    return _System(source, root).topology()


class _System:
    """One file as it is read."""

    def __init__(self, source: Source, root: Element) -> None:
        self.source = source
        self.build = TopologyBuilder(source, name="nccl")
        self.node = self.build.node()
        self.by_bus_id: dict[str, str] = {}
        self.switches: set[tuple[str, str]] = set()  # and what each hangs on
        self.gpus: list[tuple[str, Element, GpuSheet | None]] = []
        cpus = root.of("cpu")
        if not cpus:
            source.fail("has no <cpu> element", root.line, "NCCL_TOPO_DUMP_FILE writes whole files")
        self.numbered = _gpu_numbers(root)
        for cpu in cpus:
            self._cpu(cpu)
        for device, gpu, sheet in self.gpus:
            self._gpu_links(device, gpu, sheet)

    def topology(self) -> Topology:
        """All that was read."""
        processors = [d for d in self.build.devices.values() if d.kind is DeviceKind.CPU]
        for index, a in enumerate(processors):
            for b in processors[index + 1 :]:
                self.build.link(a.id, b.id, LinkKind.UPI)
        if not any(d.kind is DeviceKind.GPU for d in self.build.devices.values()):
            self.build.warn("no GPU is told of")
        return self.build.build()

    # -- processors ------------------------------------------------------------------------------------------------

    def _cpu(self, cpu: Element) -> None:
        numa = self._integer(cpu, "numaid")
        if numa is not None and numa < 0:
            numa = None
        cpus = None
        if mask := cpu.get("affinity"):
            try:
                cpus = parse_cpumask(mask) or None
            except ValueError:
                self.build.warn("processor masks that make no sense", f"line {cpu.line}")
        device = self.build.device(
            self.node, DeviceKind.CPU, name=_cpu_name(cpu), numa_node=numa, cpus=cpus, memory_bytes=None
        )
        for child in cpu.children:
            if child.tag == "pci":
                self._pci(child, device, numa)
            elif child.tag == "nic":
                for net in child.of("net"):
                    self._loose_net(net, numa)
            elif child.tag != "gpu":
                self.build.warn("elements that are not known", f"<{child.tag}> on line {child.line}")

    # -- PCI -------------------------------------------------------------------------------------------------------

    def _pci(self, pci: Element, above: str, numa: int | None) -> None:
        bus_id = (pci.get("busid") or "").lower() or None
        code = (pci.get("class") or "").lower()
        gpu = next(iter(pci.of("gpu")), None)
        nic = next(iter(pci.of("nic")), None)
        again = self.by_bus_id.get(bus_id or "")
        if again is not None and (again, above) in self.switches:  # a switch that is written once for each of its cards
            self._below(pci, again, numa)
            return
        if again is not None:
            self.build.warn("bus ids told twice", f"{bus_id} on line {pci.line}")
        if gpu is not None or (nic is None and code.startswith(_GPU_CLASSES)):
            name = self._gpu(pci, gpu, bus_id, numa)
        elif nic is not None or code.startswith(_NIC_CLASSES):
            name = self._nic(pci, nic, bus_id, numa)
        elif code.startswith(_BRIDGE) or pci.of("pci"):
            name = self.build.vertex(self.node, "pcie", VertexKind.PCIE_SWITCH, pci_bus_id=bus_id)
            self.switches.add((name, above))
        else:
            self.build.warn("PCI functions that are neither card nor switch", f"{bus_id} of class {code or 'unknown'}")
            return
        if bus_id is not None:
            self.by_bus_id.setdefault(bus_id, name)
        self._pcie_link(name, above, pci)
        self._below(pci, name, numa)

    def _below(self, pci: Element, name: str, numa: int | None) -> None:
        for child in pci.of("pci"):
            self._pci(child, name, numa)

    def _gpu(self, pci: Element, gpu: Element | None, bus_id: str | None, numa: int | None) -> str:
        pci_id = _pci_id(pci)
        sheet = gpu_sheet(pci_id=pci_id)
        number = None if gpu is None else self.numbered.get(id(gpu))
        if f"{self.node}/gpu{number}" in self.build.devices:
            number = None  # taken by a card without a number of its own
        device = self.build.device(
            self.node,
            DeviceKind.GPU,
            number=number,
            name=sheet.name if sheet else None,
            numa_node=numa,
            pci_bus_id=bus_id,
            pci_id=pci_id,
            engines=sheet.device_engines() if sheet else (),
        )
        if gpu is not None:
            self.gpus.append((device, gpu, sheet or _sheet_of(gpu)))
        return device

    def _nic(self, pci: Element, nic: Element | None, bus_id: str | None, numa: int | None) -> str:
        nets = [] if nic is None else nic.of("net")
        return self.build.device(
            self.node,
            DeviceKind.NIC,
            numa_node=numa,
            pci_bus_id=bus_id,
            pci_id=_pci_id(pci),
            os_names=tuple(dict.fromkeys(name for net in nets if (name := net.get("name")))),
            ports=tuple(self._port(net) for net in nets),
        )

    def _loose_net(self, net: Element, numa: int | None) -> None:
        """A network interface on no PCI bus: that of a virtual machine, or one that software made up."""
        name = net.get("name") or f"net{net.get('dev') or ''}"
        if name.startswith(_SOFTWARE):
            self.build.warn("interfaces made by software, left out", name)
            return
        self.build.device(self.node, DeviceKind.NIC, numa_node=numa, os_names=(name,), ports=(self._port(net),))

    def _port(self, net: Element) -> Port:
        megabits = self._integer(net, "speed")
        if megabits is not None and not 0 < megabits <= _FASTEST_PORT_MEGABITS:
            self.build.warn(
                "speeds that no port has, taken as unknown", f"{net.get('name')}: {megabits} Mb/s on line {net.line}"
            )
            megabits = None
        return Port(
            name=net.get("name") or "?",
            bytes_per_second=None if megabits is None else megabits * _MEGABIT / 8,
            guid=_guid(net.get("guid")),
        )

    def _pcie_link(self, name: str, above: str, pci: Element) -> None:
        speed = width = None
        try:
            speed = parse_link_speed(pci.get("link_speed") or "Unknown")
        except ValueError:
            self.build.warn("link speeds that make no sense", f"{pci.get('link_speed')!r} on line {pci.line}")
        try:
            width = parse_link_width(pci.get("link_width") or "0")
        except ValueError:
            self.build.warn("link widths that make no sense", f"{pci.get('link_width')!r} on line {pci.line}")
        rate = None if speed is None or width is None else pcie_bytes_per_second(speed, width)
        self.build.link(name, above, LinkKind.PCIE, width=width, speed=speed_text(speed), **negotiated(rate))

    # -- links between GPUs ----------------------------------------------------------------------------------------

    def _gpu_links(self, device: str, gpu: Element, sheet: GpuSheet | None) -> None:
        for link in gpu.children:
            kind = {"nvlink": LinkKind.NVLINK, "xgmi": LinkKind.XGMI, "c2c": LinkKind.C2C}.get(link.tag)
            if kind is None:
                self.build.warn("elements that are not known", f"<{link.tag}> on line {link.line}")
                continue
            if kind is LinkKind.C2C:
                self._c2c(device, link)
                continue
            count = self._integer(link, "count")
            if count is None or not 0 < count < 256:
                self.build.warn("links without a count that makes sense", f"line {link.line}")
                count = None
            target = self._target(device, link)
            if target is None:
                continue
            rate = None
            if count is not None and kind is LinkKind.NVLINK:
                rate = nvlink_bytes_per_second(sheet.nvlink if sheet else None, count)
            elif count is not None:
                rate = xgmi_bytes_per_second(sheet.xgmi if sheet else None, count)
            self.build.link(device, target, kind, count=count, **data_sheet(rate))

    def _target(self, device: str, link: Element) -> str | None:
        """The other end: a device of the file, an NVSwitch (which no <pci> tells of), or on POWER the processor."""
        bus_id = (link.get("target") or "").lower()
        code = (link.get("tclass") or "").lower()
        if bus_id in self.by_bus_id and self.by_bus_id[bus_id] != device:
            return self.by_bus_id[bus_id]
        if code == _NVSWITCH and bus_id:
            self.by_bus_id[bus_id] = self.build.vertex(self.node, "nvswitch", VertexKind.NVSWITCH, pci_bus_id=bus_id)
            return self.by_bus_id[bus_id]
        if code == _POWER_BRIDGE:
            return self._processor_of(device)
        self.build.warn("links to what the file does not tell of", f"{bus_id or 'nothing'} on line {link.line}")
        return None

    def _c2c(self, device: str, link: Element) -> None:
        """NVLink-C2C to the processor. `bw` is the rate of one of its `count` links, in MB/s."""
        processor = self._processor_of(device)
        if processor is None:
            self.build.warn("links to what the file does not tell of", f"<c2c> on line {link.line}")
            return
        count, megabytes = self._integer(link, "count"), self._integer(link, "bw")
        known = count is not None and megabytes is not None and 0 < count < 256 and 0 < megabytes < _MOST_MEGABYTES
        rate = count * megabytes * 1e6 if known and count is not None and megabytes is not None else None
        self.build.link(device, processor, LinkKind.C2C, count=count if known else None, **stated(rate))

    def _processor_of(self, device: str) -> str | None:
        numa = self.build.devices[device].numa_node
        processors = [d for d in self.build.devices.values() if d.kind is DeviceKind.CPU]
        return next((p.id for p in processors if p.numa_node == numa), None)

    def _integer(self, element: Element, name: str) -> int | None:
        text = element.get(name)
        if text is None:
            return None
        try:
            return int(text) if len(text) < 20 else int("no")
        except ValueError:
            self.build.warn("numbers that make no sense", f"{name}={text[:20]!r} on line {element.line}")
            return None


def _gpu_numbers(root: Element) -> dict[int, int]:
    """<gpu> element (by identity) -> its number: `dev`, where those are all different."""
    found: list[Element] = []
    todo = [root]
    while todo:
        element = todo.pop()
        found += [e for e in element.children if e.tag == "gpu"]
        todo += [e for e in element.children if e.tag in ("cpu", "pci")]
    numbers = [e.get("dev") or "" for e in found]
    if len(set(numbers)) != len(numbers) or not all(n.isascii() and n.isdigit() and len(n) < 5 for n in numbers):
        return {}
    return {id(e): int(n) for e, n in zip(found, numbers, strict=True)}


def _sheet_of(gpu: Element) -> GpuSheet | None:
    """What the compute capability or `gcn` alone says of the links of a GPU."""
    sm, gcn = gpu.get("sm") or "", gpu.get("gcn") or ""
    empty = GpuSheet(name="", pci_ids=(), words="")
    if gcn.isdigit() and len(gcn) < 6:
        return replace(empty, xgmi=XGMI_OF_GCN.get(int(gcn)))
    if sm.isdigit() and len(sm) < 6:
        return replace(empty, nvlink=NVLINK_OF_COMPUTE_CAPABILITY.get(int(sm)))
    return None


def _pci_id(pci: Element) -> str | None:
    vendor, device = ((pci.get(name) or "").lower().removeprefix("0x") for name in ("vendor", "device"))
    known = len(vendor) == 4 and len(device) == 4 and vendor != "ffff"
    return f"{vendor}:{device}" if known else None


def _guid(text: str | None) -> str | None:
    try:
        number = int(text or "0", 16)
    except ValueError:
        return None
    if not _SMALLEST_GUID <= number < 1 << 64:
        return None
    return number.to_bytes(8, "little").hex()


def _cpu_name(cpu: Element) -> str | None:
    """`GenuineIntel family 6 model 143`: NCCL tells no more."""
    vendor, family, model = cpu.get("vendor"), cpu.get("familyid"), cpu.get("modelid")
    return None if vendor is None else f"{vendor} family {family} model {model}" if family and model else vendor


FORMAT = Format(
    name="nccl",
    title="NCCL or RCCL topology (XML)",
    recognise=lambda source: root_name(source) == "system",
    read=_read,
)
