// Outstanding: what was published and is not finished by everybody, in order of sequence.
#pragma once

#include <cstdint>
#include <vector>

#include "slab_pool.hpp"

namespace mo {

// One entry per sequence, each with a bit for every consumer that still needs it. A consumer finishes entries
// from the front (it acknowledged them) or one in the middle (the frame was dropped for it), so this is a
// linked list; each consumer has a place in it, such that neither a slow sibling nor a frame held for long
// makes the others walk.
class Outstanding {
  public:
    static constexpr uint32_t kEnd = UINT32_MAX;

    struct Entry {
        uint64_t sequence;
        uint64_t source_index;  // MO_UNKNOWN_U64 for what is no frame
        uint64_t needed_by;     // bit per consumer
        SlotRef slot;
        uint32_t previous;
        uint32_t next;
    };

    uint64_t size() const noexcept { return size_; }
    uint32_t first() const noexcept { return first_; }
    const Entry& at(uint32_t index) const noexcept { return entries_[index]; }

    // A new consumer: needs nothing of what is there already.
    void admit(uint32_t consumer);

    // `needed_by` is not 0 and has bits of admitted consumers only.
    void append(uint64_t sequence, uint64_t source_index, uint64_t needed_by, SlotRef slot);

    // The consumer has finished everything below `sequence`; slots that nobody needs any more go to `freed`.
    void finish_below(uint32_t consumer, uint64_t sequence, std::vector<SlotRef>& freed);
    // Source indices of the frames below `sequence` that the consumer has not finished. (A word that one is lost has no
    // slot, and was counted where it was lost.)
    std::vector<uint64_t> frames_below(uint32_t consumer, uint64_t sequence) const;
    // The consumer will not take this one sequence.
    void finish_one(uint32_t consumer, uint64_t sequence, std::vector<SlotRef>& freed);
    // How many entries below `sequence` the consumer still needs.
    uint64_t needed_below(uint32_t consumer, uint64_t sequence) const noexcept;

  private:
    void clear_bit(uint32_t index, uint32_t consumer, std::vector<SlotRef>& freed);

    std::vector<Entry> entries_;  // grows to the most that ever were outstanding
    uint32_t unused_ = kEnd;      // chain of entries to use again
    uint32_t first_ = kEnd;
    uint32_t last_ = kEnd;
    uint64_t size_ = 0;
    std::vector<uint32_t> cursors_;  // by consumer: the first entry that it may still need
};

}  // namespace mo
