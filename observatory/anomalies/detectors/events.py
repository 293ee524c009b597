"""Events that tell of a trouble by themselves: Xid and SXid errors, machine checks, a panic, words of drivers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from observatory.anomalies.detectors.base import Detector
from observatory.anomalies.finding import Finding
from observatory.anomalies.sxid import sxid_of
from observatory.anomalies.xid import xid_of
from observatory.model.incident import Severity
from observatory.model.observation import HardwareEvent

_TRUST = 0.9  # the driver that owns the hardware says so


@dataclass(frozen=True, slots=True)
class _Meaning:
    kind: str
    severity: Severity | None = None
    mend: str | None = None


_BY_CODE: dict[tuple[str, str | None], _Meaning | None] = {
    ("aer", "corrected"): None,  # counted
    ("aer", None): None,
    ("edac", "ce"): None,
    ("gpu_ras", "ce"): None,
    ("pcie_link", "up"): None,
    ("pcie_link", "down"): None,  # judged as states
    ("pcie_link", "limited"): None,  # a remark at boot, of the slot's build
    ("interface", "up"): None,
    ("interface", "down"): None,
    ("pcie_link", "retrain_failed"): _Meaning("pcie_downtrained"),
    ("aer", "nonfatal"): _Meaning("aer_fatal", Severity.WARNING),
    ("mce", "corrected"): _Meaning("processor_corrected"),
    ("firmware", "corrected"): _Meaning("processor_corrected"),
    ("firmware", "info"): None,
    ("gpu_driver", "reset"): _Meaning("xid", Severity.CRITICAL, "restart what ran on the GPU"),
    ("gpu_driver", "init_failed"): _Meaning("gpu_lost"),
    ("memory_failure", "recovered"): _Meaning("memory_poison", Severity.WARNING),
    ("row_remap", "pending"): _Meaning("row_remap_pending"),
    ("row_remap", "failed"): _Meaning("row_remap_failed"),
    ("ecc", "threshold"): _Meaning("ecc_uncorrectable", mend="stop using the GPU and have it replaced"),
    ("rdma", "cable"): _Meaning("port_errors"),
    ("rdma", "temperature"): _Meaning("rdma_card", Severity.WARNING),
    ("rdma", "power"): _Meaning("rdma_card", Severity.WARNING),
    ("rdma", "command"): _Meaning("rdma_card", Severity.WARNING),
}
_BY_KIND: dict[str, _Meaning] = {
    "gpu_lost": _Meaning("gpu_lost"),
    "gpu_driver": _Meaning("driver_error"),
    "gpu_ras": _Meaning("ecc_uncorrectable"),
    "nvlink": _Meaning("nvlink_errors"),
    "aer": _Meaning("aer_fatal"),
    "dpc": _Meaning("aer_fatal"),
    "edac": _Meaning("memory_poison"),
    "mce": _Meaning("processor_error"),
    "firmware": _Meaning("processor_error"),
    "memory_failure": _Meaning("memory_poison"),
    "thermal": _Meaning("processor_throttled"),
    "rdma": _Meaning("rdma_card"),
    "cxl": _Meaning("memory_error_surge"),
    "panic": _Meaning("kernel_panic"),
    "inforom": _Meaning("inforom_corrupted"),
    "ecc": _Meaning("ecc_uncorrectable"),
    "row_remap": _Meaning("row_remap_pending"),
}


class Events(Detector):
    """One finding per event that means a trouble."""

    events: ClassVar[tuple[str, ...]] = ("xid", "sxid", *_BY_KIND, "pcie_link", "interface")

    def hear(self, subject: str, event: HardwareEvent, out: list[Finding]) -> None:
        """An event of any kind that is known."""
        if event.kind == "xid":
            xid = xid_of(event.code)
            words = f"Xid {event.code}: {xid.meaning}"
            out.append(_finding(subject, event, _Meaning(xid.kind, xid.severity, xid.mend), words))
        elif event.kind == "sxid":
            sxid = sxid_of(event.code, event.attributes.get("severity"))
            words = f"SXid {event.code}: {sxid.meaning}"
            out.append(_finding(subject, event, _Meaning("sxid", sxid.severity, sxid.mend), words))
        else:
            key = (event.kind, event.code)
            meaning = _BY_CODE[key] if key in _BY_CODE else _BY_KIND.get(event.kind)
            if meaning is not None:
                out.append(_finding(subject, event, meaning, _words(event)))


def _words(event: HardwareEvent) -> str:
    """Those of the source; that a GPU is lost is told plainly, as the incident says which one it is."""
    if event.kind != "gpu_lost":
        return event.text
    return "the GPU has fallen off the bus" if "fallen off the bus" in event.text else "the GPU is lost"


def _finding(subject: str, event: HardwareEvent, meaning: _Meaning, words: str) -> Finding:
    code = event.code or ""
    return Finding(
        meaning.kind, subject, event.source, event.at_ns, True, words,
        value=float(code) if code.isdecimal() and len(code) < 10 else None,
        severity=meaning.severity, mend=meaning.mend, trust=_TRUST, momentary=True,
    )  # fmt: skip
