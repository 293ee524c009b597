// Mapped layouts: ring and consumer page, checked before use, and the rules every descriptor has to keep.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "atomics.hpp"
#include "ring.h"
#include "sys.hpp"

namespace mo {

static_assert(sizeof(mo_descriptor) == 256 && sizeof(mo_consumer_page) <= MO_PAGE_BYTES);
static_assert(sizeof(mo_ring_header) % MO_LINE == 0, "descriptors start on a line of their own");

// A ring in memory. Sequences count on across incarnations; `cell` is where sequence s lies.
class RingMap {
  public:
    // A new ring, sealed against resizing, which nobody can open before `begin`. `fd` receives its descriptor.
    static std::shared_ptr<RingMap> create(uint32_t capacity, uint64_t incarnation, Fd& fd);
    void begin(uint64_t first_sequence);
    // A ring of somebody else. RingError when it is not of this version or could be resized under us.
    static std::shared_ptr<RingMap> open(int fd, Access access);

    mo_ring_header& header() const noexcept { return *reinterpret_cast<mo_ring_header*>(map_.data()); }
    mo_descriptor& cell(uint64_t sequence) const noexcept { return cells_[sequence & (capacity_ - 1)]; }
    // As read once: the word in memory is the producer's to garble.
    uint32_t capacity() const noexcept { return capacity_; }
    uint64_t first_sequence() const noexcept { return first_sequence_; }

  private:
    RingMap(Mapping map, uint32_t capacity, uint64_t first_sequence);

    Mapping map_;
    mo_descriptor* cells_;
    uint32_t capacity_;
    uint64_t first_sequence_;
};

// Ends the ring at its tail unless it has ended; bumps the doorbell either way. Returns final_seq.
uint64_t end_ring(const RingMap& ring, mo_end_reason reason);

// Tells everybody who sleeps on data to look again.
void ring_doorbell(const RingMap& ring);

// A consumer's page.
class PageMap {
  public:
    static std::shared_ptr<PageMap> create(mo_edge_policy policy, Fd& fd);
    static std::shared_ptr<PageMap> open(int fd, Access access);

    mo_consumer_page& page() const noexcept { return *reinterpret_cast<mo_consumer_page*>(map_.data()); }

  private:
    explicit PageMap(Mapping map) : map_(std::move(map)) {}

    Mapping map_;
};

// A descriptor about which nothing is known.
mo_descriptor unknown_descriptor(uint16_t payload_kind) noexcept;

// Whether hops of this payload are traced.
inline bool is_traced(uint16_t payload_kind) noexcept {
    return payload_kind == MO_VIDEO_FRAME || payload_kind == MO_VIDEO_PACKET;
}

// Whether it stands for a frame: a payload of one, or word that it is lost.
inline bool is_frame(uint16_t payload_kind) noexcept {
    return is_traced(payload_kind) || payload_kind == MO_FRAME_LOST;
}

// Whether the fields that mean the same everywhere make sense (kind, format, planes, range), and in words why not. Of
// every frame only the first is asked: words cost more than all of its checks.
inline bool fields_make_sense(const mo_descriptor& descriptor) noexcept {
    return descriptor.payload_kind >= MO_VIDEO_FRAME && descriptor.payload_kind <= MO_FRAME_LOST &&
           descriptor.pixel_format <= MO_P010LE && descriptor.plane_count <= MO_MAX_PLANES &&
           descriptor.color_range <= 2;
}
std::string problem_with_fields(const mo_descriptor& descriptor);

// Rows of a plane: all our formats are 4:2:0, so every plane after the first has half as many as the frame.
inline uint64_t plane_rows(const mo_descriptor& descriptor, unsigned plane) noexcept {
    const bool chroma = plane > 0 && descriptor.pixel_format != MO_PIXEL_NONE;
    return chroma ? (uint64_t{descriptor.height} + 1) / 2 : descriptor.height;
}

inline uint64_t plane_end(const mo_descriptor& descriptor, unsigned plane) noexcept {
    return descriptor.plane_offset[plane] + plane_rows(descriptor, plane) * descriptor.plane_stride[plane];
}

// The same for the planes, which lie within `bytes`.
inline bool planes_fit(const mo_descriptor& descriptor) noexcept {
    for (unsigned i = 0; i < descriptor.plane_count; ++i)
        if (plane_end(descriptor, i) > descriptor.bytes) return false;
    return true;
}
std::string problem_with_planes(const mo_descriptor& descriptor);

}  // namespace mo
