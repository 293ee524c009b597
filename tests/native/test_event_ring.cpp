#include "event_ring.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <thread>
#include <vector>

#include "check.hpp"
#include "error.hpp"

namespace {

using mo::EventRing;
using mo::RingError;

mo_frame_event event(uint64_t source_index) {
    mo_frame_event made{};
    made.source_index = source_index;
    made.time_ns = static_cast<int64_t>(source_index * 3);
    return made;
}

void keeps_order_and_counts_what_found_no_room() {
    const auto ring = EventRing::create(5);
    CHECK(ring->capacity() == 8);
    std::vector<mo_frame_event> out(16);
    uint64_t next = 0, expected = 0, lost = 0;
    for (int round = 0; round < 50; ++round) {
        for (int i = 0; i < 7; ++i) {
            const mo_frame_event single = event(next++);
            CHECK(ring->emit(&single, 1) == 1);
        }
        // One more fits of these three.
        const mo_frame_event batch[] = {event(next), event(next + 1), event(next + 2)};
        CHECK(ring->emit(batch, 3) == 1);
        ++next;
        lost += 2;
        CHECK(ring->lost() == lost && ring->written() == next);
        CHECK(ring->drain(out.data(), 3) == 3);
        CHECK(ring->drain(out.data() + 3, 16) == 5);
        for (int i = 0; i < 8; ++i) CHECK(out[i].source_index == expected++);
    }
    CHECK(ring->waiting() == 0);
}

void two_mappings_are_one_ring() {
    const auto collector = EventRing::create(16);
    const auto traced = EventRing::attach(collector->fd());
    CHECK_THROWS(traced->fd(), RingError, "keeps no descriptor");
    const mo_frame_event single = event(7);
    CHECK(traced->emit(&single, 1) == 1);
    mo_frame_event out;
    CHECK(collector->drain(&out, 1) == 1 && out.source_index == 7);
    traced->close();
    CHECK(traced->emit(&single, 1) == 0);
    CHECK_THROWS(traced->written(), RingError, "closed");
}

void loses_nothing_between_two_threads() {
    const auto ring = EventRing::create(1024);
    const auto writer_side = EventRing::attach(ring->fd());
    const uint64_t count = static_cast<uint64_t>(rounds(400'000));
    std::thread writer([&] {
        for (uint64_t i = 0; i < count;) {
            const mo_frame_event batch[] = {event(i), event(i + 1), event(i + 2)};
            i += writer_side->emit(batch, 3);
        }
    });
    std::vector<mo_frame_event> out(256);
    uint64_t expected = 0;
    while (expected < count) {
        const size_t got = ring->drain(out.data(), out.size());
        for (size_t i = 0; i < got; ++i, ++expected) {
            CHECK(out[i].source_index == expected);
            CHECK(out[i].time_ns == static_cast<int64_t>(expected * 3));
        }
    }
    writer.join();
}

void refuses_what_is_not_ours() {
    const mo::Fd file = mo::create_memfd("x", 4096);
    CHECK_THROWS(EventRing::attach(file.get()), RingError, "not sealed against shrinking");
    mo::add_seals(file.get(), F_SEAL_SHRINK | F_SEAL_GROW, "x");
    CHECK_THROWS(EventRing::attach(file.get()), RingError, "not an event ring");
    mo::Mapping map(file.get(), 4096, mo::Access::read_write, "x");
    auto& header = *reinterpret_cast<mo_event_ring*>(map.data());
    header.magic = MO_EVENT_RING_MAGIC;
    header.abi = MO_EVENT_ABI + 1;
    CHECK_THROWS(EventRing::attach(file.get()), RingError, "layout version 2");
    header.abi = MO_EVENT_ABI;
    header.event_bytes = sizeof(mo_frame_event);
    for (const uint32_t capacity : {0u, 3u, 1u << 10, 1u << 31}) {
        header.capacity = capacity;  // none, no power of two, longer than the file
        CHECK_THROWS(EventRing::attach(file.get()), RingError, "contradicts itself");
    }
    CHECK_THROWS(EventRing::create(0), RingError, "not 0");
    CHECK_THROWS(EventRing::attach(-1), RingError, "Bad file descriptor");
}

void survives_garbled_counters() {
    const auto ring = EventRing::create(8);
    const mo::Mapping map(ring->fd(), 4096, mo::Access::read_write, "event ring");
    auto& header = *reinterpret_cast<mo_event_ring*>(map.data());
    mo_frame_event out[16];
    const mo_frame_event single = event(1);
    header.head = 1000;
    CHECK(ring->drain(out, 16) == 0 && ring->lost() == 8);
    CHECK(ring->emit(&single, 1) == 1 && ring->drain(out, 16) == 1 && out[0].source_index == 1);
    // A tail beyond the head: nothing is written where it must not be.
    header.tail = 5000;
    for (int i = 0; i < 100; ++i) CHECK(ring->emit(&single, 1) == 0 || i < 8);
}

}  // namespace

int main() {
    RUN(keeps_order_and_counts_what_found_no_room);
    RUN(two_mappings_are_one_ring);
    RUN(loses_nothing_between_two_threads);
    RUN(refuses_what_is_not_ours);
    RUN(survives_garbled_counters);
}
