"""The reference of incidents, from the tables: `python -m observatory.anomalies.reference`."""

from __future__ import annotations

import sys

from observatory.anomalies.kinds import KINDS
from observatory.anomalies.xid import CATALOG, XIDS

_FAULTS = {
    1: "GPU lost", 2: "ECC double-bit", 3: "clock throttle", 4: "NVLink downgrade", 5: "NVLink dead",
    6: "PCIe downtrain", 7: "PCIe AER storm", 8: "CXL poison, correctable errors", 9: "CXL memory gone",
    10: "RDMA loss", 11: "rail flap", 13: "leaf switch lost", 14: "NUMA memory pressure", 17: "node lost",
    20: "telemetry lost", 21: "telemetry lies",
}  # fmt: skip


def reference() -> str:
    """The page docs/reference/incident-kinds.md as Markdown."""
    lines = [
        "# Kinds of incidents",
        "",
        "This page is made from the tables that the incident watch uses: see [incidents](../incidents.md).",
        "",
        "| kind | severity | meaning | what to do | fault | over after |",
        "|---|---|---|---|---|---|",
    ]
    for kind in KINDS.values():
        fault = "" if kind.fault is None else f"{kind.fault}: {_FAULTS[kind.fault]}"
        lines.append(
            f"| `{kind.name}` | {kind.severity.value} | {kind.meaning} | {kind.mend} | {fault} "
            f"| {kind.hold_seconds:g} s |"
        )
    lines += [
        "",
        "An incident may be worse or less bad than its kind: an Xid has the severity of its number. `over after` is",
        "how long the trouble must be over, or an event must not come again, before the incident is closed.",
        "",
        "## Xid errors",
        "",
        f"From NVIDIA's catalog ({CATALOG}), in words of ours.",
        "A number that is not here is a warning of the kind `xid`.",
        "",
        "| Xid | meaning | severity | kind | what to do |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {xid.code} | {xid.meaning} | {xid.severity.value} | `{xid.kind}` | {xid.mend} |" for xid in XIDS.values()
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(reference())
