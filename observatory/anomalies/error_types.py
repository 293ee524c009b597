"""What the names of error counters mean: sources name the same error differently.

Names of RDMA counters: Linux, drivers/infiniband/hw/{mlx5,bnxt_re,irdma,hfi1} and sw/rxe (their `hw_counters` folders),
and NVIDIA, "Understanding mlx5 Linux Counters". Names of InfiniBand port counters: Documentation/ABI/stable/
sysfs-class-infiniband. Names of PCI Express errors: Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats.
"""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache

from observatory.model.observation import AddressKind


class ErrorFamily(StrEnum):
    """What is judged together."""

    ECC_UNCORRECTABLE = "ecc_uncorrectable"
    ECC_CORRECTABLE = "ecc_correctable"
    MEMORY_UNCORRECTABLE = "memory_uncorrectable"
    MEMORY_CORRECTABLE = "memory_correctable"
    AER_FATAL = "aer_fatal"
    AER_CORRECTABLE = "aer_correctable"
    RDMA_LOSS = "rdma_loss"
    PORT_ERROR = "port_error"
    LINK_DOWNED = "link_downed"
    NVLINK_ERROR = "nvlink_error"
    NVLINK_FATAL = "nvlink_fatal"
    ROW_REMAP = "row_remap"
    OTHER = "other"


_RDMA_LOSS = frozenset({
    "out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err", "implied_nak_seq_err",
    "req_transport_retries_exceeded", "rx_icrc_encapsulated", "to_retransmits", "seq_err_naks_rcvd",
    "max_retry_exceeded", "res_oos_drop_count", "oos_drop_count", "rcvd_seq_err", "out_of_seq_request",
    "completer_retry_err", "retry_exceeded_err", "retry_rnr_exceeded_err", "tcpRetransSegs",
})  # fmt: skip
_PORT_ERRORS = frozenset({
    "symbol_error", "port_rcv_errors", "port_rcv_remote_physical_errors", "link_error_recovery",
    "local_link_integrity_errors", "excessive_buffer_overrun_errors", "rx_crc_errors", "rx_symbol_err_phy",
    "PortLocalPhysicalErrors", "PortMalformedPktErrors", "PortBufferOverrunErrors", "SymbolErrorCounter",
    "LinkErrorRecoveryCounter", "PortRcvErrors", "PortRcvRemotePhysicalErrors", "LocalLinkIntegrityErrors",
    "ExcessiveBufferOverrunErrors",
})  # fmt: skip
_LINK_DOWNED = frozenset({"link_downed", "LinkDownedCounter", "carrier_down_count", "link_down_events_phy"})
_GPU = frozenset({AddressKind.GPU, AddressKind.DEVICE, AddressKind.PCI})
_MEMORY = frozenset({AddressKind.MEMORY, AddressKind.NUMA, AddressKind.CPU, AddressKind.NODE})
_AER_CORRECTABLE = frozenset({
    "RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr", "CorrIntErr", "HeaderOF", "TOTAL_ERR_COR",
    "replay", "pcie_replay",
})  # fmt: skip


@lru_cache(maxsize=4096)
def family_of(metric: str, name: str, kind: AddressKind) -> ErrorFamily:
    """The family of an error counter by its metric (`hw.errors`, `link.errors`), its name, and what it counts on."""
    if name in _RDMA_LOSS:
        return ErrorFamily.RDMA_LOSS
    if name in _LINK_DOWNED:
        return ErrorFamily.LINK_DOWNED
    if name in _PORT_ERRORS:
        return ErrorFamily.PORT_ERROR
    low = name.lower()
    if kind is AddressKind.NVLINK:
        return ErrorFamily.NVLINK_FATAL if "recovery" in low or "fatal" in low else ErrorFamily.NVLINK_ERROR
    if metric == "hw.errors" and "remap" in low:
        return ErrorFamily.ROW_REMAP
    corrected, uncorrected = _corrected(low), _uncorrected(low)
    if kind in _MEMORY or "cxl" in low:
        if uncorrected or "poison" in low:
            return ErrorFamily.MEMORY_UNCORRECTABLE
        return ErrorFamily.MEMORY_CORRECTABLE if corrected else ErrorFamily.OTHER
    if metric == "link.errors" or "aer" in low or name in _AER_CORRECTABLE:
        if name in _AER_CORRECTABLE or corrected:
            return ErrorFamily.AER_CORRECTABLE
        return ErrorFamily.AER_FATAL if uncorrected or "fatal" in low else ErrorFamily.OTHER
    if kind in _GPU:
        if uncorrected:
            return ErrorFamily.ECC_UNCORRECTABLE
        return ErrorFamily.ECC_CORRECTABLE if corrected else ErrorFamily.OTHER
    return ErrorFamily.OTHER


def _uncorrected(low: str) -> bool:
    return "uncorrect" in low or "double" in low or "dbe" in low or low == "ue" or low.startswith("ue_")


def _corrected(low: str) -> bool:
    if _uncorrected(low):
        return False
    return "correct" in low or "single" in low or "sbe" in low or low == "ce" or low.startswith("ce_") or "_cor" in low
