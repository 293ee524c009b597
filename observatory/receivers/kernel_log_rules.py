"""The rules of `observatory.receivers.kernel_log`: for each form of a message, what it tells."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from observatory.model.observation import Address, AddressKind

Key = tuple[AddressKind, str]

_BUS_ID = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_NODE: Key = (AddressKind.NODE, "")


@dataclass(frozen=True, slots=True)
class Found:
    """What one message tells: attributes that it does not name are None."""

    kind: str
    address: Key = _NODE
    code: str | None = None
    attributes: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rule:
    """A form of a message: `marker` is in every one of them and is looked for first."""

    marker: str
    pattern: re.Pattern[str]
    read: Callable[[re.Match[str]], Found | None]


def address_of(node: str, key: Key) -> Address:
    """The address of what a message is about, on this node."""
    return Address(node, *key)


def pci_address(bus_id: str) -> Key:
    """`0000:9b:00` of NVIDIA's driver or `00000000:86:00.0` of its tools, as the kernel writes it: `0000:9b:00.0`."""
    domain, _, rest = bus_id.lower().partition(":")
    return AddressKind.PCI, f"{int(domain, 16):04x}:{rest}" + ("" if "." in rest else ".0")


def _number(text: str | None) -> str | None:
    return None if text is None else str(int(text))


# -- NVIDIA ------------------------------------------------------------------------------------------------------------

_LINK = re.compile(r"\b[Ll]ink[ -]?(-?\d{1,4})\b")


def _xid(match: re.Match[str]) -> Found:
    link = _LINK.search(match["rest"])
    attributes = {"mig": match["mig"], "nvlink": None if link is None or link[1][0] == "-" else _number(link[1])}
    return Found("xid", pci_address(match["bus"]), match["code"], attributes)


def _sxid(match: re.Match[str]) -> Found:
    link = _LINK.search(match["rest"])
    attributes = {
        "severity": match["severity"].lower() if match["severity"] else None,
        "nvlink": None if link is None or link[1][0] == "-" else _number(link[1]),
    }
    return Found("sxid", pci_address(match["bus"]), match["code"], attributes)


def _fabric_manager(match: re.Match[str]) -> Found:
    attributes = {"severity": match["severity"], "nvlink": match["port"]}
    return Found("sxid", pci_address(match["bus"]), match["code"], attributes)


def _gpu_lost(match: re.Match[str]) -> Found:
    return Found("gpu_lost", pci_address(match["bus"]) if match["bus"] else _NODE)


def _nvidia_words(match: re.Match[str]) -> Found:
    return Found("nvlink", pci_address(match["bus"]) if match["bus"] else _NODE)


def _init_failed(match: re.Match[str]) -> Found:
    return Found("gpu_driver", pci_address(match["bus"]), "init_failed")


def _peermem(match: re.Match[str]) -> Found:
    return Found("gpu_driver", code="peermem")


# -- AMD ---------------------------------------------------------------------------------------------------------------


def _amd_ras(match: re.Match[str]) -> Found | None:
    if int(match["count"]) == 0:
        return None
    attributes = {
        "count": match["count"],
        "block": match["block"].lower(),
        "report": "total" if match["total"] else "new",
    }
    return Found("gpu_ras", pci_address(match["bus"]), "ue" if match["un"] else "ce", attributes)


def _amd_reset(match: re.Match[str]) -> Found:
    return Found("gpu_driver", pci_address(match["bus"]), "reset")


# -- PCI Express -------------------------------------------------------------------------------------------------------


def _aer_severity(words: str) -> str:
    if "Non-Fatal" in words:
        return "nonfatal"
    return "fatal" if "Fatal" in words else "nonfatal" if words.startswith("Uncorr") else "corrected"


def _aer(match: re.Match[str]) -> Found:
    attributes = {"layer": match["layer"], "report": "device"}
    return Found("aer", pci_address(match["bus"]), _aer_severity(match["severity"]), attributes)


def _aer_root(match: re.Match[str]) -> Found:
    about = match["about"] or match["bus"]
    attributes = {"report": "root_port", "root_port": pci_address(match["bus"])[1]}
    return Found("aer", pci_address(about), _aer_severity(match["severity"]), attributes)


