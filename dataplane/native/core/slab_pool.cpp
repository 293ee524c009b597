#include "slab_pool.hpp"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <numeric>

#include "error.hpp"

namespace mo {
namespace {

constexpr uint64_t kMostSlots = 1u << 16;  // events carry the slot in 16 bits
constexpr uint64_t kMostSlabBytes = uint64_t{1} << 46;
constexpr int kSlabSeals = F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Bytes the machine could still give us, or all there are where it does not say.
uint64_t available_bytes() {
    uint64_t kilobytes = UINT64_MAX / 1024;
    if (FILE* file = std::fopen("/proc/meminfo", "re")) {
        char line[128];
        unsigned long long value;
        while (std::fgets(line, sizeof line, file) != nullptr)
            if (std::sscanf(line, "MemAvailable: %llu kB", &value) == 1) kilobytes = value;
        std::fclose(file);
    }
    return kilobytes * 1024;
}

// A slab on 2 MB pages, fully reserved; an empty Fd where there are not enough of them.
Fd make_huge(uint64_t bytes, Mapping& map) {
    Fd fd(memfd_create("observatory-slab", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB | MFD_HUGE_2MB));
    if (!fd || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
        fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) != 0)
        return Fd();
    try {
        map = Mapping(fd.get(), bytes, Access::read_write, "slab");
    } catch (const RingError&) {
        return Fd();
    }
    return fd;
}

// Takes the memory now: a later write cannot then fail with SIGBUS or wake the out-of-memory killer.
void reserve(const Fd& fd, uint64_t bytes) {
    const std::string what = "cannot reserve " + std::to_string(bytes) + " bytes for a slab";
    // fallocate on a memfd has no limit of its own and would drive the machine into the out-of-memory killer.
    const uint64_t available = available_bytes();
    if (bytes > available) throw RingError(what + ": " + std::to_string(available) + " bytes are available");
    int result;
    do result = fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes));
    while (result != 0 && errno == EINTR);
    if (result != 0) fail_errno(what);
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

SlabPool::Slab SlabPool::make(SizeClass wanted) {
    if (wanted.slot_bytes < 1 || wanted.slot_count < 1 || wanted.slot_count > kMostSlots ||
        wanted.slot_bytes > kMostSlabBytes / wanted.slot_count)
        throw RingError("a size class has 1 to " + std::to_string(kMostSlots) +
                        " slots, at least one byte each and " + std::to_string(kMostSlabBytes) +
                        " bytes together, not " + std::to_string(wanted.slot_count) + " of " +
                        std::to_string(wanted.slot_bytes));
    SizeClass made = wanted;
    made.slot_bytes = round_up(wanted.slot_bytes, kPageBytes);
    const uint64_t bytes = made.slot_bytes * made.slot_count;
    Fd fd;
    Mapping map;
    if (wanted.huge_pages) fd = make_huge(round_up(bytes, kHugePageBytes), map);
    made.huge_pages = static_cast<bool>(fd);
    if (!fd) {
        fd = create_memfd("observatory-slab", bytes);
        if (wanted.huge_pages) reserve(fd, bytes);
        map = Mapping(fd.get(), bytes, Access::read_write, "slab");
    }
    // Mapped first: from here on nobody, not even we, can map it writable again.
    add_seals(fd.get(), kSlabSeals, "slab");
    return {std::move(fd), std::make_shared<const Mapping>(std::move(map)), made,
            FreeSet(static_cast<uint32_t>(made.slot_count))};
}

SlabPool::SlabPool(std::span<const SizeClass> classes) {
    if (classes.size() > UINT16_MAX) throw RingError("a port has at most 65535 size classes");
    slabs_.reserve(classes.size());
    for (const SizeClass& wanted : classes) slabs_.push_back(make(wanted));
    by_size_.resize(slabs_.size());
    std::iota(by_size_.begin(), by_size_.end(), 0u);
    std::stable_sort(by_size_.begin(), by_size_.end(), [this](uint32_t a, uint32_t b) {
        return slabs_[a].made.slot_bytes < slabs_[b].made.slot_bytes;
    });
}

std::optional<SlotRef> SlabPool::take(uint64_t bytes) noexcept {
    for (const uint32_t slab : by_size_) {
        if (slabs_[slab].made.slot_bytes < bytes) continue;
        if (const auto slot = slabs_[slab].free.take()) return SlotRef{slab, *slot};
    }
    return std::nullopt;
}

uint64_t SlabPool::largest() const noexcept {
    return slabs_.empty() ? 0 : slabs_[by_size_.back()].made.slot_bytes;
}

uint32_t SlabPool::free_slots() const noexcept {
    uint32_t count = 0;
    for (const Slab& slab : slabs_) count += slab.free.count();
    return count;
}

}  // namespace mo
