"""How well and how quickly incidents are found: labelled recordings, cost per observation, time to incident.

    script/bench incidents [--quick]

Recordings: the cases of tests/anomalies/labels.yaml, whose files are not part of the project (skipped where they are
not beside it). Cost: batches of 10,000 observations of 2,500 devices, as one look at a large machine or a few hundred
smaller ones gives. Time to incident: a receiver that polls every 250 ms, a change at any moment between two looks; the
clock is simulated, the watch's own time is measured and added.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.report import ROOT, machine, spread, write_results, write_table
from observatory.anomalies.recorded.judging import judge
from observatory.anomalies.watch import IncidentWatch
from observatory.model.observation import Address, AddressKind, HardwareEvent, Observation, Seen

LABELS = ROOT / "tests" / "anomalies" / "labels.yaml"
RECORDINGS = ROOT.parent / "shared" / "data"
DEVICES = 2500
PERIOD_NS = 250_000_000

CARDS = [Address("n0", AddressKind.PCI, f"0000:{n >> 8:02x}:{n & 31:02x}.{n >> 5 & 7}") for n in range(DEVICES)]
PORT = Address("n0", AddressKind.PORT, "mlx5_0/1")


def recordings() -> dict[str, Any] | None:
    """Precision, recall, and the cases that are judged wrong."""
    if not RECORDINGS.exists():
        return None
    score = judge(yaml.safe_load(LABELS.read_text()), RECORDINGS)
    return {
        "cases": len(score.judgements),
        "healthy": sum(not j.expected for j in score.judgements),
        "incidents": sum(len(j.expected) for j in score.judgements),
        "precision": round(score.precision, 4),
        "recall": round(score.recall, 4),
        "wrong": {
            j.case: {"missed": sorted(j.missed), "invented": sorted(j.invented)}
            for j in score.judgements
            if not j.is_right
        },
    }


def batch(number: int, troubled: int) -> list[Seen]:
    """One look at all devices; of the first `troubled` the width changes with every look."""
    at_ns = number * PERIOD_NS
    seen: list[Seen] = []
    for index, card in enumerate(CARDS):
        width = 8.0 if index < troubled and number % 2 else 16.0
        seen.append(Observation(card, "link.width", width, at_ns, "sysfs-pcie"))
        seen.append(Observation(card, "link.speed", 32e9, at_ns, "sysfs-pcie"))
        seen.append(Observation(card, "hw.gpu.utilization", 0.5, at_ns, "nvml", {"hw.gpu.task": "general"}))
        seen.append(Observation(card, "link.errors", 3.0, at_ns, "sysfs-pcie", {"error.type": "aer_corrected"}))
    return seen


def cost(rounds: int, troubled: int) -> dict[str, Any]:
    """CPU time per observation."""
    watch = IncidentWatch()
    watch.see([Observation(card, "link.width.best", 16, 0, "sysfs-pcie") for card in CARDS], 0)
    watch.see(batch(1, 0), PERIOD_NS)
    times = []
    for number in range(2, rounds + 2):
        seen = batch(number, troubled)
        began = time.process_time_ns()
        watch.see(seen, number * PERIOD_NS)
        times.append((time.process_time_ns() - began) / len(seen) / 1e3)
    return {"observations": len(seen), "microseconds": spread(times), "open": len(watch.open)}


Change = Callable[[int, bool], list[Seen]]


def _width(at_ns: int, bad: bool) -> list[Seen]:
    card = CARDS[0]
    return [
        Observation(card, "link.width.best", 16, at_ns, "sysfs-pcie"),
        Observation(card, "link.width", 8 if bad else 16, at_ns, "sysfs-pcie"),
    ]


def _speed(at_ns: int, bad: bool) -> list[Seen]:
    card = CARDS[0]
    return [
        Observation(card, "hw.gpu.utilization", 0.9, at_ns, "nvml", {"hw.gpu.task": "general"}),
        Observation(card, "link.speed.best", 32e9, at_ns, "sysfs-pcie"),
        Observation(card, "link.speed", 2.5e9 if bad else 32e9, at_ns, "sysfs-pcie"),
    ]


def _nvlink(at_ns: int, bad: bool) -> list[Seen]:
    links = [Address("n0", AddressKind.NVLINK, f"{CARDS[0].key}/{n}") for n in range(18)]
    return [Observation(at, "link.up", float(not bad or n > 8), at_ns, "nvml") for n, at in enumerate(links)]


def _port(at_ns: int, bad: bool) -> list[Seen]:
    return [Observation(PORT, "hw.network.up", float(not bad), at_ns, "infiniband")]


def _loss(at_ns: int, bad: bool) -> list[Seen]:
    errors = 50.0 if bad else 0.0
    return [Observation(PORT, "link.errors", errors, at_ns, "infiniband", {"error.type": "out_of_sequence"})]


def _ecc(at_ns: int, bad: bool) -> list[Seen]:
    return [Observation(CARDS[0], "hw.errors", float(bad), at_ns, "nvml", {"error.type": "ecc_uncorrected"})]


def _throttled(at_ns: int, bad: bool) -> list[Seen]:
    return [Observation(CARDS[0], "gpu.throttled", float(bad), at_ns, "nvml", {"reason": "hw_thermal_slowdown"})]


CHANGES: dict[str, Change] = {
    "PCI Express width": _width,
    "PCI Express speed under load": _speed,
    "NVLink, 9 of 18 down": _nvlink,
    "port down": _port,
    "RDMA loss": _loss,
    "ECC uncorrectable": _ecc,
    "thermal slowdown": _throttled,
}


def time_to_incident(change: Change, samples: int) -> dict[str, Any]:
    """Milliseconds from a change at a random moment between two looks to the incident."""
    source = random.Random(7)
    found = []
    for _ in range(samples):
        watch = IncidentWatch()
        watch.see(change(PERIOD_NS, False), PERIOD_NS)
        watch.see(change(2 * PERIOD_NS, False), 2 * PERIOD_NS)
        changed_ns = 2 * PERIOD_NS + source.randrange(PERIOD_NS)
        for look in range(3, 12):
            now_ns = look * PERIOD_NS
            seen = change(now_ns, True)
            began = time.perf_counter_ns()
            incidents = watch.see(seen, now_ns)
            took = time.perf_counter_ns() - began
            if incidents:
                found.append((now_ns + took - changed_ns) / 1e6)
                break
        else:
            raise RuntimeError("the change was never noticed")
    return _quantiles(found)


def time_of_event(samples: int) -> dict[str, Any]:
    """Milliseconds that the watch takes for an Xid, alone and among 10,000 observations."""
    alone, crowded = [], []
    crowd = batch(1, 0)
    for number in range(samples):
        event = HardwareEvent(CARDS[0], "xid", "NVRM: Xid", PERIOD_NS, "kmsg", "119")
        watch = IncidentWatch()
        began = time.perf_counter_ns()
        watch.see([event], PERIOD_NS)
        alone.append((time.perf_counter_ns() - began) / 1e6)
        if number < samples // 10:
            watch = IncidentWatch()
            watch.see(crowd, PERIOD_NS)
            began = time.perf_counter_ns()
            watch.see([*crowd, event], 2 * PERIOD_NS)
            crowded.append((time.perf_counter_ns() - began) / 1e6)
    return {"alone": _quantiles(alone), "among 10,000": _quantiles(crowded)}


def _quantiles(values: Sequence[float]) -> dict[str, Any]:
    ordered = sorted(values)
    return {
        "p50": round(statistics.median(ordered), 3),
        "p99": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], 3),
        "max": round(ordered[-1], 3),
        "samples": len(ordered),
    }


def measure(quick: bool) -> dict[str, Any]:
    """All of it."""
    rounds, samples = (10, 50) if quick else (100, 1000)
    return {
        "machine": machine(),
        "recordings": recordings(),
        "cost": {"all well": cost(rounds, 0), "1 % change with every look": cost(rounds, DEVICES // 100)},
        "milliseconds to incident": {name: time_to_incident(change, samples) for name, change in CHANGES.items()},
        "milliseconds for an event": time_of_event(samples),
    }


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = []
    recorded = results["recordings"]
    if recorded is not None:
        lines += [
            f"Recordings: {recorded['cases']} cases, {recorded['healthy']} of them well, with {recorded['incidents']}"
            f" expected incidents: precision **{recorded['precision']:.3f}**, recall **{recorded['recall']:.3f}**.",
            "",
            *(
                f"- judged wrong: `{case}`: missed {', '.join(wrong['missed']) or 'none'}; invented"
                f" {', '.join(wrong['invented']) or 'none'}"
                for case, wrong in recorded["wrong"].items()
            ),
            "",
        ]
    lines += ["| batch of 10,000 observations | CPU per observation, us |", "|---|---|"]
    for name, found in results["cost"].items():
        us = found["microseconds"]
        lines.append(f"| {name} | **{us['median']:.2f}** ({us['min']:.2f}-{us['max']:.2f}) |")
    lines += ["", "| change to incident, polled every 250 ms | p50, ms | p99, ms |", "|---|---|---|"]
    for name, found in results["milliseconds to incident"].items():
        lines.append(f"| {name} | {found['p50']:.0f} | **{found['p99']:.0f}** |")
    for name, found in results["milliseconds for an event"].items():
        lines.append(f"| the watch's part for an Xid, {name} | {found['p50']:.2f} | **{found['p99']:.2f}** |")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Measure, write the results and the table."""
    parser = argparse.ArgumentParser(prog="script/bench incidents", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a little of everything; writes nothing")
    chosen = parser.parse_args(arguments)
    results = measure(chosen.quick)
    print(table(results))
    if not chosen.quick:
        write_table("incidents", table(results))
        written: Path = write_results("incidents", results)
        print(f"\nincidents: results in {written}")
    return 0
