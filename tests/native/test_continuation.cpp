// How work goes on elsewhere: a dead consumer's page is replaced, a share is cut, a ring follows another, several
// payloads are one commit.
#include <chrono>
#include <string>
#include <thread>

#include "rig.hpp"

namespace {

using namespace rig;

std::vector<uint64_t> take_all(Consumer& from, std::vector<ReadSlot>* held = nullptr) {
    std::vector<uint64_t> indices;
    while (auto slot = from.try_take()) {
        if (slot->data != nullptr) CHECK(holds(*slot, slot->descriptor.source_index));
        indices.push_back(slot->descriptor.source_index);
        if (held != nullptr)
            held->push_back(std::move(*slot));
        else
            from.release(*slot);
    }
    return indices;
}

using Indices = std::vector<uint64_t>;

void what_a_dead_consumer_had_not_acknowledged_comes_again() {
    auto p = producer(8, {{64, 6}});
    int handle = -1;
    auto dead = consumer(*p, MO_BLOCK, &handle);
    auto sibling = consumer(*p);
    for (uint64_t i = 0; i < 5; ++i) CHECK(publish(*p, i));
    CHECK(take_all(*sibling) == (Indices{0, 1, 2, 3, 4}));
    auto first = dead->try_take(), second = dead->try_take(), third = dead->try_take();
    dead->release(*first);
    dead->release(*third);  // no prefix: it counts as not acknowledged
    CHECK(publish(*p, 5));

    Consumer heir(MO_BLOCK);
    const Replacement made = p->replace(handle, heir.page_fd());
    CHECK(made.start == 1 && made.lost.empty());
    attach(heir, *p);
    CHECK(take_all(heir) == (Indices{1, 2, 3, 4, 5}));
    CHECK(take_all(*sibling) == (Indices{5}));
    CHECK(p->outstanding() == 0 && p->free_slots() == 6);
    // The handle is the same one, and can be replaced once more.
    CHECK(publish(*p, 6));
    Consumer next(MO_BLOCK);
    CHECK(p->replace(handle, next.page_fd()).start == 6);
    attach(next, *p);
    CHECK(take_all(next) == (Indices{6}) && p->backlog(handle) == 0);
    CHECK_THROWS(heir.try_take(), RingError, "dismissed");
    CHECK_THROWS(p->replace(handle, next.page_fd()), RingError, "admitted already");
}

void slots_and_cells_wait_for_the_heir() {
    auto p = producer(4, {{64, 4}});
    int handle = -1;
    auto dead = consumer(*p, MO_BLOCK, &handle);
    for (uint64_t i = 0; i < 4; ++i) CHECK(publish(*p, i));
    std::vector<ReadSlot> held;
    CHECK(take_all(*dead, &held).size() == 4);  // all taken, none acknowledged
    CHECK(!publish(*p, 4));
    Consumer heir(MO_BLOCK);
    CHECK(p->replace(handle, heir.page_fd()).start == 0);
    CHECK(!publish(*p, 4));
    attach(heir, *p);
    CHECK(take_all(heir) == (Indices{0, 1, 2, 3}));
    CHECK(publish(*p, 4));
}

void under_drop_oldest_what_the_dead_one_held_is_lost() {
    auto p = producer(8, {{64, 4}});
    int handle = -1;
    auto dead = consumer(*p, MO_DROP_OLDEST, &handle);
    for (uint64_t i = 10; i < 14; ++i) CHECK(publish(*p, i));
    auto first = dead->try_take(), second = dead->try_take();
    dead->release(*first);
    Consumer heir(MO_DROP_OLDEST);
    const Replacement made = p->replace(handle, heir.page_fd());
    CHECK(made.start == 2 && made.lost == Indices{11});
    CHECK(p->free_slots() == 2);
    CHECK(publish(*p, 14) && publish(*p, 15) && publish(*p, 16));  // drops 12 before the heir has attached
    CHECK(p->take_dropped(handle) == Indices{12});
    attach(heir, *p);
    CHECK(take_all(heir) == (Indices{13, 14, 15, 16}));
}

void an_ended_ring_gives_the_rest_to_the_heir() {
    auto p = producer(8, {{64, 4}});
    int handle = -1;
    auto dead = consumer(*p, MO_BLOCK, &handle);
    for (uint64_t i = 0; i < 3; ++i) CHECK(publish(*p, i));
    {
        auto slot = dead->try_take();
        dead->release(*slot);
    }
    CHECK(p->finish(MO_END_OF_STREAM) == 3);
    Consumer heir(MO_BLOCK);
    CHECK(p->replace(handle, heir.page_fd()).start == 1);
    attach(heir, *p);
    auto one = heir.try_take(), two = heir.try_take();
    CHECK(one->descriptor.source_index == 1 && two->descriptor.source_index == 2);
    CHECK_THROWS(heir.try_take(), RingEnded, "end_of_stream");
}

void a_supervisor_replaces_where_the_producer_is_dead_too() {
    for (const auto policy : {MO_BLOCK, MO_DROP_OLDEST}) {
        auto p = producer(8, {{64, 6}});
        auto dead = consumer(*p, policy);
        Monitor monitor(p->ring_fd());
        const int watched = monitor.watch(dead->page_fd());
        for (uint64_t i = 0; i < 5; ++i) CHECK(publish(*p, i));
        auto first = dead->try_take(), second = dead->try_take(), third = dead->try_take();
        dead->release(*first);
        Consumer heir(policy);
        CHECK_THROWS(monitor.replace(watched, heir.page_fd()), RingError, "has not ended");
        CHECK(monitor.end(MO_END_MIGRATED) == 5);
        CHECK(monitor.trail().size() == 5 && monitor.trail()[4].source_index == 4);
        const Replacement made = monitor.replace(watched, heir.page_fd());
        // Another supervisor, or one who does not know whether the producer did it before it died, may do it again.
        const Replacement again = monitor.replace(monitor.watch(dead->page_fd()), heir.page_fd());
        CHECK(again.start == made.start && again.lost == made.lost);
        CHECK_THROWS(monitor.replace(watched, heir.page_fd()), RingError, "its own place");
        attach(heir, *p);
        Indices came;
        try {
            for (;;) {
                auto slot = heir.try_take();
                CHECK(slot && holds(*slot, slot->descriptor.source_index));
                came.push_back(slot->descriptor.source_index);
                heir.release(*slot);
            }
        } catch (const RingEnded& ended) {
            CHECK(ended.final_seq == 5);
        }
        if (policy == MO_BLOCK) CHECK(made.start == 1 && made.lost.empty() && came == (Indices{1, 2, 3, 4}));
        if (policy == MO_DROP_OLDEST) CHECK(made.start == 3 && made.lost == (Indices{1, 2}) && came == (Indices{3, 4}));
        Consumer stranger(policy), other(policy);
        CHECK_THROWS(monitor.replace(monitor.watch(stranger.page_fd()), other.page_fd()), RingError, "never admitted");
    }
}

void a_cut_gives_every_sequence_to_exactly_one() {
    for (const auto policy : {MO_BLOCK, MO_DROP_OLDEST}) {
        auto p = producer(16, {{64, 12}});
        int handle = -1;
        auto old = consumer(*p, policy, &handle);
        for (uint64_t i = 0; i < 3; ++i) CHECK(publish(*p, i));
        Consumer other(policy);
        const int second = p->cut(handle, other.page_fd());
        CHECK(p->tail() == 3 && second != handle);
        attach(other, *p);
        for (uint64_t i = 3; i < 6; ++i) CHECK(publish(*p, i));
        std::vector<ReadSlot> held;
        Indices first;
        try {
            for (;;) {
                held.push_back(std::move(*old->try_take()));
                first.push_back(held.back().descriptor.source_index);
            }
        } catch (const RingEnded& ended) {
            CHECK(ended.reason == std::string("cut") && ended.final_seq == 3);
        }
        CHECK(first == (Indices{0, 1, 2}) && take_all(other) == (Indices{3, 4, 5}));
        CHECK(p->outstanding() == 3);  // what the old one holds is still kept for it
        for (ReadSlot& slot : held) old->release(slot);
        CHECK(p->outstanding() == 0 && p->free_slots() == 12);
        CHECK_THROWS(p->cut(handle, other.page_fd()), RingError, "was cut off at sequence 3");
        p->dismiss(handle);
        // An old consumer that is done hinders nobody: more than a ring's worth goes through.
        for (uint64_t i = 6; i < 60; ++i) CHECK(publish(*p, i) && take_all(other) == Indices{i});
    }
}

void who_was_cut_off_and_dies_is_replaced_up_to_the_cut() {
    auto p = producer(16, {{64, 12}});
    int handle = -1;
    auto old = consumer(*p, MO_BLOCK, &handle);
    for (uint64_t i = 0; i < 4; ++i) CHECK(publish(*p, i));
    {
        auto slot = old->try_take();
        old->release(*slot);
    }
    Consumer other(MO_BLOCK);
    p->cut(handle, other.page_fd());
    for (uint64_t i = 4; i < 6; ++i) CHECK(publish(*p, i));
    Consumer heir(MO_BLOCK);
    CHECK(p->replace(handle, heir.page_fd()).start == 1);
    attach(heir, *p);
    Indices came;
    try {
        for (;;) {
            auto slot = heir.try_take();
            came.push_back(slot->descriptor.source_index);
            heir.release(*slot);
        }
    } catch (const RingEnded& ended) {
        CHECK(ended.final_seq == 4);
    }
    attach(other, *p);
    CHECK(came == (Indices{1, 2, 3}) && take_all(other) == (Indices{4, 5}));
}

// The producer decides between two commits, whatever the consumers do at that moment.
void cuts_under_load_lose_and_repeat_nothing() {
    const auto kCount = static_cast<uint64_t>(rounds(40'000));
    constexpr uint64_t kEvery = 50;
    auto p = producer(16, {{64, 8}});
    std::vector<std::thread> threads;
    std::vector<Indices> shares(kCount / kEvery + 1);
    std::vector<std::unique_ptr<Consumer>> consumers;
    const auto start = [&](std::unique_ptr<Consumer> fresh) {
        Consumer* consumer = fresh.get();
        Indices* share = &shares[consumers.size()];
        consumers.push_back(std::move(fresh));
        threads.emplace_back([consumer, share] {
            try {
                for (;;) {
                    auto slot = consumer->take(kLong);
                    CHECK(slot && holds(*slot, slot->descriptor.source_index));
                    share->push_back(slot->descriptor.source_index);
                    consumer->release(*slot);
                }
            } catch (const RingEnded&) {
            }
        });
    };
    int handle = -1;
    start(consumer(*p, MO_BLOCK, &handle));
    std::vector<int> cut_off;
    for (uint64_t i = 0; i < kCount; ++i) {
        const auto slot = p->acquire(64, kLong);
        CHECK(slot);
        fill(*slot, 64, i);
        p->publish(*slot, frame(i), 64);
        if (i % kEvery != kEvery - 1 || i + 1 == kCount) continue;
        auto fresh = std::make_unique<Consumer>(MO_BLOCK);
        const int following = p->cut(handle, fresh->page_fd());
        attach(*fresh, *p);
        start(std::move(fresh));
        // As its supervisor would, once the old one has seen its end.
        cut_off.push_back(handle);
        if (cut_off.size() > 4) {
            threads[threads.size() - 1 - cut_off.size()].join();
            p->dismiss(cut_off.front());
            cut_off.erase(cut_off.begin());
        }
        handle = following;
    }
    p->finish(MO_END_OF_STREAM);
    for (auto& thread : threads)
        if (thread.joinable()) thread.join();
    uint64_t expected = 0;
    for (const Indices& share : shares)
        for (const uint64_t index : share) CHECK(index == expected++);
    CHECK(expected == kCount);
}

void a_ring_may_begin_later() {
    Producer p(4, std::vector<SizeClass>{{64, 2}}, 2, std::nullopt);
    Consumer c(MO_BLOCK);
    CHECK(!p.begun() && !p.try_acquire(64) && !p.try_publish_empty(unknown_descriptor(MO_FRAME_LOST)));
    CHECK_THROWS(p.admit(c.page_fd(), MO_BLOCK), RingError, "has not begun");
    CHECK_THROWS(p.finish(MO_END_STOPPED), RingError, "has not begun");
    CHECK_THROWS(attach(c, p), RingError, "has not begun");
    p.begin(7);
    CHECK_THROWS(p.begin(8), RingError, "begun already");
    p.admit(c.page_fd(), MO_BLOCK);
    attach(c, p);
    CHECK(publish(p, 3));
    auto slot = c.try_take();
    CHECK(slot->descriptor.sequence == 7 && slot->descriptor.source_index == 3);
}

void several_payloads_are_one_commit() {
    auto p = producer(8, {{64, 4}});
    auto c = consumer(*p);
    std::vector<WriteSlot> slots;
    std::vector<mo_descriptor> descriptors;
    for (uint64_t i = 0; i < 3; ++i) {
        slots.push_back(*p->try_acquire(64));
        fill(slots.back(), 64, i);
        descriptors.push_back(frame(i));
    }
    std::vector<Publication> payloads;
    for (size_t i = 0; i < 3; ++i) payloads.push_back({&slots[i], &descriptors[i], 64});
    auto too_long = payloads;
    too_long[2].bytes = 1 << 20;
    CHECK_THROWS(p->publish_together(too_long), RingError, "the slot holds");
    CHECK(!c->try_take());  // all or nothing
    CHECK(p->publish_together(payloads) == 0 && p->tail() == 3);
    CHECK(take_all(*c) == (Indices{0, 1, 2}) && p->free_slots() == 4);
}

void spinning_sees_a_frame_and_the_end() {
    auto p = producer(4, {{64, 2}});
    auto c = consumer(*p);
    c->spin(kLong);
    std::thread writer([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        CHECK(publish(*p, 0));
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        p->finish(MO_END_STOPPED);
    });
    auto slot = c->take(kLong);
    CHECK(slot && slot->descriptor.source_index == 0);
    CHECK_THROWS(c->take(kLong), RingEnded, "stopped");
    writer.join();
}

}  // namespace

int main() {
    RUN(what_a_dead_consumer_had_not_acknowledged_comes_again);
    RUN(slots_and_cells_wait_for_the_heir);
    RUN(under_drop_oldest_what_the_dead_one_held_is_lost);
    RUN(an_ended_ring_gives_the_rest_to_the_heir);
    RUN(a_supervisor_replaces_where_the_producer_is_dead_too);
    RUN(a_cut_gives_every_sequence_to_exactly_one);
    RUN(who_was_cut_off_and_dies_is_replaced_up_to_the_cut);
    RUN(cuts_under_load_lose_and_repeat_nothing);
    RUN(a_ring_may_begin_later);
    RUN(several_payloads_are_one_commit);
    RUN(spinning_sees_a_frame_and_the_end);
}
