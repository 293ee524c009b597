"""Pool sizes and the refusal to start without memory."""

from __future__ import annotations

import mmap

import pytest

from dataplane.errors import NotEnoughMemory
from dataplane.operators.base import OutputPort, SlotClass
from dataplane.sizing import available_bytes, check_memory, size_port
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
