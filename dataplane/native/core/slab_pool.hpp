// The memory behind a port: size classes, each in slabs of equal slots, one memfd per slab; which of the slots are
// free; and the books on how well it all fits.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ring.h"
#include "slab_memory.hpp"
#include "sys.hpp"

namespace mo {

struct SizeClass {
    uint64_t slot_bytes = 0;
    uint64_t slot_count = 0;
    bool huge_pages = false;
    bool reserve = false;      // take the memory when the pool is made, instead of when slots are first written
    uint64_t slab_slots = 0;   // slots per slab at most; 0: all in one slab
    std::string domain = {};   // see Domain
};

// A size class as it could be made.
struct MadeClass {
    uint64_t slot_bytes = 0;  // rounded up to whole pages
    uint64_t slot_count = 0;
    uint64_t slab_slots = 0;
    uint32_t slab_count = 0;
    Pages pages = Pages::small;  // the worst of its slabs
    bool reserved = false;
    std::string domain = {};     // where its pages were seen: "nodeN", "mixed", "" where that is not known
    uint64_t slab_bytes = 0;     // of all slabs
    std::string note = {};       // what was asked for and could not be had, and why

    uint64_t page_bytes() const noexcept { return pages == Pages::small ? kPageBytes : kHugePageBytes; }
    uint64_t waste_bytes() const noexcept { return slab_bytes - slot_bytes * slot_count; }  // behind the last slots
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

// How an allocation ended; each counts once, an allocation that is tried again still as the same one.
enum class Allocation : uint32_t {
    hit,                  // a slot of the right class, at once
    fallback,             // a slot of a bigger class, at once, because the right one had none
    reclaim,              // at once, but only because drop_oldest took older frames away
    wait_for_slot,        // the first attempt found no slot
    wait_for_descriptor,  // the first attempt found no descriptor
    too_big,              // no class has slots that big: an error
};
inline constexpr size_t kAllocations = 6;

struct ClassStats {
    MadeClass made;
    uint64_t in_use = 0;          // slots
    uint64_t high_water = 0;      // most slots in use at a time since the last look
    uint64_t payload_bytes = 0;   // in the slots that are in use
    uint64_t resident_bytes = 0;  // of all slabs
    uint64_t external_bytes = 0;  // resident and idle, in slabs of which a slot is in use
    uint64_t idle_bytes = 0;      // resident, in slabs of which no slot is in use

    uint64_t internal_bytes() const noexcept { return in_use * made.slot_bytes - payload_bytes; }
};

struct PoolStats {
    std::vector<ClassStats> classes;
    std::array<uint64_t, kAllocations> allocations{};  // since the pool was made, by Allocation
};

class SlabPool {
  public:
    // Makes all slabs, or throws RingError and leaves nothing behind. What is to be reserved is compared with what
    // the machine, its nodes and the control groups of this process have before the first slab is made.
    explicit SlabPool(std::span<const SizeClass> classes);

    size_t size() const noexcept { return slabs_.size(); }
    int fd(size_t slab) const noexcept { return slabs_[slab].memory.fd.get(); }
    std::span<const MadeClass> classes() const noexcept { return classes_; }
    // The class of a slab.
    const MadeClass& made(size_t slab) const noexcept { return classes_[slabs_[slab].of_class]; }

    // A slot of the smallest class that holds `bytes`, or of a bigger one.
    std::optional<SlotRef> take(uint64_t bytes) noexcept;
    void put(SlotRef slot) noexcept;
    // How many bytes of a taken slot are used, once that is known; before, it is what was asked for.
    void note_payload(SlotRef slot, uint64_t bytes) noexcept;
    // The books: how the attempts at one allocation went. `failed` may come any number of times.
    void allocated(SlotRef slot, uint64_t bytes, bool reclaimed) noexcept;
    void failed(Allocation why) noexcept;

    bool fits(SlotRef slot, uint64_t bytes) const noexcept {
        return slot.exists() && made(slot.slab).slot_bytes >= bytes;
    }
    uint64_t largest() const noexcept;
    uint32_t free_slots() const noexcept;
    uint64_t offset(SlotRef slot) const noexcept { return made(slot.slab).slot_bytes * slot.slot; }
    uint8_t* data(SlotRef slot) const noexcept { return slabs_[slot.slab].map->data() + offset(slot); }
    std::shared_ptr<const Mapping> memory(SlotRef slot) const noexcept { return slabs_[slot.slab].map; }
    // All slabs' memory, for who wants to touch it without us.
    std::vector<std::shared_ptr<const Mapping>> mappings() const;

    // Costs a system call per slab. The high-water marks begin anew when `reset` says so.
    PoolStats stats(bool reset);

  private:
    struct Slab {
        SlabMemory memory;
        std::shared_ptr<const Mapping> map;
        uint32_t of_class;
        FreeSet free;
        std::vector<uint64_t> payload;  // by slot, of those in use
        uint64_t payload_bytes = 0;     // the sum of them

        uint64_t in_use() const noexcept { return payload.size() - free.count(); }
    };
    struct Class {
        uint32_t first_slab;
        uint64_t in_use = 0;
        uint64_t high_water = 0;
    };
    void make(const SizeClass& wanted, const Domain& domain);

    std::vector<Slab> slabs_;
    std::vector<MadeClass> classes_;
    std::vector<Class> use_;         // beside classes_
    std::vector<uint32_t> by_size_;  // indices of classes, smallest slots first
    std::array<uint64_t, kAllocations> allocations_{};
    bool trying_ = false;  // the last attempt failed: the next one is of the same allocation
};

// Takes and maps all pages of some slabs, so that no store into them faults. RingError when memory runs out.
void prefault(std::span<const std::shared_ptr<const Mapping>> slabs);

}  // namespace mo
