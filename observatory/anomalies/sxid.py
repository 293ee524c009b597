"""SXid errors of NVSwitches: how bad each is where the log does not say so itself.

Source: the table of NVIDIA's NVSentinel (github.com/NVIDIA/NVSentinel, nvswitch-health-monitor, sxiderrorsmapping.csv).
The thousands of a number name the unit of the switch. The driver's line says itself whether an error was fatal
(`SXid (PCI:...): 20034, Fatal, ...`) and that word rules: 12028, fatal in the table, is logged as non-fatal too.
"""

from __future__ import annotations

from dataclasses import dataclass

from observatory.model.incident import Severity

_UNITS = {
    10: "host interface", 11: "ingress", 12: "egress", 13: "F-state", 14: "T-state", 15: "routing", 16: "port",
    17: "NVLink control", 18: "NVLink interface", 19: "transaction layer", 20: "data link layer", 21: "crossbar",
    22: "link micro-controller", 23: "crossbar tile", 24: "source tracking", 25: "link state", 26: "controller",
    27: "cable controller", 28: "transceiver heat", 29: "multicast", 30: "reduction",
}  # fmt: skip

# Of each unit, the numbers within it that only report or that hardware corrected; all others are fatal.
_NON_FATAL: dict[int, frozenset[int]] = {
    10: frozenset({1, 2, 5}),
    11: frozenset({2, 3, 5, 6, 8, 10, 11, 12, 14, 15, 16, *range(21, 28), *range(31, 48)}),
    12: frozenset({3, 6, *range(9, 20), 21, 23, 29, 33, 34, 36, 38, 40, 42, 44, 46, 49, 50, 51}),
    13: frozenset(),
    14: frozenset({3, 5, 7, 9, 15}),
    15: frozenset({2, 3, 4, 7, 8, 11, 14, 16, 18, 20}),
    16: frozenset({1}),
    17: frozenset({1, 4, 5, 8}),
    18: frozenset(),
    19: frozenset(
        {
            9,
            *range(22, 27),
            33,
            34,
            35,
            *range(38, 46),
            49,
            50,
            51,
            52,
            55,
            57,
            59,
            62,
            65,
            68,
            71,
            72,
            73,
            77,
            78,
            81,
            82,
        }
    ),
    20: frozenset({1, 2, 3, 8, 13, 14, 15, 35}),
    21: frozenset(),
    22: frozenset({1, 2, *range(4, 11), 13}),
    23: frozenset(),
    24: frozenset({1, 2, 3}),
    25: frozenset(range(1, 8)),
    26: frozenset({8}),
    27: frozenset(),
    28: frozenset({2, 4}),
    29: frozenset({1, 3, 5, 6}),
    30: frozenset({1, 3, 5, 6}),
}


@dataclass(frozen=True, slots=True)
class Sxid:
    """One number: the unit of the switch in words, and how bad it is."""

    code: int
    meaning: str
    severity: Severity
    mend: str


def sxid_of(code: str | None, said: str | None = None) -> Sxid:
    """What is known of a number; `said` is the log's own word for it (`fatal`, `non-fatal`), which rules.

    A number of a unit that is not known is a warning.
    """
    number = int(code) if code is not None and code.isdecimal() and len(code) < 10 else -1
    unit, within = divmod(number, 1000)
    known = unit in _UNITS
    words = f"an error of the switch's {_UNITS[unit]}" if known else "an error that the table of numbers does not have"
    if said is not None:
        fatal = said.lower().replace("-", "").replace("_", "") == "fatal"
    else:
        fatal = known and within not in _NON_FATAL[unit]
    if fatal:
        return Sxid(number, words, Severity.CRITICAL, "reset the GPUs and the switches of the fabric")
    return Sxid(number, words, Severity.WARNING, "watch it; look at the link if it comes often")
