"""This process: what it may take of the machine, and since when it runs."""

from __future__ import annotations

import contextlib
import os
import resource

import psutil

MOST_FILES = 65_536


def allow_more_files() -> None:
    """Each operator takes about ten descriptors: raise the soft limit, for this process and those it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # not allowed to: what is opened then decides
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def process_began() -> float:
    """When this process began, in seconds of the wall clock; script/run says since when it is this command."""
    began = psutil.Process().create_time()
    try:
        return max(began, float(os.environ.get("OBSERVATORY_BEGAN", "")))
    except ValueError:
        return began
