"""What single sysfs files say: forms that kernels are known to write, and any text at all."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from observatory.model.data_sheets import pcie_bytes_per_second
from observatory.model.link import LinkState
from observatory.topology.cpulist import format_cpulist, parse_cpulist, parse_cpumask
from observatory.topology.importers.sysfs.caches import parse_cache_kind, parse_cache_size
from observatory.topology.importers.sysfs.nics import infiniband_bytes_per_second
from observatory.topology.importers.sysfs.numa import parse_distances
from observatory.topology.importers.sysfs.pci import PortType, bus_id_in, bus_number, parse_port_type
from observatory.topology.importers.sysfs.pci_names import class_name
from observatory.topology.importers.sysfs.pcie_link import (
    LinkEnd,
    join_ends,
    parse_link_speed,
    parse_link_width,
)
from observatory.topology.importers.sysfs.tree import parse_hexadecimal, parse_integer

quick = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # by our generators, not on a busy machine


@pytest.mark.parametrize(
    ("text", "speed"),
    [
        ("16.0 GT/s PCIe", 16.0),
        ("8.0 GT/s PCIe", 8.0),
        ("16 GT/s", 16.0),
        ("8 GT/s", 8.0),
        ("2.5 GT/s", 2.5),
        ("64.0 GT/s PCIe", 64.0),
        ("Unknown", None),
        ("Unknown speed", None),
    ],
)
def test_link_speeds(text: str, speed: float | None) -> None:
    assert parse_link_speed(text) == speed


@pytest.mark.parametrize(
    "text", ["", "16", "GT/s", "16.0 GB/s", "-8.0 GT/s", "7.0 GT/s", "16.0 GT/s PCIe x16", "1e9 GT/s"]
)
def test_link_speeds_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="no speed"):
        parse_link_speed(text)


@pytest.mark.parametrize(("text", "width"), [("16", 16), ("1", 1), ("32", 32), ("0", None), ("255", None)])
def test_link_widths(text: str, width: int | None) -> None:
    assert parse_link_width(text) == width


@pytest.mark.parametrize("text", ["", "x16", "3", "-1", "16.0", "²", "99999999999"])
def test_link_widths_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="no width"):
        parse_link_width(text)


@pytest.mark.parametrize(
    ("speed", "width", "gigabytes_per_second"),
    [
        (2.5, 1, 0.25),  # 2.5 Gb/s x 8/10
        (5.0, 4, 2.0),
        (8.0, 8, 7.877),  # 64 Gb/s x 128/130
        (16.0, 16, 31.508),
        (32.0, 16, 63.015),
        (64.0, 16, 118.0),  # 128 GB/s x 236/256
    ],
)
def test_what_a_link_carries(speed: float, width: int, gigabytes_per_second: float) -> None:
    assert pcie_bytes_per_second(speed, width) / 1e9 == pytest.approx(gigabytes_per_second, abs=5e-4)


FULL = LinkEnd(16.0, 16, 16.0, 16)


@pytest.mark.parametrize(
    ("card", "port", "state", "best"),
    [
        (FULL, FULL, LinkState.UP, (16.0, 16)),
        (LinkEnd(8.0, 16, 16.0, 16), FULL, LinkState.DEGRADED, (16.0, 16)),
        (LinkEnd(16.0, 8, 16.0, 16), FULL, LinkState.DEGRADED, (16.0, 16)),
        (LinkEnd(16.0, 8, 16.0, 16), LinkEnd(16.0, 8, 16.0, 8), LinkState.UP, (16.0, 8)),  # a slot with 8 lanes
        (LinkEnd(8.0, 8, 8.0, 8), FULL, LinkState.UP, (8.0, 8)),  # an old card
        (LinkEnd(8.0, 8, 16.0, 16), LinkEnd(), LinkState.DEGRADED, (16.0, 16)),  # the port tells nothing
        (LinkEnd(8.0, 8), LinkEnd(), LinkState.UP, (None, None)),
        (LinkEnd(), LinkEnd(8.0, 8, 8.0, 16), LinkState.DEGRADED, (8.0, 16)),  # only the port tells
        (LinkEnd(None, 8, 16.0, 16), LinkEnd(), LinkState.UNKNOWN, (16.0, 16)),
        (LinkEnd(), LinkEnd(), LinkState.UNKNOWN, (None, None)),
    ],
)
def test_two_ends_make_a_link(
    card: LinkEnd, port: LinkEnd, state: LinkState, best: tuple[float | None, int | None]
) -> None:
    link = join_ends(card, port)
    assert (link.state, (link.best_speed, link.best_width)) == (state, best)
    assert (link.bytes_per_second is None) == (state is LinkState.UNKNOWN)


@pytest.mark.parametrize(
    ("rate", "layer", "gigabits_per_second"),
    [
        ("10 Gb/sec (4X SDR)", "InfiniBand", 8.0),
        ("40 Gb/sec (4X QDR)", "InfiniBand", 32.0),
        ("40 Gb/sec (4X FDR10)", "InfiniBand", 40.0),
        ("100 Gb/sec (4X EDR)", "InfiniBand", 100.0),
        ("2.5 Gb/sec (1X SDR)", "InfiniBand", 2.0),
        ("400 Gb/sec (4X NDR)", "InfiniBand", 400.0),
        ("40 Gb/sec (4X QDR)", "Ethernet", 40.0),
        ("25 Gb/sec", "Ethernet", 25.0),
    ],
)
def test_infiniband_rates(rate: str, layer: str, gigabits_per_second: float) -> None:
    assert infiniband_bytes_per_second(rate, layer) == pytest.approx(gigabits_per_second * 1e9 / 8)


def test_an_infiniband_port_without_a_cable_has_no_rate() -> None:
    assert infiniband_bytes_per_second("0 Gb/sec (4X SDR)", "InfiniBand") is None


@pytest.mark.parametrize(
    ("bus_id", "number"),
    [
        ("0000:01:00.0", (0, 1, 0, 0)),
        ("10000:e1:1f.7", (0x10000, 0xE1, 0x1F, 7)),
        ("0000:01:00.8", None),
        ("01:00.0", None),
        ("0000:01:00.0\n", None),
        ("0000:00:02.1:pcie001", None),
    ],
)
def test_bus_ids(bus_id: str, number: tuple[int, ...] | None) -> None:
    assert bus_number(bus_id) == number


def test_the_function_in_a_path() -> None:
    assert (
        bus_id_in("devices/pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0/10000:e1:00.0/nvme/nvme0")
        == "10000:e1:00.0"
    )
    assert bus_id_in("devices/virtual/net/lo") is None


def config(port_type: int | None, *, capability_at: int = 0x50) -> bytes:
    """A configuration space of Intel's with a power-management capability, then PCI Express of that type if any."""
    space = bytearray(256)
    space[0:2] = (0x8086).to_bytes(2, "little")
    space[0x06] = 0x10
    space[0x34] = 0x40
    space[0x40:0x42] = bytes((0x01, capability_at if port_type is not None else 0))
    if port_type is not None:
        space[capability_at : capability_at + 4] = bytes((0x10, 0x00, port_type << 4 | 2, 0x00))
    return bytes(space)


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (config(4), PortType.ROOT_PORT),
        (config(5), PortType.UPSTREAM_PORT),
        (config(6, capability_at=0xA0), PortType.DOWNSTREAM_PORT),
        (config(7), PortType.BRIDGE),
        (config(None), PortType.BRIDGE),  # conventional PCI
        (config(4)[:64], None),  # what a user may read
        (b"", None),
        (bytes(256), None),
        (b"\xff" * 256, None),  # the device is gone
    ],
)
def test_port_types(space: bytes, expected: PortType | None) -> None:
    assert parse_port_type(space) is expected


