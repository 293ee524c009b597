"""A PCI Express link as sysfs tells it: speed and width now and at best, and what that carries.

    current_link_speed, current_link_width, max_link_speed, max_link_width   of a function

The kernel writes `16.0 GT/s PCIe`, older ones `16 GT/s`, `Unknown` or `Unknown speed` where there is no link, and as
width 0 or 255. The maximum is that of one end only, so a link's best is the lesser of both ends': a card with 16 lanes
in a slot with 8 is not degraded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeVar

from observatory.model.data_sheets import PCIE, pcie_bytes_per_second
from observatory.model.link import LinkState
from observatory.topology.importers.sysfs.tree import SysfsTree

Number = TypeVar("Number", int, float)

_SPEED = re.compile(r"(\d{1,3}(?:\.\d{1,3})?) GT/s(?: PCIe)?\Z")
_SPEEDS = frozenset(row.gigatransfers_per_second for row in PCIE)
_WIDTHS = frozenset({1, 2, 4, 8, 12, 16, 32})
_NO_WIDTH = frozenset({0, 255})


@dataclass(frozen=True, slots=True)
class LinkEnd:
    """One end of a link: speeds in GT/s, widths in lanes."""

    speed: float | None = None
    width: int | None = None
    max_speed: float | None = None
    max_width: int | None = None


@dataclass(frozen=True, slots=True)
class PcieLink:
    """Both ends taken together."""

    speed: float | None
    width: int | None
    best_speed: float | None
    best_width: int | None

    @property
    def bytes_per_second(self) -> float | None:
        """What the link carries now, in one direction, after its encoding; None when that is not known."""
        if self.speed is None or self.width is None:
            return None
        return pcie_bytes_per_second(self.speed, self.width)

    @property
    def state(self) -> LinkState:
        """`up` at its best (or when the best is not told), `degraded` below it, `unknown` when nothing is told."""
        if self.speed is None or self.width is None:
            return LinkState.UNKNOWN
        slow = self.best_speed is not None and self.speed < self.best_speed
        narrow = self.best_width is not None and self.width < self.best_width
        return LinkState.DEGRADED if slow or narrow else LinkState.UP


def parse_link_speed(text: str) -> float | None:
    """GT/s in `16.0 GT/s PCIe`; None for `Unknown`.

    Raises:
        ValueError: the text has another form, or it is no speed of PCI Express.
    """
    if text.startswith("Unknown"):
        return None
    match = _SPEED.match(text)
    if match is None or float(match[1]) not in _SPEEDS:
        raise ValueError(f"{text!r} is no speed of a PCI Express link")
    return float(match[1])


def parse_link_width(text: str) -> int | None:
    """Lanes in `16`; None for 0 and 255, by which the kernel says that there is no link.

    Raises:
        ValueError: the text has another form, or it is no width of PCI Express.
    """
    width = int(text) if text.isascii() and text.isdigit() and len(text) < 4 else -1
    if width not in _WIDTHS and width not in _NO_WIDTH:
        raise ValueError(f"{text!r} is no width of a PCI Express link")
    return None if width in _NO_WIDTH else width


def speed_text(speed: float | None) -> str | None:
    """`16.0 GT/s`."""
    return None if speed is None else f"{speed:.1f} GT/s"


def read_link_end(tree: SysfsTree, folder: str) -> LinkEnd:
    """What the function in `folder` tells of its link."""
    return LinkEnd(
        speed=tree.parsed(f"{folder}/current_link_speed", parse_link_speed),
        width=tree.parsed(f"{folder}/current_link_width", parse_link_width),
        max_speed=tree.parsed(f"{folder}/max_link_speed", parse_link_speed),
        max_width=tree.parsed(f"{folder}/max_link_width", parse_link_width),
    )


def join_ends(below: LinkEnd, above: LinkEnd) -> PcieLink:
    """The link between a function and the port above it. What it runs at is the function's word, else the port's."""
    return PcieLink(
        speed=below.speed if below.speed is not None else above.speed,
        width=below.width if below.width is not None else above.width,
        best_speed=_lesser(below.max_speed, above.max_speed),
        best_width=_lesser(below.max_width, above.max_width),
    )


def _lesser(a: Number | None, b: Number | None) -> Number | None:
    return min((n for n in (a, b) if n is not None), default=None)
