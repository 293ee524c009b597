"""Facts about a topology, as people count them: compared with a table that was worked out by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from observatory.model.device import Device, DeviceKind
from observatory.model.link import Link, LinkKind
from observatory.model.topology import Topology

GIGABIT = 1e9 / 8


def check(topology: Topology, facts: dict[str, Any]) -> None:
    """Every fact of the table, against what was read."""
    known: dict[str, Callable[[], Any]] = {
        "gpus": lambda: len(gpus(topology)),
        "numa": lambda: [d.numa_node for d in gpus(topology)],
        "nics": lambda: len(topology.devices_of(DeviceKind.NIC)),
        "machines": lambda: [n.hostname for n in topology.nodes],
        "machine_count": lambda: len(topology.nodes),
        "links": lambda: dict(Counter(link.kind.value for link in topology.links)),
    }
    for name, expected in facts.items():
        if name in known:
            assert known[name]() == expected, name
        elif name in ("nvlink", "xgmi"):
            gpu_links(topology, LinkKind(name), expected)
        elif name == "ports":
            for port, gigabits in expected.items():
                assert rate_of(topology, port) == (None if gigabits is None else pytest.approx(gigabits * GIGABIT)), (
                    port
                )
        elif name == "vertices":
            counts = Counter(v.kind.value for v in topology.vertices)
            assert {kind: counts[kind] for kind in expected} == expected
            assert expected or not topology.vertices
        elif name == "memory":
            for device, size in expected.items():
                found = topology.device(device)
                assert found is not None
                assert found.memory_bytes == size
        elif name == "cxl_memory":
            devices = topology.devices_of(DeviceKind.CXL_MEMORY)
            assert {d.os_names[0]: d.memory_bytes for d in devices} == expected
        elif name == "gigabytes_of_links":
            assert {link.bandwidth_bytes_per_second for link in topology.links} == {expected * 1e9}
        elif name == "pcie_of_gpu0":
            link = next(x for x in topology.links if x.a == gpus(topology)[0].id and x.kind is LinkKind.PCIE)
            assert (link.speed, link.width) == (expected["speed"], expected["width"])
            assert link.bandwidth_bytes_per_second == pytest.approx(expected["gigabytes"] * 1e9, rel=1e-4)
        else:
            raise AssertionError(f"no such fact: {name}")


def gpus(topology: Topology) -> list[Device]:
    """GPUs in the order of their numbers."""
    return sorted(topology.devices_of(DeviceKind.GPU), key=lambda d: (d.node, int(d.id.rpartition("gpu")[2])))


def gpu_links(topology: Topology, kind: LinkKind, expected: dict[str, Any]) -> None:
    """Pairs, how many links each GPU has in all, and what they carry."""
    links = [link for link in topology.links if link.kind is kind]
    assert len(links) == expected["pairs"]
    if not links:
        return
    for number, gpu in enumerate(gpus(topology)):
        mine = [link for link in links if gpu.id in (link.a, link.b)]
        assert total(mine, "count") == of(expected["each"], number), gpu.id
        rate, carried = total(mine, "bandwidth_bytes_per_second"), of(expected["gigabytes"], number)
        assert rate == (None if carried is None else pytest.approx(carried * 1e9)), gpu.id


def of(value: Any, number: int) -> Any:
    """One value for all, or one for each."""
    return value[number] if isinstance(value, list) else value


def total(links: list[Link], field: str) -> Any:
    """The sum; None as soon as one is not known."""
    values = [getattr(link, field) for link in links]
    return None if None in values else sum(values)


def rate_of(topology: Topology, name: str) -> float | None:
    """Bytes per second of the port of that name."""
    found = [p for d in topology.devices for p in d.ports if p.name == name]
    assert len(found) == 1, name
    return found[0].bytes_per_second
