"""Native core of the dataplane: pool, broadcast ring, consumer pages, event ring, record assembler.

Every call that can sleep releases the GIL, takes a timeout, and returns None when it ran out. Python code normally
uses `dataplane.ring`, `dataplane.pool` and `dataplane.operators`, which wrap these.
"""

import builtins
from collections.abc import Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

class RingError(Exception):
    """A system call failed or a peer's layout is not ours; the message says which and why."""

class FenceBroken(RingError):
    """The value waited for will never be reached: the signaller died or closed the fence, or the kernel's fence failed.

    `pid` is the signaller's (as it sees itself; None for a fence of the kernel), `value` the last one that was reached,
    `errno` the error of the kernel's fence (None otherwise).
    """

    pid: int | None
    value: int
    errno: int | None

class LeaseError(Exception):
    """A lease was used after its end, or ended while arrays made from it are still alive."""

class RingEnded(Exception):
    """The producer finished (or was declared dead) and everything up to `final_seq` was taken.

    `reason` is one of "end_of_stream", "stopped", "failed", "migrated" (another ring follows), "cut" (what follows is
    for another consumer); `final_seq` the first sequence that never was.
    """

    reason: str
    final_seq: int

def layouts() -> dict[str, dict[str, Any]]:
    """`{struct: {"size": n, "version": v, "fields": {name: offset}}}` straight from the C++ compiler."""

def monotonic_ns() -> int:
    """CLOCK_MONOTONIC, nanoseconds."""