def _aer_firmware(match: re.Match[str]) -> Found:
    return Found("aer", pci_address(match["bus"]), None, {"layer": match["layer"], "report": "device"})


def _aer_recovery(match: re.Match[str]) -> Found:
    return Found("aer", pci_address(match["bus"]), "recovery_failed", {"report": "device"})


def _dpc(match: re.Match[str]) -> Found:
    return Found("dpc", pci_address(match["bus"]))


def _slot(match: re.Match[str]) -> Found:
    code = {"Link Up": "up", "Link Down": "down", "Card not present": "down"}[match["state"]]
    return Found("pcie_link", pci_address(match["bus"]), code, {"slot": match["slot"]})


def _retrain(match: re.Match[str]) -> Found:
    return Found("pcie_link", pci_address(match["bus"]), "retrain_failed")


def _limited(match: re.Match[str]) -> Found:
    attributes = {"limited_by": pci_address(match["by"])[1], "now": match["now"], "best": match["best"]}
    return Found("pcie_link", pci_address(match["bus"]), "limited", attributes)


# -- memory and processors ---------------------------------------------------------------------------------------------


def _edac(match: re.Match[str]) -> Found:
    row = re.search(r"\bcsrow[:#](\d{1,4})\b", match["rest"])
    label = re.search(r" on (?:any memory|unknown (?:label|memory)|(\S+))", match["rest"])
    key = f"mc{int(match['mc'])}" + (f"/csrow{int(row[1])}" if row else "")
    attributes = {"count": _number(match["count"]), "label": label[1] if label else None}
    return Found("edac", (AddressKind.MEMORY, key), match["type"].lower(), attributes)


def _edac_device(match: re.Match[str]) -> Found:
    attributes = {"count": match["count"], "label": match["label"].strip()}
    return Found("edac", code=match["type"].lower(), attributes=attributes)


def _machine_check(match: re.Match[str]) -> Found:
    # MCi_STATUS: bit 61 says that the error was not corrected (Intel SDM vol. 3B, "IA32_MCi_STATUS MSRs").
    status = match["status"]
    uncorrected = None if status is None else bool(int(status, 16) >> 61 & 1)
    code = None if uncorrected is None else "uncorrected" if uncorrected else "corrected"
    return Found("mce", code=code, attributes={"cpu": match["cpu"], "bank": match["bank"]})


def _machine_check_words(match: re.Match[str]) -> Found:
    word = match["word"]
    code = None if word.startswith("Machine") else "uncorrected" if word[0] in "UD" else "corrected"
    return Found("mce", code=code)


def _firmware(match: re.Match[str]) -> Found:
    return Found("firmware", code=match["severity"])


def _memory_failure(match: re.Match[str]) -> Found:
    return Found("memory_failure", code=match["result"].lower())


def _thermal(match: re.Match[str]) -> Found:
    return Found("thermal", attributes={"cpu": match["cpu"]})


# -- networks and CXL --------------------------------------------------------------------------------------------------

_RDMA_WORDS = (
    ("health compromised", "health"),
    ("insufficient power", "power"),
    ("High temperature", "temperature"),
    ("Port module event", "cable"),
    ("syndrome", "command"),
    ("atal error", "fatal"),
    ("not responding", "health"),
)


def _rdma(match: re.Match[str]) -> Found | None:
    words = match["words"]
    code = next((code for mark, code in _RDMA_WORDS if mark in words), None)
    if code is None or (code == "cable" and "able error" not in words and "unplugged" not in words):
        return None
    return Found("rdma", pci_address(match["bus"]), code)


def _hfi(match: re.Match[str]) -> Found:
    return Found("rdma", pci_address(match["bus"]), match["word"].lower().replace(" ", "_"))


def _cxl(match: re.Match[str]) -> Found:
    name = match["memory"]
    return Found("cxl", (AddressKind.MEMORY, name) if name else pci_address(match["bus"]) if match["bus"] else _NODE)


def _interface(match: re.Match[str]) -> Found | None:
    name = match["name"]
    bus_id = pci_address(match["bus"])[1] if match["bus"] else None
    address = (AddressKind.INTERFACE, name) if name else (AddressKind.PCI, bus_id) if bus_id else None
    if address is None:
        return None
    return Found("interface", address, match["state"].lower(), {"pci_bus_id": bus_id})


