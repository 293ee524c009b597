// The memory behind a port: slabs of equal slots, one memfd each, and which of the slots are free.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ring.h"
#include "sys.hpp"

namespace mo {

struct SizeClass {
    uint64_t slot_bytes = 0;
    uint64_t slot_count = 0;
    bool huge_pages = false;
};

struct SlotRef {
    uint32_t slab = MO_UNKNOWN_U32;  // MO_UNKNOWN_U32: no slot at all (descriptors without payload)
    uint32_t slot = 0;

    bool exists() const noexcept { return slab != MO_UNKNOWN_U32; }
};

// The lowest free index comes first: a few warm slots stay in the cache, instead of all passing through it.
class FreeSet {
  public:
    explicit FreeSet(uint32_t count);

    uint32_t count() const noexcept { return count_; }
    std::optional<uint32_t> take() noexcept;
    void put(uint32_t index) noexcept;

  private:
    std::vector<uint64_t> words_;  // bit set: free
    size_t lowest_ = 0;            // no free bit in any word below
    uint32_t count_;
};

class SlabPool {
  public:
    // Makes all slabs, or throws RingError and leaves nothing behind.
    explicit SlabPool(std::span<const SizeClass> classes);

    size_t size() const noexcept { return slabs_.size(); }
    int fd(size_t slab) const noexcept { return slabs_[slab].fd.get(); }
    // As made: rounded to whole pages, huge_pages false where there were none.
    const SizeClass& made(size_t slab) const noexcept { return slabs_[slab].made; }

    // A slot of the smallest class that holds `bytes`, or of a bigger one.
    std::optional<SlotRef> take(uint64_t bytes) noexcept;
    void put(SlotRef slot) noexcept { slabs_[slot.slab].free.put(slot.slot); }
    bool fits(SlotRef slot, uint64_t bytes) const noexcept {
        return slot.exists() && slabs_[slot.slab].made.slot_bytes >= bytes;
    }
    uint64_t largest() const noexcept;
    uint32_t free_slots() const noexcept;
    uint64_t offset(SlotRef slot) const noexcept { return slabs_[slot.slab].made.slot_bytes * slot.slot; }
    uint8_t* data(SlotRef slot) const noexcept { return slabs_[slot.slab].map->data() + offset(slot); }
    std::shared_ptr<const Mapping> memory(SlotRef slot) const noexcept { return slabs_[slot.slab].map; }

  private:
    struct Slab {
        Fd fd;
        std::shared_ptr<const Mapping> map;
        SizeClass made;
        FreeSet free;
    };
    static Slab make(SizeClass wanted);

    std::vector<Slab> slabs_;
    std::vector<uint32_t> by_size_;  // slab indices, smallest slots first
};

}  // namespace mo