def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel to SIGKILL this process when its parent dies (PR_SET_PDEATHSIG); raises RingError when the
    parent is gone already (it is no longer `parent_pid`).
    """

def has_futex_waitv() -> bool:
    """Whether the kernel can sleep on several words at once (Linux 5.16); without it such sleeps poll every
    millisecond.
    """

def available_memory(root: str = "") -> tuple[int, str]:
    """Bytes that slabs may take, and which limit that is: the smallest of MemAvailable and what is left under the
    memory limit of each control group that this process is in (version 1 and 2, its own and those above). `root` goes
    before every path under /proc and /sys.
    """

def memory_nodes(root: str = "") -> tuple[int, ...]:
    """The NUMA nodes that have memory; none where the kernel does not say."""

def node_memory(node: int, root: str = "") -> tuple[int, str] | None:
    """Bytes that one node could give (MemFree and Inactive(file)), and where that number is from; None: no such
    node.
    """

def free_hugetlb_bytes(node: int | None = None, root: str = "") -> int:
    """Bytes of the 2 MB pages that nobody has taken or been promised, of one node or of all."""

@final
class SizeClass:
    """Slots of one size as wanted: `slot_count` slots of `slot_bytes` (rounded up to whole pages), in sealed memfds.

    `slab_slots`: at most so many slots in one memfd (0: all in one). Memory is given back a slab at a time.
    `domain`: where the memory is to lie. None: wherever the kernel puts it; "nodeN": on that NUMA node;
    "emulated:DEVICE": the memory of a device that is a model only, for which the host's stands in. Memory of real
    devices is refused: there is no driver for any.

    Memory is taken page by page as slots are first written, and a machine that runs out ends the process then. With
    `reserve`, and always with `huge_pages` or on a node, all of it is taken when the producer is made, or RingError
    says what is missing. `huge_pages`: 2 MB pages of the hugetlb pool; where there are not enough, transparent ones
    where the kernel makes them; else 4 KiB pages.
    """

    def __init__(
        self,
        slot_bytes: int,
        slot_count: int,
        huge_pages: bool = False,
        *,
        reserve: bool = False,
        slab_slots: int = 0,
        domain: str | None = None,
    ) -> None: ...
    @property
    def slot_bytes(self) -> int: ...
    @property
    def slot_count(self) -> int: ...
    @property
    def huge_pages(self) -> bool: ...
    @property
    def reserve(self) -> bool: ...
    @property
    def slab_slots(self) -> int: ...
    @property
    def domain(self) -> str | None: ...

@final
class MadeClass:
    """A size class as it could be made."""

    @property
    def slot_bytes(self) -> int:
        """Rounded up to whole pages of 4 KiB."""
    @property
    def slot_count(self) -> int: ...
    @property
    def slab_slots(self) -> int:
        """Slots in each slab but the last, which may have fewer."""
    @property
    def slab_count(self) -> int: ...
    @property
    def slab_bytes(self) -> int:
        """Of all slabs of the class, with what lies behind their last slots."""
    @property
    def waste_bytes(self) -> int:
        """Of 2 MB pages: what lies behind the last slots."""
    @property
    def reserved(self) -> bool:
        """Whether all memory is there already."""
    @property
    def page_bytes(self) -> int:
        """4096 or 2 MiB."""
    @property
    def pages(self) -> str:
        """How 2 MB pages were had: "hugetlb", "thp" (transparent), or "none"."""
    @property
    def huge_pages(self) -> bool:
        """Whether they are 2 MB pages."""
    @property
    def domain(self) -> str | None:
        """Where the pages were found to lie: "nodeN" or "mixed"; None when there are none yet, or the kernel does not
        say.
        """
    @property
    def note(self) -> str | None:
        """What was asked for and could not be had, and why; None: nothing."""

@final
class ClassStats:
    """One size class now. Bytes that are resident are in memory or in swap."""

    @property
    def made(self) -> MadeClass: ...
    @property
    def in_use(self) -> int:
        """Slots that are being written, or published and not acknowledged by all."""
    @property
    def high_water(self) -> int:
        """Most slots in use at a time since the last look that reset it."""
    @property
    def payload_bytes(self) -> int:
        """Used bytes of the slots in use."""
    @property
    def internal_bytes(self) -> int:
        """Internal fragmentation: `in_use * slot_bytes - payload_bytes`."""
    @property
    def resident_bytes(self) -> int: ...
    @property
    def external_bytes(self) -> int:
        """External fragmentation: over the slabs with a slot in use, what is resident beyond `in_use * slot_bytes` of
        the slab. It cannot be given back.
        """
    @property
    def idle_bytes(self) -> int:
        """Resident bytes of the slabs with no slot in use: a slab at a time, these could be given back."""

@final
class PoolStats:
    """A port's pool now, and how its allocations went since it was made: each counts once, in one of these.

    An allocation that found nothing and is tried again is the same one.
    """

    @property
    def classes(self) -> tuple[ClassStats, ...]: ...
    @property
    def hits(self) -> int:
        """Got a slot of the right class at once."""
    @property
    def fallbacks(self) -> int:
        """Got one of a bigger class at once: the right class had none."""
    @property
    def reclaims(self) -> int:
        """Got one at once, because drop_oldest took older frames away."""
    @property
    def waits_for_slot(self) -> int:
        """Found no slot at first."""
    @property
    def waits_for_descriptor(self) -> int:
        """Found no descriptor at first."""
    @property
    def too_big(self) -> int:
        """Refused with RingError: no class has slots that big. In no rate."""
    @property
    def hit_rate(self) -> float | None:
        """Hits of all the others but `too_big`, 0 to 1; None before the first."""

def probes_built() -> dict[str, bool]:
    """What this module was built with: {"usdt": static probes, "lttng": LTTng tracepoints as well}."""

def load_lttng_provider() -> None:
    """Load LTTng's side of the probes (libobservatory-lttng.so beside this module, and LTTng with it) into this
    process; never before a fork. RingError when it was not built or LTTng is not installed. With OBSERVATORY_LTTNG=1,
    attaching an event ring does the same and only says on stderr what went wrong.
    """

@final
class EventRing:
    """Event ring of one traced process. The collector creates it and keeps `fd`; the traced process attaches to it."""

    @staticmethod
    def create(capacity: int) -> EventRing:
        """A new ring (memfd, sealed against resizing); `capacity` is rounded up to a power of two."""
    @staticmethod
    def attach(fd: int) -> EventRing:
        """Map an existing ring; the fd may be closed afterwards. Raises RingError for another layout."""
    @property
    def fd(self) -> int:
        """Of the ring's creator; RingError on an attached ring, which keeps none."""
    @property
    def capacity(self) -> int: ...
    @property
    def written(self) -> int: ...
    @property
    def lost(self) -> int:
        """Events refused because the ring was full (and at least those of a ring whose writer garbled its counter)."""
    def emit(
        self,
        kind: int,
        time_ns: int,
        source_index: int,
        pts: int,
        time_base: tuple[int, int],
        stream: int,
        epoch: int,
        place: int,
        slot: int,
        bytes: int,
        device: int,
    ) -> bool:
        """Write one event (one writer only). False when the ring was full."""
    def drain(self, limit: int = 65536) -> npt.NDArray[np.void]:
        """Take up to `limit` events: structured array, dtype as `observatory.model.event.EVENT_DTYPE` (a copy)."""
    def close(self) -> None: ...

