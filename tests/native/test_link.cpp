// A ring with an emulated link under its edge: frames are seen when they have arrived, in order, whatever happens.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <atomic>
#include <optional>
#include <random>

#include "rig.hpp"

namespace {

using namespace rig;

constexpr uint64_t kRate = 1'000'000'000;  // a byte takes a nanosecond
constexpr int64_t kTolerance = 40 * kMillisecond;
const Route kRoute = {{0}};

std::shared_ptr<Fabric> fabric(uint64_t latency_ns = 0, double scale = 1) {
    mo_link_constants constants{};
    constants.advertised_bandwidth_bytes_per_second = constants.bandwidth_bytes_per_second = kRate;
    constants.advertised_latency_ps = constants.latency_ps = latency_ns * 1000;
    return Fabric::create(std::vector{constants}, scale);
}

struct Edge {
    std::unique_ptr<Consumer> consumer;
    int handle = -1;
};

Edge linked(Producer& of, const std::shared_ptr<Fabric>& over, mo_edge_policy policy = MO_BLOCK) {
    Edge edge{std::make_unique<Consumer>(policy)};
    edge.consumer->link(over, kRoute);
    edge.handle = of.admit(edge.consumer->page_fd(), policy);
    attach(*edge.consumer, of);
    return edge;
}

void pause(int64_t ns) {
    const timespec time{static_cast<time_t>(ns / kSecond), static_cast<long>(ns % kSecond)};
    nanosleep(&time, nullptr);
}

// A busy machine lets the follower sleep for longer than its seat lasts: what it cannot delay every time has attempts.
constexpr int kAttempts = 20;

// 4 MB at 1 GB/s and 60 ms: there after 64 ms and not before. Only a traced port says when it committed.
void a_frame_arrives(bool traced) {
    const uint64_t bytes = 4'000'000;
    int64_t slowest = INT64_MAX;
    for (int attempt = 0; attempt < kAttempts && slowest >= 64'000'000 + kTolerance; ++attempt) {
        auto p = producer(8, {{bytes, 4}});
        if (traced) p->trace(Trace{EventRing::create(64), 1, 2, 3, 4});
        const int64_t before = monotonic_ns();
        const auto over = fabric(60'000'000);
        auto edge = linked(*p, over);
        for (uint64_t i = 0; i < 3; ++i) CHECK(publish(*p, i, bytes));
        p->finish(MO_END_OF_STREAM);
        slowest = 0;
        for (uint64_t i = 0; i < 3; ++i) {
            auto slot = edge.consumer->take(kLong);
            const int64_t now = monotonic_ns();
            CHECK(slot && slot->descriptor.sequence == i && holds(*slot, i) && slot->link.known());
            CHECK((slot->descriptor.signal_ns != MO_UNKNOWN_I64) == traced);
            CHECK(slot->link.start_ns >= std::max(slot->descriptor.signal_ns, before) && slot->link.end_ns <= now);
            const int64_t taken = slot->link.end_ns - slot->link.start_ns;
            CHECK(taken >= 64'000'000 - 1000);
            slowest = std::max(slowest, taken);
            edge.consumer->release(*slot);
        }
        CHECK_THROWS(edge.consumer->take(kLong), RingEnded, "end_of_stream");
        CHECK(over->way(0).bytes == 3 * bytes && over->way(0).transfers == 3 && over->on_way(0) == 0);
    }
    CHECK(slowest < 64'000'000 + kTolerance);
}
void a_frame_arrives_when_its_transfer_ends() { a_frame_arrives(false); }
void a_traced_frame_arrives_when_its_transfer_ends() { a_frame_arrives(true); }

// The next one starts when the last byte has left, not when it has arrived.
void latencies_overlap() {
    constexpr int64_t latency = 60 * kMillisecond;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
        auto p = producer(8, {{4096, 4}});
        const auto over = fabric(latency);
        Consumer c(MO_BLOCK);
        c.link(over, kRoute);
        p->admit(c.page_fd(), MO_BLOCK);
        for (uint64_t i = 0; i < 2; ++i) CHECK(publish(*p, i));
        attach(c, *p);
        auto first = c.take(kLong);
        auto second = c.take(kLong);
        CHECK(first && second);
        const int64_t left = first->link.end_ns - latency;
        CHECK(second->link.start_ns >= left);
        if (second->link.start_ns == left) return;
    }
    CHECK(false);
}

