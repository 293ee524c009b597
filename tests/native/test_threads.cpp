// Producer and consumers in threads of one process: nothing is lost, torn, reordered, or slept through.
#include <algorithm>
#include <atomic>
#include <optional>
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
    for (const Case& each : {Case{8, 2, 1, 1}, Case{4, 4, 1, 2}, Case{8, 8, 3, 3}, Case{64, 32, 2, 10}}) {
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

// Two threads that start each round together.
class Barrier {
  public:
    void arrive_and_wait() {
        const unsigned round = round_.load(std::memory_order_acquire);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) == 1) {
            arrived_.store(0, std::memory_order_relaxed);
            round_.store(round + 1, std::memory_order_release);
        } else {
            for (int spins = 0; round_.load(std::memory_order_acquire) == round; ++spins)
                if (spins > 4'000) std::this_thread::yield();
        }
    }

  private:
    std::atomic<unsigned> arrived_{0};
    std::atomic<unsigned> round_{0};
};

// Some 0 to 300 ns, so that the two threads meet in every way.
void dawdle(std::minstd_rand& random) {
    volatile unsigned left = random() % 256;
    while (left > 0) left = left - 1;
}

// Nobody sleeps here: what is tested is the one moment in which a wake-up can be lost, over and over. Either
// the consumer that is about to sleep sees the frame, or the producer sees it waiting and rings.
void of_consumer_and_producer_one_sees_the_other() {
    auto p = producer(4, {{64, 4}});
    auto c = consumer(*p);
    const auto ring = RingMap::open(p->ring_fd(), Access::read_only);
    const int count = rounds(120'000);
    Barrier barrier;
    std::thread writer([&] {
        std::minstd_rand random(1);
        for (int i = 0; i < count; ++i) {
            const auto slot = p->acquire(64, kLong);
            barrier.arrive_and_wait();
            dawdle(random);
            p->publish(*slot, frame(static_cast<uint64_t>(i)), 64);
            barrier.arrive_and_wait();
        }
    });
    int rung = 0;
    std::minstd_rand random(2);
    for (int i = 0; i < count; ++i) {
        const uint32_t doorbell = load_seq_cst(ring->header().doorbell);
        barrier.arrive_and_wait();
        dawdle(random);
        std::optional<ReadSlot> slot;
        {
            const auto flag = c->waiting_flag();
            slot = c->try_take();
            barrier.arrive_and_wait();
        }
        const bool rang = load_seq_cst(ring->header().doorbell) != doorbell;
        CHECK(slot || rang);
        rung += rang;
        if (!slot) slot = c->try_take();
        c->release(*slot);
    }
    writer.join();
    std::fprintf(stderr, "  rung for in %d of %d rounds\n", rung, count);
}

// The same the other way round: the producer that is about to sleep sees the slot, or the consumer sees its
// flag.
void of_producer_and_consumer_one_sees_the_other() {
    auto p = producer(4, {{64, 1}});
    auto c = consumer(*p);
    const auto ring = RingMap::open(p->ring_fd(), Access::read_write);
    const int count = rounds(120'000);
    Barrier barrier;
    bool seen = false;
    std::thread reader([&] {
        std::minstd_rand random(1);
        for (int i = 0; i < count; ++i) {
            std::optional<ReadSlot> slot;
            while (!(slot = c->try_take())) std::this_thread::yield();
            barrier.arrive_and_wait();
            dawdle(random);
            c->release(*slot);
            seen = load_relaxed(ring->header().producer_waiting) != 0;  // what release saw, or later
            barrier.arrive_and_wait();
        }
    });
    int noticed = 0;
    std::minstd_rand random(2);
    for (int i = 0; i < count; ++i) {
        CHECK(publish(*p, static_cast<uint64_t>(i)));
        barrier.arrive_and_wait();
        dawdle(random);
        store_seq_cst(ring->header().producer_waiting, 1u);
        const bool free = p->free_slots() == 1;
        barrier.arrive_and_wait();
        CHECK(free || seen);
        noticed += seen;
        store_seq_cst(ring->header().producer_waiting, 0u);
    }
    reader.join();
    std::fprintf(stderr, "  noticed in %d of %d rounds\n", noticed, count);
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
    RUN(of_consumer_and_producer_one_sees_the_other);
    RUN(of_producer_and_consumer_one_sees_the_other);
    RUN(the_end_wakes_every_sleeper);
    RUN(wait_any_wakes_for_any);
    RUN(admission_wakes_a_consumer_that_came_first);
    RUN(consumers_come_and_go_while_frames_flow);
}
