// Producer and consumers in threads of one process: nothing is lost, torn, reordered, or slept through.
#include <algorithm>
#include <random>

#include "rig.hpp"

namespace {

using namespace rig;

void produce(Producer& p, uint64_t count, uint64_t bytes) {
    for (uint64_t i = 0; i < count; ++i) {
        const auto slot = p.acquire(bytes, kLong);
        CHECK(slot);
        fill(*slot, bytes, i);
        p.publish(*slot, frame(i), bytes);
    }
    p.finish(MO_END_OF_STREAM);
}

// Takes everything, keeps up to `hold` frames and releases them in random order. What is acknowledged is a
// prefix, so a frame that is kept keeps the slots of all after it: the oldest goes before that stops the
// producer.
void consume(Consumer& c, uint64_t count, size_t hold, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<ReadSlot> held;
    uint64_t expected = 0;
    const auto release_one = [&] {
        const size_t which =
            expected - held.front().descriptor.sequence >= 2 * hold ? 0 : random() % held.size();
        CHECK(holds(held[which], held[which].descriptor.source_index));
        c.release(held[which]);
        held.erase(held.begin() + static_cast<ptrdiff_t>(which));
    };
    try {
        for (;;) {
            auto slot = c.take(kLong);
            CHECK(slot && slot->descriptor.sequence == expected && slot->descriptor.source_index == expected);
            ++expected;
            held.push_back(std::move(*slot));
            if (held.size() >= hold) release_one();
        }
    } catch (const RingEnded& ended) {
        CHECK(ended.final_seq == count && expected == count);
    }
    while (!held.empty()) release_one();
}

void nothing_is_lost_or_torn() {
    struct Case {
        uint32_t capacity;
        uint64_t slots;
        size_t consumers;
        size_t hold;
    };
    for (const Case& each : {Case{8, 2, 1, 1}, Case{1, 4, 1, 2}, Case{4, 8, 3, 3}, Case{64, 32, 2, 10}}) {
        const uint64_t count = static_cast<uint64_t>(rounds(40'000));
        auto p = producer(each.capacity, {{512, each.slots}});
        std::vector<std::unique_ptr<Consumer>> consumers;
        for (size_t i = 0; i < each.consumers; ++i) consumers.push_back(consumer(*p));
        std::vector<std::thread> threads;
        for (size_t i = 0; i < each.consumers; ++i)
            threads.emplace_back(
                [&, i] { consume(*consumers[i], count, each.hold, static_cast<unsigned>(i)); });
        produce(*p, count, 512);
        CHECK(p->wait_acknowledged(kLong));
        for (auto& thread : threads) thread.join();
        CHECK(p->free_slots() == each.slots && p->outstanding() == 0);
    }
}

void lost_frames_wait_for_descriptors() {
    auto p = producer(2, {{64, 1}});
    auto c = consumer(*p);
    const uint64_t count = static_cast<uint64_t>(rounds(40'000));
    std::thread reader([&] {
        for (uint64_t i = 0; i < count; ++i) {
            auto slot = c->take(kLong);
            CHECK(slot && slot->descriptor.source_index == i);
            c->release(*slot);
        }
    });
    mo_descriptor lost = unknown_descriptor(MO_FRAME_LOST);
    for (uint64_t i = 0; i < count; ++i) {
        lost.source_index = i;
        CHECK(p->publish_empty(lost, kLong));
    }
    reader.join();
}

// Each side sleeps before nearly every step, and sleeps for good if nobody wakes it.
void no_wake_up_is_lost() {
    struct Case {
        uint32_t capacity;
        uint64_t slots;
        size_t consumers;
    };
    // The producer waits for a descriptor, for a slot, for the slower of two.
    for (const Case& each : {Case{1, 4, 1}, Case{4, 1, 1}, Case{2, 2, 2}}) {
        auto p = producer(each.capacity, {{64, each.slots}});
        const uint64_t count = static_cast<uint64_t>(rounds(8'000));
        std::vector<std::unique_ptr<Consumer>> consumers;
        std::vector<std::thread> threads;
        for (size_t i = 0; i < each.consumers; ++i) {
            consumers.push_back(consumer(*p));
            threads.emplace_back([&, c = consumers.back().get()] {
                for (uint64_t n = 0; n < count; ++n) {
                    auto slot = c->take_until(kForever, sleep_until_woken);
                    CHECK(slot && slot->descriptor.source_index == n);
                    c->release(*slot);
                }
            });
        }
        for (uint64_t i = 0; i < count; ++i) {
            const auto slot = p->wait_until(kForever, [&] { return p->try_acquire(64); }, sleep_until_woken);
            CHECK(slot);
            p->publish(*slot, frame(i), 64);
        }
        CHECK(p->wait_until(kForever, [&] { return p->all_acknowledged(); }, sleep_until_woken));
        for (auto& thread : threads) thread.join();
    }
}

void the_end_wakes_every_sleeper() {
    for (int round = 0; round < rounds(400); ++round) {
        auto p = producer(4, {{64, 4}});
        auto a = consumer(*p), b = consumer(*p);
        Monitor monitor(p->ring_fd());
        const auto read = [](Consumer& c) {
            try {
                while (auto slot = c.take_until(kForever, sleep_until_woken)) c.release(*slot);
                CHECK(false);
            } catch (const RingEnded&) {}
        };
        std::thread first([&] { read(*a); }), second([&] { read(*b); });
        const int frames = round % 3;
        for (int i = 0; i < frames; ++i) CHECK(publish(*p, static_cast<uint64_t>(i)));
        if (round % 2 != 0)
            p->finish(MO_END_OF_STREAM);
        else
            monitor.end(MO_END_FAILED);
        first.join();
        second.join();
    }
}

void wait_any_wakes_for_any() {
    for (const bool without_waitv : {false, true}) {
        pretend_no_futex_waitv(without_waitv);
        std::vector<std::unique_ptr<Producer>> producers;
        std::vector<std::unique_ptr<Consumer>> consumers;
        std::vector<Consumer*> pointers;
        for (int i = 0; i < 3; ++i) {
            producers.push_back(producer(4, {{64, 2}}));
            consumers.push_back(consumer(*producers.back()));
            pointers.push_back(consumers.back().get());
        }
        CHECK(wait_any(pointers, 0).empty() && wait_any(pointers, 2 * kMillisecond).empty());
        const uint64_t count = static_cast<uint64_t>(rounds(without_waitv ? 400 : 6'000));
        std::vector<std::thread> threads;
        for (auto& p : producers) threads.emplace_back([&] { produce(*p, count, 64); });
        std::vector<uint64_t> next(3, 0);
        size_t open = 3;
        std::vector<size_t> which{0, 1, 2};
        while (open > 0) {
            std::vector<Consumer*> waiting;
            for (const size_t each : which) waiting.push_back(consumers[each].get());
            const auto ready = wait_any(waiting, kLong);
            CHECK(!ready.empty());
            std::vector<size_t> finished;
            for (const size_t position : ready) {
                const size_t each = which[position];
                try {
                    auto slot = consumers[each]->try_take();
                    CHECK(slot && slot->descriptor.source_index == next[each]++);
                    consumers[each]->release(*slot);
                } catch (const RingEnded&) {
                    finished.push_back(each);
                }
            }
            for (const size_t each : finished) {
                which.erase(std::find(which.begin(), which.end(), each));
                --open;
            }
        }
        for (auto& thread : threads) thread.join();
        for (const uint64_t each : next) CHECK(each == count);
    }
    pretend_no_futex_waitv(false);
}

void admission_wakes_a_consumer_that_came_first() {
    auto p = producer(4, {{64, 2}});
    Consumer c(MO_BLOCK);
    attach(c, *p);
    std::thread reader([&] {
        auto slot = c.take_until(kForever, sleep_until_woken);
        CHECK(slot && slot->descriptor.sequence == 2);
        c.release(*slot);
    });
    CHECK(publish(*p, 0) && publish(*p, 1));
    p->admit(c.page_fd(), MO_BLOCK);
    CHECK(publish(*p, 2));
    reader.join();
}

void consumers_come_and_go_while_frames_flow() {
    auto p = producer(8, {{64, 6}});
    auto steady = consumer(*p);
    const uint64_t count = static_cast<uint64_t>(rounds(20'000));
    std::thread reader([&] { consume(*steady, count, 2, 1); });
    std::unique_ptr<Consumer> guest;
    int handle = -1;
    for (uint64_t i = 0; i < count; ++i) {
        const auto slot = p->acquire(64, kLong);
        CHECK(slot);
        fill(*slot, 64, i);
        p->publish(*slot, frame(i), 64);
        if (i % 7 == 0) {
            if (guest) {
                // It leaves with one frame held and others unread.
                auto taken = guest->try_take();
                if (taken) CHECK(taken->descriptor.source_index + 7 >= i);
                p->dismiss(handle);
                guest.reset();
            } else {
                guest = consumer(*p, i % 2 == 0 ? MO_BLOCK : MO_DROP_OLDEST, &handle);
            }
        } else if (guest && i % 7 >= 3) {
            if (auto taken = guest->try_take()) guest->release(*taken);
            if (auto taken = guest->try_take()) guest->release(*taken);
        }
    }
    if (guest) p->dismiss(handle);
    p->finish(MO_END_OF_STREAM);
    reader.join();
    CHECK(p->wait_acknowledged(kLong) && p->free_slots() == 6);
}

}  // namespace

int main() {
    RUN(nothing_is_lost_or_torn);
    RUN(lost_frames_wait_for_descriptors);
    RUN(no_wake_up_is_lost);
    RUN(the_end_wakes_every_sleeper);
    RUN(wait_any_wakes_for_any);
    RUN(admission_wakes_a_consumer_that_came_first);
    RUN(consumers_come_and_go_while_frames_flow);
}
