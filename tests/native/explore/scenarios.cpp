#include "scenarios.hpp"

#include <optional>
#include <string_view>

#include "consumer.hpp"
#include "error.hpp"
#include "monitor.hpp"
#include "producer.hpp"

namespace mo::explore {
namespace {

mo_descriptor frame(uint64_t source_index) {
    mo_descriptor descriptor = unknown_descriptor(MO_VIDEO_FRAME);
    descriptor.source_index = source_index;
    return descriptor;
}

// Everything is made by new and never deleted: the arena forgets it.
Producer& producer(uint32_t capacity, uint64_t slots, uint64_t first = 0, uint64_t incarnation = 1) {
    const SizeClass size{8, slots, false};
    return *new Producer(capacity, std::span(&size, 1), incarnation, first);
}

void attach(Consumer& consumer, const Producer& to) {
    const int fd = to.pool().fd(0);
    const uint64_t bytes = to.pool().made(0).slot_bytes;
    consumer.attach(to.ring_fd(), std::span(&fd, 1), std::span(&bytes, 1));
}

void publish(Producer& to, uint64_t source_index) {
    const auto slot = to.acquire(8, kForever);
    EXPECT(slot);
    write_payload(slot->data, source_index);
    to.publish(*slot, frame(source_index), 8);
}

void produce(Producer& to, uint64_t first, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) publish(to, first + i);
}

// What one consumer got, and how it ended.
struct Reader {
    explicit Reader(mo_edge_policy how) : policy(how), consumer(how) {}

