"""What this process may take of the machine."""

from __future__ import annotations

import contextlib
import resource

MOST_FILES = 65_536


def allow_more_files() -> None:
    """Each operator takes about ten descriptors: raise the soft limit, for this process and those it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # not allowed to: what is opened then decides
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
