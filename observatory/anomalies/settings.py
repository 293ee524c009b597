"""Thresholds and times of the incident watch, all in one place."""

from __future__ import annotations

from dataclasses import dataclass

SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """How sensitive the watch is. Shares are 0 to 1; the defaults are judgements of ours, given with their reason.

    `confirmations` is how many looks in a row must agree where one look may deceive (a link's speed while it leaves its
    sleep, clocks, utilisation): two looks are within two polling periods of the change.
    """

    confirmations: int = 2
    busy_share: float = 0.05  # of time that a GPU's unit works: above it the device is in use
    busy_bytes_per_second: float = 10e6  # over PCI Express: idle H200s show 0.4 MB/s of house-keeping
    load_lasts_seconds: float = 5.0  # how long a sign of load counts
    width_share: float = 0.95  # of the best bandwidth below which a port or NVLink counts as slow
    clock_share: float = 0.75  # of the highest clock seen under load: slower is held back
    ecc_corrected_per_minute: float = 10.0
    aer_corrected_per_minute: float = 60.0  # one a second; a healthy link corrects less than one an hour
    memory_corrected_per_minute: float = 10.0
    nvlink_errors_per_minute: float = 10.0
    port_errors_per_minute: float = 10.0
    rdma_loss_share: float = 1e-5  # of packets; go-back-N loses throughput from about there
    rdma_least_errors: float = 5.0  # fewer in ten seconds are noise
    window_seconds: float = 60.0
    rdma_window_seconds: float = 10.0
    flap_window_seconds: float = 300.0
    flaps_to_dampen: int = 2  # within the window: two in five minutes
    damped_hold_seconds: float = 300.0
    pressure_share: float = 0.10  # of ten seconds in which all tasks waited for memory
    pressure_over_share: float = 0.05
    misplaced_pages_per_second: float = 1000.0  # 4 MB/s: below, nobody notices
    stale_periods: float = 5.0
    stale_least_seconds: float = 2.0
    lies_to_tell: int = 3  # impossible values within the window
    most_errors_per_second: float = 1e9  # no hardware counts faster: a jump beyond is a misread counter
    evidence_kept: int = 12
