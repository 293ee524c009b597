// Event ring: one traced process writes, the collector reads. A full ring loses the new event and counts it.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>

#include "atomics.hpp"
#include "event.h"
#include "probes.hpp"
#include "sys.hpp"

namespace mo {

class EventRing {
  public:
    static std::shared_ptr<EventRing> create(uint32_t capacity);
    static std::shared_ptr<EventRing> attach(int fd);

    // Of the creator; RingError from an attached ring, which keeps none.
    int fd() const;
    uint32_t capacity() const;
    uint64_t written() const;
    uint64_t lost() const;

    // Writer. Events of one call become visible together; returns how many found room. Silent after close,
    // because tracing must not break the work it watches. Probes see all, also those that found no room.
    size_t emit(const mo_frame_event* events, size_t count) noexcept {
        if (!map_) return 0;
        mo_event_ring& shared = header();
        const uint64_t head = load_relaxed(shared.head);
        if (head + count - tail_seen_ > capacity_) tail_seen_ = load_acquire(shared.tail);
        // A garbled tail makes this look full: the collector can lose events, not make us write elsewhere.
        const uint64_t used = head - tail_seen_;
        const size_t room = used < capacity_ ? capacity_ - used : 0;
        const size_t fitting = std::min(count, room);
        for (size_t i = 0; i < fitting; ++i) slots_[(head + i) & (capacity_ - 1)] = events[i];
        if (fitting < count) store_relaxed(shared.lost, load_relaxed(shared.lost) + (count - fitting));
        if (fitting > 0) store_release(shared.head, head + fitting);
        fire_probes(events, count);
        return fitting;
    }

    // Reader: how many events wait, and taking up to `limit` of them. A ring whose writer garbled its counter
    // is emptied, and counted as lost: one broken process must not stop the collection of the others.
    size_t waiting();
    size_t drain(mo_frame_event* out, size_t limit);

    void close() noexcept;

  private:
    EventRing(Mapping map, uint32_t capacity, Fd fd);
    mo_event_ring& header() const noexcept { return *reinterpret_cast<mo_event_ring*>(map_.data()); }
    void require_open() const;

    Mapping map_;
    Fd fd_;
    uint32_t capacity_;
    mo_frame_event* slots_;
    uint64_t tail_seen_ = 0;  // the writer's last look at the reader's tail
    uint64_t garbled_ = 0;    // the reader's own count of lost events, at least
};

}  // namespace mo
