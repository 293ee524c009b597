"""Rows of data sheets against figures that the vendors print elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from observatory.model.data_sheets import (
    C2C,
    CXL,
    GPUS,
    LATENCIES,
    NVLINK,
    NVLINK_OF_COMPUTE_CAPABILITY,
    PCIE,
    XGMI,
    XGMI_OF_GCN,
    gpu_sheet,
    infiniband_lanes_bytes_per_second,
    nvlink_bytes_per_second,
    pcie_bytes_per_second,
    xgmi_bytes_per_second,
)
from observatory.model.device import EngineKind
from observatory.model.link import Link, LinkKind
from observatory.topology.data_sheets_reference import reference
from observatory.topology.defaults import with_default_latencies
from observatory.topology.load import load_topology


@pytest.mark.parametrize(
    ("generation", "links", "both_ways"),
    [("1", 4, 160e9), ("2", 6, 300e9), ("3", 12, 600e9), ("4", 18, 900e9), ("5", 18, 1800e9), ("3-GA102", 4, 112.5e9)],
)
def test_nvlink_adds_up_to_what_is_advertised(generation: str, links: int, both_ways: float) -> None:
    assert NVLINK[generation].most == links
    assert nvlink_bytes_per_second(generation, links) == both_ways / 2


@pytest.mark.parametrize(("target", "gigatransfers"), [("gfx908", 23), ("gfx90a", 25), ("gfx942", 32)])
def test_xgmi_is_sixteen_lanes(target: str, gigatransfers: int) -> None:
    assert xgmi_bytes_per_second(target, 1) == gigatransfers * 1e9 * 16 / 8


@pytest.mark.parametrize(
    ("lanes", "speed", "gigabits"),
    [(4, "SDR", 8), (4, "DDR", 16), (4, "QDR", 32), (4, "FDR10", 40), (4, "EDR", 100), (4, "HDR", 200), (2, "HDR", 100),
     (4, "NDR", 400), (4, "XDR", 800)],
)  # fmt: skip
def test_infiniband_data_rates(lanes: int, speed: str, gigabits: float) -> None:
    assert infiniband_lanes_bytes_per_second(lanes, speed) == pytest.approx(gigabits * 1e9 / 8)


def test_what_no_row_says_is_unknown() -> None:
    assert infiniband_lanes_bytes_per_second(4, "???") is None
    assert nvlink_bytes_per_second(NVLINK_OF_COMPUTE_CAPABILITY.get(75), 2) is None
    assert xgmi_bytes_per_second(XGMI_OF_GCN.get(906), 1) is None
    assert gpu_sheet(pci_id="10de:1e84", name="NVIDIA GeForce RTX 2080") is None


@pytest.mark.parametrize(
    ("speed", "x16"), [(2.5, 4.0), (5.0, 8.0), (8.0, 15.754), (16.0, 31.508), (32.0, 63.015), (64.0, 118.0)]
)
def test_pci_express(speed: float, x16: float) -> None:
    assert pcie_bytes_per_second(speed, 16) == pytest.approx(x16 * 1e9, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "sheet"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA-A100-SXM4-40GB", "A100"),
        ("Tesla V100-SXM3-32GB-H", "V100"),
        ("Tesla-T4", "T4"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA GH200 480GB", "GH200"),
    ],
)
def test_gpus_by_the_names_that_tools_print(name: str, sheet: str) -> None:
    found = gpu_sheet(name=name)
    assert found is not None
    assert found.name == sheet


def test_which_gpus_cannot_encode() -> None:
    for gpu in GPUS:
        engines = dict(gpu.engines)
        if gpu.name in ("A100", "A30", "H100", "H200"):
            assert engines[EngineKind.ENCODE] == 0
        assert not engines or engines[EngineKind.COMPUTE] == 1
        assert gpu.xgmi is None or gpu.xgmi in XGMI
        assert gpu.nvlink is None or gpu.nvlink in NVLINK
    ids = [pci_id for gpu in GPUS for pci_id in gpu.pci_ids]
    assert len(ids) == len(set(ids))


def test_the_page_is_what_the_tables_say() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "reference" / "data-sheets.md"
    make = "python -m observatory.topology.data_sheets_reference"
    assert page.read_text() == reference(), f"run: .venv/bin/{make} > docs/reference/{page.name}"


def test_every_row_names_its_source() -> None:
    assert all(row.source for row in (*PCIE, *CXL))
    assert all(row.source for row in (C2C, *NVLINK.values(), *XGMI.values()))
    assert all(row.source for row in LATENCIES)
    assert all(row.source for row in GPUS)
    for name in ("A100", "H100", "H200"):
        sheet = next(row for row in GPUS if row.name == name)
        assert dict(sheet.engines)[EngineKind.ENCODE] == 0


def test_cxl_has_four_of_68_bytes_less_than_pcie() -> None:
    assert CXL[0].efficiency == pytest.approx(PCIE[4].efficiency * 64 / 68)
    assert C2C.bytes_per_second * 10 == 450e9


def test_assumed_latencies_are_said_to_be(tmp_path: Path) -> None:
    topology = load_topology()
    blank = {"latency_seconds": None}
    links = tuple(x.model_copy(update=blank) if x.kind is not LinkKind.UPI else x for x in topology.links)
    filled = with_default_latencies(topology.model_copy(update={"links": links}))
    seconds = {link.kind: link.latency_seconds for link in filled.links}
    assert seconds[LinkKind.NVLINK] == 193e-9
    assert [w.split(":")[0] for w in filled.warnings] == [
        "latencies of 2 memory links are assumed",
        "latencies of 16 pcie links are assumed",
        "latencies of 8 nvlink links are assumed",
    ]
    unknown = Link(a="n0/gpu0", b="n0/gpu1", kind=LinkKind.XGMI)
    kept = with_default_latencies(topology.model_copy(update={"links": (unknown,)}))
    assert (kept.links[0].latency_seconds, kept.warnings) == (None, ())