// The frame behind the one that is on its way is dropped, so the seat is kept for one that was published long after the
// last byte had left.
void a_frame_leaves(bool traced) {
    auto p = producer(8, {{4096, 2}});
    if (traced) p->trace(Trace{EventRing::create(64), 1, 2, 3, 4});
    Consumer c(MO_DROP_OLDEST);
    c.link(fabric(100 * kMillisecond), kRoute);
    p->admit(c.page_fd(), MO_DROP_OLDEST);
    for (uint64_t i = 0; i < 2; ++i) CHECK(publish(*p, i));
    attach(c, *p);
    pause(50 * kMillisecond);
    const int64_t before = monotonic_ns();
    for (uint64_t i = 2; i < 4; ++i) CHECK(publish(*p, i));
    const auto slot = c.take(kLong);
    CHECK(slot && slot->descriptor.source_index == 2 && slot->link.start_ns >= before);
}
void a_frame_does_not_leave_before_it_is_published() { a_frame_leaves(false); }
void a_traced_frame_does_not_leave_before_it_is_published() { a_frame_leaves(true); }

void nothing_is_there_before_it_has_arrived() {
    auto p = producer(8, {{500'000'000, 1}});
    auto edge = linked(*p, fabric());
    const auto slot = p->try_acquire(500'000'000);
    CHECK(slot);
    p->publish(*slot, frame(0), 500'000'000);
    p->finish(MO_END_OF_STREAM);
    // Half a second on its way: neither there, nor the end.
    for (int i = 0; i < 5; ++i) {
        CHECK(!edge.consumer->try_take() && !edge.consumer->ready() && edge.consumer->backlog() == 1);
        pause(kMillisecond);
    }
    Consumer* consumers[] = {edge.consumer.get()};
    CHECK(wait_any(consumers, 10 * kMillisecond).empty());
    CHECK(wait_any(consumers, kLong).size() == 1);
    CHECK(edge.consumer->try_take()->link.known());
    CHECK(wait_any(consumers, kLong).size() == 1);
    CHECK_THROWS(edge.consumer->try_take(), RingEnded, "end_of_stream");
}

// A consumer that works 20 ms on each frame, over a link where one takes 20 ms: the next one crosses meanwhile.
void transfers_run_beside_the_work() {
    const uint64_t bytes = 20'000'000;
    const int count = 20;
    auto p = producer(8, {{bytes, 4}});
    auto edge = linked(*p, fabric());
    std::thread source([&] {
        for (uint64_t i = 0; i < count; ++i) {
            const auto slot = p->acquire(bytes, kLong);
            CHECK(slot);
            p->publish(*slot, frame(i), bytes);
        }
        p->finish(MO_END_OF_STREAM);
    });
    int beside = 0;
    int64_t worked_until = INT64_MIN;
    for (int i = 0; i < count; ++i) {
        auto slot = edge.consumer->take(kLong);
        CHECK(slot && slot->link.end_ns - slot->link.start_ns >= 20 * kMillisecond - 1000);
        beside += slot->link.start_ns < worked_until;
        pause(20 * kMillisecond);
        edge.consumer->release(*slot);
        worked_until = monotonic_ns();
    }
    source.join();
    CHECK(beside >= count / 4);  // one after the other: none
}

void small_messages_are_carried_too() {
    auto p = producer(8, {{4096, 4}});
    const auto over = fabric();
    auto edge = linked(*p, over);
    mo_descriptor lost = unknown_descriptor(MO_FRAME_LOST);
    lost.source_index = 5;
    CHECK(p->publish_empty(lost, 0));
    const auto slot = p->try_acquire(100);
    p->publish(*slot, unknown_descriptor(MO_CODEC_PARAMETERS), 100);
    for (int i = 0; i < 2; ++i) {
        auto taken = edge.consumer->take(kLong);
        CHECK(taken && taken->link.known());
        edge.consumer->release(*taken);
    }
    CHECK(over->way(0).bytes == 2 * sizeof(mo_descriptor));
}

// The consumer does not keep up with the producer: what it missed never crossed the link.
void dropped_frames_are_not_carried() {
    const uint64_t bytes = 10'000'000;
    auto p = producer(64, {{bytes, 3}});
    const auto over = fabric();
    auto edge = linked(*p, over, MO_DROP_OLDEST);
    const uint64_t count = 40;
    std::thread source([&] {
        for (uint64_t i = 0; i < count; ++i) {
            const auto slot = p->acquire(bytes, kLong);
            CHECK(slot);
            p->publish(*slot, frame(i), bytes);
            if (i % 4 == 0) pause(4 * kMillisecond);
        }
        p->finish(MO_END_OF_STREAM);
    });
    uint64_t next = 0, taken = 0;
    try {
        for (;;) {
            auto slot = edge.consumer->take(kLong);
            CHECK(slot && slot->descriptor.source_index >= next && slot->link.known());
            CHECK(slot->link.end_ns - slot->link.start_ns >= static_cast<int64_t>(bytes) - 1000);
            next = slot->descriptor.source_index + 1;
            ++taken;
            edge.consumer->release(*slot);
        }
    } catch (const RingEnded& ended) {
        CHECK(ended.final_seq == count);
    }
    source.join();
    CHECK(taken + p->dropped(edge.handle) == count && taken < count && taken >= 1);
    CHECK(over->way(0).bytes < (count - 1) * bytes);
}

