"""Sources that talk nonsense: whatever is in the files, a receiver tells only what makes sense."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from observatory.receivers.checking import sensible
from observatory.receivers.errors import ReceiverError
from observatory.receivers.infiniband import Infiniband
from observatory.receivers.interfaces import Interfaces
from observatory.receivers.numa import Numa, allocations
from observatory.receivers.pressure import Pressure, stalls
from observatory.receivers.protocol import Receiver, ReceiverContext
from observatory.receivers.sysfs_pcie import SysfsPcie, total_of
from tests.receivers.rdma_trees import add_port
from tests.topology.sysfs_trees import MachineTree, write

TEXTS = st.one_of(
    st.binary(max_size=60),
    st.integers(-(10**30), 10**30).map(lambda n: str(n).encode()),
    st.sampled_from(
        [
            b"",
            b"\n",
            b"16.0 GT/s PCIe\n",
            b"nan",
            b"inf",
            b"1e308",
            b"0x10",
            b"4: ACTIVE",
            b"99999 Gb/sec (99X NDR)",
            b"some avg10=999.99 avg60=0.00 avg300=0.00 total=99999999999999999999",
            b"numa_hit 99999999999999999999",
            b"Node 0 MemTotal: 99999999999999999999999 kB",
            b"TOTAL_ERR_COR 18446744073709551615",
            "١٦".encode(),  # digits, but no number of the kernel's
            b"1" * 20_000,
        ]
    ),
)


def whole_machine(root: Path) -> list[Path]:
    """A machine that has something for every receiver; its files."""
    tree = MachineTree(root / "sys")
    tree.bridge("pci0000:00/0000:00:01.0", best=("16.0 GT/s", "16"))
    tree.function(
        "pci0000:00/0000:00:01.0/0000:01:00.0",
        "030200",
        now=("16.0 GT/s", "16"),
        best=("16.0 GT/s", "16"),
        aer_dev_correctable="TOTAL_ERR_COR 7",
        aer_rootport_total_err_cor="7",
    )
    add_port(root, "mlx5_0", counters={"port_xmit_data": "1"}, hw_counters={"packet_seq_err": "1"})
    write(root / "sys/class/net/lo/operstate", "unknown")
    write(root / "sys/class/net/lo/carrier", "1")
    write(root / "sys/class/net/lo/statistics/rx_bytes", "5")
    write(root / "sys/devices/system/node/node0/numastat", "numa_hit 5")
    write(root / "proc/pressure/cpu", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0")
    return sorted(p for p in root.rglob("*") if p.is_file() and not p.is_symlink())


@pytest.mark.parametrize("make", [SysfsPcie, Infiniband, Interfaces, Numa, Pressure])
def test_nonsense_in_any_file(make: type[Receiver], tmp_path: Path) -> None:
    files = whole_machine(tmp_path)
    context = ReceiverContext("n0", tmp_path)
    long_open = make()

    async def look(receiver: Receiver) -> None:
        refused: Counter[str] = Counter()
        with suppress(ReceiverError):
            sensible(await receiver.poll(), receiver.name, refused, 10_000)
        assert not refused

    async def open_and_look() -> None:
        receiver = make()
        try:
            with suppress(ReceiverError):
                await receiver.open(context)
                await look(receiver)
        finally:
            await receiver.close()

    @settings(max_examples=30, deadline=None)
    @given(texts=st.lists(TEXTS, min_size=1, max_size=30))
    def check(texts: list[bytes]) -> None:
        for index, file in enumerate(files):
            file.write_bytes(texts[index % len(texts)])
        asyncio.run(look(long_open))
        asyncio.run(open_and_look())

    asyncio.run(long_open.open(context))
    try:
        check()
    finally:
        asyncio.run(long_open.close())


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200))
def test_parsers_take_any_bytes(data: bytes) -> None:
    allocations(data)
    stalls(data)
    total_of(data, b"TOTAL_ERR_COR")


@pytest.mark.parametrize("make", [SysfsPcie, Infiniband, Interfaces, Numa, Pressure])
def test_a_pipe_or_a_folder_in_a_files_place_hangs_nobody(make: type[Receiver], tmp_path: Path) -> None:
    import os

    for index, file in enumerate(whole_machine(tmp_path)):
        file.unlink()
        if index % 2:
            os.mkfifo(file)
        else:
            file.mkdir()

    async def run() -> None:
        receiver = make()
        try:
            await receiver.open(ReceiverContext("n0", tmp_path))
            await receiver.poll()
        except ReceiverError:
            pass
        finally:
            await receiver.close()

    asyncio.run(run())
