"""The kernel's log: every form of a line, what is recognised, and what is not."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from observatory.model.observation import HardwareEvent
from observatory.receivers.kernel_log import KernelMessage, parse_line, recognise, recognise_all
from observatory.receivers.kernel_log_lines import parse_record

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def event(line: str) -> HardwareEvent | None:
    message = parse_line(line)
    return None if message is None else recognise(message, "n0")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "6,3973,227986636,-;eth0: a text",
            KernelMessage("eth0: a text", 6, "kern", sequence=3973, monotonic_ns=227_986_636_000),
        ),
        ("12,346,13743302083,-,caller=T1;by root", KernelMessage("by root", 4, "user", 346, 13_743_302_083_000)),
        ("6,1,2,c;two\\x0alines", KernelMessage("two\nlines", 6, "kern", 1, 2000)),
        ("[   12.345678] a text", KernelMessage("a text", monotonic_ns=12_345_678_000)),
        ("<4>[ 3098.275521][  T123] a text", KernelMessage("a text", 4, "kern", monotonic_ns=3_098_275_521_000)),
        # 23 February 2025, 16:24:18 UTC
        ("[Sun Feb 23 16:24:18 2025] a text", KernelMessage("a text", unix_seconds=1_740_327_858.0)),
        (
            "kern  :warn  : 2025-01-21T04:41:44,285060+00:00 a text",
            KernelMessage("a text", 4, "kern", unix_seconds=1_737_434_504.28506),
        ),
        ("May 29 10:50:24 ubu kernel: [   12.345678] a text", KernelMessage("a text", monotonic_ns=12_345_678_000)),
        ("May 29 10:50:24 ubu kernel: a text", KernelMessage("a text")),
        ("2025-01-21T04:41:44+00:00 ubu kernel: a text", KernelMessage("a text", unix_seconds=1_737_434_504.0)),
        ("[Feb 27 2025 15:10:02] [ERROR] [tid 12727] a text", KernelMessage("a text", level=3)),
        ("NVRM: a text", KernelMessage("NVRM: a text")),
    ],
)
def test_every_form_of_a_line_gives_what_the_kernel_said(line: str, expected: KernelMessage) -> None:
    assert parse_line(line) == expected


@pytest.mark.parametrize(
    "line",
    ["", "\n", " SUBSYSTEM=pci", "-- Logs begin at Sat --", "May 29 10:50:24 ubu audit[4635]: Xid", "[  1.000000]"],
)
def test_what_is_no_message_is_none(line: str) -> None:
    assert parse_line(line) is None


def test_a_record_of_kmsg_ends_before_the_lines_about_its_device() -> None:
    message = parse_record(b"3,10,2000,-;igb 0000:01:00.0: eth0: failed\n SUBSYSTEM=pci\n DEVICE=+pci:0000:01:00.0\n")
    assert message is not None
    assert message.text == "igb 0000:01:00.0: eth0: failed"


@pytest.mark.parametrize(
    ("line", "subject", "kind", "code", "attributes"),
    [
        ("NVRM: Xid (PCI:0000:9b:00): 119, pid=7, name=x", "n0:pci:0000:9b:00.0", "xid", "119", {}),
        ("NVRM: Xid (0000:03:00): 13, Graphics", "n0:pci:0000:03:00.0", "xid", "13", {}),
        ("NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 94, x", "n0:pci:0000:3b:00.0", "xid", "94", {"mig": "GPU-I:05"}),
        ("NVRM: Xid (PCI:00000000:3B:00): 48, x", "n0:pci:0000:3b:00.0", "xid", "48", {}),
        (
            "NVRM: Xid (PCI:0003:00:00): 74, NVLink: fatal error detected on link 14(0x0, 0x0)",
            "n0:pci:0003:00:00.0",
            "xid",
            "74",
            {"nvlink": "14"},
        ),
        ("NVRM: Xid (PCI:0009:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x0)", "n0:pci:0009:01:00.0", "xid", "149", {}),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
            "n0:pci:0000:05:00.0",
            "sxid",
            "20034",
            {"severity": "fatal", "nvlink": "30"},
        ),
        ("NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.", "n0:pci:0000:91:00.0", "gpu_lost", None, {}),
        (
            "igb 0000:09:00.0: AER: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (x)",
            "n0:pci:0000:09:00.0",
            "aer",
            "nonfatal",
            {"layer": "Transaction Layer", "report": "device"},
        ),
        (
            "pcieport 0000:07:00.0: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Receiver ID)",
            "n0:pci:0000:07:00.0",
            "aer",
            "corrected",
            {"layer": "Data Link Layer", "report": "device"},
        ),
        (
            "pcieport 10000:c0:01.1: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Physical Layer, (x)",
            "n0:pci:10000:c0:01.1",
            "aer",
            "fatal",
            {"layer": "Physical Layer", "report": "device"},
        ),
        (
            "pcieport 0000:00:1c.4: AER: Correctable error message received from 0000:07:00.0",
            "n0:pci:0000:07:00.0",
            "aer",
            "corrected",
            {"report": "root_port", "root_port": "0000:00:1c.4"},
        ),
        (
            "EDAC MC1: 3 UE memory read error on CPU#0_DIMM#0 (csrow:2 page:0x1)",
            "n0:memory:mc1/csrow2",
            "edac",
            "ue",
            {"count": "3", "label": "CPU#0_DIMM#0"},
        ),
        # Bit 61 of the first status is clear, of the second set.
        (
            "mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 4: 8c00004000010090",
            "n0:node",
            "mce",
            "corrected",
            {"cpu": "2", "bank": "4"},
        ),
        (
            "mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 5: bea0000000000108",
            "n0:node",
            "mce",
            "uncorrected",
            {"cpu": "2", "bank": "5"},
        ),
        (
            "mlx5_core 0000:81:00.0 ens1np0: Link down",
            "n0:interface:ens1np0",
            "interface",
            "down",
            {"pci_bus_id": "0000:81:00.0"},
        ),
        (
            "igb 0000:01:00.0 eth0: igb: eth0 NIC Link is Down",
            "n0:interface:eth0",
            "interface",
            "down",
            {"pci_bus_id": "0000:01:00.0"},
        ),
        (
            "mlx5_core 0000:5e:00.0: Port module event: module 0, Cable unplugged",
            "n0:pci:0000:5e:00.0",
            "rdma",
            "cable",
            {},
        ),
        (
            "pcieport 0000:00:1b.0: pciehp: Slot(4): Link Down",
            "n0:pci:0000:00:1b.0",
            "pcie_link",
            "down",
            {"slot": "4"},
        ),
        ("cxl_pci 0000:0d:00.0: mem0: frozen state error detected", "n0:memory:mem0", "cxl", None, {}),
        (
            "amdgpu 0000:0b:00.0: amdgpu: socket: 0, die: 0 3 new uncorrectable hardware errors detected in umc block",
            "n0:pci:0000:0b:00.0",
            "gpu_ras",
            "ue",
            {"count": "3", "block": "umc", "report": "new"},
        ),
    ],
)
def test_what_a_line_tells(line: str, subject: str, kind: str, code: str | None, attributes: dict[str, str]) -> None:
    found = event(f"[   12.000000] {line}")
    assert found is not None
    assert (str(found.subject), found.kind, found.code, dict(found.attributes)) == (subject, kind, code, attributes)
    assert found.at_ns == 12_000_000_000


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.54.03",
        "nvidia-nvlink: Nvlink Core is being initialized, major device number 510",
        "nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 20034, Severity 1 Engine instance 60 Sub-engine instance 00",
        "EDAC MC0: Giving out device to module amd64_edac controller F19h_M10h: DEV 0000:00:18.3 (INTERRUPT)",
        "MCE: In-kernel MCE decoding enabled.",
        "mlx5_core 0000:5e:00.0: Port module event: module 0, Cable plugged",
        "mlx5_core 0000:5e:00.0: firmware version: 16.35.2000",
        "cxl_pci 0000:0d:00.0: Failed to get interrupt for event Info log",
        "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
        "pcieport 0000:00:1c.0: AER: enabled with IRQ 122",
    ],
)
def test_ordinary_lines_tell_nothing(line: str) -> None:
    assert event(line) is None


def test_what_a_process_wrote_to_the_log_says_so() -> None:
    found = event("12,346,13743302083,-;NVRM: Xid (PCI:0000:9b:00): 79, x")
    assert found is not None
    assert found.attributes["facility"] == "user"


def test_a_gpu_that_is_named_in_an_earlier_line() -> None:
    lines = [
        "[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0",
        "               NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "[ 1843.308145] NVRM: fallen off the bus and is not responding to commands.",
    ]
    assert [str(e.subject) for e in recognise_all(lines, "n0")] == ["n0:pci:0000:b3:00.0"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpu-telemetry/gpud_xid_dmesg-with-xid-119.log", {("n0:pci:0000:9b:00.0", "xid", "119"): 5}),
        ("gpu-telemetry/gpud_kmsg_kmsg.1.log", {}),
        ("gpu-telemetry/gpud_kmsg_kmsg.2.peermem.log", {("n0:node", "gpu_driver", "peermem"): 7}),
        ("gpu-telemetry/gpud_fabric-manager_fabricmanager.log", {("n0:pci:0000:86:00.0", "sxid", "12028"): 1}),
        ("gpu-telemetry/azhpc_journald.log", {}),
        ("kernel-logs/mleng_compute_accelerator_nvidia_debug_0.txt", {("n0:pci:0000:10:1c.0", "xid", "63"): 1}),
    ],
)
def test_whole_logs_as_people_published_them(name: str, expected: dict[tuple[str, str, str], int]) -> None:
    if not (DATA / name).exists():
        pytest.skip(f"{name} is not in ../shared/data")
    lines = (DATA / name).read_text(errors="replace").splitlines()
    assert Counter((str(e.subject), e.kind, e.code) for e in recognise_all(lines, "n0")) == expected


PIECES = st.sampled_from(
    [
        "NVRM: Xid (PCI:0000:9b:00): 79, ",
        "SXid (PCI:",
        "PCIe Bus Error: severity=",
        "EDAC MC0: 1 CE ",
        "[Hardware Error]: CPU 0: Machine Check: 0 Bank 4: ",
        "0000:3b:00.0: ",
        "6,1,2,-;",
        "[   12.345678] ",
        "<4>",
        "\\x0a",
        "May 29 10:50:24 ubu kernel: ",
        "2025-01-21T04:41:44,285060+99:00 ",
        "fallen off the bus",
        "correctable hardware errors detected in ",
        "99999999999999999999",
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES | st.text(max_size=12), max_size=12).map("".join))
def test_no_line_is_too_odd(line: str) -> None:
    assert sum(1 for _ in recognise_all([line], "n0")) <= 1


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200))
def test_no_record_is_too_odd(record: bytes) -> None:
    parse_record(record)


def test_a_very_long_line_costs_no_more_than_a_long_one() -> None:
    line = "NVRM: Xid (PCI:0000:9b:00): 79, " + "NVLink 0000:3b:00.0: PCIe Bus Error: severity=AER: " * 100_000
    found = event(line)
    assert found is not None
    assert len(found.text) <= 1000
