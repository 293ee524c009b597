"""What every benchmark shares: medians with spread, the machine, results as JSON, and tables in docs/performance.md.

A benchmark of several parts keeps a stamp (date, commit, machine) with each part: parts are measured apart.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance.md"
SOURCES = (":/", ":!/docs", ":!/benchmarks/results")  # what results and their tables cannot have changed


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


def commit() -> str | None:
    """The commit that is checked out, with " and changes" where files differ from it; None: not known."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", *SOURCES)
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head} and changes" if changed else head


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@dataclass(frozen=True, slots=True)
class Part:
    """What one part of a benchmark gave, and when, on what and of which source. `seconds`: how long it took."""

    date: str
    commit: str | None
    machine: Mapping[str, Any]
    seconds: float
    results: Mapping[str, Any]


def measured_now(seconds: float, results: Mapping[str, Any]) -> Part:
    """A part that was measured just now, here."""
    return Part(time.strftime("%Y-%m-%d"), commit(), machine(), round(seconds, 1), results)


def read_parts(name: str) -> dict[str, Part]:
    """The parts that were measured so far, each with its own stamp."""
    path = RESULTS / f"{name}.json"
    found = json.loads(path.read_text())["parts"] if path.exists() else {}
    return {part: Part(**document) for part, document in found.items()}


def stamps(parts: Mapping[str, Part]) -> list[str]:
    """When, of which commit and on what the parts were measured, as lines of Markdown: one for those that agree."""
    together: dict[str, list[str]] = {}
    for name, part in parts.items():
        on = part.machine
        words = (
            f"{part.date}, {f'commit {part.commit}' if part.commit else 'commit not known'}; {on['processor']}, "
            f"{on['processors']} processors, {on['memory_bytes'] / 1e9:.0f} GB, kernel {on['kernel']}, "
            f"Python {on['python']}"
        )
        together.setdefault(words, []).append(name)
    return [f"- {', '.join(names)}: {words}." for words, names in together.items()]


def write_parts(name: str, parts: Mapping[str, Part], figures: Sequence[Mapping[str, Any]]) -> Path:
    """benchmarks/results/NAME.json: every part with its stamp, and the figures that are made of them."""
    document = {
        "benchmark": name,
        "parts": {part: asdict(one) for part, one in parts.items()},
        "figures": list(figures),
    }
    return _write(name, document)


def _write(name: str, document: Mapping[str, Any]) -> Path:
    """Whole or not at all: whoever is interrupted here leaves the earlier results."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    unfinished = path.with_suffix(".json.new")
    unfinished.write_text(json.dumps(document, indent=2) + "\n")
    unfinished.replace(path)
    return path


def read_results(name: str) -> dict[str, Any]:
    """The results of an earlier run, or nothing."""
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text())["results"] if path.exists() else {}
    return found


def write_results(name: str, results: dict[str, Any]) -> Path:
    """benchmarks/results/NAME.json: the results, the machine, and the date."""
    document = {"benchmark": name, "date": time.strftime("%Y-%m-%d"), "machine": machine(), "results": results}
    return _write(name, document)


def write_table(name: str, markdown: str) -> None:
    """Replace what stands between the markers of this benchmark in docs/performance.md."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    text = PAGE.read_text()
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"{PAGE.name} has no place for {name}: add {begin} and {end}")
    PAGE.write_text(f"{before}{begin}\n\n{markdown.strip()}\n\n{end}{after}")