def _bond_slave(match: re.Match[str]) -> Found:
    return Found("interface", (AddressKind.INTERFACE, match["name"]), match["state"])


_NAME = r"(?P<name>[A-Za-z][\w.@-]{0,14})"
_ON_BUS = rf"\b(?P<bus>{_BUS_ID}):? "


def _rule(marker: str, pattern: str, read: Callable[[re.Match[str]], Found | None]) -> Rule:
    return Rule(marker, re.compile(pattern, re.DOTALL), read)


RULES: tuple[Rule, ...] = (
    _rule(
        "Xid (",
        rf"NVRM: Xid \((?:PCI:)?(?P<bus>{_BUS_ID})(?: (?P<mig>GPU-[^)]{{1,64}}))?\): (?P<code>\d{{1,5}})(?P<rest>.*)",
        _xid,
    ),
    _rule(
        "SXid (",
        rf"SXid \((?:PCI:)?(?P<bus>{_BUS_ID})\): (?P<code>\d{{1,6}}), (?P<severity>Non-fatal|Fatal)?(?P<rest>.*)",
        lambda match: _sxid(match) if match["severity"] else None,  # the other lines of one error tell registers
    ),
    _rule(
        "NVSwitch",
        rf"detected NVSwitch (?P<severity>non-fatal|fatal) error (?P<code>\d{{1,6}}) on fid \d{{1,5}} on NVSwitch "
        rf"pci bus id (?P<bus>{_BUS_ID}) physical id \d{{1,5}} port (?P<port>\d{{1,4}})",
        _fabric_manager,
    ),
    _rule("fallen off the bus", rf"NVRM: (?:.*?(?P<bus>{_BUS_ID}).*?)?\bfallen off the bus", _gpu_lost),
    _rule("RmInitAdapter", rf"NVRM: GPU (?:at )?(?:PCI:)?(?P<bus>{_BUS_ID}): RmInitAdapter failed", _init_failed),
    _rule("nvidia-peermem", r"nvidia-peermem \w+:\d+ ERROR", _peermem),
    _rule(
        "NV",
        rf"^(?:NVRM|nvidia-nvlink|nvidia-nvswitch\d*): (?!.*\b(?:Xid|SXid)\b)(?:.*?(?P<bus>{_BUS_ID}))?"
        r"(?=.*\bNV[Ll]ink\b)(?=.*\b(?i:fatal|failed|failure|error|errors|down|degraded|timeout|timed out|disabled)\b)",
        _nvidia_words,
    ),
    _rule(
        "correctable hardware errors detected in",
        rf"{_ON_BUS}.*?(?P<count>\d{{1,20}}) (?:new )?(?P<un>un)?correctable hardware errors detected in "
        r"(?P<total>total in )?(?P<block>\w{1,32}) +block",
        _amd_ras,
    ),
    _rule("GPU reset begin", rf"{_ON_BUS}(?:\S+ )?GPU reset begin", _amd_reset),
    _rule(
        "PCIe Bus Error",
        rf"{_ON_BUS}(?:AER: )?PCIe Bus Error: severity=(?P<severity>[\w ()-]{{1,40}}?), type=(?P<layer>[\w ]{{1,32}})",
        _aer,
    ),
    _rule(
        "AER: ",
        rf"{_ON_BUS}AER: (?:Multiple )?(?P<severity>(?:Unc|C)orrect(?:ed|able)(?: \((?:Non-)?Fatal\))?) error "
        rf"(?:message )?received(?:(?: from|:) (?P<about>{_BUS_ID}))?",
        _aer_root,
    ),
    _rule("aer_layer=", rf"{_ON_BUS}(?:AER: )?aer_layer=(?P<layer>[\w ]{{1,32}}?),", _aer_firmware),
    _rule("AER: device recovery failed", rf"{_ON_BUS}AER: device recovery failed", _aer_recovery),
    _rule("DPC: containment event", rf"{_ON_BUS}DPC: containment event", _dpc),
    _rule(
        "pciehp: Slot(",
        rf"{_ON_BUS}pciehp: Slot\((?P<slot>[^)]{{1,32}})\): (?P<state>Link Up|Link Down|Card not present)\b",
        _slot,
    ),
    _rule("retraining", rf"{_ON_BUS}(?:retraining failed|broken device, retraining)", _retrain),
    _rule(
        "available PCIe bandwidth, limited by",
        rf"{_ON_BUS}.*available PCIe bandwidth, limited by (?P<now>[\w./ ]{{1,40}}?) link at (?P<by>{_BUS_ID}) "
        r"\(capable of [\d.]{1,12} Gb/s with (?P<best>[\w./ ]{1,40}?) link\)",
        _limited,
    ),
    _rule("EDAC MC", r"EDAC MC(?P<mc>\d{1,4}): (?P<count>\d{1,12}) (?P<type>CE|UE) (?P<rest>.*)", _edac),
    _rule(
        "EDAC DEVICE",
        r"EDAC DEVICE\d{1,4}: (?P<label>.{0,128}?) (?P<type>CE|UE): .{0,256}?count: (?P<count>\d{1,12})",
        _edac_device,
    ),
    _rule(
        "EDAC DEVICE",
        r"EDAC DEVICE\d{1,4}: (?P<type>CE|UE): (?P<label>.{0,256}?)count: (?P<count>\d{1,12})",
        _edac_device,
    ),
    _rule(
        "Machine Check",
        r"\[Hardware Error\]: CPU (?P<cpu>\d{1,6}): Machine Check(?: Exception)?: [0-9a-f]{1,16} Bank "
        r"(?P<bank>\d{1,4}): (?P<status>[0-9a-f]{1,16})\b",
        _machine_check,
    ),
    _rule(
        "[Hardware Error]",
        r"\[Hardware Error\]: "
        r"(?P<word>Machine check events logged|Corrected error, no action|Uncorrected, |Deferred error)",
        _machine_check_words,
    ),
    _rule(
        "event severity",
        r"\[Hardware Error\]: event severity: (?P<severity>corrected|recoverable|fatal|info)\b",
        _firmware,
    ),
    _rule(
        "Memory failure:",
        r"Memory failure: 0x[0-9a-f]{1,16}: recovery action for .{1,64}: (?P<result>\w{1,16})",
        _memory_failure,
    ),
    _rule(
        "temperature above threshold",
        r"CPU(?P<cpu>\d{1,6}): (?:Core|Package) temperature above threshold",
        _thermal,
    ),
    _rule(
        "NIC Link is",
        rf"(?:{_ON_BUS}|^\w{{1,16}}: )(?:(?:[\w.-]{{1,16}} )?[\w.-]{{1,16}}: )?(?:\w{{1,16}}: )?{_NAME}:? "
        r"NIC Link is (?P<state>Up|Down)\b",
        _interface,
    ),
    _rule("ink ", rf"^(?:mlx4|mlx5)_\w+ {_ON_BUS[2:]}{_NAME}: Link (?P<state>up|down)\b", _interface),
    _rule("Link is down", rf"{_ON_BUS}{_NAME}: Link is (?P<state>down)\b", _interface),
    _rule(
        "link status definitely",
        rf"\(slave {_NAME}\): link status definitely (?P<state>up|down)\b",
        _bond_slave,
    ),
    _rule("mlx5_core", rf"mlx5_core {_ON_BUS[2:]}(?P<words>.*)", _rdma),
    _rule("bnxt_", rf"bnxt_\w{{2}} {_ON_BUS[2:]}(?P<words>.*)", _rdma),
    _rule(
        "hfi1_",
        rf"hfi1 {_ON_BUS[2:]}hfi1_\d{{1,3}}: .*?(?P<word>[Ll]ink down|[Ff]reeze|[Ff]atal|[Oo]verheat)",
        _hfi,
    ),
    _rule(
        "cxl",
        rf"^cxl\w* (?:(?P<bus>{_BUS_ID})|\S{{1,64}}): (?=.*(?i:\bfatal|poison|frozen state|uncorrect|permanent failure"
        r"|CXL\.mem|media error|health))(?:(?P<memory>mem\d{1,4})\b)?",
        _cxl,
    ),
)
"""In the order in which they are tried: the first that reads something is it."""

MARK = re.compile("|".join(sorted({re.escape(rule.marker) for rule in RULES}, key=len)))
"""What a message has that any rule could read."""
