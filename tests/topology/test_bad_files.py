"""What is no topology, or half of one: refused with file, line and a mend; no traceback, never all in memory."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import re
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from observatory.model.errors import ExitCode
from observatory.model.topology import Topology
from observatory.topology.errors import BadTopology
from observatory.topology.importers.hostlist import expand_hostlist
from observatory.topology.importers.recognise import read_file, read_source
from observatory.topology.importers.source import MAX_BYTES, Source
from tests.topology.sysfs_trees import DATA

FIXTURES = Path(__file__).parent / "fixtures"
FILES = sorted(p.name for p in FIXTURES.iterdir() if p.name != "facts.yaml")
NUMBER = re.compile(rb"\d+")
ABSURD = (b"99999999999999999999", b"-1", b"0", b"4294967296", b"1e400", b"0x", b"NaN", b"7" * 5000)


def read(data: bytes) -> Topology | None:
    """What is made of these bytes: a topology, or a refusal that says why."""
    try:
        return read_source(Source(Path("given"), data))
    except BadTopology as failure:
        refusal = failure
    assert refusal.exit_code is ExitCode.BAD_INPUT
    assert refusal.message
    assert refusal.file == "given"
    return None


def refused(data: bytes) -> BadTopology:
    with pytest.raises(BadTopology) as caught:
        read_source(Source(Path("given"), data))
    return caught.value


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_damaged_files(name: str, data: st.DataObject) -> None:
    """Cut off, overwritten, lines twice or in disorder, numbers that no machine has: read or refused, nothing else."""
    whole = (FIXTURES / name).read_bytes()
    at = data.draw(st.integers(0, len(whole)))
    damage = data.draw(st.sampled_from(["cut", "bytes", "number", "lines", "drop", "repeat"]))
    if damage == "cut":
        broken = whole[:at]
    elif damage == "bytes":
        broken = whole[:at] + data.draw(st.binary(max_size=40)) + whole[at + data.draw(st.integers(0, 40)) :]
    elif damage == "number":
        found = list(NUMBER.finditer(whole))
        match = found[data.draw(st.integers(0, len(found) - 1))]
        broken = whole[: match.start()] + data.draw(st.sampled_from(ABSURD)) + whole[match.end() :]
    elif damage == "lines":
        broken = b"\n".join(data.draw(st.permutations(whole.split(b"\n"))))
    elif damage == "drop":
        broken = whole[:at] + whole[at + data.draw(st.integers(0, 200)) :]
    else:
        end = data.draw(st.integers(at, len(whole)))
        broken = whole[:end] + whole[at:end] * data.draw(st.integers(1, 5)) + whole[end:]
    read(broken)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400))
def test_junk(data: bytes) -> None:
    read(data)


BEGINNINGS = (b"<system>", b"<graphs>", b"<topology><object/>", b"GPU0 X ", b"BlockName=a ", b"apiVersion: v1\nkind: ")


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(BEGINNINGS), st.binary(max_size=200))
def test_junk_behind_a_known_beginning(start: bytes, rest: bytes) -> None:
    read(start + rest)


BOMB = """<?xml version="1.0"?>
<!DOCTYPE system [
 <!ENTITY a "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa">
 <!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">
 <!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;">
]>
<system version="1">&c;</system>
"""


@pytest.mark.parametrize(
    ("data", "line", "words"),
    [
        (BOMB.encode(), 3, "entity"),
        (b'<!DOCTYPE system [<!ENTITY x SYSTEM "file:///etc/passwd">]><system>&x;</system>', 1, "entity"),
        (b"<system>\n<cpu>\n<pci>\n</cpu></system>", 4, "not well-formed"),
        (b"<system>" + b"<pci>" * 1000, None, "too deep"),
        (b"GPU0 GPU1\nGPU0 X PIX\nGPU1 X\n", 3, "1 cells for 2 columns"),
        (b"GPU0 X\n", 1, "before the line with the columns"),
        (b"SwitchName=a Nodes=n[1-99999999]\n", 1, "no range that makes sense"),
        (b"SwitchName=a Nodes=n[1-999],m[1-999][1-999]\n", 1, "more than 100,000"),
        (b"SwitchName=a\nSwitchName=b Nodes=n[1-2\n", 2, "do not match"),
        (b"SwitchName=a Nodes=n1\nSwitchName=A Nodes=n2\n", 2, "twice, first on line 1"),
        (b"# cxl list\n[\n{'memdev'", None, "format"),
        (b'# cxl list\n[\n {"memdev":"mem0"\n  "x":1}]\n', 4, "is not JSON"),
        (b"apiVersion: v1\nkind: Pod\n", 2, "Pod, which tells no topology"),
        (b"apiVersion: v1\nkind: Node\n\tmetadata: {}\n", 3, "not YAML"),
        (b"GPU 0: H100 (UUID: GPU-1)\n\t Link 0: Replay Errors: 0\n", 2, "something else of NVLinks"),
        (b"#!/bin/sh\necho kind: HyperNode\n", 1, "is a script"),
        (b"", 1, "is empty"),
        (b"\x00\x01\x02\x03" * 100, None, "no text"),
        (b"hello\n", 1, "no format of topologies"),
        (b"<svg></svg>", 1, "XML of another kind"),
    ],
)
def test_refusals_say_where(data: bytes, line: int | None, words: str) -> None:
    refusal = refused(data)
    assert words in refusal.message
    if line is not None:
        assert refusal.line == line
    assert refusal.mend


def test_archives_that_unpack_to_any_size() -> None:
    """100 kB of bzip2 can be 100 GB: it is stopped at a limit."""
    huge = bz2.compress(b"\0" * 150_000_000)
    assert len(huge) < 1000
    assert "unpacks to more than" in refused(huge).message
    for packed in (gzip.compress(b"no tar at all" * 100), bz2.compress(b"")[:-3], b"\x1f\x8b" + b"\0" * 40):
        refused(packed)


def test_archives_that_lead_out(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, target in (
            ("sys/devices/system/cpu", None),
            ("../evil", None),
            ("sys/devices/system/cpu/online", "/etc/passwd"),
        ):
            member = tarfile.TarInfo(name)
            member.type = tarfile.DIRTYPE if target is None else tarfile.SYMTYPE
            member.linkname = target or ""
            tar.addfile(member)
    topology = read(out.getvalue())
    assert topology is not None
    assert topology.devices == ()
    assert not (tmp_path.parent / "evil").exists()


@pytest.mark.parametrize("fill", [b"GPU0 X PIX\n", b"\0", b"<pci>", b"SwitchName=x Nodes=y\n"])
def test_large_files_are_not_read(
    tmp_path: Path, fill: bytes, peak_memory: Callable[[Callable[[], None]], int]
) -> None:
    path = tmp_path / "large"
    with path.open("wb") as stream:
        stream.write(fill * 1000)
        stream.truncate(120_000_000)

    def refuse() -> None:
        with pytest.raises(BadTopology, match="larger than 16 MB"):
            read_file(str(path))

    assert peak_memory(refuse) < 2 * MAX_BYTES


@pytest.fixture
def peak_memory() -> Callable[[Callable[[], None]], int]:
    """The most that Python allocates while something runs, in bytes."""
    import tracemalloc

    def measure(run: Callable[[], None]) -> int:
        tracemalloc.start()
        try:
            run()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    return measure


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    data = (FIXTURES / "nccl.xml").read_bytes()
    writer = threading.Thread(target=lambda: pipe.write_bytes(data))
    writer.start()
    assert len(read_file(str(pipe)).devices) == 4
    writer.join()


def test_devices_and_folders(tmp_path: Path) -> None:
    with pytest.raises(BadTopology, match="is a device"):
        read_file("/dev/null")
    with pytest.raises(BadTopology, match="without a sysfs tree"):
        read_file(str(tmp_path))
    with pytest.raises(BadTopology, match="no such file"):
        read_file(str(tmp_path / "none"))


def test_host_lists() -> None:
    assert expand_hostlist("a[1-3,7],b,c[08-10]x[1-2]") == [
        "a1", "a2", "a3", "a7", "b", "c08x1", "c08x2", "c09x1", "c09x2", "c10x1", "c10x2",
    ]  # fmt: skip
    for text in ("a[1", "a]1[", "a[3-1]", "a[x]", "a[[1]]"):
        with pytest.raises(ValueError, match=r"range|brackets"):
            expand_hostlist(text)


def test_every_public_file_is_read_or_refused_with_a_reason() -> None:
    if not DATA.exists():
        pytest.skip("../shared/data is not there")
    kinds = (
        "nvidia-smi-topo",
        "rocm-topo",
        "ib-fabric",
        "topograph",
        "k8s-nodes",
        "k8s-topology",
        "cxl",
        "slurm-topology",
    )
    for path in (p for kind in kinds for p in sorted((DATA / kind).iterdir()) if p.stat().st_size < 20_000):
        refusal = None
        try:
            read_file(str(path))
        except BadTopology as failure:
            refusal = failure
        assert refusal is None or (refusal.file == str(path) and refusal.mend), path
