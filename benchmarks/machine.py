"""`script/bench machine`: from a change of the emulated machine to the observation delivered; what NVML's polls cost.

The machine is the shipped topology's: eight GPUs with 18 NVLinks each. Changes are those of `observatory topology set`,
at random moments; NVML and sysfs are polled every 250 ms. The library under the receiver is the emulated one, whose
calls take a microsecond: on real GPUs a call is one of the driver, and costs more.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.receivers import (
    COST_POLLS,
    GOAL_EVENT_SECONDS,
    PERIOD_SECONDS,
    Source,
    change_again_and_again,
    quantiles,
)
from benchmarks.report import spread, write_results, write_table
from chaos.machine.machine import EmulatedMachine
from dataplane.fabric import Fabric, LinkDescription
from observatory.model.observation import AddressKind, HardwareEvent, Observation, Seen
from observatory.model.topology import Topology
from observatory.receivers.kmsg import Kmsg
from observatory.receivers.nvml import Nvml
from observatory.receivers.nvml_events import NvmlEvents
from observatory.receivers.runner import Factory, Runner, Settings
from observatory.receivers.sysfs_pcie import SysfsPcie
from observatory.topology.load import load_topology

RECEIVERS: Mapping[str, Factory] = {
    "nvml": Nvml,
    "nvml-events": NvmlEvents,
    "sysfs-pcie": SysfsPcie,
    "kmsg": Kmsg,
}
STARTS = 7
REST_SECONDS = 5.0


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="script/bench machine", description=__doc__)
    parser.add_argument("--changes", type=int, default=200, help="of each source (default %(default)s)")
    options = parser.parse_args(arguments)
    topology = load_topology()
    fabric = fabric_of(topology)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "machine"
        starts = [start_seconds(topology, fabric, path) for _ in range(STARTS)]
        with EmulatedMachine(topology, fabric, path) as machine:
            results = {
                "changes": options.changes,
                "period_seconds": PERIOD_SECONDS,
                "start_seconds": spread(starts),
                "rest_share": rest_share(),
                "delays": delays(machine, options.changes),
                "cost": cost(machine),
            }
    print(write_results("machine", results))
    write_table("machine", table(results))
    return 0


def fabric_of(topology: Topology) -> Fabric:
    return Fabric(
        [
            LinkDescription(link.id, link.kind.value, link.bandwidth_bytes_per_second, link.latency_seconds)
            for link in topology.links
            if link.bandwidth_bytes_per_second is not None and link.latency_seconds is not None
        ],
        seed=1,
    )


def start_seconds(topology: Topology, fabric: Fabric, path: Path) -> float:
    began = time.perf_counter()
    machine = EmulatedMachine(topology, fabric, path).start()
    seconds = time.perf_counter() - began
    machine.close()
    return seconds


def rest_share() -> float:
    """Of a processor, while nothing happens and nobody looks."""
    began = time.process_time()
    time.sleep(REST_SECONDS)
    return (time.process_time() - began) / REST_SECONDS


# -- from the change to the observation --------------------------------------------------------------------------------


def delays(machine: EmulatedMachine, changes: int) -> dict[str, Any]:
    sources = all_sources(machine)

    def deliver(name: str, batch: Sequence[Seen]) -> None:
        now = time.monotonic()
        for source in sources.values():
            wanted = source.receiver == name and not source.seen.is_set()
            if wanted and any(source.is_new(one, source.number) for one in batch):
                source.seen_at = now
                source.seen.set()

    settings = {name: Settings(period_seconds=PERIOD_SECONDS) for name in RECEIVERS}
    runner = Runner(RECEIVERS, machine.node, deliver, root=machine.root, settings=settings)
    runner.start()
    time.sleep(1.0)
    threads = [threading.Thread(target=change_again_and_again, args=(s, changes)) for s in sources.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    runner.stop()
    return {name: quantiles(source) for name, source in sources.items()}


def all_sources(machine: EmulatedMachine) -> dict[str, Source]:
    def bus_id(device: str) -> str:
        found = machine.topology.device(device)
        assert found is not None
        return str(found.pci_bus_id)

    def value(metric: str, kind: AddressKind, key: str, seen: Seen) -> float | None:
        if not isinstance(seen, Observation) or seen.metric != metric or seen.subject.kind is not kind:
            return None
        return seen.value if seen.subject.key.startswith(key) else None

    def is_xid(seen: Seen, number: int) -> bool:
        return isinstance(seen, HardwareEvent) and seen.kind == "xid" and seen.code == str(number)

    def setting(target: str, key: str, of: Callable[[int], int]) -> Callable[[int], None]:
        def change(number: int) -> None:
            machine.set(target, {key: str(of(number))})

        return change

    switch = next(str(v.pci_bus_id) for v in machine.topology.vertices if v.kind == "nvswitch")
    bundle = f"{bus_id('n0/gpu0')}/{switch}"
    return {
        "NVML: NVLinks that are active": Source(
            "nvml",
            setting("gpu0-nvswitch0", "width", lambda n: 8 + n % 2),
            lambda seen, n: value("link.width", AddressKind.NVLINK, bundle, seen) == 8 + n % 2,
        ),
        "NVML: temperature": Source(
            "nvml",
            setting("gpu5", "temperature", lambda n: 40 + n % 50),
            lambda seen, n: value("hw.temperature", AddressKind.PCI, bus_id("n0/gpu5"), seen) == 40 + n % 50,
        ),
        "sysfs: PCI Express width": Source(
            "sysfs-pcie",
            setting("gpu3-pcie1", "width", lambda n: 8 << n % 2),
            lambda seen, n: value("link.width", AddressKind.PCI, bus_id("n0/gpu3"), seen) == 8 << n % 2,
        ),
        "NVML's events: an Xid": Source("nvml-events", setting("gpu6", "xid", int), is_xid, GOAL_EVENT_SECONDS),
        "kernel log: an Xid": Source("kmsg", setting("gpu7", "xid", int), is_xid, GOAL_EVENT_SECONDS),
    }


# -- what a poll costs -------------------------------------------------------------------------------------------------


def cost(machine: EmulatedMachine) -> dict[str, Any]:
    settings = {"nvml": Settings(period_seconds=0.02)}
    runner = Runner({"nvml": Nvml}, machine.node, lambda *_: None, root=machine.root, settings=settings)
    runner.start()
    while runner.statuses()[0].polls < COST_POLLS:
        time.sleep(0.05)
    status = runner.statuses()[0]
    runner.stop()
    return {
        "gpus": len(machine.plan.gpus),
        "cpu_seconds": status.cpu_seconds / status.polls,
        "values": status.observations / status.polls,
        "share": status.cpu_seconds / status.polls / PERIOD_SECONDS,
    }


def table(r: dict[str, Any]) -> str:
    """The results as Markdown."""
    rows = [
        f"From a change by `topology set` to the observation delivered, {r['changes']} changes each, NVML and sysfs "
        f"polled every {r['period_seconds'] * 1e3:.0f} ms (emulated GPUs):",
        "",
        "| source | p50 | p99 | max | goal for p99 |",
        "|---|---|---|---|---|",
    ]
    rows += [
        f"| {name} | {d['p50'] * 1e3:.1f} ms | **{d['p99'] * 1e3:.1f} ms** | {d['max'] * 1e3:.1f} ms "
        f"| {d['goal'] * 1e3:.0f} ms |"
        for name, d in r["delays"].items()
    ]
    c = r["cost"]
    rows += [
        "",
        f"One poll of NVML for {c['gpus']} GPUs tells {c['values']:.0f} values and takes "
        f"{c['cpu_seconds'] * 1e3:.2f} ms of processor time, {c['share']:.2%} of a processor at 250 ms. "
        f"The machine starts in {r['start_seconds']['median'] * 1e3:.0f} ms and takes {r['rest_share']:.2%} of a "
        "processor at rest.",
    ]
    return "\n".join(rows)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
