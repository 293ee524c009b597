"""Moving an operator while frames flow: the gap that its consumers see, on an idle machine and beside a CPU hog.

Not measured yet: `measure` is to fill the document that the figures in dataplane_figures.py read.
"""

from __future__ import annotations

from typing import Any

from benchmarks.dataplane_pairs import Failed


def measure(moves: int) -> dict[str, Any]:
    """Move an operator `moves` times, on the idle machine and with a process per processor that only computes.

    Returns:
        {"idle": ..., "hog": ...}, each with `moves`, `lost`, `duplicate`, `reordered` (frames), and `p50_seconds` and
        `p99_seconds` of the cut-over gap.

    Raises:
        Failed: it cannot be measured.
    """
    raise Failed("the supervisor's migration is not measured yet")
