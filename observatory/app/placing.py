"""Where a pipeline's operators go: the topology asked for, the decision, and its record in the audit store."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from observatory.app.typed import TypedPipeline
from observatory.model.cost import CostParameters
from observatory.model.device import DeviceKind
from observatory.model.plan import DecisionRecord, Placement
from observatory.model.topology import Topology
from observatory.topology.importers.real import read_machine
from observatory.topology.load import DEFAULT, REAL, load_topology
from scheduler.audit import AuditStore
from scheduler.solver import place


@dataclass(frozen=True, slots=True)
class Placed:
    """A placement with its decision, the graph it was made on, and the device that all workers really run on today."""

    placement: Placement
    decision: DecisionRecord
    topology: Topology
    topology_name: str
    real_device: str


def place_pipeline(typed: TypedPipeline, topology: str | None, state: Path | None) -> Placed:
    """Place on `topology` (a file, `real`, or None for the shipped node); record it under `state` unless that is None.

    Raises:
        MediaObservatoryError: the topology cannot be read, the pipeline cannot be placed on it, or the audit store
            cannot be written.
    """
    graph = load_topology(topology)
    kinds = {name: operator.kind for name, operator in typed.operators.items()}
    placement, decision = place(typed.pipeline, typed.edges, graph, CostParameters(), kinds)
    if state is not None:
        with AuditStore(state) as audit:
            audit.save(decision)
    return Placed(
        placement,
        decision,
        graph,
        graph.name or topology or DEFAULT,
        _real_device(graph if topology == REAL else None),
    )


def _real_device(machine: Topology | None) -> str:
    """The device we run on. Beside a described topology it is named by this host, so that its `n0` is not mixed up."""
    found = machine or read_machine()
    device = real_device_here([(d.id, d.cpus) for d in found.devices_of(DeviceKind.CPU)])
    return device if machine is not None else f"{socket.gethostname()}/{device.partition('/')[2]}"


def real_device_here(cpu_devices: Sequence[tuple[str, tuple[int, ...] | None]]) -> str:
    """The `cpu` device that this process runs on: the only one, or the one whose processors we are confined to.

    `cpu_devices`: (device id, logical processors or None) of this machine. With several devices and no confinement the
    kernel may run a worker on any of them: the name is then `NODE/cpu?`, as which one it was is not known.
    """
    if len(cpu_devices) == 1:
        return cpu_devices[0][0]
    allowed = os.sched_getaffinity(0)
    for device, cpus in cpu_devices:
        if cpus is not None and allowed <= set(cpus):
            return device
    return f"{cpu_devices[0][0].partition('/')[0]}/cpu?"
