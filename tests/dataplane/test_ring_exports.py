"""What strangers make of a lease: buffers, arrays, DLPack. None outlives the right to look, none copies unasked."""

from __future__ import annotations

import array
import ctypes
import gc
import hashlib
import io
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dataplane._ring import Descriptor, LeaseError, ReadLease, RingConsumer, RingError, RingProducer, WriteLease
from observatory.model.media import PayloadKind, PixelFormat

from .rings import PAGE, frame, put, ring

Lease = ReadLease | WriteLease

frombuffer: Any = np.frombuffer  # its types name a few kinds of buffers only

EXPORTS: dict[str, Callable[[Lease], Any]] = {
    "memoryview": memoryview,
    "slice of a memoryview": lambda lease: memoryview(lease)[2:5],
    "cast memoryview": lambda lease: memoryview(lease).cast("I"),
    "array": lambda lease: lease.array,
    "view of an array": lambda lease: lease.array[4:8].view("<u4"),
    "numpy.asarray": np.asarray,
    "numpy.frombuffer": lambda lease: frombuffer(lease, np.uint16),
    "numpy.from_dlpack": np.from_dlpack,
    "DLPack capsule": lambda lease: lease.__dlpack__(max_version=(1, 0)),
    "in a cycle": lambda lease: knot(lease.array),
}


def knot(thing: object) -> list[object]:
    """Something that only the garbage collector can free."""
    tied: list[object] = [thing]
    tied.append(tied)
    return tied


def written(producer: RingProducer) -> WriteLease:
    lease = producer.acquire(PAGE, 0.0)
    assert lease is not None
    return lease


def read(consumer: RingConsumer) -> ReadLease:
    lease = consumer.take(0.0)
    assert lease is not None
    return lease


@pytest.mark.parametrize("export", EXPORTS.values(), ids=EXPORTS.keys())
def test_no_export_outlives_a_read_lease(export: Callable[[Lease], Any]) -> None:
    with ring() as (producer, (consumer,)):
        put(producer, 1)
        lease = read(consumer)
        shown = export(lease)
        with pytest.raises(LeaseError, match=r"1 view\(s\) alive"):
            lease.release()
        assert consumer.acked == 0
        del shown
        gc.collect()
        lease.release()
        assert consumer.acked == 1
        with pytest.raises(LeaseError, match="released"):
            export(lease)


@pytest.mark.parametrize("export", EXPORTS.values(), ids=EXPORTS.keys())
def test_no_export_outlives_a_write_lease(export: Callable[[Lease], Any]) -> None:
    with ring(slots=1) as (producer, _):
        lease = written(producer)
        shown = export(lease)
        with pytest.raises(LeaseError, match=r"1 view\(s\) alive"):
            lease.publish(frame(0), 1)
        assert producer.tail == 0
        del shown
        gc.collect()
        lease.publish(frame(0), 1)
        with pytest.raises(LeaseError, match="published"):
            export(lease)


@pytest.mark.parametrize("export", EXPORTS.values(), ids=EXPORTS.keys())
def test_an_export_keeps_what_it_shows(export: Callable[[Lease], Any]) -> None:
    """Whatever goes first: the lease, the consumer, the producer. The slot is lent again after the export only."""
    with ring(slots=1) as (producer, (consumer,)):
        shown = export(written(producer))
        gc.collect()
        assert producer.free_slots == 0
        del shown
        gc.collect()
        assert producer.free_slots == 1
        put(producer, 0x05040302)
        shown = export(read(consumer))
        gc.collect()
        consumer.close()
        producer.close()
        if hasattr(shown, "__getitem__") and not isinstance(shown, list):
            assert int(shown[0]) >= 0  # still mapped: a fault would end this process
        del shown
        gc.collect()


def test_buffers_say_what_may_be_done_with_them() -> None:
    with ring() as (producer, (consumer,)):
        lease = written(producer)
        with memoryview(lease) as view:
            assert (view.readonly, view.nbytes, view.format, view.ndim) == (False, PAGE, "B", 1)
            assert io.BytesIO(b"abcdef").readinto(view) == 6
        lease.publish(frame(0), 6)
        taken = read(consumer)
        with memoryview(taken) as view:
            assert (view.readonly, view.nbytes, view.format) == (True, 6, "B")
            with pytest.raises(TypeError, match="read-only"):
                view[0] = 1
        assert bytes(taken) == b"abcdef"
        assert bytearray(taken) == b"abcdef"
        assert hashlib.sha256(taken).digest() == hashlib.sha256(b"abcdef").digest()
        assert b"".join([b"<", taken, b">"]) == b"<abcdef>"
        file = io.BytesIO()
        assert file.write(taken) == 6
        assert array.array("B", bytes(taken))[5] == ord("f")
        with pytest.raises((TypeError, BufferError), match=r"read-only|writable|read-write"):
            io.BytesIO(b"x").readinto(taken)
        taken.release()  # none of them stayed


