"""What the names of error counters mean: sources name the same error differently.

Receivers give names of their own (`out_of_sequence`, `aer_corrected`); tools and exporters hand on those of the source:
Linux, drivers/infiniband/hw/{mlx5,bnxt_re,irdma} and sw/rxe (hw_counters), Documentation/ABI/stable/
sysfs-class-infiniband, Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats, and perfquery's. What a receiver was
not ready for (RNR, no buffer) is a slow consumer and no loss.
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
    AER_NONFATAL = "aer_nonfatal"
    AER_CORRECTABLE = "aer_correctable"
    RDMA_LOSS = "rdma_loss"
    PORT_ERROR = "port_error"
    LINK_DOWNED = "link_downed"
    NVLINK_ERROR = "nvlink_error"
    NVLINK_FATAL = "nvlink_fatal"
    ROW_REMAP = "row_remap"
    OTHER = "other"


_RDMA_LOSS = frozenset({
    "out_of_sequence", "packet_sequence", "local_ack_timeout", "retry_exceeded", "retransmission",
    "implied_nak_sequence", "adaptive_retransmission_timeout", "icrc",
    "packet_seq_err", "local_ack_timeout_err", "implied_nak_seq_err", "req_transport_retries_exceeded",
    "rx_icrc_encapsulated", "to_retransmits", "seq_err_naks_rcvd", "max_retry_exceeded", "oos_drop_count",
    "rcvd_seq_err", "out_of_seq_request", "completer_retry_err", "retry_exceeded_err", "RetransSegs", "tcpRetransSegs",
})  # fmt: skip
_PORT_ERRORS = frozenset({
    "symbol", "link_recovery", "receive", "crc", "carrier", "remote_physical", "local_link_integrity", "buffer_overrun",
    "symbol_error", "port_rcv_errors", "port_rcv_remote_physical_errors", "link_error_recovery",
    "local_link_integrity_errors", "excessive_buffer_overrun_errors", "PortLocalPhysicalErrors",
    "PortMalformedPktErrors", "PortBufferOverrunErrors", "SymbolErrorCounter", "LinkErrorRecoveryCounter",
    "PortRcvErrors", "PortRcvRemotePhysicalErrors", "LocalLinkIntegrityErrors", "ExcessiveBufferOverrunErrors",
})  # fmt: skip
_LINK_DOWNED = frozenset({"link_downed", "LinkDownedCounter", "carrier_down_count"})
_PORTS = frozenset({AddressKind.PORT, AddressKind.INTERFACE, AddressKind.LINK})
_GPU = frozenset({AddressKind.GPU, AddressKind.DEVICE, AddressKind.PCI})
_MEMORY = frozenset({AddressKind.MEMORY, AddressKind.NUMA, AddressKind.CPU, AddressKind.NODE})
_AER_CORRECTABLE = frozenset({
    "RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr", "CorrIntErr", "HeaderOF", "TOTAL_ERR_COR",
    "replay", "pcie_replay",
})  # fmt: skip


@lru_cache(maxsize=4096)
def family_of(metric: str, name: str, kind: AddressKind) -> ErrorFamily:
    """The family of an error counter by its metric (`hw.errors`, `link.errors`), its name, and what it counts on."""
    if kind in _PORTS:
        return _of_port(name)
    low = name.lower()
    if "root" in low:  # a root port counts what the devices below it report, once more
        return ErrorFamily.OTHER
    if kind is AddressKind.NVLINK:
        return ErrorFamily.NVLINK_FATAL if "recovery" in low or "fatal" in low else ErrorFamily.NVLINK_ERROR
    if metric == "hw.errors" and ("remap" in low or "retired" in low):
        return ErrorFamily.ROW_REMAP
    corrected, uncorrected = _corrected(low), _uncorrected(low)
    if kind in _MEMORY or "cxl" in low:
        if uncorrected or "poison" in low:
            return ErrorFamily.MEMORY_UNCORRECTABLE
        return ErrorFamily.MEMORY_CORRECTABLE if corrected else ErrorFamily.OTHER
    if metric == "link.errors" or "aer" in low or name in _AER_CORRECTABLE:
        if name in _AER_CORRECTABLE or corrected:
            return ErrorFamily.AER_CORRECTABLE
        if "nonfatal" in low or "non_fatal" in low:
            return ErrorFamily.AER_NONFATAL
        return ErrorFamily.AER_FATAL if uncorrected or "fatal" in low else ErrorFamily.OTHER
    if kind in _GPU:
        if uncorrected:
            return ErrorFamily.ECC_UNCORRECTABLE
        return ErrorFamily.ECC_CORRECTABLE if corrected else ErrorFamily.OTHER
    return ErrorFamily.OTHER


def _of_port(name: str) -> ErrorFamily:
    if name in _RDMA_LOSS:
        return ErrorFamily.RDMA_LOSS
    if name in _LINK_DOWNED:
        return ErrorFamily.LINK_DOWNED
    return ErrorFamily.PORT_ERROR if name in _PORT_ERRORS else ErrorFamily.OTHER


def _uncorrected(low: str) -> bool:
    return "uncorrect" in low or "double" in low or "dbe" in low or low == "ue" or low.startswith("ue_")


def _corrected(low: str) -> bool:
    if _uncorrected(low):
        return False
    return "correct" in low or "single" in low or "sbe" in low or low == "ce" or low.startswith("ce_") or "_cor" in low
