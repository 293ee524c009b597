"""What the series of dcgm-exporter and node_exporter are to us: name, unit, and which hardware their labels name.

dcgm-exporter: its etc/default-counters.csv and etc/dcp-metrics-included.csv; units and blanks of DCGM's dcgm_fields.h
and dcgm_structs.h. Version 1 wrote `dcgm_sm_clock` with `uuid`. PCIe throughput was in kB/s as
`DCGM_FI_DEV_PCIE_TX_THROUGHPUT`, and is in bytes per second as `DCGM_FI_PROF_PCIE_TX_BYTES`, which some shipped lists
call a counter: it is a rate. `DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL` is left out: what it counts differs with the driver.

node_exporter tells no interface's kind: those of software are known by the names that their makers give them. Names end
in `_total` since 0.16; both are known. Of an interface `receive_drop` also counts what a card had no buffer for, as
/proc/net/dev does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class Subject(StrEnum):
    """How a series names the hardware that it is about."""

    GPU = "gpu"  # pci_bus_id, else UUID
    PORT = "port"  # device, port
    INTERFACE = "interface"  # device
    NUMA = "numa"  # node
    PCI = "pci"  # segment, bus, device, function
    CONTROLLER = "controller"  # of memory
    CPU = "cpu"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Series:
    """What one name is: `unit` is what 1 of it is in the metric's unit."""

    subject: Subject
    metric: str
    attributes: dict[str, str]
    unit: float = 1.0


def _gpu(metric: str, unit: float = 1.0, **attributes: str) -> Series:
    return Series(Subject.GPU, metric, {name.replace("__", "."): value for name, value in attributes.items()}, unit)


def _error(subject: Subject, kind: str, metric: str = "link.errors") -> Series:
    return Series(subject, metric, {"error.type": kind})


_MEBIBYTE = float(1 << 20)
_RECEIVE, _TRANSMIT = {"network.io.direction": "receive"}, {"network.io.direction": "transmit"}

_DCGM: dict[str, Series] = {
    "SM_CLOCK": _gpu("gpu.clock", 1e6, gpu__clock__domain="sm"),
    "MEM_CLOCK": _gpu("gpu.clock", 1e6, gpu__clock__domain="memory"),
    "VIDEO_CLOCK": _gpu("gpu.clock", 1e6, gpu__clock__domain="video"),
    "GPU_TEMP": _gpu("hw.temperature", 1.0, hw__sensor_location="gpu"),
    "MEMORY_TEMP": _gpu("hw.temperature", 1.0, hw__sensor_location="memory"),
    "POWER_USAGE": _gpu("hw.power"),
    "TOTAL_ENERGY_CONSUMPTION": _gpu("hw.energy", 1e-3),
    "GPU_UTIL": _gpu("hw.gpu.utilization", 1e-2, hw__gpu__task="general"),
    "MEM_COPY_UTIL": _gpu("hw.gpu.utilization", 1e-2, hw__gpu__task="memory"),
    "ENC_UTIL": _gpu("hw.gpu.utilization", 1e-2, hw__gpu__task="encoder"),
    "DEC_UTIL": _gpu("hw.gpu.utilization", 1e-2, hw__gpu__task="decoder"),
    "FB_USED": _gpu("hw.gpu.memory.usage", _MEBIBYTE),
    "FB_TOTAL": _gpu("hw.gpu.memory.limit", _MEBIBYTE),
    "PCIE_REPLAY_COUNTER": _error(Subject.GPU, "pcie_replay"),
    "PCIE_TX_THROUGHPUT": Series(Subject.GPU, "link.throughput", _TRANSMIT, 1e3),
    "PCIE_RX_THROUGHPUT": Series(Subject.GPU, "link.throughput", _RECEIVE, 1e3),
    "PCIE_LINK_WIDTH": _gpu("link.width"),
    "PCIE_MAX_LINK_WIDTH": _gpu("link.width.best"),
    "ECC_SBE_VOL_TOTAL": _error(Subject.GPU, "ecc_corrected", "hw.errors"),
    "ECC_DBE_VOL_TOTAL": _error(Subject.GPU, "ecc_uncorrected", "hw.errors"),
    "RETIRED_SBE": _error(Subject.GPU, "pages_retired_corrected", "hw.errors"),
    "RETIRED_DBE": _error(Subject.GPU, "pages_retired_uncorrected", "hw.errors"),
    "CORRECTABLE_REMAPPED_ROWS": _error(Subject.GPU, "rows_remapped_corrected", "hw.errors"),
    "UNCORRECTABLE_REMAPPED_ROWS": _error(Subject.GPU, "rows_remapped_uncorrected", "hw.errors"),
    "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": _error(Subject.GPU, "nvlink_crc_flit"),
    "NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": _error(Subject.GPU, "nvlink_crc_data"),
    "NVLINK_REPLAY_ERROR_COUNT_TOTAL": _error(Subject.GPU, "nvlink_replay"),
    "NVLINK_RECOVERY_ERROR_COUNT_TOTAL": _error(Subject.GPU, "nvlink_recovery"),
}
_DCGM_FIRST_VERSION = {
    "MEM_CLOCK": "memory_clock",
    "MEMORY_TEMP": "memory_temp",
    "MEM_COPY_UTIL": "mem_copy_utilization",
    "GPU_UTIL": "gpu_utilization",
    "ENC_UTIL": "enc_utilization",
    "DEC_UTIL": "dec_utilization",
    "ECC_SBE_VOL_TOTAL": "ecc_sbe_volatile_total",
    "ECC_DBE_VOL_TOTAL": "ecc_dbe_volatile_total",
}
THROTTLING = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
}
"""Bits of the reasons for a lower clock (nvml.h, nvmlClocksEventReasons)."""

