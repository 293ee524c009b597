"""Kinds of incidents: how bad each is, what it means, what a person can do, and where it stands in the fault matrix.

`group` says which kinds are faces of one trouble: while one of them is open on a subject, another of the same group
adds its evidence to it instead of opening a second incident. `hold_seconds` is how long the trouble must be over before
the incident is closed: events tell no end, so that silence of that length is taken for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from observatory.model.incident import Severity

_INFO, _WARNING, _CRITICAL = Severity.INFO, Severity.WARNING, Severity.CRITICAL

EVENT_HOLD_SECONDS = 600.0
RATE_HOLD_SECONDS = 1.0  # after a window in which nothing happened


@dataclass(frozen=True, slots=True)
class IncidentKind:
    """One kind. `fault` is the row of the fault matrix that it detects (docs/incidents.md), None where it has none."""

    name: str
    severity: Severity
    meaning: str
    mend: str
    fault: int | None = None
    group: str | None = None
    hold_seconds: float = 1.0


KINDS: dict[str, IncidentKind] = {
    kind.name: kind
    for kind in (
        IncidentKind(
            "gpu_lost", _CRITICAL, "A GPU does not answer any more.",
            "take its work off it; reset it, or reboot the machine; if it comes back, reseat or replace it", 1, "lost",
        ),
        IncidentKind(
            "device_lost", _CRITICAL, "A card or a memory device that was there is gone.",
            "look into the kernel's log for why; rescan the bus, reseat it", 9, "lost",
        ),
        IncidentKind(
            "ecc_uncorrectable", _CRITICAL, "Memory of a GPU gave wrong data that could not be corrected.",
            "restart what ran on it, then reset the GPU; run its diagnosis if it happens again", 2, "ecc",
            EVENT_HOLD_SECONDS,
        ),
        IncidentKind(
            "ecc_surge", _WARNING, "A GPU corrects many more memory errors than usual.",
            "watch it; plan a reset, and its replacement if it goes on", 2, "ecc", 60.0,
        ),
        IncidentKind(
            "row_remap_pending", _WARNING, "A bad row of a GPU's memory is replaced by a spare one at the next reset.",
            "reset the GPU when its work allows", 2, "remap", EVENT_HOLD_SECONDS,
        ),
        IncidentKind(
            "row_remap_failed", _CRITICAL, "A bad row of a GPU's memory cannot be replaced: no spare is left.",
            "stop using the GPU and have it replaced", 2, "remap", EVENT_HOLD_SECONDS,
        ),
        IncidentKind(
            "gpu_throttled", _WARNING, "A GPU's clock is held back by heat, its power supply or a lock.",
            "look after cooling and power; nvidia-smi -rgc takes a clock lock off", 3, None, 2.0,
        ),
        IncidentKind(
            "nvlink_degraded", _WARNING, "Fewer NVLinks are active than could be, or they are slower.",
            "reset the GPUs at both ends; then look at the bridge or the baseboard", 4, "nvlink",
        ),
        IncidentKind(
            "nvlink_down", _CRITICAL, "No NVLink of a connection or a GPU is active.",
            "reset the GPUs at both ends; then look at the bridge, the switch or the baseboard", 5, "nvlink",
        ),
        IncidentKind(
            "nvlink_errors", _WARNING, "An NVLink reports errors.",
            "reset the GPU; if they come back, exchange the part that the link crosses", 5, None, EVENT_HOLD_SECONDS,
        ),
        IncidentKind(
            "pcie_downtrained", _WARNING, "A PCI Express link is narrower or slower than both ends could be.",
            "reseat the card, look at riser and slot; retrain the link or reboot", 6, "pcie",
        ),
        IncidentKind(
            "aer_storm", _WARNING, "A PCI Express link corrects many errors.",
            "reseat the card; look at riser, cable and slot", 7, "aer", RATE_HOLD_SECONDS,
        ),
        IncidentKind(
            "aer_fatal", _CRITICAL, "A PCI Express link had an error that could not be corrected.",
            "restart what used the device; reseat or replace it if it happens again", 7, "aer", EVENT_HOLD_SECONDS,
        ),
        IncidentKind(
            "memory_error_surge", _WARNING, "A memory module or CXL memory corrects many errors.",
            "move work off it; plan its replacement", 8, "memory", RATE_HOLD_SECONDS,
        ),
        IncidentKind(
            "memory_poison", _CRITICAL, "Memory gave wrong data that could not be corrected.",
            "retire the page or slab; replace the module", 8, "memory", EVENT_HOLD_SECONDS,
        ),
        IncidentKind(
            "rdma_loss", _WARNING, "Packets of RDMA connections get lost or come out of order.",
            "look at the path: cable, switch port, congestion control; send over another rail", 10, None,
            RATE_HOLD_SECONDS,
        ),
        IncidentKind(
            "rdma_card", _CRITICAL, "An RDMA card or its driver reports that it failed.",
            "look into the kernel's log; reset the card's firmware, replace it", 10, None, EVENT_HOLD_SECONDS,
        ),
        IncidentKind(
            "link_down", _CRITICAL, "A link that should carry traffic does not.",
            "look at cable, transceiver and the far end", 11, "port", 2.0,
        ),
        IncidentKind(
            "link_flapping", _WARNING, "A link went down and came back.",
            "look at cable and transceiver; use another rail meanwhile", 11, "port", RATE_HOLD_SECONDS,
        ),
        IncidentKind(
            "port_degraded", _WARNING, "A port runs slower than it could.",
            "look at cable, transceiver and the far end's settings", 11, "port",
        ),
        IncidentKind(
            "port_errors", _WARNING, "A port receives damaged data.",
            "clean or exchange cable and transceiver", 11, None, RATE_HOLD_SECONDS,
        ),
        IncidentKind(
            "switch_lost", _CRITICAL, "Everything below one switch is gone.",
            "look at the switch; move what runs below it", 13, "lost",
        ),
        IncidentKind(
            "memory_pressure", _WARNING, "Tasks of a machine wait for memory.",
            "move work off the machine, or give it less", 14, None, 5.0,
        ),
        IncidentKind(
            "numa_misplaced", _WARNING, "Memory is taken from a NUMA node where it was not wanted.",
            "free memory on the wanted node, or move work", 14, None, RATE_HOLD_SECONDS,
        ),
        IncidentKind(
            "kernel_panic", _CRITICAL, "The kernel of a machine gave up.",
            "read the lines above it in the log; boot again", 17, None, EVENT_HOLD_SECONDS,
        ),
        IncidentKind(
            "node_silent", _CRITICAL, "Nothing of a machine is heard any more.",
            "look whether it runs, and whether it can be reached", 17, "silence", 1.0,
        ),
        IncidentKind(
            "telemetry_lost", _INFO, "A source of telemetry is silent; its last values are held.",
            "restart the source", 20, "silence",
        ),
        IncidentKind(
            "telemetry_unreliable", _INFO, "A source gives values that cannot be, or sources contradict each other.",
            "compare with another source; update the driver or the exporter", 21, None, 60.0,
        ),
        IncidentKind(
            "xid", _WARNING, "NVIDIA's driver reports an error of a GPU.",
            "see NVIDIA's Xid catalog for this number", 1, None, EVENT_HOLD_SECONDS,
        ),
        IncidentKind(
            "sxid", _WARNING, "NVIDIA's driver reports an error of an NVSwitch.",
            "see the fabric manager's user guide for this number", 13, None, EVENT_HOLD_SECONDS,
        ),
        IncidentKind(
            "driver_error", _WARNING, "A driver reports an error of its own.",
            "look into the kernel's log; update the driver", None, None, EVENT_HOLD_SECONDS,
        ),
        IncidentKind(
            "inforom_corrupted", _WARNING, "The memory with a GPU's settings and error records is damaged.",
            "reset the GPU; have it replaced if the warning stays", None, None, EVENT_HOLD_SECONDS,
        ),
        IncidentKind(
            "component_failed", _WARNING, "A fan, a power supply or another part reports that it failed.",
            "replace it", None,
        ),
        IncidentKind(
            "processor_error", _CRITICAL, "A processor or the firmware reports an error that could not be corrected.",
            "take work off the machine; read the firmware's log", None, None, EVENT_HOLD_SECONDS,
        ),
        IncidentKind(
            "processor_corrected", _INFO, "A processor or the firmware reports an error that was corrected.",
            "watch it", None, None, EVENT_HOLD_SECONDS,
        ),
        IncidentKind(
            "processor_throttled", _WARNING, "A processor is held back by its heat.",
            "look after cooling", 3, None, 60.0,
        ),
    )
}  # fmt: skip
"""By name, in the order of the fault matrix."""


def kind_named(name: str) -> IncidentKind:
    """The kind of that name. Raises KeyError for a name that no detector may use."""
    return KINDS[name]
