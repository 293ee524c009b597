"""Numbers with units as people write and read them. Unknown values are a question mark."""

from __future__ import annotations

from observatory.model.errors import ModelError


def seconds_text(value: float | None) -> str:
    """`1.73 ms`, `275 ns`; zero is `0`."""
    return _scaled(value, ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")))


def bytes_text(value: float | None) -> str:
    """`3.11 MB` (powers of 1000)."""
    return _scaled(value, ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")))


def rate_text(value: float | None) -> str:
    """`63 GB/s`."""
    return "?" if value is None else f"{bytes_text(value)}/s"


def _scaled(value: float | None, units: tuple[tuple[float, str], ...]) -> str:
    if value is None:
        return "?"
    if value == 0:
        return "0"
    scale, unit = next((u for u in units if abs(value) >= u[0] * 0.9995), units[-1])
    number = f"{value / scale:.3g}"
    return f"{float(number):g} {unit}"


def parse_size(text: str | None) -> int | None:
    """`800M` -> 800_000_000; suffixes k, M, G, T (powers of 1000), Ki, Mi, Gi, Ti (of 1024). Raises ModelError."""
    if text is None:
        return None
    units = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
    units |= {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
    number = text.rstrip("bBkKmMgGtTiI")
    unit = text[len(number) :].lower().removesuffix("b")
    try:
        size = int(float(number) * units[unit])
    except (ValueError, KeyError, OverflowError):
        size = 0
    if size <= 0:
        raise ModelError(f"{text!r} is no size", mend="write for example 800M or 2Gi")
    return size
