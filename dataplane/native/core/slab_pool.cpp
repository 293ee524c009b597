#include "slab_pool.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>

#include "error.hpp"
#include "host_memory.hpp"

namespace mo {
namespace {

constexpr uint64_t kMostSlots = 1u << 16;  // events carry the slot in 16 bits, and the slab too
constexpr uint64_t kMostSlabBytes = uint64_t{1} << 46;

void require_sensible(const SizeClass& wanted) {
    if (wanted.slot_bytes < 1 || wanted.slot_count < 1 || wanted.slot_count > kMostSlots ||
        wanted.slot_bytes > kMostSlabBytes / wanted.slot_count)
        throw RingError("a size class has 1 to " + std::to_string(kMostSlots) +
                        " slots, at least one byte each and " + std::to_string(kMostSlabBytes) +
                        " bytes together, not " + std::to_string(wanted.slot_count) + " of " +
                        std::to_string(wanted.slot_bytes));
}

// What a class looks like before anything is made of it. Its slots are spread evenly over as few slabs as do.
MadeClass plan(const SizeClass& wanted) {
    require_sensible(wanted);
    MadeClass made;
    made.slot_bytes = round_up(wanted.slot_bytes, kPageBytes);
    made.slot_count = wanted.slot_count;
    const uint64_t most = wanted.slab_slots == 0 ? wanted.slot_count : wanted.slab_slots;
    made.slab_count = static_cast<uint32_t>((wanted.slot_count + most - 1) / most);
    made.slab_slots = (wanted.slot_count + made.slab_count - 1) / made.slab_count;
    // Rounding may have emptied the last ones.
    made.slab_count = static_cast<uint32_t>((wanted.slot_count + made.slab_slots - 1) / made.slab_slots);
    return made;
}

uint64_t slots_of_slab(const MadeClass& made, uint32_t slab) {
    return std::min(made.slab_slots, made.slot_count - slab * made.slab_slots);
}

// What is to be reserved where, with the arithmetic in words.
struct Need {
    uint64_t bytes = 0;
    std::string sum;
};

// The kernel reserves until it kills somebody (in a control group always): so look before.
void require_memory(std::span<const SizeClass> wanted, std::span<const MadeClass> made,
                    std::span<const Domain> domains) {
    std::map<int, Need> needs;                // by node; -1: wherever
    std::map<int, uint64_t> huge;             // what the hugetlb pools still have
    for (size_t i = 0; i < wanted.size(); ++i) {
        const int node = domains[i].node.value_or(-1);
        if (!wanted[i].huge_pages && !wanted[i].reserve && node < 0) continue;
        if (wanted[i].huge_pages && !huge.contains(node)) huge[node] = free_hugetlb_bytes(node);
        for (uint32_t slab = 0; slab < made[i].slab_count; ++slab) {
            const uint64_t slots = slots_of_slab(made[i], slab);
            const uint64_t bytes = slots * made[i].slot_bytes;
            const uint64_t on_huge = round_up(bytes, kHugePageBytes);
            if (wanted[i].huge_pages && huge[node] >= on_huge) {
                huge[node] -= on_huge;  // set aside already: no ordinary memory is needed for it
                continue;
            }
            Need& need = needs[node];
            need.bytes += bytes;
            need.sum += (need.sum.empty() ? "" : " + ") + std::to_string(slots) + " x " +
                        std::to_string(made[i].slot_bytes);
        }
    }
    if (needs.empty()) return;
    uint64_t all = 0;
    std::string sum;
    const auto compare = [](uint64_t bytes, const std::string& words, const Available& has, const std::string& where) {
        if (bytes > has.bytes)
            throw RingError("cannot reserve " + std::to_string(bytes) + " bytes for slabs" + where + " (" + words +
                            "): " + std::to_string(has.bytes) + " bytes are available (" + has.origin + ")");
    };
    for (const auto& [node, need] : needs) {
        all += need.bytes;
        sum += (sum.empty() ? "" : " + ") + need.sum;
        if (node < 0) continue;
        if (const auto has = node_memory(node)) compare(need.bytes, need.sum, *has, " on node" + std::to_string(node));
    }
    compare(all, sum, available_memory(), "");
}

}  // namespace

FreeSet::FreeSet(uint32_t count) : words_((count + 63) / 64, ~uint64_t{0}), count_(count) {
    if (count % 64 != 0) words_.back() = (uint64_t{1} << (count % 64)) - 1;
}

std::optional<uint32_t> FreeSet::take() noexcept {
    for (; lowest_ < words_.size(); ++lowest_) {
        uint64_t& word = words_[lowest_];
        if (word == 0) continue;
        const int bit = std::countr_zero(word);
        word &= word - 1;
        --count_;
        return static_cast<uint32_t>(lowest_ * 64 + bit);
    }
    return std::nullopt;
}

void FreeSet::put(uint32_t index) noexcept {
    words_[index / 64] |= uint64_t{1} << (index % 64);
    lowest_ = std::min<size_t>(lowest_, index / 64);
    ++count_;
}

void SlabPool::make(const SizeClass& wanted, const Domain& domain) {
    const auto index = static_cast<uint32_t>(use_.size());
    MadeClass& made = classes_[index];
    use_.push_back({static_cast<uint32_t>(slabs_.size())});
    int node = kUnknownNode;
    for (uint32_t slab = 0; slab < made.slab_count; ++slab) {
        const uint64_t slots = slots_of_slab(made, slab);
        SlabMemory memory =
            host_slabs().make({slots * made.slot_bytes, domain, wanted.huge_pages, wanted.reserve});
        made.slab_bytes += memory.bytes();
        made.reserved = memory.reserved;
        made.pages = slab == 0 ? memory.pages : std::min(made.pages, memory.pages);
        if (made.note.empty()) made.note = memory.note;
        node = slab == 0 || node == memory.node ? memory.node : kMixedNodes;
        auto map = std::make_shared<const Mapping>(std::move(memory.map));
        slabs_.push_back({std::move(memory), std::move(map), index, FreeSet(static_cast<uint32_t>(slots)),
                          std::vector<uint64_t>(slots)});
    }
    if (node == kMixedNodes) made.domain = "mixed";
    if (node >= 0) made.domain = "node" + std::to_string(node);
}

SlabPool::SlabPool(std::span<const SizeClass> classes) {
    if (classes.size() > UINT16_MAX) throw RingError("a port has at most 65535 size classes");
    std::vector<Domain> domains;
    uint64_t slabs = 0;
    for (const SizeClass& wanted : classes) {
        classes_.push_back(plan(wanted));
        slabs += classes_.back().slab_count;
        domains.push_back(Domain::parse(wanted.domain));
    }
    if (slabs > UINT16_MAX) throw RingError("a port has at most 65535 slabs, not " + std::to_string(slabs));
    require_memory(classes, classes_, domains);
    slabs_.reserve(slabs);
    for (size_t i = 0; i < classes.size(); ++i) make(classes[i], domains[i]);
    by_size_.resize(classes_.size());
    std::iota(by_size_.begin(), by_size_.end(), 0u);
    std::stable_sort(by_size_.begin(), by_size_.end(),
                     [this](uint32_t a, uint32_t b) { return classes_[a].slot_bytes < classes_[b].slot_bytes; });
}

std::optional<SlotRef> SlabPool::take(uint64_t bytes) noexcept {
    for (const uint32_t index : by_size_) {
        const MadeClass& made = classes_[index];
        Class& use = use_[index];
        if (made.slot_bytes < bytes || use.in_use == made.slot_count) continue;
        // The lowest slab first, so that those behind may never be needed.
        for (uint32_t at = use.first_slab;; ++at) {
            Slab& slab = slabs_[at];
            const auto slot = slab.free.take();
            if (!slot) continue;
            use.high_water = std::max(use.high_water, ++use.in_use);
            slab.payload[*slot] = bytes;
            slab.payload_bytes += bytes;
            return SlotRef{at, *slot};
        }
    }
    return std::nullopt;
}

void SlabPool::put(SlotRef slot) noexcept {
    Slab& slab = slabs_[slot.slab];
    slab.payload_bytes -= slab.payload[slot.slot];
    slab.free.put(slot.slot);
    --use_[slab.of_class].in_use;
}

void SlabPool::note_payload(SlotRef slot, uint64_t bytes) noexcept {
    Slab& slab = slabs_[slot.slab];
    slab.payload_bytes += bytes - std::exchange(slab.payload[slot.slot], bytes);
}

void SlabPool::allocated(SlotRef slot, uint64_t bytes, bool reclaimed) noexcept {
    if (std::exchange(trying_, false)) return;  // counted when it failed first
    const auto right = std::find_if(by_size_.begin(), by_size_.end(),
                                    [&](uint32_t index) { return classes_[index].slot_bytes >= bytes; });
    const bool hit = right != by_size_.end() && *right == slabs_[slot.slab].of_class;
    const Allocation how = reclaimed ? Allocation::reclaim : hit ? Allocation::hit : Allocation::fallback;
    ++allocations_[static_cast<size_t>(how)];
}

void SlabPool::failed(Allocation why) noexcept {
    if (why == Allocation::too_big || !std::exchange(trying_, true)) ++allocations_[static_cast<size_t>(why)];
}

uint64_t SlabPool::largest() const noexcept {
    return classes_.empty() ? 0 : classes_[by_size_.back()].slot_bytes;
}

uint32_t SlabPool::free_slots() const noexcept {
    uint32_t count = 0;
    for (const Slab& slab : slabs_) count += slab.free.count();
    return count;
}

std::vector<std::shared_ptr<const Mapping>> SlabPool::mappings() const {
    std::vector<std::shared_ptr<const Mapping>> maps;
    for (const Slab& slab : slabs_) maps.push_back(slab.map);
    return maps;
}

PoolStats SlabPool::stats(bool reset) {
    PoolStats stats;
    stats.allocations = allocations_;
    for (size_t i = 0; i < classes_.size(); ++i) {
        ClassStats& one = stats.classes.emplace_back();
        one.made = classes_[i];
        one.in_use = use_[i].in_use;
        one.high_water = use_[i].high_water;
        if (reset) use_[i].high_water = use_[i].in_use;
        for (uint32_t at = 0; at < classes_[i].slab_count; ++at) {
            const Slab& slab = slabs_[use_[i].first_slab + at];
            const uint64_t resident = slab.memory.resident_bytes();
            const uint64_t used = slab.in_use() * classes_[i].slot_bytes;
            one.resident_bytes += resident;
            one.payload_bytes += slab.payload_bytes;
            (used == 0 ? one.idle_bytes : one.external_bytes) += resident > used ? resident - used : 0;
        }
    }
    return stats;
}

void prefault(std::span<const std::shared_ptr<const Mapping>> slabs) {
    for (const auto& slab : slabs) populate_for_writing(*slab, "slab");
}

}  // namespace mo
