"""`rocm-smi --json`: links and load of AMD's GPUs. What is possible at best is not told there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from observatory.anomalies.recorded.recording import LookMaker, Recording, float_of, one_look, transfers_of_speed
from observatory.model.observation import AddressKind

_CARD = re.compile(r"card\d+")
_WIDTH = re.compile(r"x(\d{1,2})\)")
_PCI = AddressKind.PCI


def is_rocm_smi(document: object) -> bool:
    """Whether it has a card with AMD's words in it."""
    return isinstance(document, dict) and any(
        _CARD.fullmatch(str(name)) and isinstance(card, dict) and "PCI Bus" in card for name, card in document.items()
    )


def read_rocm_smi(document: Mapping[str, Any], node: str) -> Recording:
    """What each card tells."""
    look = LookMaker(node, "rocm-smi")
    for name, card in document.items():
        if not _CARD.fullmatch(name) or not isinstance(card, dict) or not isinstance(card.get("PCI Bus"), str):
            continue
        key = card["PCI Bus"].lower()
        level = str(card.get("pcie clock level", ""))
        width = _WIDTH.search(level)
        busy = float_of(str(card.get("GPU use (%)", "")), 0.01)
        look.add(_PCI, key, "hw.gpu.utilization", busy, hw__gpu__task="general")
        look.add(_PCI, key, "link.speed", transfers_of_speed(level))
        look.add(_PCI, key, "link.width", None if width is None else float(width[1]))
        replays = float_of(str(card.get("PCIe Replay Count", "")))
        look.add(_PCI, key, "link.errors", replays, error__type="replay")
    return one_look("rocm-smi", [look])
