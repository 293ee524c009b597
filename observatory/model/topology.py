"""The physical graph as data: nodes, devices, the vertices between them, and links."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from observatory.model.device import Device, DeviceKind
from observatory.model.hardware import Cache, NumaNode, PciFunction
from observatory.model.link import Link


class VertexKind(StrEnum):
    """What a vertex that is no device is."""

    SOCKET = "socket"
    DIE = "die"
    NUMA = "numa"
    HOST_BRIDGE = "host_bridge"
    ROOT_PORT = "root_port"
    PCIE_SWITCH = "pcie_switch"
    PCI_BRIDGE = "pci_bridge"
    STORAGE_CONTROLLER = "storage_controller"
    NVSWITCH = "nvswitch"
    SWITCH = "switch"
    DOMAIN = "domain"  # machines that a scheduler knows to be close: a rack, a block, an accelerator domain
    HOST = "host"  # a whole machine, where it is not told which of its cards a cable goes into
    FAR_END = "far_end"  # where links lead whose other end is not told


class Vertex(BaseModel):
    """A point where links meet that runs no operator.

    A PCIe switch is one vertex: its `pci_bus_id` is the upstream port's, its `ports` those of the downstream ports.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    kind: VertexKind
    node: str | None = None
    name: str | None = None
    pci_bus_id: str | None = None
    ports: tuple[str, ...] = ()


class Node(BaseModel):
    """One machine under one operating system. `hostname` is None where a source does not tell it: then `id` is ours."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(pattern=r"^[^/\s]+$")
    hostname: str | None = None


class Topology(BaseModel):
    """A physical graph. `sources` says where it was read from; `warnings` what was not understood there.

    `provenance` says what its numbers are: `description` (data sheets and assumptions), `measurement`, or `emulated`.
    `numa_nodes`, `caches` and `pci_functions` are what a machine tells of itself; a description leaves them empty.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str | None = None
    provenance: Literal["description", "measurement", "emulated"] | None = None
    sources: tuple[str, ...] = ()
    nodes: tuple[Node, ...]
    devices: tuple[Device, ...]
    vertices: tuple[Vertex, ...] = ()
    links: tuple[Link, ...] = ()
    numa_nodes: tuple[NumaNode, ...] = ()
    caches: tuple[Cache, ...] = ()
    pci_functions: tuple[PciFunction, ...] = ()
    warnings: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _names_resolve(self) -> Self:
        names = [d.id for d in self.devices] + [v.id for v in self.vertices]
        if len(names) != len(set(names)):
            twice = sorted({n for n in names if names.count(n) > 1})
            raise ValueError(f"names used twice: {', '.join(twice)}")
        known = set(names)
        lost = next((link for link in self.links if link.a not in known or link.b not in known), None)
        if lost is not None:
            end = lost.b if lost.a in known else lost.a
            raise ValueError(f"link {lost.a} -- {lost.b} ({lost.kind}): there is no {end!r}")
        nodes = {n.id for n in self.nodes}
        for device in self.devices:
            if device.node not in nodes:
                raise ValueError(f"device {device.id}: there is no node {device.node!r}")
        return self

    def device(self, device_id: str) -> Device | None:
        """The device with that id, or None."""
        return next((d for d in self.devices if d.id == device_id), None)

    def devices_of(self, kind: DeviceKind) -> tuple[Device, ...]:
        """All devices of one kind, in order."""
        return tuple(d for d in self.devices if d.kind is kind)
