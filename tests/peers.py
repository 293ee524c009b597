"""Programs of others that tests drive: found, or the test is skipped; with CI=true it fails instead.

`script/test` installs them (Debian's packages; Prometheus and its exporter only unpacked, under build/peers).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parent.parent
UNPACKED = ROOT / "build" / "peers" / "usr" / "bin"


def in_ci() -> bool:
    """Whether what this kind of machine supports has to run."""
    return os.environ.get("CI", "") not in ("", "0", "false")


def peer(name: str) -> str:
    """The path of a program: `chromium`, `prometheus`, `promtool`, `prometheus-node-exporter`,
    `lstopo-no-graphics`, `srt-live-transmit`, `lttng`, `lttng-sessiond`, `babeltrace2`, `qemu-system-x86_64` (with
    --all).
    """
    found = shutil.which(name, path=f"{UNPACKED}:{os.environ.get('PATH', os.defpath)}")
    if found is None:
        missing(f"{name} is not installed: script/test installs it")
    return found


def missing(words: str) -> NoReturn:
    """Skip the test that asks, saying what it lacks; in CI fail it."""
    if in_ci():
        pytest.fail(words)
    pytest.skip(words)


def ffmpeg() -> str:
    """A whole FFmpeg, from PyPI's imageio-ffmpeg: sends what we receive, checks what we write."""
    import imageio_ffmpeg

    return str(imageio_ffmpeg.get_ffmpeg_exe())
