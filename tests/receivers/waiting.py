"""Waiting for a condition, with a generous limit."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT_SECONDS = 60.0


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {LIMIT_SECONDS:g} s: {what}"
        time.sleep(0.005)