    mo_edge_policy policy;
    Consumer consumer;
    std::vector<uint64_t> got;
    uint64_t final_seq = MO_UNKNOWN_U64;
    const char* reason = "";
    int handle = -1;
};

Reader& reader(Producer& of, mo_edge_policy policy) {
    Reader& made = *new Reader(policy);
    made.handle = of.admit(made.consumer.page_fd(), policy);
    attach(made.consumer, of);
    return made;
}

void look(Reader& reader, const ReadSlot& slot) {
    copy_counts(&slot.attachment->ring->cell(slot.descriptor.sequence));
    EXPECT(read_payload(slot.data) == slot.descriptor.source_index);
    reader.got.push_back(slot.descriptor.source_index);
}

void give_back(Reader& reader, ReadSlot& slot) {
    EXPECT(read_payload(slot.data) == slot.descriptor.source_index);
    reader.consumer.release(slot);
}

bool read_one(Reader& reader) {
    try {
        auto slot = reader.consumer.take(kForever);
        EXPECT(slot);
        look(reader, *slot);
        give_back(reader, *slot);
        return true;
    } catch (const RingEnded& ended) {
        reader.final_seq = ended.final_seq;
        reader.reason = ended.reason;
        return false;
    }
}

void read_all(Reader& reader) {
    while (read_one(reader)) {}
}

// From `first` on, all of them, in order, once.
void expect_all(const Reader& reader, uint64_t first, uint64_t count) {
    EXPECT(reader.got.size() == count);
    for (uint64_t i = 0; i < count; ++i) EXPECT(reader.got[i] == first + i);
}

// What the consumer's actor does in most scenarios.
void read(Reader& reader, int count) {
    for (int i = 0; i < count; ++i) EXPECT(read_one(reader));
}

void expect_got_or_dropped(Producer& p, const Reader& reader, uint64_t frames, uint64_t first = 0) {
    std::vector<int> times(frames, 0);
    uint64_t next = 0;
    for (const uint64_t index : reader.got) {
        EXPECT(index >= next && index < frames);
        next = index + 1;
        ++times[index];
    }
    for (const uint64_t index : p.take_dropped(reader.handle)) ++times[index];
    for (uint64_t i = 0; i < frames; ++i) EXPECT(times[i] == (i >= first));
}

// -- small pieces, with nothing left out --------------------------------------------------------------------

// `before` frames are there already; the producer adds `frames`, ends the ring if it says so, and every consumer reads.
struct Piece {
    uint32_t capacity;
    uint64_t slots;
    uint64_t before;
    uint64_t frames;
    bool end;
    std::vector<mo_edge_policy> policies;
    uint64_t read_before = 0;  // by every consumer, of those that are there
};

void play(World& world, const Piece& piece) {
    Producer& p = producer(piece.capacity, piece.slots);
    auto& all = *new std::vector<Reader*>;
    for (const auto policy : piece.policies) all.push_back(&reader(p, policy));
    produce(p, 0, piece.before);
    for (Reader* r : all) read(*r, static_cast<int>(piece.read_before));
    const uint64_t total = piece.before + piece.frames;
    world.actor("producer", [&p, piece] {
        produce(p, piece.before, piece.frames);
        if (piece.end) p.finish(MO_END_OF_STREAM);
    });
    constexpr const char* names[] = {"consumer1", "consumer2", "consumer3"};
    for (size_t i = 0; i < all.size(); ++i)
        world.actor(names[i], [r = all[i], piece, total] {
            if (piece.end)
                read_all(*r);
            else
                read(*r, static_cast<int>(total - piece.read_before));
        });
    world.at_end([&p, &all, piece, total] {
        for (Reader* r : all) {
            if (r->policy == MO_BLOCK)
                expect_all(*r, 0, total);
            else
                expect_got_or_dropped(p, *r, total);
            if (piece.end) EXPECT(r->final_seq == total && std::string_view(r->reason) == "end_of_stream");
        }
        if (piece.end) EXPECT(p.outstanding() == 0);
    });
}

// NAME(capacity, slots, before, frames, end, policies, read_before)
#define PIECE(name, ...) \
    void name(World& world) { play(world, Piece{__VA_ARGS__}); }

PIECE(first_frame, 2, 2, 0, 1, false, {MO_BLOCK})
PIECE(just_the_end, 2, 2, 0, 0, true, {MO_BLOCK})
PIECE(frame_and_end, 2, 2, 0, 1, true, {MO_BLOCK})
PIECE(no_slot, 2, 1, 1, 1, false, {MO_BLOCK})
PIECE(no_cell, 1, 2, 1, 1, false, {MO_BLOCK})
PIECE(wrapped, 2, 2, 2, 1, false, {MO_BLOCK}, 1)
PIECE(two_sleepers, 2, 2, 0, 1, false, {MO_BLOCK, MO_BLOCK})
PIECE(two_in_the_way, 2, 1, 1, 1, false, {MO_BLOCK, MO_BLOCK})
PIECE(drop_the_only_one, 2, 1, 1, 1, true, {MO_DROP_OLDEST})
PIECE(drop_the_older, 2, 2, 2, 1, true, {MO_DROP_OLDEST})
PIECE(drop_for_a_cell, 1, 2, 1, 1, true, {MO_DROP_OLDEST})
PIECE(drop_two, 1, 1, 1, 2, true, {MO_DROP_OLDEST})
PIECE(drop_beside_block, 2, 1, 1, 1, true, {MO_DROP_OLDEST, MO_BLOCK})

// -- who comes and goes -------------------------------------------------------------------------------------

void admitted_late(World& world, mo_edge_policy policy, uint64_t frames) {
    Producer& p = producer(2, 1);
    Reader& r = *new Reader(policy);
    attach(r.consumer, p);
    publish(p, 0);  // for nobody
    world.actor("producer", [&p, &r, frames, policy] {
        r.handle = p.admit(r.consumer.page_fd(), policy);
        produce(p, 1, frames);
        p.finish(MO_END_OF_STREAM);
    });
    world.actor("consumer", [&r] { read_all(r); });
    world.at_end([&p, &r, frames, policy] {
        if (policy == MO_BLOCK)
            expect_all(r, 1, frames);
        else
            expect_got_or_dropped(p, r, frames + 1, 1);
        EXPECT(r.final_seq == frames + 1);
    });
}

void admitted_while_looking(World& world) { admitted_late(world, MO_BLOCK, 1); }
void dropped_before_it_came(World& world) { admitted_late(world, MO_DROP_OLDEST, 2); }

// Nothing is kept for it any more: what it takes and reads may be rewritten under its eyes, but it can tell.
void dismissed(World& world) {
    Producer& p = producer(1, 1);
    Reader& r = reader(p, MO_BLOCK);
    const auto put = [&p](uint64_t index) {
        const auto slot = p.acquire(8, kForever);
        store_relaxed(*reinterpret_cast<uint64_t*>(slot->data), index);
        p.publish(*slot, frame(index), 8);
    };
    put(0);
    world.actor("producer", [&p, &r, put] {
        p.dismiss(r.handle);
        put(1);
    });
    world.actor("consumer", [&r] {
        try {
            auto slot = r.consumer.try_take();
            if (!slot) return;
            EXPECT(slot->descriptor.sequence == 0 && slot->descriptor.source_index == 0);
            const uint64_t stamp = load_relaxed(*reinterpret_cast<const uint64_t*>(slot->data));
            if (!r.consumer.dismissed()) EXPECT(stamp == 0);
        } catch (const RingError&) {
            // It was told.
        }
    });
}

void all_acknowledged(World& world) {
    Producer& p = producer(2, 2);
    Reader& r = reader(p, MO_BLOCK);
    produce(p, 0, 1);
    world.actor("producer", [&p] { EXPECT(p.wait_acknowledged(kForever)); });
    world.actor("consumer", [&r] { read(r, 1); });
    world.at_end([&p] { EXPECT(p.outstanding() == 0); });
}

// Leases end in another order than they began.
void released_backwards(World& world) {
    Producer& p = producer(2, 2);
    Reader& r = reader(p, MO_BLOCK);
    produce(p, 0, 2);
    auto& leases = *new std::vector<ReadSlot>;
    for (int i = 0; i < 2; ++i) {
        leases.push_back(*r.consumer.try_take());
        look(r, leases.back());
    }
    world.actor("producer", [&p] { publish(p, 2); });
    world.actor("consumer", [&r, &leases] {
        give_back(r, leases[1]);
        give_back(r, leases[0]);
        read(r, 1);
    });
    world.at_end([&r] { expect_all(r, 0, 3); });
}

void two_inputs(World& world) {
    auto& inputs = *new std::vector<Reader*>;
    for (int i = 0; i < 2; ++i) {
        Producer& p = producer(1, 1);
        inputs.push_back(&reader(p, MO_BLOCK));
        world.actor(i == 0 ? "producer1" : "producer2", [&p] { publish(p, 0); });
    }
    world.actor("consumer", [&inputs] {
        Consumer* consumers[] = {&inputs[0]->consumer, &inputs[1]->consumer};
        for (int got = 0; got < 2;)
            for (const size_t ready : wait_any(consumers, kForever)) {
                auto slot = consumers[ready]->try_take();
                EXPECT(slot);
                look(*inputs[ready], *slot);
                give_back(*inputs[ready], *slot);
                ++got;
            }
    });
    world.at_end([&inputs] {
        for (const Reader* r : inputs) expect_all(*r, 0, 1);
    });
}

// -- death --------------------------------------------------------------------------------------------------

// The producer dies between any two of its steps; the supervisor sees it and ends the ring; every frame
// before the end is delivered once, and the end is where the ring stood.
void producer_dies(World& world, uint32_t capacity, uint64_t slots, uint64_t before, uint64_t frames) {
    Producer& p = producer(capacity, slots);
    Reader& r = reader(p, MO_BLOCK);
    auto& monitor = *new Monitor(p.ring_fd());
    produce(p, 0, before);
    const int victim = world.mortal("producer", [&p, before, frames] {
        produce(p, before, frames);
        p.finish(MO_END_OF_STREAM);
    });
    auto& final_seq = *new uint64_t(MO_UNKNOWN_U64);
    world.actor("supervisor", [&monitor, &final_seq, victim] {
        if (wait_for_end(victim)) final_seq = monitor.end(MO_END_FAILED);
    });
    world.actor("consumer", [&r] { read_all(r); });
    world.at_end([&r, &final_seq, before, frames] {
        EXPECT(r.final_seq >= before && r.final_seq <= before + frames);
        expect_all(r, 0, r.final_seq);
        if (final_seq == MO_UNKNOWN_U64)
            EXPECT(r.final_seq == before + frames && std::string_view(r.reason) == "end_of_stream");
        else
            EXPECT(r.final_seq == final_seq);
    });
}

void producer_dies_publishing(World& world) { producer_dies(world, 2, 2, 0, 1); }
void producer_dies_waiting(World& world) { producer_dies(world, 2, 1, 1, 1); }

// A consumer dies between any two of its steps while it reads; its page is replaced (by the producer, when it hears of
// it), and its heir gets everything that the dead one had not acknowledged. `careful`: only after the death.
void consumer_dies(World& world, mo_edge_policy policy, uint64_t before, uint64_t frames, bool careful = true) {
    Producer& p = producer(2, 2);
    Reader& r = reader(p, policy);
    Reader& heir = *new Reader(policy);
    attach(heir.consumer, p);
    auto& page = *new std::shared_ptr<PageMap>(PageMap::open(r.consumer.page_fd(), Access::read_only));
    produce(p, 0, before);
    const uint64_t total = before + frames;
    struct Control {
        Channel to_producer, to_heir;
        uint32_t bell = 0;  // for the first of them
        std::optional<Replacement> replacement;
        uint64_t acked = 0;
    };
    Control& control = *new Control;
    const int victim = world.mortal("consumer", [&r] { read_all(r); });
    world.actor("supervisor", [&control, victim, careful] {
        // Not to wait is the mistake that pidfds are there for.
        control.to_producer.send(careful ? wait_for_end(victim) : true);
        store_seq_cst(control.bell, 1u);
        futex_wake(control.bell);
    });
    world.actor("producer", [&, before, total] {
        bool heard = false;
        const auto hear = [&] {
            heard = true;
            const bool died = control.to_producer.receive() != 0;
            if (died) {
                control.acked = page->page().acked;
                control.replacement = p.replace(r.handle, heir.consumer.page_fd());
            }
            control.to_heir.send(died);
        };
        for (uint64_t i = before; i < total; ++i) {
            // As a worker does that is told of a death while it needs a slot.
            const auto slot = p.wait_until(
                kForever,
                [&] {
                    if (!heard && load_seq_cst(control.bell) != 0) hear();
                    return p.try_acquire(8);
                },
                [&](WaitSet set, int64_t ns) {
                    if (!heard) set.add(control.bell, 0, nullptr);
                    set.sleep(ns);
                });
            write_payload(slot->data, i);
            p.publish(*slot, frame(i), 8);
        }
        p.finish(MO_END_OF_STREAM);
        if (!heard) hear();
    });
    world.actor("heir", [&control, &heir] {
        if (control.to_heir.receive() != 0) read_all(heir);
    });
    world.at_end([&, policy, total] {
        if (!control.replacement) {
            if (policy == MO_BLOCK) expect_all(r, 0, total);
            if (policy == MO_DROP_OLDEST) expect_got_or_dropped(p, r, total);
            return;
        }
        const uint64_t start = control.replacement->start;
        std::vector<int> times(total, 0);
        if (policy == MO_BLOCK) {
            EXPECT(start == control.acked && control.replacement->lost.empty() && start <= r.got.size());
            for (uint64_t i = 0; i < start; ++i) ++times[i];
        } else {
            for (const uint64_t index : r.got) times[index] += index < control.acked;
        }
        for (const uint64_t index : control.replacement->lost) ++times[index];
        for (const uint64_t index : heir.got) ++times[index];
        for (const uint64_t index : p.take_dropped(r.handle)) ++times[index];
        for (const int count : times) EXPECT(count == 1);
        EXPECT(heir.final_seq == total && p.outstanding() == 0);
    });
}

void consumer_dies_block(World& world) { consumer_dies(world, MO_BLOCK, 1, 1); }
void consumer_dies_full(World& world) { consumer_dies(world, MO_BLOCK, 2, 1); }
void consumer_dies_dropping(World& world) { consumer_dies(world, MO_DROP_OLDEST, 1, 1); }
void replaced_on_a_guess(World& world) { consumer_dies(world, MO_BLOCK, 2, 1, false); }

// The ring is ended while its producer may still live: what the rules forbid.
void ended_on_a_guess(World& world) {
    Producer& p = producer(2, 2);
    Reader& r = reader(p, MO_BLOCK);
    auto& monitor = *new Monitor(p.ring_fd());
    auto& published = *new uint64_t(0);
    world.actor("producer", [&p, &published] {
        try {
            publish(p, 0);
            ++published;
        } catch (const RingError&) {
            // It noticed.
        }
    });
    world.actor("supervisor", [&monitor] { monitor.end(MO_END_FAILED); });
    world.actor("consumer", [&r] { read_all(r); });
    world.at_end([&r, &published] { EXPECT(r.got.size() == published); });
}

// Another incarnation goes on where the dead one's ring was ended; the consumer reads one after the other.
void next_incarnation(World& world) {
    constexpr uint64_t total = 2;
    Producer& first = producer(2, 1);
    const SizeClass size{8, 1, false};
    Producer& second = *new Producer(2, std::span(&size, 1), 2, std::nullopt);
    Reader& r = reader(first, MO_BLOCK);
    auto& monitor = *new Monitor(first.ring_fd());
    struct Control {
        Channel to_successor, to_consumer;
    };
    Control& control = *new Control;
    const int victim = world.mortal("producer", [&first] {
        produce(first, 0, total);
        first.finish(MO_END_OF_STREAM);
    });
    world.actor("supervisor", [&control, &monitor, victim] {
        control.to_successor.send(wait_for_end(victim) ? monitor.end(MO_END_MIGRATED) : total);
    });
    world.actor("successor", [&control, &second, &r] {
        const uint64_t from = control.to_successor.receive();
        second.begin(from);
        second.admit(r.consumer.page_fd(), MO_BLOCK);
        control.to_consumer.send(1);
        for (uint64_t i = from; i < total; ++i) publish(second, i);
        second.finish(MO_END_OF_STREAM);
    });
    world.actor("consumer", [&control, &second, &r] {
        read_all(r);
        control.to_consumer.receive();
        attach(r.consumer, second);
        read_all(r);
    });
    world.at_end([&r] {
        expect_all(r, 0, total);
        EXPECT(r.final_seq == total);
    });
}

// Both die; the supervisor does for the consumer's heir what the producer would have done.
void both_die(World& world) {
    world.deaths(2);
    Producer& p = producer(2, 2);
    Reader& r = reader(p, MO_BLOCK);
    Reader& heir = *new Reader(MO_BLOCK);
    attach(heir.consumer, p);
    auto& monitor = *new Monitor(p.ring_fd());
    const int handle = monitor.watch(r.consumer.page_fd());
    produce(p, 0, 1);
    struct Control {
        Channel to_heir;
        bool replaced = false;
        Replacement replacement;
    };
    Control& control = *new Control;
    const int producer_actor = world.mortal("producer", [&p] {
        publish(p, 1);
        p.finish(MO_END_OF_STREAM);
    });
    const int consumer_actor = world.mortal("consumer", [&r] { read_all(r); });
    world.actor("supervisor", [&control, &monitor, &heir, handle, producer_actor, consumer_actor] {
        if (wait_for_end(producer_actor)) monitor.end(MO_END_FAILED);
        control.replaced = wait_for_end(consumer_actor);
        if (control.replaced) control.replacement = monitor.replace(handle, heir.consumer.page_fd());
        control.to_heir.send(control.replaced);
    });
    world.actor("heir", [&control, &heir] {
        if (control.to_heir.receive() != 0) read_all(heir);
    });
    world.at_end([&control, &r, &heir] {
        if (!control.replaced) {
            EXPECT(r.final_seq == 1 || r.final_seq == 2);
            expect_all(r, 0, r.final_seq);
            return;
        }
        EXPECT(control.replacement.start <= r.got.size());
        expect_all(heir, control.replacement.start, heir.final_seq - control.replacement.start);
    });
}

// The producer hears of the consumer's death and dies as well, between any two steps of the replacement too; the
// supervisor finishes what it finds.
void producer_dies_replacing(World& world) {
    world.deaths(2);
    Producer& p = producer(2, 2);
    Reader& r = reader(p, MO_BLOCK);
    Reader& heir = *new Reader(MO_BLOCK);
    attach(heir.consumer, p);
    auto& monitor = *new Monitor(p.ring_fd());
    const int handle = monitor.watch(r.consumer.page_fd());
    produce(p, 0, 2);
    struct Control {
        Channel to_producer, to_heir;
        bool replaced = false;
    };
    Control& control = *new Control;
    const int consumer_actor = world.mortal("consumer", [&r] { read(r, 2); });
    const int producer_actor = world.mortal("producer", [&p, &r, &heir, &control] {
        if (control.to_producer.receive() != 0) p.replace(r.handle, heir.consumer.page_fd());
        p.finish(MO_END_OF_STREAM);
    });
    world.actor("supervisor", [&control, &monitor, &heir, handle, producer_actor, consumer_actor] {
        control.replaced = wait_for_end(consumer_actor);
        control.to_producer.send(control.replaced);
        if (wait_for_end(producer_actor)) {
            monitor.end(MO_END_FAILED);
            if (control.replaced) monitor.replace(handle, heir.consumer.page_fd());
        }
        control.to_heir.send(control.replaced);
    });
    world.actor("heir", [&control, &heir] {
        if (control.to_heir.receive() != 0) read_all(heir);
    });
    world.at_end([&control, &r, &heir] {
        if (!control.replaced) return expect_all(r, 0, 2);
        EXPECT(heir.final_seq == 2 && heir.got.size() + r.got.size() >= 2);
        expect_all(heir, 2 - heir.got.size(), heir.got.size());
    });
}

// -- shares and groups --------------------------------------------------------------------------------------

void handed_over(World& world, mo_edge_policy policy, uint64_t before, uint64_t after) {
    Producer& p = producer(2, 2);
    Reader& old = reader(p, policy);
    Reader& heir = *new Reader(policy);
    attach(heir.consumer, p);
    world.actor("producer", [&p, &old, &heir, before, after] {
        produce(p, 0, before);
        heir.handle = p.cut(old.handle, heir.consumer.page_fd());
        produce(p, before, after);
        p.finish(MO_END_OF_STREAM);
    });
    world.actor("old", [&old] { read_all(old); });
    world.actor("heir", [&heir] { read_all(heir); });
    world.at_end([&p, &old, &heir, before, after] {
        EXPECT(old.final_seq == before && std::string_view(old.reason) == "cut");
        EXPECT(heir.final_seq == before + after && std::string_view(heir.reason) == "end_of_stream");
        std::vector<int> times(before + after, 0);
        for (Reader* reader : {&old, &heir}) {
            for (const uint64_t index : reader->got) {
                EXPECT((index < before) == (reader == &old));
                ++times[index];
            }
            for (const uint64_t index : p.take_dropped(reader->handle)) ++times[index];
        }
        for (const int count : times) EXPECT(count == 1);
        EXPECT(p.outstanding() == 0);
    });
}

void handed_over_at_once(World& world) { handed_over(world, MO_BLOCK, 0, 1); }
void handed_over_later(World& world) { handed_over(world, MO_BLOCK, 1, 1); }
void handed_over_dropping(World& world) { handed_over(world, MO_DROP_OLDEST, 1, 1); }

// Two readers end at the same sequence while they read; what follows is for nobody, and waits for nobody.
void shares_ended(World& world) {
    Producer& p = producer(2, 1);
    Reader& one = reader(p, MO_BLOCK);
    Reader& other = reader(p, MO_BLOCK);
    world.actor("producer", [&p, &one, &other] {
        produce(p, 0, 1);
        p.stop({one.handle, other.handle});
        produce(p, 1, 2);
        p.finish(MO_END_OF_STREAM);
    });
    for (Reader* reader : {&one, &other})
        world.actor(reader == &one ? "one" : "other", [reader] { read_all(*reader); });
    world.at_end([&p, &one, &other] {
        for (Reader* reader : {&one, &other}) {
            EXPECT(reader->final_seq == 1 && std::string_view(reader->reason) == "cut");
            EXPECT(reader->got.size() == 1 && reader->got[0] == 0);
        }
        EXPECT(p.outstanding() == 0);
    });
}

// Two frames by one commit: death leaves both or none.
void together(World& world) {
    Producer& p = producer(2, 2);
    Reader& r = reader(p, MO_BLOCK);
    auto& monitor = *new Monitor(p.ring_fd());
    const int victim = world.mortal("producer", [&p] {
        std::vector<WriteSlot> slots;
        std::vector<mo_descriptor> descriptors;
        for (uint64_t i = 0; i < 2; ++i) {
            slots.push_back(*p.acquire(8, kForever));
            write_payload(slots.back().data, i);
            descriptors.push_back(frame(i));
        }
        const Publication both[] = {{&slots[0], &descriptors[0], 8}, {&slots[1], &descriptors[1], 8}};
        p.publish_together(both);
        p.finish(MO_END_OF_STREAM);
    });
    world.actor("supervisor", [&monitor, victim] {
        if (wait_for_end(victim)) monitor.end(MO_END_FAILED);
    });
    world.actor("consumer", [&r] { read_all(r); });
    world.at_end([&r] {
        EXPECT(r.final_seq == 0 || r.final_seq == 2);
        expect_all(r, 0, r.final_seq);
    });
}

// The consumer still reads an older ring when this one, full already, admits it under drop_oldest: nothing can be
// dropped before it comes, so the producer sleeps until it does.
void full_before_it_comes(World& world) {
    Producer& first = producer(1, 1);
    Reader& r = reader(first, MO_DROP_OLDEST);
    produce(first, 0, 1);
    first.finish(MO_END_MIGRATED);
    Producer& second = producer(1, 2, 1, 2);
    r.handle = second.admit(r.consumer.page_fd(), MO_DROP_OLDEST);
    publish(second, 1);
    world.actor("producer", [&second] {
        publish(second, 2);
        second.finish(MO_END_OF_STREAM);
    });
    auto& held = *new std::vector<ReadSlot>;
    world.actor("consumer", [&r, &second, &held] {
        read_all(r);
        attach(r.consumer, second);
        // Held until the next one has come.
        while (true) {
            try {
                held.push_back(*r.consumer.take(kForever));
                look(r, held.back());
            } catch (const RingEnded&) {
                break;
            }
        }
        for (ReadSlot& slot : held) give_back(r, slot);
    });
    world.at_end([&second, &r] { expect_got_or_dropped(second, r, 3); });
}

// -- longer ones, with a bound on preemptions ---------------------------------------------------------------

PIECE(three_through_one_slot, 2, 1, 0, 3, true, {MO_BLOCK})
PIECE(three_through_one_cell, 1, 2, 0, 3, true, {MO_BLOCK})
PIECE(two_to_two, 2, 1, 0, 2, true, {MO_BLOCK, MO_BLOCK})
PIECE(dropping_four, 2, 2, 0, 4, true, {MO_DROP_OLDEST})
PIECE(mixed, 2, 2, 0, 3, true, {MO_DROP_OLDEST, MO_BLOCK})

}  // namespace

