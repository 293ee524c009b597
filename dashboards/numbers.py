"""Numbers with units, short, for people. Unknown values are the word `unknown`, or a dash where there is no room."""

from __future__ import annotations

DASH = "–"


def seconds(value: float | None, unknown: str = DASH) -> str:
    """A duration of a frame or a link: `12.3 ms`, `275 ns`, `1.20 s`; zero is `0 s`."""
    return _scaled(value, ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")), unknown)


def size(value: float | None, unknown: str = DASH) -> str:
    """Bytes in powers of 1000: `1.5 GB`, `640 B`."""
    return _scaled(value, ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")), unknown)


def rate(value: float | None, unknown: str = DASH) -> str:
    """Bytes per second: `63 GB/s`."""
    return unknown if value is None else f"{size(value)}/s"


def count(value: int | None, unknown: str = DASH) -> str:
    """`12,345`."""
    return unknown if value is None else f"{value:,}"


def per_second(value: float | None, unknown: str = DASH) -> str:
    """Frames or records per second, without the unit: `29.9`, `12,300`."""
    if value is None:
        return unknown
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}"


def span(value: float | None, unknown: str = DASH) -> str:
    """A long time in its two largest units: `3 h 12 min`, `45 s`."""
    if value is None:
        return unknown
    whole = max(0, round(value))
    parts = [(whole // 86400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "min"), (whole % 60, "s")]
    first = next((i for i, (number, _) in enumerate(parts) if number), len(parts) - 1)
    return " ".join(
        f"{number} {unit}" for number, unit in parts[first : first + 2] if number or len(parts) - 1 == first
    )


def _scaled(value: float | None, units: tuple[tuple[float, str], ...], unknown: str) -> str:
    if value is None:
        return unknown
    if value == 0:
        return f"0 {units[0][1] if units[0][1] == 's' else 'B'}"
    scale, unit = next((u for u in units if abs(value) >= u[0] * 0.9995), units[-1])
    number = value / scale
    if unit == "B":
        return f"{number:.0f} B"
    return f"{number:.0f} {unit}" if abs(number) >= 99.95 else f"{number:.3g} {unit}"
