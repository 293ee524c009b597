"""A device, a vertex, a link, the caches of a processor: each in one line of the drawn topology."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from observatory.app.units import bytes_text, rate_text, seconds_text
from observatory.model.device import Device, DeviceKind, Engine, Port
from observatory.model.hardware import Cache, PciFunction
from observatory.model.link import Link, LinkState
from observatory.model.topology import Topology, Vertex
from observatory.topology.cpulist import format_cpulist


def counted(number: int, what: str) -> str:
    """`1 port`, `2 ports`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def device_words(device: Device) -> str:
    """All that is known of a device, its id apart."""
    return " ".join(_about(device))


def summary_words(topology: Topology) -> str:
    """How much there is: `1 machine; 8 gpu, 2 cpu; 4 pcie_switch; 12 pcie, 24 xgmi links`."""
    parts = [counted(len(topology.nodes), "machine")]
    for things, after in (
        ([d.kind.value for d in topology.devices], ""),
        ([v.kind.value for v in topology.vertices], ""),
        ([link.kind.value for link in topology.links], " links"),
    ):
        if things:
            parts.append(", ".join(f"{n} {kind}" for kind, n in Counter(things).items()) + after)
    return "; ".join(parts)


def vertex_words(vertex: Vertex) -> str:
    """What a vertex is, what it is called and where it is."""
    words = [vertex.kind.value.replace("_", " "), vertex.name, vertex.pci_bus_id]
    if vertex.ports:
        words.append(counted(len(vertex.ports), "downstream port"))
    return " ".join(filter(None, words))


def link_words(link: Link) -> str:
    """What is known of a link: kind, count or width, speed now and at best, bandwidth, latency, distance, its state."""
    words = [link.kind.value, *_rate_words(link)]
    if link.bandwidth_bytes_per_second is not None and link.state is not LinkState.DOWN:
        words.append(rate_text(link.bandwidth_bytes_per_second))
    if link.latency_seconds is not None:
        words.append(seconds_text(link.latency_seconds))
    if link.numa_distance is not None:
        words.append(f"distance {link.numa_distance}")
    if link.state in (LinkState.DEGRADED, LinkState.DOWN):
        words.append(link.state.value.upper())
    return " ".join(words) if len(words) > 1 else ""


def cache_words(caches: Iterable[Cache]) -> str:
    """`L3 20 MiB (8 threads), 8 x L2 256 KiB`: alike caches together, how many threads share one if several do."""
    alike = Counter((c.label, c.size_bytes, len(c.cpus)) for c in caches)
    parts = []
    for (label, size, threads), count in alike.items():
        many = f"{count} x " if count > 1 else ""
        each = "" if threads == 1 else f" ({threads} threads{' each' if count > 1 else ''})"
        parts.append(f"{many}{label} {_binary_text(size)}{each}")
    return ", ".join(parts)


def function_words(functions: Sequence[PciFunction]) -> str:
    """PCI functions that are shown as nothing else: one by its bus id, many of one class by their number."""
    by_class: dict[str, list[PciFunction]] = {}
    for function in functions:
        by_class.setdefault(function.class_name or "unknown function", []).append(function)
    parts = []
    for name, members in by_class.items():
        called = members[0].name or members[0].pci_id or ""
        parts.append(
            f"{name} {members[0].bus_id} {called}".rstrip() if len(members) == 1 else f"{len(members)} x {name}"
        )
    return ", ".join(parts)


def _about(device: Device) -> Iterable[str]:
    if device.name:
        yield device.name
    for engine in device.engines:
        yield _engine_words(device, engine)
    if device.memory_bytes is not None:
        yield bytes_text(device.memory_bytes)
    if device.capacity_bytes is not None:
        yield bytes_text(device.capacity_bytes)
    if device.rotational:
        yield "rotational"
    if device.numa_node is not None:
        yield f"numa {device.numa_node}"
    if device.cpus is not None:
        yield f"cpus {format_cpulist(device.cpus)}"
    if device.pci_bus_id:
        yield device.pci_bus_id
    if device.virtual_functions:
        yield counted(len(device.virtual_functions), "virtual function")
    if device.ports or device.os_names:
        yield f"[{', '.join([*map(_port_words, device.ports), *_other_names(device)])}]"


def _engine_words(device: Device, engine: Engine) -> str:
    what = engine.kind.value
    if device.kind is DeviceKind.CPU and what == "compute":
        threads = len(device.cpus or ())
        return counted(engine.count, "core") + (f" {counted(threads, 'thread')}" if threads > engine.count else "")
    sessions = "" if engine.sessions is None else f" (at most {engine.sessions} sessions)"
    return f"{engine.count} {what}{sessions}"


def _port_words(port: Port) -> str:
    rate = "" if port.bytes_per_second is None else f" {_bits_text(port.bytes_per_second * 8)}"
    state = "" if port.state is LinkState.UNKNOWN else f" {port.state.value}"
    return f"{port.name}{rate}{state}"


def _other_names(device: Device) -> list[str]:
    """What the system calls the device beside its ports."""
    shown = {port.name.partition("/")[0] for port in device.ports}
    return [name for name in device.os_names if name not in shown]


def _rate_words(link: Link) -> Iterable[str]:
    if link.count is not None:
        yield f"x{link.count}"
    elif link.width is not None:
        yield f"x{link.width}"
    if link.speed:
        yield link.speed
    if link.best_width is None and link.best_speed is None:
        return
    if (link.best_width or link.width, link.best_speed or link.speed) == (link.width, link.speed):
        yield "(its best)"
    else:
        width = "" if link.best_width is None else f" x{link.best_width}"
        yield f"(best{width}{f' {link.best_speed}' if link.best_speed else ''})"


def _binary_text(size: int | None) -> str:
    """`48 KiB`: caches come in powers of two."""
    if size is None:
        return "?"
    scale, unit = next(((s, u) for s, u in ((1 << 20, "MiB"), (1 << 10, "KiB")) if size >= s), (1, "B"))
    return f"{size / scale:g} {unit}"


def _bits_text(bits_per_second: float) -> str:
    """`25 Gb/s`: network people count bits."""
    scale, unit = next(((s, u) for s, u in ((1e9, "Gb/s"), (1e6, "Mb/s")) if bits_per_second >= s), (1.0, "b/s"))
    return f"{bits_per_second / scale:.3g} {unit}"