const std::vector<Scenario>& scenarios() {
    static const std::vector<Scenario> all = {
        {"first-frame", "a frame comes while its consumer falls asleep", first_frame},
        {"just-the-end", "the end comes while the consumer falls asleep", just_the_end},
        {"frame-and-end", "a frame and the end", frame_and_end},
        {"no-slot", "the producer lacks a slot until the consumer acknowledges", no_slot},
        {"no-cell", "the producer lacks a descriptor", no_cell},
        {"wrapped", "the ring wraps while the consumer reads", wrapped},
        {"two-sleepers", "one frame for two consumers", two_sleepers},
        {"two-in-the-way", "two consumers have to acknowledge", two_in_the_way, -1, true},
        {"drop-the-only-one", "the frame is taken or dropped", drop_the_only_one},
        {"drop-the-older", "the older of two is taken or dropped", drop_the_older, -1, true},
        {"drop-for-a-cell", "the descriptor is copied or rewritten", drop_for_a_cell},
        {"drop-two", "two frames push one out each, with three preemptions", drop_two, 3, true},
        {"drop-beside-block", "a frame that a block consumer needs too", drop_beside_block, -1, true},
        {"admitted-while-looking", "a consumer is admitted while it looks", admitted_while_looking},
        {"dropped-before-it-came", "frames are dropped for a consumer that starts", dropped_before_it_came, -1, true},
        {"dismissed", "a consumer is dismissed while it takes", dismissed},
        {"all-acknowledged", "the producer waits until all is acknowledged", all_acknowledged},
        {"released-backwards", "two leases end in the other order", released_backwards},
        {"two-inputs", "one consumer sleeps on two rings", two_inputs},
        {"producer-dies-publishing", "the producer dies between any two steps", producer_dies_publishing},
        {"producer-dies-waiting", "the same, while it needs a slot", producer_dies_waiting, -1, true},
        {"consumer-dies", "a consumer dies between any two steps and is replaced", consumer_dies_block, 1},
        {"consumer-dies-full", "the same, while the producer needs its slot", consumer_dies_full, 1},
        {"consumer-dies-dropping", "the same under drop_oldest", consumer_dies_dropping, 1},
        {"next-incarnation", "a dead producer's successor goes on", next_incarnation, 0},
        {"both-die", "producer and consumer die", both_die, 0},
        {"producer-dies-replacing", "the producer dies while it replaces a dead consumer's page", producer_dies_replacing, 0},
        {"together", "two frames by one commit, or death", together},
        {"handed-over-at-once", "a share of nothing, then another consumer", handed_over_at_once, 1},
        {"handed-over-later", "one frame each", handed_over_later, 1},
        {"handed-over-dropping", "the same under drop_oldest", handed_over_dropping, 1},
        {"shares-ended", "two readers end at once, nobody takes over", shares_ended, 1},
        {"full-before-it-comes", "a ring is full before its consumer has left the last one", full_before_it_comes, 2},
        {"handed-over-at-once-all", "without a bound", handed_over_at_once, -1, true},
        {"full-before-it-comes-all", "without a bound", full_before_it_comes, -1, true},
        {"consumer-dies-2", "with two preemptions", consumer_dies_block, 2, true},
        {"consumer-dies-dropping-2", "with two preemptions", consumer_dies_dropping, 2, true},
        {"next-incarnation-1", "with one preemption", next_incarnation, 1, true},
        {"both-die-1", "with one preemption", both_die, 1, true},
        {"handed-over-later-2", "with two preemptions", handed_over_later, 2, true},
        {"replaced-on-a-guess", "must fail: replaced while it lives", replaced_on_a_guess, 1, false, true},
        {"ended-on-a-guess", "must fail: ended while it lives", ended_on_a_guess, -1, false, true},
        {"three-through-one-slot", "3 frames, 1 slot", three_through_one_slot, 2},
        {"three-through-one-cell", "3 frames, 1 descriptor", three_through_one_cell, 2},
        {"two-to-two", "2 frames, 1 slot, 2 consumers", two_to_two, 1},
        {"dropping-four", "4 frames, 2 slots, drop_oldest", dropping_four, 2},
        {"mixed", "3 frames, 2 slots, both policies", mixed, 1},
    };
    return all;
}

}  // namespace mo::explore
