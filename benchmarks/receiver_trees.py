"""A made-up machine for the receivers: 100 cards on PCI Express, 8 RDMA ports, 8 interfaces, 8 NUMA nodes."""

from __future__ import annotations

import os
from pathlib import Path

from observatory.receivers.rdma_counters import PORT_COUNTERS

CARDS, PORTS, INTERFACES, NUMA_NODES = 100, 8, 8, 8
MLX5 = (
    "packet_seq_err", "out_of_sequence", "implied_nak_seq_err", "local_ack_timeout_err", "duplicate_request",
    "rnr_nak_retry_err", "out_of_buffer", "rx_icrc_encapsulated", "roce_adp_retrans", "roce_adp_retrans_to",
    "req_cqe_error", "resp_cqe_error", "req_cqe_flush_error", "resp_cqe_flush_error", "req_remote_access_errors",
    "resp_remote_access_errors", "req_remote_invalid_request", "resp_local_length_error",
)  # fmt: skip
STATISTICS = (
    "rx_bytes", "tx_bytes", "rx_packets", "tx_packets", "rx_errors", "tx_errors", "rx_dropped", "tx_dropped",
    "rx_missed_errors", "rx_crc_errors", "tx_carrier_errors",
)  # fmt: skip
CORRECTABLE = ("RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr", "CorrIntErr", "HeaderOF")
UNCORRECTABLE = (
    "Undefined", "DLP", "SDES", "TLP", "FCP", "CmpltTO", "CmpltAbrt", "UnxCmplt", "RxOF", "MalfTLP", "ECRC",
    "UnsupReq", "ACSViol", "UncorrIntErr", "BlockedTLP", "AtomicOpBlocked", "TLPBlockedErr", "PoisonTLPBlocked",
)  # fmt: skip


def replace(path: Path, text: str) -> None:
    """Another text in a file's place, whole at once."""
    new = path.with_name(f".{path.name}")
    new.write_text(text + "\n")
    os.replace(new, path)  # noqa: PTH105  # what is timed begins when this returns


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def _link(root: Path, name: str, target: str) -> None:
    link = root / "sys" / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to("../" * (len(Path(name).parts) - 1) + target)


def card(number: int) -> str:
    """The bus id of a card."""
    return f"0000:{number + 1:02x}:00.0"


def make_machine(root: Path) -> None:
    """All of it below `root`, and a pipe as the kernel's log."""
    for number in range(CARDS):
        port = f"devices/pci0000:00/0000:00:{number // 8:02x}.{number % 8}"
        _function(root, port, {"max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16"})
        told = {
            f"{when}_link_{what}": text
            for when in ("current", "max")
            for what, text in (("speed", "32.0 GT/s PCIe"), ("width", "16"))
        }
        for name, kinds, total in (
            ("correctable", CORRECTABLE, "COR"),
            ("nonfatal", UNCORRECTABLE, "NONFATAL"),
            ("fatal", UNCORRECTABLE, "FATAL"),
        ):
            told[f"aer_dev_{name}"] = "\n".join([*(f"{kind} 0" for kind in kinds), f"TOTAL_ERR_{total} 0"])
        _function(root, f"{port}/{card(number)}", told)
    for number in range(PORTS):
        _rdma_port(root, f"mlx5_{number}")
    for number in range(INTERFACES):
        _interface(root, f"eth{number}")
    for number in range(NUMA_NODES):
        folder = root / f"sys/devices/system/node/node{number}"
        _write(folder / "meminfo", f"Node {number} MemTotal: 1000 kB\nNode {number} MemFree: 500 kB")
        _write(
            folder / "numastat", "numa_hit 0\nnuma_miss 0\nnuma_foreign 0\ninterleave_hit 0\nlocal_node 0\nother_node 0"
        )
    for resource in ("cpu", "memory", "io", "irq"):
        _write(root / f"proc/pressure/{resource}", pressure(0))
    (root / "dev").mkdir()
    os.mkfifo(root / "dev/kmsg")


def pressure(total: int) -> str:
    """A pressure file."""
    return "\n".join(f"{scope} avg10=0.00 avg60=0.00 avg300=0.00 total={total}" for scope in ("some", "full"))


def _function(root: Path, folder: str, files: dict[str, str]) -> None:
    for name, text in files.items():
        _write(root / "sys" / folder / name, text)
    _link(root, f"bus/pci/devices/{Path(folder).name}", folder)


def _rdma_port(root: Path, name: str) -> None:
    folder = root / "sys/class/infiniband" / name / "ports/1"
    for file, text in (("rate", "400 Gb/sec (4X NDR)"), ("state", "4: ACTIVE"), ("link_layer", "InfiniBand")):
        _write(folder / file, text)
    for counter in PORT_COUNTERS:
        _write(folder / "counters" / counter, "0")
    for counter in MLX5:
        _write(folder / "hw_counters" / counter, "0")


def _interface(root: Path, name: str) -> None:
    folder = f"devices/pci0000:00/0000:00:1f.0/net/{name}"
    for file, text in (("operstate", "up"), ("carrier", "1"), ("speed", "100000"), ("carrier_down_count", "0")):
        _write(root / "sys" / folder / file, text)
    for file in STATISTICS:
        _write(root / "sys" / folder / "statistics" / file, "0")
    _link(root, f"class/net/{name}", folder)
