"""Outputs of nvidia-smi: `--query-gpu` (CSV), `-q -x` (XML), `nvlink -s`, and the table that it prints by default.

A file may hold several of them one after the other, as a capture of a machine does: each CSV is one look.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from xml.etree.ElementTree import Element, ParseError

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import fromstring

from observatory.anomalies.errors import RecordingError
from observatory.anomalies.recorded.recording import (
    GIGATRANSFERS,
    LOOK_NS,
    LookMaker,
    Recording,
    bus_id,
    float_of,
    one_look,
)
from observatory.model.observation import AddressKind

SOURCE = "nvidia-smi"

_GPU_LINE = re.compile(r"^GPU \d+: (?P<name>.{1,200}?) \(UUID: (?P<uuid>[\w-]+)\)", re.ASCII | re.MULTILINE)
_LINK_LINE = re.compile(r"\s+Link (\d{1,2}): (?:([\d.]+) GB/s|<(inactive)>)", re.ASCII)
_CSV_HEADER = re.compile(r"^(?=.*\bpci\.bus_id\b)[\w.\[\]%/ -]+(?:,[\w.\[\]%/ -]+)+$", re.MULTILINE)
_TABLE_ROW = re.compile(r"\|\s+\d+\s.*\|\s+([0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]+)\s+\w+\s+\|\s+(\d+|N/A|Off)\s+\|")
_INFOROM = re.compile(r"WARNING: infoROM is corrupted at gpu ([0-9A-Fa-f:.]+)", re.IGNORECASE)
_LONGEST_LINE = 200  # of the table
_UNIT = re.compile(r" \[[^\]]*\]$")

_REASONS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown", "sw_power_cap")
_TASKS = {"gpu": "general", "encoder": "encoder", "decoder": "decoder"}

Fields = Mapping[str, str]


def is_nvidia_smi(text: str) -> bool:
    """Whether any of these outputs is in it."""
    return (
        "<nvidia_smi_log>" in text
        or ("(UUID: " in text and _GPU_LINE.search(text) is not None)
        or ("pci.bus_id" in text and _CSV_HEADER.search(text) is not None)
        or "| NVIDIA-SMI " in text
    )


def read_nvidia_smi(text: str, node: str) -> Recording:
    """Everything of these outputs that tells of faults. Raises RecordingError for broken XML and CSV."""
    if "<nvidia_smi_log>" in text:
        return one_look("nvidia-smi -q -x", [_xml(text, node)])
    recording = one_look("nvidia-smi", [_links(text, node)])
    recording.join(one_look("nvidia-smi", [_table(text, node)]))
    rows = one_look("nvidia-smi --query-gpu", _tables(text, node))
    recording.join(rows)
    return recording


def _links(text: str, node: str) -> LookMaker:
    """`nvlink -s`: GPUs with all links inactive are told in words and are none that lost theirs."""
    look = LookMaker(node, SOURCE)
    gpu: re.Match[str] | None = None
    for line in text.splitlines():
        found = _GPU_LINE.match(line)
        if found is not None:
            gpu = found
        link = _LINK_LINE.match(line)
        if link is None or gpu is None:
            continue
        key, model = f"{gpu['uuid']}/{link[1]}", gpu["name"]
        look.add(AddressKind.NVLINK, key, "link.up", 0.0 if link[3] else 1.0, hw__model=model)
        if link[2]:
            look.add(AddressKind.NVLINK, key, "link.bandwidth", float_of(link[2], 1e9), hw__model=model)
    return look


def _table(text: str, node: str) -> LookMaker:
    look = LookMaker(node, SOURCE)
    for line in text.splitlines():
        warning = _INFOROM.search(line)
        if warning is not None:
            look.tell(AddressKind.PCI, bus_id(warning[1]), "inforom", line.strip())
        row = _TABLE_ROW.match(line) if len(line) < _LONGEST_LINE else None
        if row is not None and row[2].isdecimal() and int(row[2]) > 0:
            words = f"{row[2]} uncorrectable ECC errors since the driver was loaded"
            look.tell(AddressKind.PCI, bus_id(row[1]), "ecc", words, "uncorrectable")
    return look


def _tables(text: str, node: str) -> list[LookMaker]:
    looks = []
    for number, header in enumerate(_CSV_HEADER.finditer(text)):
        look = LookMaker(node, SOURCE, (number + 1) * LOOK_NS * 30)
        rows = text[header.start() :].split("\n\n", 1)[0].split("\n#", 1)[0]
        try:
            for row in csv.DictReader(rows.splitlines(), skipinitialspace=True):
                fields = {_UNIT.sub("", name): (value or "") for name, value in row.items() if isinstance(name, str)}
                if fields.get("pci.bus_id"):
                    _gpu(look, fields)
        except csv.Error as error:
            raise RecordingError(f"is no whole CSV of nvidia-smi: {error}") from None
        looks.append(look)
    return looks


def _gpu(look: LookMaker, of: Fields) -> None:
    """One GPU from the fields of `--query-gpu`; those that are not told are left out."""
    key = bus_id(of["pci.bus_id"])
    pci = AddressKind.PCI
    for field, task in _TASKS.items():
        look.add(pci, key, "hw.gpu.utilization", float_of(of.get(f"utilization.{field}"), 0.01), hw__gpu__task=task)
    look.add(pci, key, "link.width.best", float_of(of.get("pcie.link.width.max")))
    look.add(pci, key, "link.speed.best", _speed(of.get("pcie.link.gen.max")))
    look.add(pci, key, "link.speed", _speed(of.get("pcie.link.gen.gpucurrent") or of.get("pcie.link.gen.current")))
    look.add(pci, key, "link.width", float_of(of.get("pcie.link.width.current")))
    look.add(pci, key, "gpu.clock", float_of(of.get("clocks.current.sm"), 1e6), gpu__clock__domain="sm")
    for reason in _REASONS:
        engaged = of.get(f"clocks_event_reasons.{reason}", of.get(f"clocks_throttle_reasons.{reason}", ""))
        if engaged in ("Active", "Not Active"):
            look.add(pci, key, "gpu.throttled", float(engaged == "Active"), reason=reason)
    for sort in ("corrected", "uncorrected"):
        count = float_of(of.get(f"ecc.errors.{sort}.volatile.total"))
        look.add(pci, key, "hw.errors", count, error__type=f"ecc_{sort}")
        if sort == "uncorrected" and count:
            words = f"{count:.0f} uncorrectable ECC errors since the driver was loaded"
            look.tell(pci, key, "ecc", words, "uncorrectable")
    _flags(look, key, of)


def _flags(look: LookMaker, key: str, of: Fields) -> None:
    told = (
        ("remapped_rows.pending", "row_remap", "pending", "a row is to be remapped at the next reset"),
        ("retired_pages.pending", "row_remap", "pending", "a page is to be retired at the next reset"),
        ("remapped_rows.failure", "row_remap", "failed", "a row could not be remapped"),
        (
            "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded",
            "ecc",
            "threshold",
            "too many errors of the caches",
        ),
    )
    for field, kind, code, words in told:
        if of.get(field) == "Yes":
            look.tell(AddressKind.PCI, key, kind, words, code)


def _speed(generation: str | None) -> float | None:
    number = float_of(generation)
    return None if number is None else GIGATRANSFERS.get(int(number))


_XML_FIELDS = {
    "utilization.gpu": "utilization/gpu_util",
    "utilization.encoder": "utilization/encoder_util",
    "utilization.decoder": "utilization/decoder_util",
    "pcie.link.width.max": "pci/pci_gpu_link_info/link_widths/max_link_width",
    "pcie.link.width.current": "pci/pci_gpu_link_info/link_widths/current_link_width",
    "pcie.link.gen.max": "pci/pci_gpu_link_info/pcie_gen/max_link_gen",
    "pcie.link.gen.current": "pci/pci_gpu_link_info/pcie_gen/current_link_gen",
    "clocks.current.sm": "clocks/sm_clock",
    "remapped_rows.pending": "remapped_rows/remapped_row_pending",
    "remapped_rows.failure": "remapped_rows/remapped_row_failure",
    "retired_pages.pending": "retired_pages/pending_retirement",
    "ecc.errors.corrected.volatile.total": "ecc_errors/volatile/single_bit/total",
    "ecc.errors.uncorrected.volatile.total": "ecc_errors/volatile/double_bit/total",
}


def _xml(text: str, node: str) -> LookMaker:
    look = LookMaker(node, SOURCE)
    start = text.index("<nvidia_smi_log>")
    try:
        root: Element = fromstring(text[start:])
    except (ParseError, DefusedXmlException) as error:
        raise RecordingError(f"is no whole XML of nvidia-smi: {error}") from None
    for gpu in root.findall("gpu"):
        fields = {"pci.bus_id": gpu.get("id", "") or gpu.findtext("pci/pci_bus_id", "")}
        for name, path in _XML_FIELDS.items():
            fields[name] = (gpu.findtext(path) or "").strip()
        for reason in _REASONS:
            for family in ("clocks_event_reasons", "clocks_throttle_reasons"):
                told = gpu.findtext(f"{family}/{family[:-1]}_{reason}")
                if told is not None:
                    fields[f"clocks_event_reasons.{reason}"] = told.strip()
        if fields["pci.bus_id"]:
            _gpu(look, fields)
    return look