THROTTLE_NAMES = ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS")
XID_NAMES = ("DCGM_FI_DEV_XID_ERRORS", "dcgm_xid_errors")
STATE_NAMES = ("node_network_carrier", "node_network_up", "node_infiniband_state_id")

_PORT_COUNTERS = {
    "link_downed": "link_downed",
    "link_error_recovery": "link_recovery",
    "local_link_integrity_errors": "local_link_integrity",
    "excessive_buffer_overrun_errors": "buffer_overrun",
    "port_constraint_errors_received": "receive_constraint",
    "port_constraint_errors_transmitted": "transmit_constraint",
    "port_discards_received": "receive_discard",
    "port_discards_transmitted": "transmit_discard",
    "port_errors_received": "receive",
    "port_receive_remote_physical_errors": "remote_physical",
    "port_receive_switch_relay_errors": "switch_relay",
    "symbol_error": "symbol",
    "vl15_dropped": "vl15_dropped",
    "packet_seq_err": "packet_sequence",
    "out_of_sequence": "out_of_sequence",
    "out_of_sequence_packets_received": "out_of_sequence",
    "packet_sequence_errors": "packet_sequence",
    "local_ack_timeout_errors": "local_ack_timeout",
    "implied_nak_seq_errors": "implied_nak_sequence",
    "duplicate_requests_packets": "duplicate_request",
    "rnr_nak_retry_packets": "rnr_nak_retry",
    "out_of_buffer_drops": "out_of_buffer",
    "rx_icrc_encapsulated_errors": "icrc",
}
_INTERFACE_COUNTERS = {
    "receive_errs": "receive",
    "transmit_errs": "transmit",
    "receive_drop": "receive_discard",
    "transmit_drop": "transmit_discard",
    "transmit_carrier": "carrier",
    "carrier_down_changes": "link_downed",
}
_ALLOCATIONS = {
    "numa_hit": "hit",
    "numa_miss": "miss",
    "numa_foreign": "foreign",
    "interleave_hit": "interleave_hit",
    "local_node": "local",
    "other_node": "other",
}


