"""Pool sizes and the refusal to start without memory."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from dataplane.assignment import PortSize
from dataplane.errors import NotEnoughMemory
from dataplane.operators.base import OutputPort, SlotClass
from dataplane.sizing import PortPool, available_bytes, check_memory, size_port
from observatory.model.media import PixelFormat, TimeBase, VideoFormat


def video(width: int, height: int) -> VideoFormat:
    return VideoFormat(width=width, height=height, pixel_format=PixelFormat.YUV420P, time_base=TimeBase(num=1, den=25))


def test_the_slowest_consumer_decides() -> None:
    form = video(1920, 1080)  # 3,110,400 bytes: 759.375 pages of 4 KiB, so 760
    port = OutputPort("video", form, (SlotClass(form.bytes_per_frame, 2, shared_by_consumers=True),), "2 written")
    pool = size_port("decode", port, held_by_consumers=[1, 40, 7], queue_frames=4)
    assert pool.sizes[0].slot_count == 2 + 40 + 4
    assert pool.sizes[0].slot_bytes == 760 * 4096
    assert pool.total_bytes == 46 * 760 * 4096
    assert pool.ring_capacity == 64
    assert "46 x 3.1 MB = 143.2 MB (2 written + 40 held by the slowest consumer + 4 queued)" in pool.arithmetic()


def test_classes_of_their_own_do_not_grow() -> None:
    port = OutputPort("video", video(64, 64), (SlotClass(100, 3), SlotClass(70_000, 2)), "packets")
    pool = size_port("enc", port, held_by_consumers=[9])
    assert [(s.slot_bytes, s.slot_count) for s in pool.sizes] == [(mmap.PAGESIZE, 3), (18 * 4096, 2)]
    assert pool.ring_capacity == 8


def test_refusal_shows_the_arithmetic_largest_first() -> None:
    small = size_port("a", OutputPort("video", video(64, 64), (SlotClass(4096, 1),), "one"), [])
    large = size_port("b", OutputPort("video", video(64, 64), (SlotClass(10**9, 3),), "three"), [])
    with pytest.raises(NotEnoughMemory) as refused:
        check_memory([small, large], limit_bytes=10**8)
    words = str(refused.value)
    assert "need 3000.0 MB" in words
    assert "allows 100.0 MB" in words
    assert words.index("b.video: 3 x 1000.0 MB") < words.index("a.video: 1 x 0.0 MB")


def test_what_fits_is_counted() -> None:
    pool = size_port("a", OutputPort("video", video(64, 64), (SlotClass(4096, 10),), "ten"), [])
    assert check_memory([pool], limit_bytes=40960) == 40960


def test_available_memory_is_this_machines() -> None:
    available, origin = available_bytes()
    with open("/proc/meminfo") as meminfo:  # noqa: PTH123 - read as any other program would
        total = int(meminfo.readline().split()[1]) * 1024
    assert 0 < available <= total
    assert origin


def group(root: Path, path: str, **files: object) -> None:
    """One control group of a made-up machine."""
    folder = root / "sys/fs/cgroup" / path
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / f"memory.{name}").write_text(f"{value}\n")


def member_of(root: Path, lines: str) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(lines)
    return root


def test_the_limit_of_a_group_counts(tmp_path: Path) -> None:
    root = member_of(tmp_path, "0::/app.slice/run\n")
    group(root, "app.slice/run", max=50_000_000, current=20_000_000, stat="anon 5\ninactive_file 4000000")
    assert available_bytes(root) == (34_000_000, f"{root}/sys/fs/cgroup/app.slice/run/memory.max")


def test_a_group_above_may_allow_less(tmp_path: Path) -> None:
    root = member_of(tmp_path, "0::/app.slice/run\n")
    group(root, "app.slice/run", max="max", current=20_000_000, stat="inactive_file 0")
    group(root, "app.slice", max=30_000_000, current=25_000_000, stat="inactive_file 0")
    assert available_bytes(root) == (5_000_000, f"{root}/sys/fs/cgroup/app.slice/memory.max")


V1_LINES = "12:cpu,cpuacct:/docker/ab12\n5:memory:/docker/ab12\n1:name=systemd:/docker/ab12\n0::/docker/ab12\n"


def test_version_1_counts_where_version_2_has_no_limit(tmp_path: Path) -> None:
    """A container on a host with both mounted; its own group is mounted as the root."""
    root = member_of(tmp_path, V1_LINES)
    stat = "inactive_file 1\ntotal_inactive_file 2000000"
    group(root, "memory", limit_in_bytes=40_000_000, usage_in_bytes=10_000_000, stat=stat)
    assert available_bytes(root) == (32_000_000, f"{root}/sys/fs/cgroup/memory/memory.limit_in_bytes")


def test_version_1_without_a_limit_is_no_limit(tmp_path: Path) -> None:
    root = member_of(tmp_path, V1_LINES)
    group(root, "memory", limit_in_bytes=9223372036854771712, usage_in_bytes=10_000_000, stat="")
    assert available_bytes(root)[1] == "MemAvailable"


def test_a_group_that_is_full_leaves_nothing(tmp_path: Path) -> None:
    root = member_of(tmp_path, "0::/\n")
    group(root, ".", max=10_000_000, current=10_500_000, stat="inactive_file 0")
    assert available_bytes(root)[0] == 0


def test_no_groups_are_no_limit(tmp_path: Path) -> None:
    assert available_bytes(tmp_path)[1] == "MemAvailable"


def test_an_8k_frame_of_10_bits_fits_a_slot() -> None:
    """7680 x 4320 luma samples and half as many of chroma, 2 bytes each: 99,532,800 bytes are 24,300 pages."""
    form = VideoFormat(width=7680, height=4320, pixel_format=PixelFormat.P010LE, time_base=TimeBase(num=1, den=50))
    assert form.bytes_per_frame == 7680 * 4320 * 3 // 2 * 2 == 99_532_800 == 24_300 * 4096
    port = OutputPort("video", form, (SlotClass(form.bytes_per_frame, 1, shared_by_consumers=True),), "1 written")
    pool = size_port("decode", port, held_by_consumers=[1], queue_frames=1)
    assert pool.sizes[0].slot_bytes == 99_532_800
    assert pool.total_bytes == 298_598_400
    assert "3 x 99.5 MB = 298.6 MB (1 written + 1 held by the slowest consumer + 1 queued)" in pool.arithmetic()


MB = 1 << 20


def machine(root: Path, *, huge: int = 0, **nodes_kb: int) -> Path:
    """A made-up machine with so many free 2 MB pages, and nodes with so many kB free."""
    pages = root / "sys/kernel/mm/hugepages/hugepages-2048kB"
    pages.mkdir(parents=True)
    (pages / "free_hugepages").write_text(f"{huge}\n")
    for node, kilobytes in nodes_kb.items():
        folder = root / "sys/devices/system/node" / node
        folder.mkdir(parents=True)
        (folder / "meminfo").write_text(f"Node {node[4:]} MemFree: {kilobytes} kB\n")
    return root


def pool_of(*sizes: PortSize, huge_pages: bool = False) -> PortPool:
    return PortPool("scale", "video", sizes, "made up", huge_pages)


def test_each_node_has_to_have_what_lies_on_it(tmp_path: Path) -> None:
    root = machine(tmp_path, node0=30 * 1024, node1=100 * 1024)
    on = [PortSize(slot_bytes=10 * MB, slot_count=4, domain=f"node{node}") for node in (0, 1)]
    assert check_memory([pool_of(on[1])], root=root) == 40 * MB
    with pytest.raises(NotEnoughMemory) as refused:
        check_memory([pool_of(*on), pool_of(PortSize(slot_bytes=MB, slot_count=1))], root=root)
    words = str(refused.value)
    assert "need 41.9 MB, node0 (MemFree and Inactive(file) of" in words
    assert "has 31.5 MB" in words
    assert "scale.video: 4 x 10.5 MB + 4 x 10.5 MB" in words
    assert "1 x 1.0 MB" not in words, "pools that lie anywhere are not in the way"


def test_free_2_mb_pages_take_no_other_memory(tmp_path: Path) -> None:
    root = machine(tmp_path, huge=10)
    size = PortSize(slot_bytes=3 * MB, slot_count=6, slab_slots=3)  # two slabs of 9 MB: 5 pages each
    assert check_memory([pool_of(size, huge_pages=True)], limit_bytes=0, root=root) == 18 * MB
    with pytest.raises(NotEnoughMemory, match=r"need 18\.9 MB, the limit given allows 0\.0 MB"):
        check_memory([pool_of(size)], limit_bytes=0, root=root)
    # The third slab finds no pages, and needs ordinary memory.
    more = PortSize(slot_bytes=3 * MB, slot_count=9, slab_slots=3)
    with pytest.raises(NotEnoughMemory, match=r"need 9\.4 MB, the limit given allows 9\.4 MB"):
        check_memory([pool_of(more, huge_pages=True)], limit_bytes=9 * MB - 1, root=root)
    assert check_memory([pool_of(more, huge_pages=True)], limit_bytes=9 * MB, root=root) == 27 * MB


def test_large_classes_are_several_slabs() -> None:
    form = video(3840, 2160)  # 12,441,600 bytes: 3038 pages
    port = OutputPort("video", form, (SlotClass(form.bytes_per_frame, 2, shared_by_consumers=True),), "2 written")
    (size,) = size_port("decode", port, held_by_consumers=[5], queue_frames=6).sizes
    assert (size.slot_count, size.least_slots, size.slab_slots) == (13, 7, 4)
    (small,) = size_port("decode", port, held_by_consumers=[1], queue_frames=1).sizes
    assert (small.slot_count, small.least_slots, small.slab_slots) == (4, 3, 0)
    wish = size.wish(huge_pages=True)
    assert (wish.slot_count, wish.slab_slots, wish.huge_pages, wish.domain) == (13, 4, True, None)
