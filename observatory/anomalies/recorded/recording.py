"""What a recorded file tells, as a receiver would have seen it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from observatory.model.observation import Address, AddressKind, HardwareEvent, Observation, Seen

LOOK_NS = 1_000_000_000  # between two looks that one file holds, where it tells no times

GIGATRANSFERS = {1: 2.5e9, 2: 5e9, 3: 8e9, 4: 16e9, 5: 32e9, 6: 64e9}
"""Transfers per second and lane of each generation of PCI Express."""

_RATE = re.compile(r"([\d.]+)\s*Gb(?:/sec|ps|/s)", re.IGNORECASE)
_SPEED = re.compile(r"([\d.]+)\s*GT/s")


@dataclass(slots=True)
class Look:
    """What was seen at one time; `at_ns` counts from the start of the machine, else of the recording."""

    at_ns: int
    seen: list[Seen] = field(default_factory=list)


@dataclass(slots=True)
class Recording:
    """What one file or several of one machine tell. `owners`: what is a part of what, by their names."""

    form: str
    looks: list[Look] = field(default_factory=list)
    owners: dict[str, str] = field(default_factory=dict)

    def join(self, other: Recording) -> None:
        """Add what another file tells of the same machine: looks of the same number belong together."""
        for number, look in enumerate(other.looks):
            if number < len(self.looks):
                self.looks[number].seen.extend(look.seen)
                self.looks[number].at_ns = max(self.looks[number].at_ns, look.at_ns)
            else:
                self.looks.append(look)
        self.owners.update(other.owners)


class LookMaker:
    """Makes observations of one look: less to write for each reader."""

    def __init__(self, node: str, source: str, at_ns: int = LOOK_NS) -> None:
        self.node = node
        self.source = source
        self.look = Look(at_ns)

    def add(self, kind: AddressKind, key: str, metric: str, value: float | None, **attributes: str) -> None:
        """One value. Dots of attribute names are written as two underscores (`hw__state`)."""
        named = {name.replace("__", "."): text for name, text in attributes.items()}
        at = Address(self.node, kind, key)
        self.look.seen.append(Observation(at, metric, value, self.look.at_ns, self.source, named))

    def tell(self, kind: AddressKind, key: str, event: str, text: str, code: str | None = None) -> None:
        """One event."""
        at = Address(self.node, kind, key)
        self.look.seen.append(HardwareEvent(at, event, text, self.look.at_ns, self.source, code))


def bytes_of_rate(text: str) -> float | None:
    """Bytes per second of `200 Gb/sec (4X HDR)`; None where it tells none."""
    match = _RATE.search(text)
    return None if match is None else float_of(match[1], 1e9 / 8)


def transfers_of_speed(text: str) -> float | None:
    """Transfers per second of `16.0 GT/s PCIe` or `8 GT/s`; None where it tells none."""
    match = _SPEED.search(text)
    return None if match is None else float_of(match[1], 1e9)


def float_of(text: str | None, factor: float = 1.0) -> float | None:
    """The number at the start of a text (`627.40 W`, `16x`, `97 %`), times `factor`; None for `N/A` and the like."""
    match = re.match(r"\s*(-?\d{1,20}(?:\.\d{1,20})?)", text or "")
    return None if match is None else float(match[1]) * factor


def bus_id(text: str) -> str:
    """`00000000:0C:00.0` as the kernel writes it: `0000:0c:00.0`; a domain of more than 16 bits keeps its digits."""
    domain, _, rest = text.strip().lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}" if re.fullmatch(r"[0-9a-f]{1,8}", domain) and rest else text.strip().lower()


def one_look(form: str, looks: Iterable[LookMaker]) -> Recording:
    """A recording of looks, one after the other."""
    return Recording(form, [maker.look for maker in looks])
