"""What every benchmark shares: medians with spread, the machine, results as JSON, and tables in docs/performance.md."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance.md"


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median with the smallest and largest value seen."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "runs": len(values)}


def machine() -> dict[str, Any]:
    """What the numbers were measured on; without names of hosts."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    return {
        "processor": model,
        "processors": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def read_results(name: str) -> dict[str, Any]:
    """The results of an earlier run, or nothing."""
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text())["results"] if path.exists() else {}
    return found


def write_results(name: str, results: dict[str, Any]) -> Path:
    """benchmarks/results/NAME.json: the results, the machine, and the date."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    document = {"benchmark": name, "date": time.strftime("%Y-%m-%d"), "machine": machine(), "results": results}
    path.write_text(json.dumps(document, indent=2) + "\n")
    return path


def write_table(name: str, markdown: str) -> None:
    """Replace what stands between the markers of this benchmark in docs/performance.md."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    text = PAGE.read_text()
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"{PAGE.name} has no place for {name}: add {begin} and {end}")
    PAGE.write_text(f"{before}{begin}\n\n{markdown.strip()}\n\n{end}{after}")
