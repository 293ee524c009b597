#include "event_ring.hpp"

#include <fcntl.h>

#include <bit>

#include "error.hpp"

namespace mo {

static_assert(sizeof(mo_frame_event) == 64 && sizeof(mo_event_ring) % sizeof(mo_frame_event) == 0);

namespace {

constexpr uint32_t kMostEvents = 1u << 24;

size_t ring_bytes(uint32_t capacity) {
    return round_up(sizeof(mo_event_ring) + size_t{capacity} * sizeof(mo_frame_event), kPageBytes);
}

}  // namespace

EventRing::EventRing(Mapping map, uint32_t capacity, Fd fd)
    : map_(std::move(map)), fd_(std::move(fd)), capacity_(capacity),
      slots_(reinterpret_cast<mo_frame_event*>(map_.data() + sizeof(mo_event_ring))),
      tail_seen_(load_acquire(header().tail)) {}

std::shared_ptr<EventRing> EventRing::create(uint32_t capacity) {
    if (capacity < 1 || capacity > kMostEvents)
        throw RingError("an event ring holds 1 to " + std::to_string(kMostEvents) + " events, not " +
                        std::to_string(capacity));
    capacity = std::bit_ceil(capacity);
    const size_t bytes = ring_bytes(capacity);
    Fd fd = create_memfd("observatory-events", bytes);
    Mapping map(fd.get(), bytes, Access::read_write, "event ring");
    add_seals(fd.get(), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, "event ring");
    auto& header = *reinterpret_cast<mo_event_ring*>(map.data());
    header.magic = MO_EVENT_RING_MAGIC;
    header.abi = MO_EVENT_ABI;
    header.capacity = capacity;
    header.event_bytes = sizeof(mo_frame_event);
    return std::shared_ptr<EventRing>(new EventRing(std::move(map), capacity, std::move(fd)));
}

std::shared_ptr<EventRing> EventRing::attach(int fd) {
    require_seals(fd, F_SEAL_SHRINK | F_SEAL_GROW, "event ring");
    const size_t bytes = file_bytes(fd, "event ring");
    if (bytes < sizeof(mo_event_ring)) throw RingError("the event ring is too short to be one");
    Mapping map(fd, bytes, Access::read_write, "event ring");
    const auto& header = *reinterpret_cast<const mo_event_ring*>(map.data());
    if (header.magic != MO_EVENT_RING_MAGIC) throw RingError("this file is not an event ring");
    if (header.abi != MO_EVENT_ABI)
        throw RingError("the event ring has layout version " + std::to_string(header.abi) +
                        ", this program has " + std::to_string(MO_EVENT_ABI));
    const uint32_t capacity = header.capacity;
    if (header.event_bytes != sizeof(mo_frame_event) || !std::has_single_bit(capacity) ||
        capacity > kMostEvents || bytes < ring_bytes(capacity))
        throw RingError("the event ring's header contradicts itself");
    // Here begins tracing in a process: after the fork that made it, before its first event.
    load_lttng_provider_if_asked();
    return std::shared_ptr<EventRing>(new EventRing(std::move(map), capacity, Fd()));
}

void EventRing::require_open() const {
    if (!map_) throw RingError("the event ring is closed");
}

int EventRing::fd() const {
    require_open();
    if (!fd_) throw RingError("an attached event ring keeps no descriptor: its creator has it");
    return fd_.get();
}

uint32_t EventRing::capacity() const {
    require_open();
    return capacity_;
}

uint64_t EventRing::written() const {
    require_open();
    return load_acquire(header().head);
}

uint64_t EventRing::lost() const {
    require_open();
    return load_relaxed(header().lost) + garbled_;
}

size_t EventRing::waiting() {
    require_open();
    const uint64_t head = load_acquire(header().head);
    const uint64_t count = head - load_relaxed(header().tail);
    if (count <= capacity_) return count;
    // The writer garbled its counter. What lies in the ring means nothing; go on from where it says it is.
    garbled_ += capacity_;
    store_release(header().tail, head);
    return 0;
}

size_t EventRing::drain(mo_frame_event* out, size_t limit) {
    const size_t count = std::min(waiting(), limit);
    const uint64_t tail = load_relaxed(header().tail);
    const size_t first = tail & (capacity_ - 1);
    const size_t before_wrap = std::min<size_t>(count, capacity_ - first);
    std::memcpy(out, slots_ + first, before_wrap * sizeof *out);
    std::memcpy(out + before_wrap, slots_, (count - before_wrap) * sizeof *out);
    store_release(header().tail, tail + count);
    return count;
}

void EventRing::close() noexcept {
    map_.reset();
    fd_.reset();
}

}  // namespace mo