void the_next_incarnation_follows() {
    const auto over = fabric();
    auto first = producer(4, {{4096, 4}});
    auto edge = linked(*first, over);
    for (uint64_t i = 0; i < 3; ++i) CHECK(publish(*first, i));
    Monitor monitor(first->ring_fd());
    monitor.end(MO_END_FAILED);
    std::vector<ReadSlot> held;
    for (uint64_t i = 0; i < 3; ++i) held.push_back(*edge.consumer->take(kLong));
    CHECK_THROWS(edge.consumer->take(kLong), RingEnded, "failed");
    auto second = producer(4, {{4096, 4}}, 2, 3);
    for (auto& slot : held) edge.consumer->release(slot);
    second->admit(edge.consumer->page_fd(), MO_BLOCK);
    attach(*edge.consumer, *second);
    for (uint64_t i = 3; i < 9; ++i) {
        CHECK(publish(*second, i));
        auto slot = edge.consumer->take(kLong);
        CHECK(slot && slot->descriptor.sequence == i && slot->link.known() && holds(*slot, i));
        edge.consumer->release(*slot);
    }
}

void the_supervisors_word_for_a_dead_producer_counts() {
    auto p = producer(4, {{4096, 4}});
    auto edge = linked(*p, fabric());
    CHECK(publish(*p, 0));
    edge.consumer->end_at(1, MO_END_FAILED);
    CHECK(edge.consumer->take(kLong));
    CHECK_THROWS(edge.consumer->take(kLong), RingEnded, "failed");
}

void admitted_late() {
    auto p = producer(4, {{4096, 4}});
    CHECK(publish(*p, 0));
    Consumer c(MO_BLOCK);
    c.link(fabric(), kRoute);
    attach(c, *p);
    CHECK(!c.take(20 * kMillisecond));
    std::thread later([&] {
        pause(20 * kMillisecond);
        p->admit(c.page_fd(), MO_BLOCK);
        CHECK(publish(*p, 1));
    });
    auto slot = c.take_until(kForever, sleep_until_woken);
    CHECK(slot && slot->descriptor.source_index == 1);
    later.join();
}

void dismissal_is_heard_of() {
    auto p = producer(4, {{4096, 4}});
    auto edge = linked(*p, fabric());
    auto other = consumer(*p);
    CHECK(publish(*p, 0));
    auto slot = edge.consumer->take(kLong);
    edge.consumer->release(*slot);
    p->dismiss(edge.handle);
    CHECK(publish(*p, 1));
    CHECK_THROWS(edge.consumer->take(kLong), RingError, "dismissed");
}

// Two instances of an operator share an edge: each carries what is its own, and no more.
void a_share_is_carried_to_its_end() {
    const uint64_t bytes = 1'000'000;
    auto p = producer(8, {{bytes, 6}});
    const auto over = fabric();
    auto first = linked(*p, over);
    Edge second{std::make_unique<Consumer>(MO_BLOCK)};
    second.consumer->link(over, kRoute);
    attach(*second.consumer, *p);
    for (uint64_t i = 0; i < 2; ++i) CHECK(publish(*p, i, bytes));
    second.handle = p->cut(first.handle, second.consumer->page_fd());
    for (uint64_t i = 2; i < 4; ++i) CHECK(publish(*p, i, bytes));
    for (uint64_t i = 0; i < 2; ++i) CHECK(first.consumer->take(kLong)->descriptor.source_index == i);
    CHECK_THROWS(first.consumer->take(kLong), RingEnded, "cut");
    for (uint64_t i = 2; i < 4; ++i) CHECK(second.consumer->take(kLong)->descriptor.source_index == i);
    CHECK(over->way(0).bytes == 4 * bytes);
}

void closing_ends_it_at_any_moment() {
    std::mt19937 random(3);
    const auto over = fabric(1'000'000);
    for (int i = 0; i < rounds(80); ++i) {
        auto p = producer(8, {{2'000'000, 4}});
        auto edge = linked(*p, over, i % 2 == 0 ? MO_BLOCK : MO_DROP_OLDEST);
        const uint64_t count = random() % 4;
        for (uint64_t n = 0; n < count; ++n) CHECK(publish(*p, n, 2'000'000));
        if (i % 3 == 0) p->finish(MO_END_OF_STREAM);
        pause(static_cast<int64_t>(random() % 6'000'000));
        if (i % 5 == 0 && count > 0) edge.consumer->try_take();
        edge.consumer->close();
    }
    CHECK(over->on_way(0) == 0);
}

