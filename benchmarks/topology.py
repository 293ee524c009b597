"""`script/bench topology`: costs of a cluster of 10,000 devices, built and kept up to date; reading real files."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import ROOT, spread, write_results, write_table
from benchmarks.topology_parts import MACHINES, UPDATED
from observatory.model.errors import MediaObservatoryError

DATA = ROOT.parent / "shared" / "data"
READINGS = 5
SLOWEST_SHOWN = 5


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="script/bench topology", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="processes for each part (default 5)")
    chosen = parser.parse_args(arguments)
    results = {part: _together([_run(part) for _ in range(chosen.rounds)]) for part in ("build", "update", "live")}
    results["networkx"] = _together([_run("networkx") for _ in range(min(chosen.rounds, 3))])
    results["files"] = _files()
    table = _table(results)
    write_table("topology", table)
    print(f"{table}\n\nresults in {write_results('topology', results)}")
    return 0


def _run(part: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.topology_parts", part]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=600)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _together(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Of every value the median and the spread over all rounds of all processes."""
    found = {}
    for name in runs[0]:
        values = [v for run in runs for v in (run[name] if isinstance(run[name], list) else [run[name]])]
        found[name] = spread(values)
    return found


def _files() -> dict[str, Any]:
    """CPU seconds to read each real file that is a topology, the least of some readings apart from the first."""
    from observatory.topology.importers.recognise import read_file

    read: list[dict[str, Any]] = []
    for path in sorted(p for p in DATA.rglob("*") if p.is_file()) if DATA.is_dir() else ():
        try:
            read_file(str(path))
        except MediaObservatoryError:
            continue
        times = [_timed(path) for _ in range(READINGS)]
        read.append({"file": str(path.relative_to(DATA)), "bytes": path.stat().st_size, "seconds": spread(times)})
    return {"files": read}


def _timed(path: Path) -> float:
    from observatory.topology.importers.recognise import read_file

    began = time.process_time()
    read_file(str(path))
    return time.process_time() - began


def _table(results: Mapping[str, Any]) -> str:
    build, update, live, peer = (results[part] for part in ("build", "update", "live", "networkx"))

    def row(what: str, value: Mapping[str, float], theirs: str = "") -> str:
        return f"| {what} | {_ms(value['median'])} | {_ms(value['min'])} - {_ms(value['max'])} | {theirs} |"

    within = _ms(peer["within_seconds"]["median"])
    whole = _ms(peer["within_seconds"]["median"] + peer["between_seconds"]["median"])
    lines = [
        f"{build['devices']['median']:,.0f} devices and {build['links']['median']:,.0f} links in {MACHINES} machines "
        f"of 20 devices on a rail-optimised network ([what it is](../benchmarks/topology_cluster.py)). CPU time:",
        "",
        "| what | median | spread | networkx |",
        "|---|---|---|---|",
        row("graph and all costs inside machines, built", build["within_seconds"], within),
        row("the same and all costs between machines", build["seconds"], whole),
        row(f"**{UPDATED:,} links inside machines changed: costs inside refreshed**", update["inside_refresh_seconds"]),
        row(f"**{UPDATED:,} links anywhere changed: costs inside refreshed**", update["anywhere_refresh_seconds"]),
        row("after that: one row between machines, when it is read", update["row_seconds"]),
        row("after that: all 500 rows between machines, links inside changed", update["inside_between_seconds"]),
        row("after that: all 500 rows between machines, links anywhere changed", update["anywhere_between_seconds"]),
        row("10 links inside machines changed: everything refreshed", update["ten_links_seconds"]),
        row(f"{UPDATED:,} observations put into the live graph, nothing new", live["unchanged_seconds"]),
        row(f"{UPDATED:,} observations put into the live graph, every link changed", live["changed_seconds"]),
        "",
        f"The resident set grows by {build['resident_growth_bytes']['median'] / 1e6:.0f} MB "
        f"({build['resident_growth_bytes']['min'] / 1e6:.0f} - {build['resident_growth_bytes']['max'] / 1e6:.0f}) "
        "while graph and costs are built.",
        *_file_lines(results["files"]["files"]),
    ]
    return "\n".join(lines)


def _file_lines(files: Sequence[Mapping[str, Any]]) -> list[str]:
    if not files:
        return []
    largest = max(files, key=lambda f: f["bytes"])
    slowest = sorted(files, key=lambda f: -f["seconds"]["median"])[:SLOWEST_SHOWN]
    shown = [largest, *(f for f in slowest if f is not largest)]
    middle = statistics.median(f["seconds"]["median"] for f in files)
    return [
        "",
        f"Reading the {len(files)} real files that are topologies: half of them take less than {_ms(middle)}. The "
        "largest, and the slowest:",
        "",
        "| file | size | CPU time | spread |",
        "|---|---|---|---|",
        *(
            f"| {f['file']} | {f['bytes'] / 1e3:,.0f} kB | {_ms(f['seconds']['median'])} "
            f"| {_ms(f['seconds']['min'])} - {_ms(f['seconds']['max'])} |"
            for f in shown
        ),
    ]


def _ms(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