@final
class Trace:
    """Where a port's or an edge's events go and how they are labelled; `epoch` is that of frames that say none."""

    def __init__(self, events: EventRing, stream: int, epoch: int, place: int, device: int) -> None: ...

@final
class Descriptor:
    """What a producer says about a payload when publishing, and what a consumer reads: fields of `mo_descriptor`.

    All fields can be given to the constructor by keyword; those not given are unknown (INT64_MIN, 2**64-1, ...) or 0.
    `planes` is a sequence of (offset, stride) pairs, at most 4.
    """

    def __init__(
        self,
        *,
        payload_kind: int,
        source_index: int = ...,
        pts: int = ...,
        dts: int = ...,
        duration: int = ...,
        time_base: tuple[int, int] = (0, 1),
        stream_index: int = 0,
        pixel_format: int = 0,
        width: int = 0,
        height: int = 0,
        planes: Sequence[tuple[int, int]] = (),
        color: tuple[int, int, int, int] = (2, 2, 2, 0),
        sample_aspect: tuple[int, int] = (0, 1),
        flags: int = 0,
        parent_count: int = 0,
        epoch: int = 0,
    ) -> None:
        """`color` is (primaries, transfer, matrix, range): H.273 code points, 2 is unspecified; range 0 unknown.

        `epoch` labels the frame's events on both sides of the ring; 0: each side's `Trace` says it. What is made from
        a frame takes its epoch over.
        """
    @property
    def sequence(self) -> int: ...
    @property
    def payload_kind(self) -> int: ...
    @property
    def source_index(self) -> int: ...
    @property
    def pts(self) -> int: ...
    @property
    def dts(self) -> int: ...
    @property
    def duration(self) -> int: ...
    @property
    def time_base(self) -> tuple[int, int]: ...
    @property
    def stream_index(self) -> int: ...
    @property
    def pixel_format(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def height(self) -> int: ...
    @property
    def planes(self) -> tuple[tuple[int, int], ...]: ...
    @property
    def color(self) -> tuple[int, int, int, int]: ...
    @property
    def sample_aspect(self) -> tuple[int, int]: ...
    @property
    def flags(self) -> int: ...
    @property
    def parent_count(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def slab(self) -> int: ...
    @property
    def slot(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def alloc_ns(self) -> int:
        """When its slot was acquired; this and the next two are unknown (INT64_MIN) where the port is not traced."""
    @property
    def launch_ns(self) -> int: ...
    @property
    def signal_ns(self) -> int:
        """When it was published."""
    def to_bytes(self) -> builtins.bytes:
        """The raw struct (256 bytes), for tests of the codec."""
    @staticmethod
    def from_bytes(raw: builtins.bytes) -> Descriptor:
        """Inverse of `to_bytes`; RingError when the length is wrong or a field is out of range (planes > 4, kind)."""

@final
class WriteLease:
    """A slot in state WRITING, owned by the producer until `publish` or `abandon`. Also a context manager: leaving
    the block without publishing abandons.

    The slot can be had as a NumPy array (`array`, `planes`, `numpy.asarray(lease)`), as a writable buffer
    (`memoryview(lease)`) and through DLPack (`torch.from_dlpack(lease)`), each without a copy. While one of them is
    alive, `publish` raises LeaseError: what was published must not change any more.
    """

    @property
    def slab(self) -> int: ...
    @property
    def slot(self) -> int: ...
    @property
    def capacity_bytes(self) -> int: ...
    @property
    def alloc_ns(self) -> int | None:
        """When the slot was acquired, CLOCK_MONOTONIC; None where the port was not traced then."""
    @property
    def array(self) -> npt.NDArray[np.uint8]:
        """The slot, writable, shape (capacity_bytes,), no copy. LeaseError after the lease has ended."""
    def planes(self, descriptor: Descriptor) -> tuple[npt.NDArray[np.uint8] | npt.NDArray[np.uint16], ...]:
        """The slot as `descriptor` lays it out, writable, shaped as `ReadLease.planes` says. RingError when it has no
        pixel format or its planes do not fit.
        """
    def launch(self) -> None:
        """Note PRODUCER_KERNEL_LAUNCH now (else it is the time of the allocation)."""
    def publish(self, descriptor: Descriptor, bytes: int) -> int:
        """Commit `bytes` of the slot under `descriptor`; emits DMA_BUF_ALLOC, PRODUCER_KERNEL_LAUNCH, FENCE_SIGNAL when
        the port is traced and the payload is a video frame or packet; returns the sequence. LeaseError while views of
        the slot are alive, or after the lease's end; the lease stays open when this raises.
        """
    def abandon(self) -> None:
        """End the lease unpublished. The slot is free at once, or when the last view of it is gone."""
    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __enter__(self) -> WriteLease: ...
    def __exit__(self, *exc: object) -> None: ...

def publish_together(leases: Sequence[WriteLease], descriptors: Sequence[Descriptor], sizes: Sequence[int]) -> int:
    """Publish several payloads of one producer by one commit, in their order: after a death either all of them were
    published or none. Returns the first one's sequence.
    """

@final
class RingProducer:
    """One output port: descriptors, slabs and the free set; single producer thread."""

    def __init__(
        self, *, capacity: int, size_classes: Sequence[SizeClass], incarnation: int = 1, first_sequence: int | None = 0
    ) -> None:
        """Create ring and slabs (memfds). `capacity` (descriptors) is rounded up to a power of two; what consumers have
        not acknowledged fills it. `first_sequence` None: the ring begins later (`begin`).

        Slabs are mapped writable here, then sealed with F_SEAL_FUTURE_WRITE|SHRINK|GROW|SEAL; the ring only against
        resizing, because its creator may hand it to a supervisor that must be able to end it: `seal_ring` does the
        rest.
        RingError when memory or descriptors run out (nothing half-made is left).
        """
    @property
    def ring_fd(self) -> int: ...
    @property
    def slab_fds(self) -> tuple[int, ...]: ...
    @property
    def slab_slot_bytes(self) -> tuple[int, ...]:
        """The slot size of each of `slab_fds`, as `RingConsumer.attach` wants it."""
    @property
    def size_classes(self) -> tuple[MadeClass, ...]:
        """As really made: page-rounded sizes, which pages, where; a class may be several slabs."""
    def trace(self, trace: Trace) -> None:
        """Emit this port's events from now on."""
    def admit(self, page_fd: int, policy: str) -> int:
        """Admit a consumer by its page ("block" or "drop_oldest"), before the first publish or later (it then starts
        at the current tail); returns a handle. The fd may be closed afterwards. RingError for another layout, or with
        64 consumers admitted at the same time. The consumer may attach before or after: it starts where it was admitted
        either way, and sees nothing before.
        """
    def admit_together(self, page_fds: Sequence[int], policies: Sequence[str]) -> tuple[list[int], int, int]:
        """Admit several consumers at the same sequence: all of them, or (RingError) none. Returns their handles, that
        sequence, and `next_source_index`.
        """
    def begin(self, first_sequence: int) -> None:
        """Begin where the incarnation before this one ended: once, before anybody is admitted or attaches. Until then
        `acquire` and `publish_empty` find no room. RingError when it has begun.
        """
    @property
    def begun(self) -> bool: ...
    def replace(self, consumer: int, page_fd: int) -> tuple[int, list[int]]:
        """Put another page in the place of that of a consumer whose process is dead (its pidfd said so).

        Returns the sequence at which it starts, and the source indices that are lost; the handle stays. Under block it
        starts at the first sequence that the dead one had not acknowledged, and nothing is lost; under drop_oldest at
        the first that it had not taken, and what it held is lost. Also after `finish`.
        """
    def cut(self, consumer: int, page_fd: int) -> int:
        """Hand over to another consumer of the same policy: sequences from `tail` on are for its page, those before for
        the old one, which then gets RingEnded ("cut"). Returns the new one's handle; the old one is to be
        dismissed when it is done.
        """
    def stop(self, consumers: Sequence[int]) -> tuple[int, int]:
        """From `tail` on nothing is for any of these consumers: each gets RingEnded ("cut") when it has taken what came
        before, and is to be dismissed when it is done. Returns that sequence, and `next_source_index`.
        """
    def dismiss(self, consumer: int) -> None:
        """Forget a consumer (dead or leaving): its unread and held sequences no longer keep slots."""
    def acquire(self, bytes: int, timeout_seconds: float) -> WriteLease | None:
        """The lowest free slot of the smallest class that holds `bytes`, or of a bigger one; sleeps until a consumer
        acknowledges when there is none, or (edges with drop_oldest) takes frames away from slow ones.
        RingError at once when no class is big enough. Also waits for a free descriptor.
        """
    def publish_empty(self, descriptor: Descriptor, timeout_seconds: float) -> int | None:
        """Publish a descriptor without payload (MO_FRAME_LOST)."""
    def finish(self, reason: str = "end_of_stream") -> int:
        """End the ring at the current tail; returns final_seq. Later publishes raise."""
    @property
    def tail(self) -> int: ...
    @property
    def next_source_index(self) -> int:
        """One more than the largest source index of the video frames, packets and lost frames published; 0 at first."""
    @property
    def free_slots(self) -> int: ...
    @property
    def outstanding(self) -> int:
        """Published sequences not yet acknowledged by all."""
    def backlog(self, consumer: int) -> int:
        """Published and not yet taken by that consumer."""
    def held(self, consumer: int) -> int:
        """Frames that consumer has taken and not acknowledged, as far as it is believed; each keeps its slot.
        Under drop_oldest that is all it can keep from the producer; a page that contradicts itself counts as holding
        everything.
        """
    def dropped(self, consumer: int) -> int:
        """Frames taken away from that consumer by drop_oldest."""
    def take_dropped(self, consumer: int) -> list[int]:
        """Source indices dropped since the last call (and forget them)."""
    def wait_acknowledged(self, timeout_seconds: float) -> bool:
        """Sleep until every admitted consumer has acknowledged everything published."""
    def pool_stats(self, reset: bool = True) -> PoolStats:
        """The pool now; one system call per slab. `reset`: the high-water marks begin anew."""
    def prefault(self) -> None:
        """Take and map all pages of all slots now, so that no later write faults; the GIL is released meanwhile.
        RingError when memory runs out.
        """
    def close(self) -> None: ...

@final
class ReadLease:
    """One taken sequence. In any order: `launch()`, views, `release()`.

    The payload can be had as NumPy arrays (`array`, `planes`, `plane`, `numpy.asarray(lease)`), as a buffer
    (`memoryview(lease)`, `bytes(lease)` copies) and through DLPack (`numpy.from_dlpack(lease)`), each read-only and
    without a copy; `copy` makes one. While one of them is alive, `release` raises LeaseError. (One thing is not seen:
    `numpy.ndarray(..., buffer=lease)` keeps no buffer. Give it `lease.array` instead.)

    Also a context manager: leaving the block releases, except on an exception: the work was not done then, so the
    frame stays unacknowledged (`release` it later, or not at all). A lease that is forgotten acknowledges nothing.
    """

    @property
    def descriptor(self) -> Descriptor: ...
    @property
    def sequence(self) -> int: ...
    @property
    def array(self) -> npt.NDArray[np.uint8]:
        """The payload, read-only, shape (bytes,), no copy; keeps the lease from being released while alive."""
    @property
    def planes(self) -> tuple[npt.NDArray[np.uint8] | npt.NDArray[np.uint16], ...]:
        """The picture's planes, read-only, no copy: of 8 bit uint8, of 10 bit uint16 (the sample in the low bits of
        yuv420p10le, in the high bits of p010le). Shape (rows, samples of a row), or (rows, samples, 2) for the chroma
        plane of nv12 and p010le; padding at the rows' ends is left out. RingError when there is no pixel format, or the
        descriptor contradicts itself.
        """
    def plane(self, index: int) -> npt.NDArray[np.uint8]:
        """Plane `index` as it lies in memory, read-only, shape (rows, stride) in bytes, no copy."""
    def copy(self) -> npt.NDArray[np.uint8]:
        """The payload in memory of its own, writable, shape (bytes,): the one copy that is made anywhere here."""
    @property
    def wait_ns(self) -> int | None:
        """When the consumer became ready for this frame (CONSUMER_WAIT_FENCE), CLOCK_MONOTONIC; None where the edge is
        not traced and the frame was there at once.
        """
    @property
    def link_ns(self) -> tuple[int, int] | None:
        """When the payload began to cross the edge's emulated link, and when all of it had (CLOCK_MONOTONIC ns).

        None where the edge has none.
        """
    def launch(self) -> None:
        """Emit CONSUMER_KERNEL_LAUNCH now."""
    def release(self) -> None:
        """Acknowledge; emits SLOT_RELEASE (and CONSUMER_KERNEL_LAUNCH first if `launch` was never called).

        Leases may be released in any order; the page's `acked` moves past the longest finished prefix. LeaseError when
        views of the payload are alive or when called twice.
        """
    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A versioned capsule that says read-only. BufferError for callers that know only DLPack 0, which cannot say
        it (unless they ask for a copy), and for another device than the CPU.
        """
    def __dlpack_device__(self) -> tuple[int, int]:
        """(1, 0): the CPU."""
    def __enter__(self) -> ReadLease: ...
    def __exit__(self, *exc: object) -> None: ...

@final
class RingConsumer:
    """One input edge: a page of our own, the producer's ring and slabs mapped read-only; single consumer thread."""

    def __init__(self, policy: str = "block") -> None:
        """Create the consumer page (memfd, sealed). Attach the ring later."""
    @property
    def page_fd(self) -> int: ...
    def attach(self, ring_fd: int, slab_fds: Sequence[int], slot_bytes: Sequence[int], populate: bool = False) -> None:
        """Map a producer's ring and slabs read-only; refuses (RingError) another layout, an unsealed or short slab.
        After a ring has ended (RingEnded was raised), attaching the next incarnation continues in order; one that does
        not start where the last one ended is refused. `populate`: map all pages of the slabs now, so that no later read
        faults; all their memory becomes resident, also where nothing was written yet.
        """
    def link(self, fabric: Fabric, route: Sequence[Sequence[int]]) -> None:
        """From the next `attach` on payloads cross `route` (see Fabric.transfer) before they can be taken.

        A thread of this process lets each take as long as it would, beside what the consumer does. RingError for a
        route that is none.
        """
    def trace(self, trace: Trace) -> None:
        """Emit this edge's events from now on: CONSUMER_WAIT_FENCE, CONSUMER_KERNEL_LAUNCH, SLOT_RELEASE; where it has
        a link, LINK_START and LINK_END too.
        """
    spin_seconds: float
    """How long `take` looks at the ring, without the GIL, before it sleeps: 0 (at first) to 1. It saves the wake-up
    (some 20 us) where there is a core to spare.
    """
    def take(self, timeout_seconds: float) -> ReadLease | None:
        """The next sequence, or None after the timeout; RingEnded at the end of the ring. RingError when a descriptor
        points outside its slab (a broken producer).
        """
    def end_at(self, final_seq: int, reason: str) -> None:
        """The word of somebody who knows that the producer is dead, when the ring itself could not be ended. A `take`
        of another thread wakes up.
        """
    @property
    def dismissed(self) -> bool:
        """Whether the producer let this consumer in and has turned it out since. What it holds may be overwritten then;
        asked after reading a frame, False says that the frame was kept all the while.
        """
    @property
    def taken(self) -> int: ...
    @property
    def acked(self) -> int: ...
    @property
    def held(self) -> int: ...
    @property
    def backlog(self) -> int: ...
    def close(self) -> None: ...

def wait_any(consumers: Sequence[RingConsumer], timeout_seconds: float) -> list[int]:
    """Indices of consumers that have something to take (or have ended); sleeps in futex_waitv, or polls every
    millisecond where the kernel has none. Empty after the timeout.
    """

@final
class Wakeups:
    """What an event loop waits with: a native thread that sleeps on rings in its place and makes `fd` readable. Each
    loop (and thread) uses one of its own; `dataplane.aio` does. The thread sleeps without end while nothing is watched.
    """

    def __init__(self) -> None: ...
    @property
    def fd(self) -> int:
        """An eventfd, readable while `fired` has something to say."""
    def watch_consumer(self, consumer: RingConsumer) -> int | None:
        """Watch, once, for something to take, the end or a close; returns the watch's token. None when it is there
        already. RingError in a process that was forked from this one.
        """
    def watch_producer(self, producer: RingProducer) -> int:
        """Watch, once, for room. To be called right after an attempt (with a timeout of 0) that found none: it watches
        for changes since then.
        """
    def forget(self, token: int) -> None:
        """End a watch that has not fired (or has: then nothing happens)."""
    def fired(self) -> list[int]:
        """The tokens of the watches that fired since the last call; those are over. Makes `fd` unreadable."""
    def close(self) -> None:
        """Forget all and end the thread."""

@final
class RingMonitor:
    """The supervisor's view of a ring and its pages: reads counters, ends a dead producer's ring, seals it."""

    def __init__(self, ring_fd: int) -> None:
        """Map the ring read-write; `seal_ring` must come after, so that nobody else can."""
    def watch(self, page_fd: int) -> int:
        """Map a consumer page read-only; returns its handle."""
    def unwatch(self, handle: int) -> None:
        """Unmap the page of a consumer that is gone. The handle is not used again."""
    def seal_ring(self) -> None:
        """F_SEAL_FUTURE_WRITE|SHRINK|GROW|SEAL on the ring: only the producer and this monitor can write it."""
    @property
    def first_sequence(self) -> int: ...
    @property
    def tail(self) -> int: ...
    @property
    def ended(self) -> bool: ...
    def end(self, reason: str) -> int:
        """End the ring at its tail in the place of a dead producer; returns final_seq."""
    def start_of(self, handle: int) -> int | None:
        """The sequence at which the producer admitted a page that is watched; None if it did not."""
    def finish_cut(self, handle: int, page_fd: int) -> int | None:
        """Finish a cut between the page that is watched and another one, which the producer had begun when it died: the
        sequence at which the other one begins; None if none had begun. RingError unless the ring has ended.
        """
    def trail(self) -> list[Descriptor]:
        """The last descriptors, oldest first: as far back as the ring has cells, at least to the first one that
        a `block` consumer has not acknowledged.
        """
    def replace(self, handle: int, page_fd: int) -> tuple[int, list[int]]:
        """RingProducer.replace in the place of a dead producer: for the page that `watch` returned that handle for. The
        ring must have ended, and both processes must be dead.
        """
    def consumer(self, handle: int) -> dict[str, int]:
        """{"taken", "acked", "held", "waiting"} of a page."""
    def close(self) -> None: ...

class Fence:
    """A value that somebody else moves up. What was reached stays reached."""

    @property
    def value(self) -> int: ...
    def wait(self, value: int, timeout_seconds: float) -> bool:
        """Sleep until `value` is reached (True) or the time is over (False). FenceBroken as soon as it never will be,
        and only then: what was reached before the end counts as reached.
        """
    def close(self) -> None:
        """Look no more. The signaller of a timeline says thereby that it will signal no more: FenceBroken for who
        waits for a value above the last one.
        """

@final
class TimelineFence(Fence):
    """A timeline in shared memory: the process that made it signals, everybody who has its descriptors may wait."""

    @staticmethod
    def create(value: int = 0) -> TimelineFence:
        """A new one of this process, at `value`. A fork of this process may wait for it, not signal."""
    @staticmethod
    def attach(fence_fd: int, waiters_fd: int, pidfd: int) -> TimelineFence:
        """One of another process, by its `fds`, which may be closed afterwards. Without `waiters_fd` (-1) every wait
        looks each millisecond; without `pidfd` (-1) the signaller's death stays unnoticed. RingError for another
        layout, a fence that is not sealed, a page or process that is not the fence's.
        """
    @property
    def fds(self) -> tuple[int, int, int]:
        """Timeline, waiters' page, pidfd of this process: to send with SCM_RIGHTS. RingError on an attached fence."""
    @property
    def signaller_pid(self) -> int:
        """As the signaller sees itself."""
    def signal(self, value: int) -> None:
        """Move the value on to `value`, or leave it there. RingError when it would go back."""

@final
class SyncFileFence(Fence):
    """A fence of the kernel's (sync_file): value 0 until it has signalled, then 1."""

    def __init__(self, fd: int) -> None:
        """The fd may be closed afterwards. RingError, with what it is, when it is no sync_file."""
    def info(self) -> dict[str, Any]:
        """{"name", "status" (0 active, 1 signalled, negative: -errno), "fences" (["driver object", ...]),
        "signalled_ns" (CLOCK_MONOTONIC, of the last of them; None before)}.
        """

def wait_any_fence(points: Sequence[tuple[Fence, int]], timeout_seconds: float) -> list[int]:
    """Indices of the (fence, value) points that are reached; sleeps until there is one. Empty after the timeout.
    FenceBroken when none is reached and one never will be.
    """

def wait_all_fences(points: Sequence[tuple[Fence, int]], timeout_seconds: float) -> bool:
    """Sleep until all points are reached (True) or the time is over (False). FenceBroken as soon as one never will
    be.
    """

@final
class DeathWatch:
    """The death of one process, by its pidfd (not by its number, which may come to be another's)."""

    def __init__(self, pidfd: int) -> None:
        """The pidfd may be closed afterwards. RingError, with what it is, when it is no pidfd."""
    @property
    def pid(self) -> int | None:
        """None when it was gone already, or lives where this process cannot see it."""
    @property
    def dead(self) -> bool:
        """No thread of it runs any more: true of a zombie, not of a stopped process."""
    def wait(self, timeout_seconds: float) -> bool:
        """Sleep until it is dead (True) or the time is over (False)."""

@final
class LinkConstants:
    """What one link of a fabric can do, per direction, before the time scale: `mo_link_constants`.

    Telemetry shows the advertised values; the others are what it really does. Each message takes the link for
    `overhead_ps` on top of its bytes, which are rounded up to whole chunks of `chunk_bytes`, and arrives up to
    `jitter_ps` sooner or later than the latency says. n transfers together get
    bandwidth / (1 + (n - 1) * sharing loss).
    """

    def __init__(
        self,
        *,
        advertised_bandwidth_bytes_per_second: int,
        advertised_latency_ps: int,
        bandwidth_bytes_per_second: int,
        latency_ps: int,
        overhead_ps: int = 0,
        jitter_ps: int = 0,
        jitter_seed: int = 0,
        sharing_loss_millionths: int = 0,
        chunk_bytes: int = 0,
    ) -> None: ...
    @property
    def advertised_bandwidth_bytes_per_second(self) -> int: ...
    @property
    def advertised_latency_ps(self) -> int: ...
    @property
    def bandwidth_bytes_per_second(self) -> int: ...
    @property
    def latency_ps(self) -> int: ...
    @property
    def overhead_ps(self) -> int: ...
    @property
    def jitter_ps(self) -> int: ...
    @property
    def jitter_seed(self) -> int: ...
    @property
    def sharing_loss_millionths(self) -> int: ...
    @property
    def chunk_bytes(self) -> int: ...

@final
class Fabric:
    """Emulated links whose bandwidth the transfers of all processes share. Its memory lives as long as any user of it.

    Links are numbers here; way 2 * link leads from its end a to b, way 2 * link + 1 back.
    """

    @staticmethod
    def create(links: Sequence[LinkConstants], time_scale: float) -> Fabric:
        """A fabric of this process, the only one that can change its links. RingError for none, more than 65,536 or one
        without bandwidth, and for a scale outside 1e-6 to 1e9.
        """
    @staticmethod
    def open(state_fd: int, traffic_fd: int) -> Fabric:
        """One that another process made; the descriptors may be closed afterwards. RingError for other layouts."""
    @property
    def state_fd(self) -> int:
        """Of the fabric's creator; RingError on an opened one, which keeps none."""
    @property
    def traffic_fd(self) -> int: ...
    @property
    def links(self) -> int: ...
    @property
    def time_scale(self) -> float: ...
    def constants(self, link: int) -> LinkConstants: ...
    def state(self, link: int) -> dict[str, int]:
        """{"flags" (0 up, 1 degraded, 2 down), "bandwidth_millionths", "added_latency_ps"}, all of one moment."""
    def set_state(self, link: int, flags: int, bandwidth_millionths: int, added_latency_ps: int = 0) -> None:
        """Acts within a quantum (0.25 to 1 ms) on what is under way. RingError unless this process made the fabric."""
    def counters(self, way: int) -> dict[str, int]:
        """{"bytes", "transfers", "queued_ns"} ever, and how many are "active" now."""
    def transfer(
        self, route: Sequence[Sequence[int]], bytes: int, timeout_seconds: float
    ) -> tuple[int, int, int] | None:
        """One transfer, for as long as it takes: (start, end, queued), ns. None after the timeout.

        `route` is segments of ways: within a segment the slowest way sets the pace, each further segment starts when
        the whole message has arrived.
        """

@final
class Assembler:
    """Frame records from frame events, of one run. Events may come in any order and from any number of rings."""

    def __init__(
        self,
        port_hops: Sequence[Sequence[int]],
        hop_devices: Sequence[tuple[int, int, int, int]],
        expect_link: Sequence[bool] = (),
    ) -> None:
        """`port_hops[port]` are the hops fed by that port; `hop_devices[hop]` are (producer planned, consumer
        planned, producer real, consumer real).
        """
    def feed(self, events: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
        """Take events (EVENT_DTYPE), return the records they completed (RECORD_DTYPE), in order of completion. A record
        is complete with FENCE_SIGNAL, CONSUMER_KERNEL_LAUNCH and SLOT_RELEASE of its hop all seen (and LINK_START and
        LINK_END where `expect_link` says so). What lost events leave open for ever is returned too, flagged
        INCOMPLETE, once 65536 newer ones of its hop are open.
        """
    def drop(self, hop: int, source_indices: Sequence[int]) -> npt.NDArray[np.void]:
        """Close the records of frames that drop_oldest discarded before this hop's consumer (flag DROPPED). A frame
        whose FENCE_SIGNAL was not fed yet closes with the `feed` that brings it.
        """
    def flush(self) -> npt.NDArray[np.void]:
        """Everything still open, flagged INCOMPLETE."""
    @property
    def open_records(self) -> int: ...
    @property
    def unmatched_events(self) -> int:
        """Events whose place is not of this run."""
