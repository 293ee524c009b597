"""All formats of topology files, recognised by their content; and what is known to be no topology, with the mend."""

from __future__ import annotations

import re
from importlib import import_module
from typing import NoReturn

from observatory.documents import parse_document
from observatory.model.topology import Topology
from observatory.topology.errors import BadTopology
from observatory.topology.importers.source import Format, Source, open_source, without_collection

_MODULES = (
    "sysfs_archive",
    "hwloc_xml",
    "nccl_xml",
    "nccl_graphs",
    "nvidia_smi_nvlink",
    "nvidia_smi_topo",
    "rocm_smi",
    "amd_smi",
    "ibnetdiscover",
    "iblinkinfo",
    "ibstatus",
    "slurm_conf",
    "slurm_yaml",
    "topograph",
    "cxl_list",
    "kubernetes",
)
"""In the order in which they are asked. Our own YAML comes last, as it takes what looks like YAML at all."""

_NO_TOPOLOGIES: tuple[tuple[str, str, str], ...] = (
    (r"#!", "is a script, not what it prints", "run it, and give what it writes"),
    (r"\s*Machine \(P?#?\d* ?", "is lstopo's drawing, which leaves out most", "lstopo FILE.xml writes all of it"),
    (r"\s*Machine L#\d", "is lstopo's drawing, which leaves out most", "lstopo FILE.xml writes all of it"),
    (r"(?s).{0,2000}?^PSID\s+\|", "is ibswinfo's inventory of one switch, without cables", "ibnetdiscover -p has them"),
    (r"# Port (?:extended )?counters: |# PortRcvErrorDetails", "is perfquery's counters of a port", "ibnetdiscover -p"),
    (r"(?s)\s*Settings for \S+:", "is ethtool's settings of one interface", "give a sysfs tree or lstopo's XML"),
    (r"\s*\d{1,5} Gb/sec \(", "is one file of sysfs", "give the whole tree: a folder or a tar archive"),
    (r"\s*\d: (?:ACTIVE|DOWN|INIT|ARMED|<unknown>|LinkUp|Polling)\s*\Z", "is one file of sysfs", "give the whole tree"),
    (r"(?s)(?:ERROR|error|NVML|Failed|nvidia-smi has failed).{0,80}", "is an error message", "run the command again"),
    (r'(?s)\s*\{\s*"provider"', "is a request to topograph: it names a model, and is none", "give the model's file"),
    (r"(?s)(?:\s*#[^\n]*\n|\s*\n)*provider:\s*\n", "is a configuration of topograph", "give the model that it names"),
    (r"(?s).{0,4000}?###Test ", "is a log of AMD SMI's own tests", "amd-smi topology"),
)
_PATTERNS = tuple((re.compile(pattern, re.MULTILINE), words, mend) for pattern, words, mend in _NO_TOPOLOGIES)
_OWN = re.compile(r'^["\']?apiVersion["\']?\s*:\s*["\']?media\.observatory/', re.MULTILINE)
_YAML_KEY = re.compile(r"^[A-Za-z_][\w.-]*:(?:\s|$)", re.MULTILINE)
_KNOWN = "observatory topology import --help lists the formats"


def formats() -> tuple[Format, ...]:
    """All of them, in the order in which they are asked."""
    return tuple(import_module(f"observatory.topology.importers.{name}").FORMAT for name in _MODULES)


def read_source(source: Source) -> Topology:
    """The topology in a file or folder. Raises BadTopology with the reason why it is none."""
    if source.text is not None and _OWN.search(source.head):
        return _own(source)
    found = next((f for f in formats() if f.recognise(source)), None)
    if found is None:
        _refuse(source)
    with without_collection():
        return found.read(source)


def format_of(source: Source) -> Format | None:
    """The format of a file; None for our own and for what is not recognised."""
    if source.text is not None and _OWN.search(source.head):
        return None
    return next((f for f in formats() if f.recognise(source)), None)


def read_file(path: str) -> Topology:
    """The topology in the file or folder at `path`, of any format. Raises BadTopology."""
    return read_source(open_source(path))


def _own(source: Source) -> Topology:
    from observatory.topology.importers.own_yaml import topology_in

    return topology_in(parse_document(source.text or "", source.name, BadTopology))


def _refuse(source: Source) -> NoReturn:
    if not source.data.strip():
        source.fail("is empty", 1, "give the whole output of the command")
    if source.text is None:
        source.fail("is no text and no tar archive", mend=_KNOWN)
    for pattern, words, mend in _PATTERNS:
        if pattern.match(source.head):
            source.fail(words, 1, mend)
    if source.head.lstrip().startswith("<"):
        source.fail("is XML of another kind than hwloc's and NCCL's", 1, _KNOWN)
    if source.path.suffix in (".yaml", ".yml", ".json") or _YAML_KEY.search(source.head):
        _own(source)  # says what is wrong with it as YAML
    source.fail("is in no format of topologies that is known", 1, _KNOWN)
