// Assembler: frame records out of frame events, whatever order the rings are read in.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "record.h"

namespace mo {

struct HopDevices {
    uint16_t producer_planned;
    uint16_t consumer_planned;
    uint16_t producer_real;
    uint16_t consumer_real;
};

// Open records lie in a pool and are found through an open-addressing table keyed by (hop, source index). The
// events of one frame mostly come in a row, so each hop remembers the record it used last.
//
// Repeated events of one kind (a frame that was delivered again): the latest in time wins, so the order in
// which rings are read makes no difference.
class Assembler {
  public:
    // More than this open on one hop means that events were lost, not that so many frames are on their way:
    // the oldest is then closed as incomplete.
    static constexpr uint32_t kMostOpenPerHop = 65536;

    Assembler(std::vector<std::vector<uint32_t>> port_hops, std::span<const HopDevices> hop_devices,
              const std::vector<bool>& expect_link);

    // Appends the records that these events complete to `out`. The events need not be aligned.
    void feed(const void* events, size_t count, std::vector<mo_frame_record>& out);
    // Frames that this hop's consumer never got. One whose FENCE_SIGNAL is still to come closes with that.
    void drop(uint32_t hop, std::span<const uint64_t> source_indices, std::vector<mo_frame_record>& out);
    void flush(std::vector<mo_frame_record>& out);

    uint64_t open_records() const noexcept { return open_count_; }
    uint64_t unmatched_events() const noexcept { return unmatched_; }
    size_t hop_count() const noexcept { return hops_.size(); }

  private:
    static constexpr uint32_t kNone = UINT32_MAX;

    struct Open {
        mo_frame_record record;
        uint16_t seen;    // bit per kind
        uint16_t needed;  // what completes it
        uint8_t rank;     // how good the source of pts, slot and bytes is
        uint32_t older;   // neighbours in the hop's list, by age; `newer` also chains unused entries
        uint32_t newer;
    };
    struct Bucket {
        uint64_t source_index = 0;
        uint32_t hop = 0;
        uint32_t open = kNone;
    };
    struct Hop {
        HopDevices devices;
        uint16_t needed;
        uint16_t expected;
        uint32_t oldest = kNone;
        uint32_t newest = kNone;
        uint32_t count = 0;
        uint32_t last = kNone;  // the record used last, and its key
        uint64_t last_index = 0;
    };

    using Out = std::vector<mo_frame_record>;

    void apply(uint32_t hop, const mo_frame_event& event, Out& out);
    uint32_t find_or_open(uint32_t hop, uint64_t source_index, const mo_frame_event* event, Out& out);
    void close(uint32_t open, Out& out);
    size_t home(uint32_t hop, uint64_t source_index) const noexcept;
    size_t find_bucket(uint32_t hop, uint64_t source_index) const noexcept;
    void erase_bucket(size_t bucket) noexcept;
    void resize_table(size_t buckets);

    std::vector<std::vector<uint32_t>> port_hops_;
    std::vector<Hop> hops_;
    std::vector<Open> pool_;
    uint32_t unused_ = kNone;
    std::vector<Bucket> table_;
    int shift_;
    uint64_t open_count_ = 0;
    uint64_t unmatched_ = 0;
};

}  // namespace mo