def test_numpy_sees_read_only_where_it_is() -> None:
    with ring() as (producer, (consumer,)):
        lease = written(producer)
        for view in (np.asarray(lease), np.from_dlpack(lease), lease.array):
            assert view.flags.writeable
            view[:3] += 1
        del view
        lease.publish(frame(0), 4)
        taken = read(consumer)
        for view in (np.asarray(taken), np.from_dlpack(taken), frombuffer(taken, np.uint8), taken.array):
            assert view.tolist() == [3, 3, 3, 0]
            with pytest.raises(ValueError, match="read-only"):
                view[0] = 1
            with pytest.raises(ValueError, match="WRITEABLE"):
                view.flags.writeable = True
        del view
        taken.release()


def test_copies_are_made_when_asked_for() -> None:
    with ring() as (producer, (consumer,)):
        put(producer, 9)
        taken = read(consumer)
        copies = [
            taken.copy(),
            np.array(taken),
            np.asarray(taken, dtype=np.int32),
            np.array(taken, copy=True),
            np.from_dlpack(taken, copy=True),
        ]
        taken.release()
        for copy in copies:
            assert copy.tolist() == [9, 0, 0, 0, 0, 0, 0, 0]
            assert copy.flags.writeable
            copy[0] = 1


def test_dlpack_follows_the_standard() -> None:
    with ring() as (producer, (consumer,)):
        lease = written(producer)
        assert lease.__dlpack_device__() == (1, 0)
        assert "dltensor_versioned" in repr(lease.__dlpack__(max_version=(1, 0)))
        assert '"dltensor"' in repr(lease.__dlpack__())  # writable: DLPack 0 can say that
        lease.publish(frame(0), 8)
        taken = read(consumer)
        assert taken.__dlpack_device__() == (1, 0)
        for old in ({}, {"max_version": None}, {"max_version": (0, 8)}):
            with pytest.raises(BufferError, match="read-only"):
                taken.__dlpack__(**old)
            assert '"dltensor"' in repr(taken.__dlpack__(copy=True, **old))
        assert "dltensor_versioned" in repr(taken.__dlpack__(max_version=(2, 0), dl_device=(1, 0), copy=False))
        with pytest.raises(BufferError, match="CPU"):
            taken.__dlpack__(max_version=(1, 0), dl_device=(2, 0))
        with pytest.raises(ValueError, match="stream"):
            taken.__dlpack__(stream=1)  # type: ignore[arg-type]
        taken.release()  # capsules that nobody opened let go too


def test_a_capsule_says_read_only_to_whoever_reads_it() -> None:
    """The struct itself, read as any C library would."""

    class Managed(ctypes.Structure):
        _fields_ = (
            ("major", ctypes.c_uint32),
            ("minor", ctypes.c_uint32),
            ("context", ctypes.c_void_p),
            ("deleter", ctypes.c_void_p),
            ("flags", ctypes.c_uint64),
            ("data", ctypes.c_void_p),
            ("device_type", ctypes.c_int32),
            ("device_id", ctypes.c_int32),
            ("ndim", ctypes.c_int32),
            ("code", ctypes.c_uint8),
            ("bits", ctypes.c_uint8),
            ("lanes", ctypes.c_uint16),
            ("shape", ctypes.POINTER(ctypes.c_int64)),
            ("strides", ctypes.POINTER(ctypes.c_int64)),
            ("byte_offset", ctypes.c_uint64),
        )

    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]

    def opened(capsule: object) -> Managed:
        return Managed.from_address(pointer_of(capsule, b"dltensor_versioned"))

    with ring() as (producer, (consumer,)):
        lease = written(producer)
        capsule = lease.__dlpack__(max_version=(1, 0))
        assert opened(capsule).flags == 0
        del capsule
        put_at = lease.array.__array_interface__["data"][0]
        lease.publish(frame(0), 24)
        taken = read(consumer)
        capsule = taken.__dlpack__(max_version=(1, 0))
        said = opened(capsule)
        assert (said.major, said.flags) == (1, 1)
        assert (said.device_type, said.device_id, said.ndim, said.shape[0], said.strides[0]) == (1, 0, 1, 24, 1)
        assert (said.code, said.bits, said.lanes, said.byte_offset) == (1, 8, 1, 0)
        assert said.data == taken.array.__array_interface__["data"][0] != put_at  # the reader's own mapping
        del capsule
        capsule = taken.__dlpack__(max_version=(1, 0), copy=True)
        assert opened(capsule).flags == 2
        taken.release()


def picture(pixel_format: PixelFormat, planes: list[tuple[int, int]], width: int, height: int) -> Descriptor:
    return Descriptor(
        payload_kind=PayloadKind.VIDEO_FRAME, pixel_format=pixel_format, width=width, height=height, planes=planes
    )


