// Producers and consumers put together the way the tests need them.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "check.hpp"
#include "consumer.hpp"
#include "error.hpp"
#include "monitor.hpp"
#include "producer.hpp"

namespace rig {

using namespace mo;

inline constexpr int64_t kSecond = 1'000 * kMillisecond;
inline constexpr int64_t kLong = 60 * kSecond;

// Sleeps until woken, however short a sleep was asked for: with it, a lost wake-up is a failure and not a
// short delay.
inline constexpr auto sleep_until_woken = [](const WaitSet& set, int64_t) {
    const int64_t before = monotonic_ns();
    set.sleep(kLong);
    CHECK(monotonic_ns() - before < kLong);
};

inline mo_descriptor frame(uint64_t source_index) {
    mo_descriptor descriptor = unknown_descriptor(MO_VIDEO_FRAME);
    descriptor.source_index = source_index;
    descriptor.pts = static_cast<int64_t>(source_index) * 10;
    descriptor.time_base_num = 1;
    descriptor.time_base_den = 25;
    return descriptor;
}

inline std::unique_ptr<Producer> producer(uint32_t capacity, std::vector<SizeClass> classes,
                                          uint64_t incarnation = 1, uint64_t first_sequence = 0) {
    return std::make_unique<Producer>(capacity, classes, incarnation, first_sequence);
}

inline void attach(Consumer& consumer, const Producer& to) {
    std::vector<int> fds;
    std::vector<uint64_t> slot_bytes;
    for (size_t i = 0; i < to.pool().size(); ++i) {
        fds.push_back(to.pool().fd(i));
        slot_bytes.push_back(to.pool().made(i).slot_bytes);
    }
    consumer.attach(to.ring_fd(), fds, slot_bytes);
}

// A consumer that is admitted and attached.
inline std::unique_ptr<Consumer> consumer(Producer& of, mo_edge_policy policy = MO_BLOCK,
                                          int* handle = nullptr) {
    auto made = std::make_unique<Consumer>(policy);
    const int admitted = of.admit(made->page_fd(), policy);
    if (handle != nullptr) *handle = admitted;
    attach(*made, of);
    return made;
}

// Every 8 bytes of a payload say which frame it is, so a torn or reused slot shows. Plain loads and stores,
// because ThreadSanitizer does not see what the compiler makes of memcpy and memcmp.
inline void fill(const WriteSlot& slot, uint64_t bytes, uint64_t value) {
    auto* words = reinterpret_cast<uint64_t*>(slot.data);
    for (uint64_t i = 0; i < bytes / 8; ++i) words[i] = value;
}

inline bool holds(const ReadSlot& slot, uint64_t value) {
    const auto* words = reinterpret_cast<const uint64_t*>(slot.data);
    for (uint64_t i = 0; i < slot.descriptor.bytes / 8; ++i)
        if (words[i] != value) return false;
    return true;
}

// One frame, published without waiting; false when there is no room.
inline bool publish(Producer& to, uint64_t source_index, uint64_t bytes = 64) {
    const auto slot = to.try_acquire(bytes);
    if (!slot) return false;
    fill(*slot, bytes, source_index);
    to.publish(*slot, frame(source_index), bytes);
    return true;
}

}  // namespace rig
