"""This machine from sysfs: sockets, NUMA nodes, cores and memory. Devices on its buses come with their receivers.

Read below `$SYSFS_ROOT` (default `/sys`), so that a recorded tree works as well:

    devices/system/cpu/online, cpu*/topology/{physical_package_id,core_id,die_id,cluster_id,core_cpus_list}
    devices/system/node/online, node*/{cpulist,meminfo,distance}

One `cpu` device for every pair of socket and NUMA node that share processors. What sysfs does not tell (bandwidths,
latencies) is None; the firmware's relative NUMA distance is kept as `numa_distance` of the link.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from observatory.model.device import Device, DeviceKind, Engine, EngineKind
from observatory.model.link import Link, LinkKind
from observatory.model.topology import Node, Topology, Vertex, VertexKind
from observatory.topology.cpulist import format_cpulist, parse_cpulist
from observatory.topology.errors import MachineUnreadable

NODE = "n0"
_MEMORY = re.compile(r"MemTotal:\s+(\d+) kB")


@dataclass(frozen=True, slots=True)
class _Numa:
    """A NUMA node of the kernel. `distances` by node number."""

    number: int
    cpus: tuple[int, ...]
    memory_bytes: int | None
    distances: dict[int, int]


@dataclass(frozen=True, slots=True)
class _Cpu:
    """A logical processor: its socket, and what tells its core from others."""

    socket: int
    core: tuple[int, ...]


def sysfs_root() -> Path:
    """`$SYSFS_ROOT`, or `/sys`."""
    return Path(os.environ.get("SYSFS_ROOT") or "/sys")


def read_machine(root: Path | None = None) -> Topology:
    """The machine described below `root` (default `$SYSFS_ROOT`, `/sys`) as a topology with the one node `n0`.

    Raises:
        MachineUnreadable: there is no list of processors, or a file there makes no sense.
    """
    root = sysfs_root() if root is None else root
    try:
        return _read(root)
    except (OSError, ValueError) as error:
        words = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else str(error)
        raise MachineUnreadable(
            f"the machine's description cannot be read: {words}",
            mend="set SYSFS_ROOT to a sysfs tree, or give a topology file",
        ) from None


def _read(root: Path) -> Topology:
    warnings: list[str] = []
    cpus = _cpus(root, warnings)
    numa = _numa_nodes(root, tuple(cpus), warnings)
    sockets = sorted({c.socket for c in cpus.values()})
    name = _cpu_name(root)
    devices: list[Device] = []
    links: list[Link] = []
    of_numa: dict[int, list[str]] = {}
    socket_of: dict[str, int] = {}
    for node in numa:
        here = [s for s in sockets if any(cpus[c].socket == s for c in node.cpus)]
        if len(here) > 1 and node.memory_bytes is not None:
            warnings.append(
                f"NUMA node {node.number} spans sockets {', '.join(map(str, here))}: its memory is given to neither"
            )
        for socket in here:
            mine = tuple(c for c in node.cpus if cpus[c].socket == socket)
            device = Device(
                id=f"{NODE}/cpu{len(devices)}",
                kind=DeviceKind.CPU,
                node=NODE,
                name=name,
                numa_node=node.number,
                memory_bytes=node.memory_bytes if len(here) == 1 else None,
                engines=(Engine(kind=EngineKind.COMPUTE, count=len({cpus[c].core for c in mine})),),
                cpus=mine,
            )
            devices.append(device)
            links.append(Link(a=device.id, b=f"{NODE}/socket{socket}", kind=LinkKind.MEMORY))
            of_numa.setdefault(node.number, []).append(device.id)
            socket_of[device.id] = socket
    links += _between_numa_nodes(numa, of_numa, socket_of)
    memory_only = [n for n in numa if not n.cpus and n.memory_bytes]
    for node in memory_only:
        size = (node.memory_bytes or 0) / 2**30
        warnings.append(f"NUMA node {node.number} has {size:.1f} GiB but no processors: no device made of it")
    if len(devices) > 1:
        warnings.append("sysfs tells no bandwidth and no latency between NUMA nodes: only relative distances")
    vertices = [Vertex(id=f"{NODE}/socket{s}", kind=VertexKind.SOCKET, node=NODE) for s in sockets]
    vertices += [Vertex(id=f"{NODE}/numa{n.number}", kind=VertexKind.NUMA, node=NODE) for n in memory_only]
    return Topology(
        name="real",
        provenance="measurement",
        sources=(str(root),),
        nodes=(Node(id=NODE),),
        devices=tuple(devices),
        vertices=tuple(vertices),
        links=tuple(links),
        warnings=tuple(warnings),
    )


def _cpus(root: Path, warnings: list[str]) -> dict[int, _Cpu]:
    base = root / "devices/system/cpu"
    online = parse_cpulist((base / "online").read_text())
    found: dict[int, _Cpu] = {}
    unknown: list[int] = []
    for number in online:
        topology = base / f"cpu{number}" / "topology"
        socket = _integer(topology / "physical_package_id")
        if socket is None or socket < 0:  # -1 where the architecture or the hypervisor does not tell
            unknown.append(number)
            socket = 0
        core = _integer(topology / "core_id")
        siblings = _text(topology / "core_cpus_list") or _text(topology / "thread_siblings_list")
        if siblings is not None:
            identity: tuple[int, ...] = (min(parse_cpulist(siblings), default=number),)
        elif core is not None:
            identity = (socket, _integer(topology / "die_id") or 0, core)
        else:
            identity = (number,)
        found[number] = _Cpu(socket, identity)
    if not found:
        raise ValueError(f"{base / 'online'} lists no processor")
    if unknown:
        warnings.append(f"sysfs does not tell the socket of processors {format_cpulist(tuple(unknown))}: taken as 0")
    return found


def _numa_nodes(root: Path, online: tuple[int, ...], warnings: list[str]) -> list[_Numa]:
    base = root / "devices/system/node"
    listed = _text(base / "online")
    if listed is None:
        warnings.append("the kernel shows no NUMA nodes: one is assumed, its memory is unknown")
        return [_Numa(0, online, None, {})]
    numbers = parse_cpulist(listed)
    found = []
    for number in numbers:
        folder = base / f"node{number}"
        memory = _MEMORY.search(_text(folder / "meminfo") or "")
        distances = [int(d) for d in (_text(folder / "distance") or "").split()]
        found.append(
            _Numa(
                number=number,
                cpus=tuple(c for c in parse_cpulist(_text(folder / "cpulist") or "") if c in online),
                memory_bytes=int(memory[1]) * 1024 if memory else None,
                distances=dict(zip(numbers, distances, strict=False)),
            )
        )
    homeless = set(online) - {c for n in found for c in n.cpus}
    if homeless:
        listed = format_cpulist(tuple(sorted(homeless)))
        warnings.append(f"processors {listed} are in no NUMA node: counted to the first")
        first = found[0]
        cpus = tuple(sorted({*first.cpus, *homeless}))
        found[0] = _Numa(first.number, cpus, first.memory_bytes, first.distances)
    return found


def _between_numa_nodes(numa: list[_Numa], of_numa: dict[int, list[str]], socket_of: dict[str, int]) -> list[Link]:
    """A link of unknown speed between every two CPU devices: `upi` across sockets, `memory` inside one."""
    distance = {(n.number, other): d for n in numa for other, d in n.distances.items()}
    places = [(number, device) for number, devices in of_numa.items() for device in devices]
    links = []
    for index, (number, device) in enumerate(places):
        for other_number, other in places[index + 1 :]:
            same = socket_of[device] == socket_of[other]
            links.append(
                Link(
                    a=device,
                    b=other,
                    kind=LinkKind.MEMORY if same else LinkKind.UPI,
                    numa_distance=distance.get((number, other_number)),
                )
            )
    return links


def _cpu_name(root: Path) -> str | None:
    """The processor's name from /proc/cpuinfo, for the live machine only: sysfs has none."""
    if root.resolve() != Path("/sys"):
        return None
    match = re.search(r"^model name\s*:\s*(.+)$", _text(Path("/proc/cpuinfo")) or "", re.MULTILINE)
    return match[1].strip() if match else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def _integer(path: Path) -> int | None:
    text = _text(path)
    return None if text is None else int(text)
