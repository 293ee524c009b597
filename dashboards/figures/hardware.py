"""Devices and links in words and colours, from the document of `observatory topology show`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dashboards import numbers
from dashboards.theme import ACCENT, BAD, CAUTION, NEUTRAL

Document = Mapping[str, Any]
Placed = Mapping[str, Sequence[str]]
"""Operators by the device where the placement put them."""

UNKNOWN = "unknown"

DEVICE_COLOURS = {
    "gpu": "#009e73", "cpu": "#8b929c", "vpu": "#a08b00", "fpga": "#b08968", "asic": "#56b4e9", "nic": "#cc79a7",
    "cxl_memory": "#7b6fd0",
}  # fmt: skip
LINK_COLOURS = {
    "pcie": "#8b929c", "nvlink": "#009e73", "xgmi": "#009e73", "c2c": "#56b4e9", "cxl": "#b08968", "upi": "#a08b00",
    "rdma": "#cc79a7", "ethernet": "#b48ead", "memory": "#7b6fd0",
}  # fmt: skip
KIND_WORDS = {
    "pcie": "PCIe", "nvlink": "NVLink", "xgmi": "xGMI", "c2c": "C2C", "cxl": "CXL", "upi": "UPI", "rdma": "RDMA",
    "ethernet": "Ethernet", "memory": "memory",
}  # fmt: skip
STATES = {"degraded": (CAUTION, "dash"), "down": (BAD, "dot")}


def node_of(name: str, topology: Document) -> str | None:
    """The node that a device or vertex belongs to; None for what lies between nodes."""
    nodes = {node["id"] for node in topology["nodes"]}
    head = name.partition("/")[0]
    return head if head in nodes else None


def short(name: str) -> str:
    """`gpu3` of `n0/gpu3`."""
    return name.partition("/")[2] or name


def device_words(device: Document, placed: Sequence[str]) -> str:
    """Everything that is known of a device."""
    engines = ", ".join(
        f"{e['count']} {e['kind']}" + (f" (at most {e['sessions']} sessions)" if e.get("sessions") is not None else "")
        for e in device.get("engines") or ()
    )
    lines = [
        f"<b>{device['id']}</b>, {device['kind']}",
        f"model: {device.get('name') or UNKNOWN}",
        f"memory: {numbers.size(device.get('memory_bytes'), UNKNOWN)}",
        f"NUMA node: {_or_unknown(device.get('numa_node'))}",
        f"PCI bus id: {_or_unknown(device.get('pci_bus_id'))}",
        f"engines: {engines or UNKNOWN}",
        f"operators: {', '.join(placed) if placed else 'none'}",
    ]
    return "<br>".join(lines)


def link_words(link: Document) -> str:
    """Everything that is known of a link."""
    several = f"{link['count']} × " if (link.get("count") or 1) > 1 else ""
    use = link.get("utilisation")
    lines = [
        f"<b>{link['a']} – {link['b']}</b>",
        f"{several}{KIND_WORDS.get(link['kind'], link['kind'])}, {state_of(link)}",
        f"width: {_or_unknown(link.get('width'), '×')}, speed: {_or_unknown(link.get('speed'))}",
        f"bandwidth: {numbers.rate(link.get('bandwidth_bytes_per_second'), UNKNOWN)} one way",
        f"latency: {numbers.seconds(link.get('latency_seconds'), UNKNOWN)}",
        f"utilisation: {UNKNOWN if use is None else f'{use:.0%}'}",
    ]
    if link.get("numa_distance") is not None:
        lines.append(f"NUMA distance: {link['numa_distance']} (10 is local)")
    return "<br>".join(lines)


def class_words(link: Document) -> str:
    """What links have in common that look the same: kind, width × speed, bandwidth."""
    parts: list[str] = [KIND_WORDS.get(link["kind"], str(link["kind"]))]
    wide = " × ".join(str(v) for v in (link.get("width"), link.get("speed")) if v is not None)
    parts += [wide] if wide else []
    parts.append(numbers.rate(link.get("bandwidth_bytes_per_second"), "bandwidth unknown"))
    state = state_of(link)
    return ", ".join(parts) + (f" ({state})" if state in STATES else "")


def state_of(link: Document) -> str:
    """`up`, `degraded`, `down`, or `state unknown`."""
    state = link.get("state")
    return str(state) if state and state != UNKNOWN else "state unknown"


def link_line(link: Document) -> dict[str, Any]:
    """Colour by kind; another colour and dashes for a link that is degraded or down."""
    colour, dash = STATES.get(str(link.get("state")), (LINK_COLOURS.get(link["kind"], NEUTRAL), "solid"))
    return {
        "color": colour,
        "dash": dash,
        "width": 3 if dash != "solid" else 2 if link["kind"] in ("nvlink", "xgmi") else 1.5,
    }


def classes(links: Iterable[Document]) -> dict[str, list[Document]]:
    """Links by what they look like, troubled ones first, then the fastest."""
    found: dict[str, list[Document]] = {}
    for link in links:
        found.setdefault(class_words(link), []).append(link)

    def urgency(entry: tuple[str, list[Document]]) -> tuple[bool, float]:
        first = entry[1][0]
        return (str(first.get("state")) not in STATES, -(first.get("bandwidth_bytes_per_second") or 0.0))

    return dict(sorted(found.items(), key=urgency))


def box_line(placed: bool) -> dict[str, Any]:
    """The border of a device's box: the accent where operators are placed."""
    return {"color": ACCENT, "width": 2} if placed else {"color": "rgba(128,136,148,0.6)", "width": 1}


def _or_unknown(value: Any, before: str = "") -> str:
    return UNKNOWN if value is None else f"{before}{value}"
