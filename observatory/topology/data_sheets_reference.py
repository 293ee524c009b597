"""The page of what data sheets say, from the tables: `python -m observatory.topology.data_sheets_reference`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from observatory.model.data_sheets import (
    C2C,
    CXL,
    ETHERNET_SOURCE,
    GPUS,
    INFINIBAND_LANE_BITS_PER_SECOND,
    LATENCIES,
    NVLINK,
    PCIE,
    XGMI,
    GpuSheet,
    LinkSheet,
    PcieSheet,
)

_WIDTHS = (1, 4, 8, 16)


_HEAD = """\
# Data sheets

What is filled in where a machine tells only which chip or link generation it has. All rates are those of one direction,
after line coding and before packet headers; they are advertised, not measured. What is in no row stays unknown.

This page is made from the tables in `observatory/model/data_sheets.py`.

## PCI Express and CXL

Gigabytes per second by lanes. Of CXL that is what the physical layer carries: importers work no rate out of it, because
protocols share its lanes.
"""
_NETWORKS = f"""
## Networks

InfiniBand: data rate by lanes (InfiniBand Architecture Specification vol. 2, rel. 1.4 and later: 8b/10b up to QDR,
64b/66b up to EDR, from HDR on the name is the data rate). Ethernet: {ETHERNET_SOURCE}.
"""
_LATENCY_WORDS = """
## Latencies

One way over one link. Vendors publish few: `topology cost --assume-latencies` fills them in where a topology has none,
and says so; nothing else does. xGMI, CXL and networks have no row: no source was found, or the figures that are passed
around contradict each other.
"""
_GPU_WORDS = """
## GPUs and their engines

Empty: no source was found. 0: the source says that there is none.
"""


def reference() -> str:
    """The page docs/reference/data-sheets.md as Markdown."""
    lanes = [f"x{width}" for width in _WIDTHS]
    return "\n".join(
        [
            _HEAD,
            *_table(("generation", "GT/s", "coding", *lanes, "source"), map(_pcie, PCIE)),
            "",
            *_table(("CXL on PCIe", "GT/s", "coding", *lanes, "source"), map(_pcie, CXL)),
            "\n## Links between chips\n",
            *_table(
                ("link", "GB/s of one", "most on a chip", "GB/s together", "source"),
                map(_chip_link, (*NVLINK.values(), *XGMI.values(), C2C)),
            ),
            _NETWORKS,
            *_table(
                ("speed", "Gb/s of a lane", "GB/s of 1x", "GB/s of 4x"),
                (
                    (name, f"{bits / 1e9:g}", _giga(bits / 8), _giga(bits / 2))
                    for name, bits in INFINIBAND_LANE_BITS_PER_SECOND.items()
                ),
            ),
            _LATENCY_WORDS,
            *_table(
                ("kind", "where", "ns", "source", "assumption"),
                ((r.kind.value, r.where, f"{r.seconds * 1e9:g}", r.source, r.assumed or "") for r in LATENCIES),
            ),
            _GPU_WORDS,
            *_table(("GPU", "PCI ids", "link", "decode", "encode", "jpeg", "source"), map(_gpu, GPUS)),
            "",
        ]
    )


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [headings, ["---"] * len(headings), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _pcie(row: PcieSheet) -> tuple[str, ...]:
    rates = (row.gigatransfers_per_second * width * row.efficiency / 8 for width in _WIDTHS)
    speed = f"{row.gigatransfers_per_second:g}"
    return (str(row.generation), speed, row.coding, *(f"{rate:.3f}" for rate in rates), row.source)


def _chip_link(row: LinkSheet) -> tuple[str, ...]:
    most = row.most or 1
    return (row.name, _giga(row.bytes_per_second), str(most), _giga(row.bytes_per_second * most), row.source)


def _gpu(sheet: GpuSheet) -> tuple[str, ...]:
    counts = {kind.value: str(count) for kind, count in sheet.engines}
    link = NVLINK[sheet.nvlink].name if sheet.nvlink else XGMI[sheet.xgmi].name if sheet.xgmi else ""
    engines = (counts.get(kind, "") for kind in ("decode", "encode", "jpeg"))
    return (sheet.name, ", ".join(sheet.pci_ids), link, *engines, sheet.source)


def _giga(value: float) -> str:
    return f"{value / 1e9:.4g}"


if __name__ == "__main__":
    print(reference(), end="")