def _node_series() -> dict[str, Series]:
    port, interface, numa, pci = Subject.PORT, Subject.INTERFACE, Subject.NUMA, Subject.PCI
    found = {
        "node_infiniband_rate_bytes_per_second": Series(port, "hw.network.bandwidth.limit", {}),
        "node_infiniband_port_data_received_bytes": Series(port, "hw.network.io", _RECEIVE),
        "node_infiniband_port_data_transmitted_bytes": Series(port, "hw.network.io", _TRANSMIT),
        "node_infiniband_port_packets_received": Series(port, "hw.network.packets", _RECEIVE),
        "node_infiniband_port_packets_transmitted": Series(port, "hw.network.packets", _TRANSMIT),
        "node_network_receive_bytes": Series(interface, "hw.network.io", _RECEIVE),
        "node_network_transmit_bytes": Series(interface, "hw.network.io", _TRANSMIT),
        "node_network_receive_packets": Series(interface, "hw.network.packets", _RECEIVE),
        "node_network_transmit_packets": Series(interface, "hw.network.packets", _TRANSMIT),
        "node_network_speed_bytes": Series(interface, "hw.network.bandwidth.limit", {}),
        "node_memory_numa_MemFree": Series(numa, "numa.memory.free", {}),
        "node_memory_numa_MemTotal": Series(numa, "numa.memory.limit", {}),
        "node_pcidevice_current_link_width": Series(pci, "link.width", {}),
        "node_pcidevice_current_link_transfers_per_second": Series(pci, "link.speed", {}),
        "node_edac_correctable_errors": _error(Subject.CONTROLLER, "corrected", "hw.errors"),
        "node_edac_uncorrectable_errors": _error(Subject.CONTROLLER, "uncorrected", "hw.errors"),
    }
    found |= {f"node_infiniband_{name}": _error(port, kind) for name, kind in _PORT_COUNTERS.items()}
    found |= {f"node_network_{name}": _error(interface, kind) for name, kind in _INTERFACE_COUNTERS.items()}
    for name, kind in _ALLOCATIONS.items():
        found[f"node_memory_numa_{name}"] = Series(numa, "numa.allocations", {"numa.kind": kind})
    for resource in ("cpu", "memory", "io", "irq"):
        for word, scope in (("waiting", "some"), ("stalled", "full")):
            attributes = {"resource": resource, "scope": scope}
            found[f"node_pressure_{resource}_{word}_seconds"] = Series(Subject.NODE, "node.stalled", attributes)
    return found | {f"{name}_total": series for name, series in found.items()}


def _dcgm_series() -> dict[str, Series]:
    found = {f"DCGM_FI_DEV_{name}": series for name, series in _DCGM.items()}
    for name, series in _DCGM.items():
        found[f"dcgm_{_DCGM_FIRST_VERSION.get(name, name.lower())}"] = series
    for end, attributes in (("TX", _TRANSMIT), ("RX", _RECEIVE)):
        found[f"DCGM_FI_PROF_PCIE_{end}_BYTES"] = Series(Subject.GPU, "link.throughput", attributes)
    return found


SERIES: dict[str, Series] = _dcgm_series() | _node_series()
"""By the name of the series."""

WANTED = frozenset({*SERIES, *THROTTLE_NAMES, *XID_NAMES, *STATE_NAMES})

_OF_SOFTWARE = re.compile(
    r"lo|(docker|podman|nerdctl|cni|virbr|vmbr|lxcbr|lxdbr|vnet|tap|tun|dummy|ifb|wg|sit|gre|gretap|erspan|tunl|ip6tnl|"
    r"ip6gre|ip_vti|ip6_vti|ppp|macvtap|macvlan|ipvlan|vrf|nlmon|br)\d*(_\w+)?|"
    r"(veth|br-|cni-|cali|cilium_|lxc|flannel|weave|vxlan|genev|kube-|nodelocaldns|ovs-|azv|tap|fwbr|fwpr|fwln|docker_|"
    r"vxlan[-.]|wg-|tailscale|zt).*|eni[0-9a-f]{11}|.*\.\d+(@.*)?",
    re.ASCII,
)


def is_of_software(interface: str) -> bool:
    """Whether an interface of that name is a bridge, a tunnel, a container's end, a VLAN or the like, or `lo`.

    Such ones go down and away as containers do, which says nothing of the hardware. A bond stays, and is none of them.
    """
    return _OF_SOFTWARE.fullmatch(interface) is not None
