"""Where the emulated machine's NVML is."""

from __future__ import annotations

from pathlib import Path

from dataplane import _ring

NVML_NAME = "libnvidia-ml.so.1"
"""Under which programs look for NVIDIA's."""


def nvml_library() -> Path:
    """The C library of the emulated machine, installed beside the package's other native parts."""
    return Path(_ring.__file__).parents[1] / "chaos" / "machine" / NVML_NAME
