"""The ring against a plain Python model of it, under random use."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from dataplane._ring import (
    Descriptor,
    ReadLease,
    RingConsumer,
    RingEnded,
    RingError,
    RingProducer,
    SizeClass,
    WriteLease,
    publish_together,
)
from observatory.model.media import PayloadKind

from .rings import PAGE, attach, frame

NEVER = 1 << 63

Slot = tuple[int, int]
Write = tuple[WriteLease, Slot]


@dataclass(eq=False)
class ModelConsumer:
    """What one consumer has in front of it, in its hands and behind it."""

    real: RingConsumer
    drops: bool
    start: int
    attached: bool = False
    unread: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)  # released, but after one that is still held
    dropped: list[int] = field(default_factory=list)  # source indices
    all_dropped: int = 0
    next: int = 0  # after the last one it took
    acked: int = 0  # everything below is acknowledged, or was dropped
    stop: int | None = None  # from there on it is for another one
    gone: bool = False  # dismissed, or dead

    def keeps(self, sequence: int) -> bool:
        return sequence in self.unread or sequence in self.held or sequence in self.done


class Model:
    """Slots, sequences and consumers as sets and lists."""

    def __init__(self, capacity: int, counts: list[int]) -> None:
        self.capacity = capacity
        self.free: list[set[int]] = [set(range(count)) for count in counts]
        self.sizes = [PAGE * (index + 1) for index in range(len(counts))]
        self.tail = 0
        self.writing = 0
        self.published: dict[int, tuple[Slot | None, int, bool]] = {}  # slot, source index, whether it is a frame
        self.consumers: dict[int, ModelConsumer] = {}

    def taken(self, consumer: ModelConsumer) -> int:
        return consumer.unread[0] if consumer.unread else self.end(consumer)

    def end(self, consumer: ModelConsumer) -> int:
        return self.tail if consumer.stop is None else consumer.stop

    def past(self, consumer: ModelConsumer) -> int:
        """The first sequence whose descriptor the consumer may still need."""
        needed = consumer.unread if consumer.drops else [*consumer.unread, *consumer.held, *consumer.done]
        return min(needed, default=self.tail if consumer.stop is None else NEVER)

    def collect(self) -> None:
        for sequence in [s for s in self.published if not any(c.keeps(s) for c in self.consumers.values())]:
            slot, _, _ = self.published.pop(sequence)
            if slot is not None:
                self.free[slot[0]].add(slot[1])

    def drop_through(self, consumer: ModelConsumer, sequence: int) -> None:
        while consumer.unread and consumer.unread[0] <= sequence:
            _, source_index, is_frame = self.published[consumer.unread.pop(0)]
            if is_frame:
                consumer.dropped.append(source_index)
                consumer.all_dropped += 1

    def make_cell(self) -> bool:
        while True:
            lagging = [c for c in self.consumers.values() if self.past(c) <= self.tail + self.writing - self.capacity]
            if not lagging:
                return self.writing < self.capacity
            if any(not c.drops or not c.unread for c in lagging):
                return False
            for consumer in lagging:
                self.drop_through(consumer, self.tail + self.writing - self.capacity)
            self.collect()

    def take_slot(self, wanted: int) -> Slot | None:
        for index, free in enumerate(self.free):
            if self.sizes[index] >= wanted and free:
                slot = min(free)
                free.remove(slot)
                return index, slot
        return None

    def acquire(self, wanted: int) -> Slot | None:
        if not self.make_cell():
            return None
        slot = self.take_slot(wanted)
        for sequence in sorted(self.published):
            if slot is not None:
                break
            held_in = self.published.get(sequence, (None, 0, False))[0]
            keepers = [c for c in self.consumers.values() if c.keeps(sequence)]
            if held_in is None or self.sizes[held_in[0]] < wanted:
                continue
            if all(c.drops and sequence in c.unread for c in keepers):
                for consumer in keepers:
                    self.drop_through(consumer, sequence)
                self.collect()
                slot = self.take_slot(wanted)
        self.writing += slot is not None
        return slot

    def publish(self, slot: Slot | None, source_index: int) -> int:
        sequence, self.tail = self.tail, self.tail + 1
        self.published[sequence] = (slot, source_index, slot is not None)
        for consumer in self.consumers.values():
            if consumer.stop is None:
                consumer.unread.append(sequence)
        self.collect()
        return sequence

    def replace(self, old: ModelConsumer, new: RingConsumer) -> tuple[ModelConsumer, list[int]]:
        """The heir of a dead consumer, and the source indices that are lost."""
        old.gone = True
        # What it released after one that it still held is not known to be done.
        kept = sorted([*old.held, *old.done])
        lost = [self.published[s][1] for s in kept if self.published[s][2]] if old.drops else []
        unread = old.unread if old.drops else sorted([*old.unread, *old.held, *old.done])
        start = unread[0] if unread else self.end(old)
        heir = ModelConsumer(new, old.drops, start, stop=old.stop, unread=unread)
        heir.dropped, heir.all_dropped = old.dropped, old.all_dropped
        return heir, lost

    def release(self, consumer: ModelConsumer, sequence: int) -> None:
        consumer.held.remove(sequence)
        consumer.done.append(sequence)
        consumer.acked = min(consumer.held, default=consumer.next)
        consumer.done = [s for s in consumer.done if s >= consumer.acked]
        self.collect()


Read = tuple[ModelConsumer, ReadLease]


class RingMachine(RuleBasedStateMachine):
    consumers: Bundle[int] = Bundle("consumers")
    writes: Bundle[Write] = Bundle("writes")
    reads: Bundle[Read] = Bundle("reads")

    @initialize(
        target=consumers,
        capacity=st.sampled_from([1, 2, 4, 8]),
        counts=st.lists(st.integers(1, 3), min_size=1, max_size=3),
        policies=st.lists(st.booleans(), min_size=1, max_size=3),
    )
    def make(self, capacity: int, counts: list[int], policies: list[bool]) -> MultipleResults[int]:
        self.model = Model(capacity, counts)
        self.source_index = 1000
        classes = [SizeClass(size, count) for size, count in zip(self.model.sizes, counts, strict=True)]
        self.producer = RingProducer(capacity=capacity, size_classes=classes)
        return multiple(*[self.add_consumer(drops, True) for drops in policies])

    def add_consumer(self, drops: bool, attach_first: bool) -> int:
        policy = "drop_oldest" if drops else "block"
        real = RingConsumer(policy)
        if attach_first:
            attach(real, self.producer)
        handle = self.producer.admit(real.page_fd, policy)
        start = self.model.tail
        self.model.consumers[handle] = ModelConsumer(real, drops, start, attached=attach_first)
        return handle

    def teardown(self) -> None:
        if hasattr(self, "producer"):
            for consumer in self.model.consumers.values():
                consumer.real.close()
            self.producer.close()

    @precondition(lambda self: len(self.model.consumers) < 4)
    @rule(target=consumers, drops=st.booleans(), attach_first=st.booleans())
    def admit(self, drops: bool, attach_first: bool) -> int:
        return self.add_consumer(drops, attach_first)

    @rule(handle=consumes(consumers))
    def dismiss(self, handle: int) -> None:
        self.producer.dismiss(handle)
        consumer = self.model.consumers.pop(handle)
        consumer.gone = True
        consumer.real.close()
        self.model.collect()

    @rule(handle=consumers, attach_first=st.booleans())
    def replace(self, handle: int, attach_first: bool) -> None:
        """A consumer dies with whatever it holds, and another one takes its place."""
        old = self.model.consumers[handle]
        old.real.close()
        real = RingConsumer("drop_oldest" if old.drops else "block")
        if attach_first:
            attach(real, self.producer)
        heir, lost = self.model.replace(old, real)
        assert self.producer.replace(handle, real.page_fd) == (heir.start, lost)
        heir.attached = attach_first
        self.model.consumers[handle] = heir
        self.model.collect()

    @precondition(lambda self: len(self.model.consumers) < 4)
    @rule(target=consumers, handle=consumers, attach_first=st.booleans())
    def cut(self, handle: int, attach_first: bool) -> MultipleResults[int] | int:
        """What follows is for another consumer."""
        old = self.model.consumers[handle]
        real = RingConsumer("drop_oldest" if old.drops else "block")
        if attach_first:
            attach(real, self.producer)
        if old.stop is not None:
            with pytest.raises(RingError):
                self.producer.cut(handle, real.page_fd)
            real.close()
            return multiple()
        new = self.producer.cut(handle, real.page_fd)
        old.stop = self.model.tail
        self.model.consumers[new] = ModelConsumer(real, old.drops, self.model.tail, attached=attach_first)
        return new

    @rule(target=writes, data=st.data())
    def acquire(self, data: st.DataObject) -> MultipleResults[Write] | Write:
        wanted = data.draw(st.integers(1, self.model.sizes[-1]))
        expected = self.model.acquire(wanted)
        lease = self.producer.acquire(wanted, 0.0)
        assert (lease and (lease.slab, lease.slot)) == expected
        if lease is None or expected is None:
            return multiple()
        return lease, expected

    @rule(count=st.integers(1, 4), wanted=st.integers(0, 2))
    def put(self, count: int, wanted: int) -> None:
        wanted = min(wanted * PAGE + 1, self.model.sizes[-1])
        for _ in range(count):
            expected = self.model.acquire(wanted)
            lease = self.producer.acquire(wanted, 0.0)
            assert (lease and (lease.slab, lease.slot)) == expected
            if lease is not None and expected is not None:
                self.publish_one(lease, expected)

    @rule(write=consumes(writes))
    def publish(self, write: Write) -> None:
        self.publish_one(*write)

    def publish_one(self, lease: WriteLease, slot: Slot) -> None:
        self.source_index += 1
        lease.array[:8] = list(self.source_index.to_bytes(8, "little"))
        sequence = lease.publish(frame(self.source_index), 8)
        self.model.writing -= 1
        assert sequence == self.model.publish(slot, self.source_index)

    @rule(data=st.data(), count=st.integers(1, 4))
    def publish_together(self, data: st.DataObject, count: int) -> None:
        """Several frames by one commit; those for which there is room."""
        found: list[Write] = []
        for _ in range(count):
            wanted = data.draw(st.integers(1, self.model.sizes[-1]))
            expected = self.model.acquire(wanted)
            lease = self.producer.acquire(wanted, 0.0)
            assert (lease and (lease.slab, lease.slot)) == expected
            if lease is not None and expected is not None:
                found.append((lease, expected))
        if not found:
            return
        indices = [self.source_index + 1 + number for number in range(len(found))]
        self.source_index += len(found)
        for (lease, _), index in zip(found, indices, strict=True):
            lease.array[:8] = list(index.to_bytes(8, "little"))
        leases = [lease for lease, _ in found]
        first = publish_together(leases, [frame(index) for index in indices], [8] * len(found))
        self.model.writing -= len(found)
        published = [self.model.publish(slot, index) for (_, slot), index in zip(found, indices, strict=True)]
        assert first == published[0]

    @rule(write=consumes(writes))
    def abandon(self, write: Write) -> None:
        lease, slot = write
        lease.abandon()
        self.model.writing -= 1
        self.model.free[slot[0]].add(slot[1])

    @rule()
    def publish_lost(self) -> None:
        self.source_index += 1
        lost = Descriptor(payload_kind=PayloadKind.FRAME_LOST, source_index=self.source_index)
        sequence = self.producer.publish_empty(lost, 0.0)
        expected = self.model.publish(None, self.source_index) if self.model.make_cell() else None
        assert sequence == expected

    @rule(target=reads, handle=consumers, count=st.integers(1, 3))
    def take(self, handle: int, count: int) -> MultipleResults[Read]:
        consumer = self.model.consumers[handle]
        leases = [self.take_one(consumer) for _ in range(count)]
        return multiple(*[(consumer, lease) for lease in leases if lease is not None])

    def take_one(self, consumer: ModelConsumer) -> ReadLease | None:
        if not consumer.attached:
            attach(consumer.real, self.producer)
            consumer.attached = True
        if consumer.stop is not None and not consumer.unread:
            with pytest.raises(RingEnded) as end:
                consumer.real.take(0.0)
            assert end.value.reason == "cut"
            consumer.acked = max(consumer.acked, consumer.start)
            return None
        lease = consumer.real.take(0.0)
        # Starting is the first acknowledgement: of everything before.
        consumer.acked = max(consumer.acked, consumer.start)
        if not consumer.unread:
            assert lease is None
            return None
        assert lease is not None
        sequence = consumer.unread.pop(0)
        consumer.held.append(sequence)
        consumer.next = sequence + 1
        assert lease.sequence == sequence
        assert lease.descriptor.source_index == self.model.published[sequence][1]
        return lease

    @rule(read=consumes(reads))
    def release(self, read: Read) -> None:
        consumer, lease = read
        if consumer.gone:  # the memory is still mapped, but nobody keeps it
            assert lease.array.shape[0] in (0, 8)
            return
        if lease.descriptor.bytes:
            assert int.from_bytes(lease.array[:8].tobytes(), "little") == lease.descriptor.source_index
        lease.release()
        self.model.release(consumer, lease.sequence)

    @rule(handle=consumers)
    def take_dropped(self, handle: int) -> None:
        consumer = self.model.consumers[handle]
        assert self.producer.take_dropped(handle) == consumer.dropped
        consumer.dropped = []

    @invariant()
    def counters_agree(self) -> None:
        if not hasattr(self, "producer"):
            return
        model, producer = self.model, self.producer
        assert producer.tail == model.tail
        assert producer.free_slots == sum(len(free) for free in model.free)
        assert producer.outstanding == len(model.published)
        for handle, consumer in model.consumers.items():
            assert producer.backlog(handle) == len(consumer.unread)
            assert producer.dropped(handle) == consumer.all_dropped
            assert consumer.real.held == len(consumer.held)
            assert consumer.real.acked == consumer.acked
            if consumer.attached and consumer.acked >= consumer.start:
                assert consumer.real.backlog == len(consumer.unread)
                assert consumer.real.taken == model.taken(consumer)


RingMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
test_the_ring_behaves_like_its_model = RingMachine.TestCase
