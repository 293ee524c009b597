"""Values as people write them: `50%`, `25GB/s`, `5us`, `80GB`, `8`."""

from __future__ import annotations

import math
import re

from chaos.errors import BadChange

_NUMBER = re.compile(r"([-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)\s*(.*)\Z", re.IGNORECASE | re.ASCII | re.DOTALL)
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_BYTES = {
    "": 1.0,
    "b": 1.0,
    "kb": 1e3,
    "mb": 1e6,
    "gb": 1e9,
    "tb": 1e12,
    "kib": 2.0**10,
    "mib": 2.0**20,
    "gib": 2.0**30,
    "tib": 2.0**40,
}
_BITS = {"kbit": 1e3 / 8, "mbit": 1e6 / 8, "gbit": 1e9 / 8, "kbps": 1e3 / 8, "mbps": 1e6 / 8, "gbps": 1e9 / 8}
_YES = {"yes": True, "true": True, "1": True, "on": True, "no": False, "false": False, "0": False, "off": False}


def _split(key: str, text: str, example: str) -> tuple[float, str]:
    match = _NUMBER.match(text.strip())
    if match is None:
        raise BadChange(f"{key}={text}: that is no number", mend=f"write for example {key}={example}")
    number = float(match[1])
    if not math.isfinite(number):
        raise BadChange(f"{key}={text}: that is too large a number")
    return number, match[2].strip()


def whole(key: str, text: str, least: int, most: int) -> int:
    """A whole number between two. Raises BadChange."""
    number, unit = _split(key, text, str(most))
    if unit or number != int(number) or not least <= number <= most:
        raise BadChange(f"{key}={text}: it is a whole number from {least} to {most}")
    return int(number)


def share(key: str, text: str, of: float | None = None) -> float:
    """A part above 0 and at most 1: `50%`, `0.5`; of a rate that is known also a rate. Raises BadChange."""
    number, unit = _split(key, text, "50%")
    unit = unit.lower()
    if unit == "%":
        part = number / 100
    elif unit == "" and number <= 1:
        part = number
    elif of is not None:
        part = _rate(key, text, number, unit) / of
    else:
        raise BadChange(f"{key}={text}: that is no part", mend=f"write for example {key}=50%")
    if not 0 < part <= 1:
        limit = "100%" if of is None else f"100%, which is {of / 1e9:g} GB/s"
        raise BadChange(f"{key}={text}: it is above 0 and at most {limit}", mend="to cut a link: state=down")
    return part


def _rate(key: str, text: str, number: float, unit: str) -> float:
    plain = unit.removesuffix("/s")
    if plain in _BYTES:
        return number * _BYTES[plain]
    if unit in _BITS or plain in _BITS:
        return number * _BITS[unit if unit in _BITS else plain]
    raise BadChange(f"{key}={text}: {unit!r} is no unit of a rate", mend=f"write for example {key}=25GB/s or {key}=50%")


def chance(key: str, text: str) -> float:
    """A part from 0 to below 1: `1%`, `0.001`. Raises BadChange."""
    number, unit = _split(key, text, "0.1%")
    part = number / 100 if unit == "%" else number
    if unit not in ("", "%") or not 0 <= part < 1:
        raise BadChange(f"{key}={text}: it is a part from 0 to below 1", mend=f"write for example {key}=0.1%")
    return part


def seconds(key: str, text: str) -> float:
    """A time of 0 or more, with its unit. Raises BadChange."""
    number, unit = _split(key, text.lstrip("+"), "5us")
    if unit.lower() not in _SECONDS and number != 0:
        raise BadChange(f"{key}={text}: a time needs a unit", mend=f"write for example {key}=5us or {key}=1ms")
    found = number * _SECONDS.get(unit.lower(), 1.0)
    if not 0 <= found < 1000:
        raise BadChange(f"{key}={text}: it is from 0 to 1000 s")
    return found


def size(key: str, text: str, most: int) -> int:
    """Bytes: `80GB`, `512MiB`. Raises BadChange."""
    number, unit = _split(key, text, "40GB")
    if unit.lower() not in _BYTES:
        raise BadChange(f"{key}={text}: {unit!r} is no unit of memory", mend=f"write for example {key}=40GB")
    found = int(number * _BYTES[unit.lower()])
    if not 0 <= found <= most:
        raise BadChange(f"{key}={text}: it is from 0 to {most} bytes")
    return found


def percent(key: str, text: str) -> int:
    """0 to 100, with or without its sign. Raises BadChange."""
    return whole(key, text.strip().removesuffix("%"), 0, 100)


def yes(key: str, text: str) -> bool:
    """`yes` or `no`. Raises BadChange."""
    try:
        return _YES[text.strip().lower()]
    except KeyError:
        raise BadChange(f"{key}={text}: it is yes or no") from None