def test_class_names() -> None:
    assert class_name("010802") == "NVMe controller"
    assert class_name("120000") == "processing accelerator"
    assert class_name("09ff00") == "input device"  # a subclass that the table does not have
    assert class_name("770000") is None
    assert class_name(None) is None


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0000000f", (0, 1, 2, 3)),
        ("00000001,00000000", (32,)),
        ("8000,0", (47,)),
        ("0xff", (0, 1, 2, 3, 4, 5, 6, 7)),
        ("0", ()),
    ],
)
def test_masks(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_cpumask(text) == numbers


@quick
@given(st.sets(st.integers(0, 2000)))
def test_masks_and_lists_say_the_same(numbers: set[int]) -> None:
    bits = sum(1 << n for n in numbers)
    words = [f"{bits >> 32 * w & 0xFFFFFFFF:08x}" for w in range(max(1, -(-bits.bit_length() // 32)))]
    assert parse_cpumask(",".join(reversed(words))) == parse_cpulist(format_cpulist(tuple(sorted(numbers))))


@quick
@given(st.integers(0, 10**9))
def test_numbers_as_the_kernel_writes_them(number: int) -> None:
    assert parse_integer(str(number)) == parse_hexadecimal(f"0x{number:x}") == number
    assert parse_integer(f"-{number}") == -number


@quick
@given(st.lists(st.integers(0, 254), min_size=1, max_size=8))
def test_distances_go_to_the_nodes_that_are_online(figures: list[int]) -> None:
    online = [2 * n for n in range(len(figures))]  # with gaps
    text = " ".join(map(str, figures))
    assert parse_distances(text, online) == dict(zip(online, figures, strict=True))
    with pytest.raises(ValueError, match="shorter"):
        parse_distances(text, [*online, 99])


def test_sizes_of_caches() -> None:
    assert [parse_cache_size(t) for t in ("32K", "2048K", "36M", "512")] == [32768, 2 << 20, 36 << 20, 512]


@quick
@given(st.text(max_size=60))
def test_any_text_is_a_value_or_a_value_error(text: str) -> None:
    for parse in (
        parse_link_speed,
        parse_link_width,
        parse_cache_size,
        parse_cache_kind,
        parse_integer,
        parse_hexadecimal,
        parse_cpulist,
        parse_cpumask,
        lambda t: infiniband_bytes_per_second(t, "InfiniBand"),
        lambda t: parse_distances(t, [0, 1]),
    ):
        with contextlib.suppress(ValueError):  # anything else is a failure
            parse(text)


@quick
@given(st.binary(max_size=300))
def test_any_configuration_space_is_understood_or_not(space: bytes) -> None:
    assert parse_port_type(space) in (*PortType, None)