@pytest.mark.parametrize(
    ("pixel_format", "planes", "shapes", "dtype"),
    [
        (PixelFormat.YUV420P, [(0, 16), (80, 8), (104, 8)], [(5, 6), (3, 3), (3, 3)], "u1"),
        (PixelFormat.NV12, [(0, 16), (80, 16)], [(5, 6), (3, 3, 2)], "u1"),
        (PixelFormat.YUV420P10LE, [(0, 16), (80, 8), (104, 8)], [(5, 6), (3, 3), (3, 3)], "<u2"),
        (PixelFormat.P010LE, [(0, 16), (80, 16)], [(5, 6), (3, 3, 2)], "<u2"),
    ],
    ids=lambda value: value.name if isinstance(value, PixelFormat) else "",
)
def test_planes_have_the_shape_of_the_picture(
    pixel_format: PixelFormat, planes: list[tuple[int, int]], shapes: list[tuple[int, ...]], dtype: str
) -> None:
    """Odd sizes, padded rows. A sample is found where offset, stride and size say, worked out here byte by byte."""
    size = 128
    said = picture(pixel_format, planes, 6, 5)
    with ring() as (producer, (consumer,)):
        lease = written(producer)
        lease.array[:size] = np.arange(size)
        for plane in lease.planes(said):
            plane[0, 0] = 200
        del plane
        lease.publish(said, size)
        taken = read(consumer)
        raw = bytes(taken)
        item = np.dtype(dtype).itemsize
        for plane, shape, (offset, stride) in zip(taken.planes, shapes, planes, strict=True):
            assert plane.shape == shape
            assert plane.dtype == dtype
            assert not plane.flags.writeable
            assert np.shares_memory(plane, taken.array)
            together = shape[2] if len(shape) == 3 else 1
            for row in range(shape[0]):
                for place in range(shape[1]):
                    for part in range(together):
                        at = offset + row * stride + (place * together + part) * item
                        expected = int.from_bytes(raw[at : at + item], "little")
                        assert int(plane[(row, place, part)[: len(shape)]]) == expected
        assert int(taken.planes[0][0, 0]) == 200
        with pytest.raises(LeaseError, match="1 view"):
            taken.release()
        del plane
        taken.release()


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (picture(PixelFormat.YUV420P, [(0, 4)], 6, 5), "rows of 6 bytes, but a stride of 4"),
        (picture(PixelFormat.P010LE, [(0, 16), (81, 16)], 6, 5), "odd byte"),
        (picture(PixelFormat.P010LE, [(0, 13)], 6, 5), "odd byte"),
        (picture(PixelFormat.NONE, [(0, 8)], 6, 5), "no pixel format"),
        (picture(PixelFormat.NV12, [], 6, 5), "no planes"),
    ],
)
def test_planes_that_cannot_be_are_refused(said: Descriptor, problem: str) -> None:
    with ring() as (producer, (consumer,)):
        lease = written(producer)
        with pytest.raises(RingError, match=problem):
            lease.planes(said)
        lease.publish(said, PAGE)
        taken = read(consumer)
        with pytest.raises(RingError, match=problem):
            _ = taken.planes
        taken.release()


def test_planes_to_write_lie_within_the_slot() -> None:
    outside = pytest.raises(RingError, match=f"within the {PAGE} bytes")
    with ring() as (producer, _), written(producer) as lease, outside:
        lease.planes(picture(PixelFormat.YUV420P, [(PAGE - 4, 8)], 6, 5))


def test_a_lost_frame_shows_nothing() -> None:
    with ring() as (producer, (consumer,)):
        producer.publish_empty(Descriptor(payload_kind=PayloadKind.FRAME_LOST, source_index=1), 0.0)
        taken = read(consumer)
        assert bytes(taken) == b""
        for shown in (taken.array, np.from_dlpack(taken), taken.copy(), np.asarray(taken)):
            assert shown.shape == (0,)
        del shown
        taken.release()


def test_an_exception_keeps_the_frame_and_its_views() -> None:
    with ring() as (producer, (consumer,)):
        put(producer, 3)
        lease = read(consumer)

        def fail() -> None:
            with lease:
                view = lease.array
                raise ZeroDivisionError(str(view[0]))

        with pytest.raises(ZeroDivisionError) as caught:
            fail()
        assert consumer.held == 1
        with pytest.raises(LeaseError, match="alive"):
            lease.release()  # the traceback's frames hold the view
        del caught
        gc.collect()
        lease.release()


def test_leases_are_not_made_by_hand() -> None:
    for kind in (ReadLease, WriteLease):
        for make in (kind, lambda kind=kind: kind.__new__(kind), lambda kind=kind: object.__new__(kind)):
            with pytest.raises(TypeError):
                make()


def test_the_interpreter_ends_under_exports() -> None:
    """Whatever is still shown when the process ends: it ends cleanly."""
    script = """
import numpy as np
from tests.dataplane.rings import frame, put, ring
kept = []
manager = ring(slots=4)
producer, (consumer,) = manager.__enter__()
for index in range(3):
    put(producer, index)
writing = producer.acquire(8, 0.0)
reading = [consumer.take(0.0) for _ in range(3)]
kept += [memoryview(writing), writing.array, np.from_dlpack(writing), writing.__dlpack__()]
kept += [memoryview(reading[0]), reading[0].array, np.from_dlpack(reading[1])]
kept.append(reading[2].__dlpack__(max_version=(1, 0)))
kept.append(kept)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
