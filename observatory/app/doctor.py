"""What this machine allows, found out by trying, never by reading a version.

Each check does the smallest real thing of its kind and says whether it works, why not, and the mend.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from observatory.model.errors import MediaObservatoryError

LTTNG_AT_ONCE = {"LTTNG_UST_REGISTER_TIMEOUT": "0"}  # not waiting for a session daemon


class Finding(BaseModel):
    """One check. `reason` says what was tried, or why it does not work; `mend` what would help, if anything."""

    model_config = ConfigDict(frozen=True)

    works: bool
    reason: str
    mend: str | None = None


class Report(BaseModel):
    """All checks by area."""

    model_config = ConfigDict(frozen=True)

    tracers: dict[str, Finding]
    receivers: dict[str, Finding]
    actuators: dict[str, Finding]
    dataplane: dict[str, Finding]
    media: dict[str, Finding]
    inputs: dict[str, Finding]


def examine() -> Report:
    """Run all checks; none of them leaves anything behind."""
    return Report(
        tracers={"shm": _try(_shm_tracer), "usdt": _try(_usdt_tracer), "lttng": _try(_lttng_tracer)},
        receivers={"sysfs": _try(_sysfs), "ebpf-links": _try(_ebpf_links), **_receivers()},
        actuators={},
        dataplane={
            "ring": _try(_ring),
            "futex_waitv": _try(_futex_waitv),
            "huge_pages": _try(_huge_pages),
            "numa": _try(_numa),
            "memory": _try(_memory),
        },
        media={codec: _try(partial(_encoder, codec)) for codec in ("libx264", "libx265", "libsvtav1", "libvpx-vp9")},
        inputs={"udp": _try(_udp), "srt": _try(_srt)},
    )


def _try(check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except MediaObservatoryError as error:
        return Finding(works=False, reason=str(error), mend=error.mend)
    except Exception as error:  # whatever a probe of the machine throws is its finding
        return Finding(works=False, reason=f"{type(error).__name__}: {error}")


def _shm_tracer() -> Finding:
    from dataplane import _ring
    from observatory.model.event import EventKind

    ring = _ring.EventRing.create(64)
    writer = _ring.EventRing.attach(ring.fd)
    try:
        writer.emit(EventKind.FENCE_SIGNAL, _ring.monotonic_ns(), 7, 7, (1, 25), 0, 1, 0, 0, 1, 0)
        seen = ring.drain()
        if len(seen) != 1 or int(seen["source_index"][0]) != 7:
            return Finding(works=False, reason=f"wrote one event, read back {len(seen)}")
    finally:
        writer.close()
        ring.close()
    return Finding(works=True, reason="wrote an event through shared memory and read it back; needs no privilege")


def _usdt_tracer() -> Finding:
    from dataplane import _ring

    if not _ring.probes_built()["usdt"]:
        mend = "install systemtap-sdt-dev and start script/bootstrap"
        return Finding(works=False, reason="the native module was built without static probes", mend=mend)
    if os.geteuid() != 0:
        reason = f"the probes are in {_ring.__file__}, but attaching to them takes root"
        return Finding(works=False, reason=reason, mend="run the tracer as root")
    events = Path("/sys/kernel/tracing/uprobe_events")
    if not events.exists():
        mend = "mount -t tracefs tracefs /sys/kernel/tracing"
        return Finding(works=False, reason="tracefs is not mounted, or the kernel has no uprobes", mend=mend)
    return Finding(works=True, reason=f"probes of provider observatory in {_ring.__file__}; the kernel has uprobes")


def _lttng_tracer() -> Finding:
    from dataplane import _ring

    if not _ring.probes_built()["lttng"]:
        mend = "install liblttng-ust-dev and start script/bootstrap"
        return Finding(works=False, reason="the native module was built without LTTng", mend=mend)
    # In a process of its own: LTTng's threads stay where it was loaded.
    script = "from dataplane import _ring; _ring.load_lttng_provider()"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, env={**os.environ, **LTTNG_AT_ONCE})
    if done.returncode != 0:
        words = (done.stderr.strip().splitlines() or ["it does not load"])[-1]
        return Finding(works=False, reason=words, mend="install liblttng-ust1")
    if shutil.which("lttng-sessiond") is None:
        reason = "the tracepoints load, but there is no session daemon to record them"
        return Finding(works=False, reason=reason, mend="install lttng-tools")
    return Finding(works=True, reason="the tracepoints load; workers do it with OBSERVATORY_LTTNG=1")


def _ring() -> Finding:
    from dataplane import _ring
    from observatory.model.media import PayloadKind

    producer = _ring.RingProducer(capacity=8, size_classes=[_ring.SizeClass(4096, 2)])
    consumer = _ring.RingConsumer()
    try:
        producer.admit(consumer.page_fd, "block")
        consumer.attach(producer.ring_fd, producer.slab_fds, producer.slab_slot_bytes)
        lease = producer.acquire(16, 1.0)
        if lease is None:
            return Finding(works=False, reason="no slot of an empty pool within 1 s")
        lease.array[:16] = 42
        lease.publish(_ring.Descriptor(payload_kind=PayloadKind.VIDEO_PACKET, source_index=0), 16)
        taken = consumer.take(1.0)
        if taken is None or int(taken.array[0]) != 42:
            return Finding(works=False, reason="published a frame, did not read it back")
        taken.release()
    finally:
        consumer.close()
        producer.close()
    return Finding(works=True, reason="sealed memfds, futexes: one frame went through a ring without a copy")


def _futex_waitv() -> Finding:
    from dataplane import _ring

    works = _ring.has_futex_waitv()
    if works:
        return Finding(works=True, reason="several inputs are waited for in one system call")
    return Finding(
        works=False, reason="the kernel refuses it; several inputs are polled every millisecond", mend="Linux 5.16"
    )


def _huge_pages() -> Finding:
    from dataplane import _ring

    producer = _ring.RingProducer(capacity=8, size_classes=[_ring.SizeClass(2 << 20, 1, True)])
    try:
        (made,) = producer.size_classes
    finally:
        producer.close()
    if made.huge_pages:
        kind = "of the hugetlb pool" if made.pages == "hugetlb" else "that the kernel made of shared memory"
        return Finding(works=True, reason=f"got a 2 MB page {kind}")
    return Finding(
        works=False, reason="none is free; pools use 4 KiB pages", mend="as root: sysctl vm.nr_hugepages=512"
    )


def _numa() -> Finding:
    from dataplane import _ring

    nodes = _ring.memory_nodes()
    if not nodes:
        return Finding(works=False, reason="the kernel lists no NUMA nodes; pools lie where the kernel puts them")
    producer = _ring.RingProducer(capacity=8, size_classes=[_ring.SizeClass(4096, 1, domain=f"node{nodes[-1]}")])
    try:
        (made,) = producer.size_classes
    finally:
        producer.close()
    if made.note is not None:
        return Finding(works=False, reason=made.note, mend="allow mbind (a container's seccomp profile forbids it)")
    return Finding(works=True, reason=f"{len(nodes)} node(s) with memory; a page bound to node{nodes[-1]} lies there")


def _memory() -> Finding:
    from dataplane.sizing import available_bytes

    available, origin = available_bytes()
    return Finding(works=True, reason=f"pools may take {available / 1e9:.1f} GB ({origin})")


def _sysfs() -> Finding:
    root = Path(os.environ.get("SYSFS_ROOT", "/sys"))
    count = len(list((root / "devices/system/cpu").glob("cpu[0-9]*")))
    if count == 0:
        return Finding(works=False, reason=f"{root} lists no processor", mend="mount sysfs, or set SYSFS_ROOT")
    return Finding(works=True, reason=f"{root} lists {count} processors")


def _receivers() -> dict[str, Finding]:
    from observatory.app.receiver_checks import check_receivers

    return check_receivers(but={"ebpf-links"})


def _ebpf_links() -> Finding:
    from observatory.receivers.ebpf_links import EbpfLinks
    from observatory.receivers.ebpf_probe import program_kinds
    from observatory.receivers.protocol import ReceiverContext

    async def look() -> int:
        receiver = EbpfLinks()
        try:
            await receiver.open(ReceiverContext("here"))
            return len(await receiver.poll())
        finally:
            await receiver.close()

    seen = asyncio.run(look())
    kinds = program_kinds()
    taken = ", ".join(kind for kind, refusal in kinds.items() if refusal is None)
    refused = "".join(f"; {kind} is not: {refusal}" for kind, refusal in kinds.items() if refusal is not None)
    return Finding(works=True, reason=f"attached its programs, read {seen} values; taken are {taken}{refused}")


def _udp() -> Finding:
    from dataplane.operators.addresses import RECEIVE_BUFFER_BYTES
    from dataplane.operators.datagram_losses import ENOUGH_BYTES

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.settimeout(1.0)
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        # The kernel says twice what it gives, for its own book-keeping.
        granted = receiver.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2
        receiver.bind(("127.0.0.1", 0))
        receiver.sendto(b"a frame", receiver.getsockname())
        if receiver.recv(16) != b"a frame":
            return Finding(works=False, reason="sent a datagram to this machine, received another")
    if granted >= ENOUGH_BYTES:
        return Finding(works=True, reason=f"received a datagram; {granted / 1e6:.1f} MB may wait for a busy decoder")
    return Finding(
        works=True,
        reason=f"received a datagram, but only {granted / 1e3:.0f} kB may wait for a busy decoder",
        mend=f"as root: sysctl -w net.core.rmem_max={RECEIVE_BUFFER_BYTES}",
    )


def _srt() -> Finding:
    from dataplane.srt_gateway import PROGRAM

    try:
        said = subprocess.run([PROGRAM, "-version"], capture_output=True, text=True, timeout=10, check=False)
    except FileNotFoundError:
        return Finding(works=False, reason=f"{PROGRAM} is not installed", mend="apt-get install srt-tools")
    lines = (said.stdout + said.stderr).splitlines()
    return Finding(works=said.returncode == 0, reason=lines[0] if lines else f"{PROGRAM} ran and said nothing")


def _encoder(codec: str) -> Finding:
    from av import CodecContext, VideoFrame
    from av.video.codeccontext import VideoCodecContext

    from dataplane.operators.encoder import ordinary_threads

    context = CodecContext.create(codec, "w")
    assert isinstance(context, VideoCodecContext)
    context.width, context.height, context.pix_fmt = 64, 64, "yuv420p"
    context.time_base, context.framerate = Fraction(1, 25), Fraction(25)
    # Both would write about themselves beside the report.
    os.environ.setdefault("SVT_LOG", "1")
    if codec == "libx265":
        context.options = {"x265-params": "log-level=error"}
    frame = VideoFrame(64, 64, "yuv420p")
    for plane in frame.planes:
        plane.update(bytes(plane.buffer_size))
    frame.pts = 0
    with ordinary_threads():
        size = sum(packet.size for packet in [*context.encode(frame), *context.encode(None)])
    return Finding(works=size > 0, reason=f"encoded one frame into {size} bytes")