void a_link_that_is_down_can_be_left() {
    const auto over = fabric();
    over->set_state(0, {MO_LINK_DOWN, 0, 0});
    auto p = producer(8, {{4096, 4}});
    auto edge = linked(*p, over);
    CHECK(publish(*p, 0));
    CHECK(!edge.consumer->take(30 * kMillisecond));
    over->set_state(0, {MO_LINK_UP, 1'000'000, 0});
    CHECK(edge.consumer->take(kLong));
    over->set_state(0, {MO_LINK_DOWN, 0, 0});
    CHECK(publish(*p, 1));
    edge.consumer->close();
}

// Each side sleeps before nearly every step, and for good if nobody wakes it.
void no_wake_up_is_lost() {
    auto p = producer(4, {{64, 4}});
    const auto over = fabric();
    auto edge = linked(*p, over);
    const uint64_t count = static_cast<uint64_t>(rounds(4'000));
    std::thread reader([&] {
        for (uint64_t n = 0; n < count; ++n) {
            auto slot = edge.consumer->take_until(kForever, sleep_until_woken);
            CHECK(slot && slot->descriptor.source_index == n && holds(*slot, n));
            edge.consumer->release(*slot);
        }
    });
    for (uint64_t i = 0; i < count; ++i) {
        const auto slot = p->wait_until(kForever, [&] { return p->try_acquire(64); }, sleep_until_woken);
        fill(*slot, 64, i);
        p->publish(*slot, frame(i), 64);
    }
    reader.join();
}

void events_say_when_it_crossed() {
    auto events = EventRing::create(64);
    auto p = producer(8, {{1'000'000, 4}});
    auto edge = linked(*p, fabric());
    edge.consumer->trace(Trace{events, 1, 2, 3, 4});
    CHECK(publish(*p, 7, 1'000'000));
    auto slot = edge.consumer->take(kLong);
    edge.consumer->release(*slot);
    std::vector<mo_frame_event> seen(64);
    seen.resize(events->drain(seen.data(), 64));
    CHECK(seen.size() == 5);
    const uint16_t kinds[] = {MO_CONSUMER_WAIT_FENCE, MO_LINK_START, MO_LINK_END, MO_CONSUMER_KERNEL_LAUNCH,
                              MO_SLOT_RELEASE};
    for (size_t i = 0; i < 5; ++i) CHECK(seen[i].kind == kinds[i] && seen[i].place == 3 && seen[i].source_index == 7);
    CHECK(seen[1].time_ns == slot->link.start_ns && seen[2].time_ns == slot->link.end_ns);
    CHECK(seen[1].time_ns < seen[2].time_ns && seen[2].time_ns <= seen[3].time_ns);
}

// A consumer that was made, and attached, before a fork, and is used after it.
void a_fork_takes_the_thread_along() {
    auto p = producer(8, {{4096, 4}});
    auto edge = linked(*p, fabric());
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        try {
            for (uint64_t i = 0; i < 3; ++i) {
                auto slot = edge.consumer->take(kLong);
                if (!slot || slot->descriptor.source_index != i) _exit(2);
                edge.consumer->release(*slot);
            }
            edge.consumer->close();
        } catch (const std::exception&) {
            _exit(1);
        }
        _exit(0);
    }
    for (uint64_t i = 0; i < 3; ++i) CHECK(publish(*p, i));
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

void nonsense_is_refused() {
    const auto over = fabric();
    Consumer c(MO_BLOCK);
    CHECK_THROWS(c.link(over, {{9}}), RingError, "no way 9");
    c.close();
    CHECK_THROWS(c.link(over, kRoute), RingError, "closed");
}

}  // namespace

int main() {
    RUN(nonsense_is_refused);
    RUN(a_frame_arrives_when_its_transfer_ends);
    RUN(a_traced_frame_arrives_when_its_transfer_ends);
    RUN(a_frame_does_not_leave_before_it_is_published);
    RUN(a_traced_frame_does_not_leave_before_it_is_published);
    RUN(latencies_overlap);
    RUN(nothing_is_there_before_it_has_arrived);
    RUN(transfers_run_beside_the_work);
    RUN(small_messages_are_carried_too);
    RUN(dropped_frames_are_not_carried);
    RUN(the_next_incarnation_follows);
    RUN(the_supervisors_word_for_a_dead_producer_counts);
    RUN(admitted_late);
    RUN(dismissal_is_heard_of);
    RUN(a_share_is_carried_to_its_end);
    RUN(closing_ends_it_at_any_moment);
    RUN(a_link_that_is_down_can_be_left);
    RUN(no_wake_up_is_lost);
    RUN(events_say_when_it_crossed);
#ifndef __SANITIZE_THREAD__
    RUN(a_fork_takes_the_thread_along);  // ThreadSanitizer refuses threads in the child of a process that had some
#endif
    return 0;
}
