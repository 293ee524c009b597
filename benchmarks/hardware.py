"""`script/bench hardware`: from a change of the hardware to the incident, through everything a platform runs.

The machine is the emulated one of the shipped description (8 GPUs); receivers, the live topology and the incident watch
are those of `observatory up`, at their default periods, in this process. A fault is set at a random moment, and the
time taken from then until the incident is told. Every part has each fault once; then a new machine is switched on, as
what comes again and again is damped. Setting a fault is a few stores to memory and files: with real hardware it may
take longer until a driver shows it. Last, what all that costs while nothing happens.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.report import write_results, write_table
from observatory.app.config.sections import OtlpSection, TelemetrySection
from observatory.app.hardware import Hardware
from observatory.model.incident import Incident
from observatory.topology.load import load_topology

PERIOD_SECONDS = 0.25
GOAL_POLLED_SECONDS = 2 * PERIOD_SECONDS + 0.1
GOAL_EVENT_SECONDS = 0.05
LIMIT_SECONDS = 30.0
SETTLE_SECONDS = 2.0
IDLE_SECONDS = 20.0


@dataclass
class Fault:
    """One kind of fault, on one of the machine's parts after the other."""

    name: str
    source: str
    parts: tuple[tuple[str, str], ...]  # what is changed, and how the incident's subject begins
    change: dict[str, str]
    kinds: tuple[str, ...]  # of the incident
    goal_seconds: float = GOAL_POLLED_SECONDS
    seconds: list[float] = field(default_factory=list)


GPUS = tuple(f"n0/gpu{number}" for number in range(8))
NVLINKS = tuple((link := f"{gpu}--n0/nvswitch0:nvlink", link) for gpu in GPUS)
BUSES = tuple((link := f"{gpu}--n0/pcie{number // 2}:pcie", link) for number, gpu in enumerate(GPUS))
FAULTS = (
    Fault("8 of 18 NVLinks left", "nvml", NVLINKS, {"width": "8"}, ("nvlink_degraded",)),
    Fault("PCI Express at half width", "sysfs-pcie", BUSES, {"width": "8"}, ("pcie_downtrained",)),
    Fault("port down", "infiniband", (("nic0", "n0/nic0"), ("nic1", "n0/nic1")), {"state": "down"}, ("link_down",)),
    Fault(
        "Xid 63 in the kernel's log", "kmsg", tuple((gpu, gpu) for gpu in GPUS), {"xid": "63"},
        ("row_remap_pending",), GOAL_EVENT_SECONDS,
    ),
)  # fmt: skip


class Told:
    """What incidents were told, for whoever waits for one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._at: dict[tuple[str, str], float] = {}

    def take(self, incident: Incident) -> None:
        now = time.monotonic()
        with self._changed:
            self._at.setdefault((incident.kind, incident.subject), now)
            self._changed.notify_all()

    def wait(self, kinds: Sequence[str], subject: str) -> float:
        """When an incident of these kinds was told of that subject. Raises TimeoutError."""
        deadline = time.monotonic() + LIMIT_SECONDS
        with self._changed:
            while True:
                for (kind, about), at in self._at.items():
                    if kind in kinds and about.startswith(subject):
                        return at
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"no {' or '.join(kinds)} of {subject}; told were {sorted(self._at)}")
                self._changed.wait(left)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="script/bench hardware", description=__doc__)
    parser.add_argument("--rounds", type=int, default=12, help="machines, one after the other (default %(default)s)")
    options = parser.parse_args(arguments)
    for _ in range(options.rounds):
        one_round()
    idle = idle_cost()
    results = {
        "rounds": options.rounds,
        "period_seconds": PERIOD_SECONDS,
        "faults": [
            {
                "fault": fault.name,
                "source": fault.source,
                "changes": len(fault.seconds),
                "p50_seconds": statistics.median(fault.seconds),
                "p99_seconds": statistics.quantiles(fault.seconds, n=100, method="inclusive")[98],
                "max_seconds": max(fault.seconds),
                "goal_p99_seconds": fault.goal_seconds,
            }
            for fault in FAULTS
        ],
        "idle": idle,
    }
    print(write_results("hardware", results))
    write_table("hardware", table(results))
    return 0


def looked_at(folder: str, told: Told) -> Hardware:
    hardware = Hardware(
        TelemetrySection(), OtlpSection(), load_topology(None), None, None, Path(folder), lambda words, bad: None
    )
    taking = hardware.telemetry.on_incident

    def take(incident: Incident) -> None:
        told.take(incident)
        taking(incident)

    hardware.telemetry.on_incident = take
    return hardware


def one_round() -> None:
    told = Told()
    with tempfile.TemporaryDirectory() as folder:
        hardware = looked_at(folder, told)
        try:
            time.sleep(SETTLE_SECONDS)
            todo = [(fault, part) for fault in FAULTS for part in fault.parts]
            random.shuffle(todo)
            for fault, (target, subject) in todo:
                time.sleep(random.uniform(0.1, 0.1 + PERIOD_SECONDS))
                began = time.monotonic()
                hardware.change(target, fault.change)
                fault.seconds.append(told.wait(fault.kinds, subject) - began)
        finally:
            hardware.close()


def idle_cost() -> dict[str, Any]:
    """Processor seconds per second of this process while nothing happens, and what was looked at for it."""
    with tempfile.TemporaryDirectory() as folder:
        hardware = looked_at(folder, Told())
        try:
            time.sleep(SETTLE_SECONDS)
            before, seen = time.process_time(), observations(hardware)
            time.sleep(IDLE_SECONDS)
            used, more = time.process_time() - before, observations(hardware) - seen
        finally:
            hardware.close()
    return {"cpu_share": used / IDLE_SECONDS, "observations_per_second": more / IDLE_SECONDS}


def observations(hardware: Hardware) -> int:
    return sum(status.observations for status in hardware.telemetry.statuses())


def table(results: dict[str, Any]) -> str:
    lines = ["| fault | told by | changes | p50 | p99 | longest | goal for p99 |", "|---|---|---|---|---|---|---|"]
    for fault in results["faults"]:
        times = (fault[key] * 1000 for key in ("p50_seconds", "p99_seconds", "max_seconds", "goal_p99_seconds"))
        p50, p99, longest, goal = (f"{ms:.0f} ms" for ms in times)
        mark = "" if fault["p99_seconds"] <= fault["goal_p99_seconds"] else " (missed)"
        lines.append(
            f"| {fault['fault']} | {fault['source']} | {fault['changes']} | {p50} | {p99} | {longest} | {goal}{mark} |"
        )
    idle = results["idle"]
    lines += [
        "",
        f"While nothing happens all of it takes {idle['cpu_share']:.1%} of one processor, for "
        f"{idle['observations_per_second']:,.0f} values a second.",
    ]
    return "\n".join(lines)
