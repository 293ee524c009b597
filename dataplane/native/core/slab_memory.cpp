#include "slab_memory.hpp"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <cstring>

#include "error.hpp"
#include "host_memory.hpp"

#ifndef MADV_POPULATE_READ  // Linux 5.14, younger than some headers
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

namespace mo {
namespace {

constexpr const char* kName = "observatory-slab";
constexpr int kSlabSeals = F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

std::string words_of(int error) {
    char buffer[128];
    return strerror_r(error, buffer, sizeof buffer);
}

// Beyond RLIMIT_FSIZE the kernel does not only refuse: it sends SIGXFSZ, which ends the process.
void require_file_size(uint64_t bytes) {
    rlimit limit{};
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur)
        throw RingError("a slab of " + std::to_string(bytes) + " bytes is larger than a file may be here: " +
                        std::to_string(limit.rlim_cur) + " bytes (RLIMIT_FSIZE, ulimit -f)");
}

int populate(const Mapping& map, int advice) noexcept {
    for (;;) {
        if (madvise(map.data(), map.bytes(), advice) == 0) return 0;
        if (errno != EINTR && errno != EAGAIN) return errno;
    }
}

[[noreturn]] void fail_populate(const Mapping& map, const std::string& what, int error) {
    throw RingError("cannot reserve " + std::to_string(map.bytes()) + " bytes for the " + what + ": " +
                    (error == EFAULT ? "the memory is not there" : words_of(error)));
}

// Binds before the first page is taken. A kernel (or a filter in front of it) that refuses is named in the note.
void place(SlabMemory& made, const SlabWish& wish) {
    if (!wish.domain.node) return;
    const int node = *wish.domain.node;
    const int error = bind_to_node(made.map.data(), made.map.bytes(), node);
    if (error == 0) return;
    if (error == EINVAL)  // it exists, or we would not be here: a cpuset forbids it
        throw RingError("node" + std::to_string(node) +
                        " is not allowed to this process (Mems_allowed in /proc/self/status)");
    made.note = "memory could not be bound to node" + std::to_string(node) + " (mbind: " + words_of(error) + ")";
}

void add_note(std::string& note, const std::string& words) { note += (note.empty() ? "" : "; ") + words; }

// On 2 MB pages of the hugetlb pool; nothing, and why, where there are not enough of them.
std::optional<SlabMemory> on_hugetlb(const SlabWish& wish, std::string& why_not) {
    SlabMemory made;
    made.fd = Fd(memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB | MFD_HUGE_2MB));
    const uint64_t bytes = round_up(wish.bytes, kHugePageBytes);
    if (!made.fd || ftruncate(made.fd.get(), static_cast<off_t>(bytes)) != 0) {
        why_not = words_of(errno);
        return std::nullopt;
    }
    try {
        made.map = Mapping(made.fd.get(), bytes, Access::read_write, "slab");
    } catch (const RingError&) {
        why_not = std::to_string(bytes / kHugePageBytes) + " pages of 2 MB are needed, " +
                  std::to_string(free_hugetlb_bytes(-1) / kHugePageBytes) + " are free";
        return std::nullopt;
    }
    place(made, wish);
    int error = populate(made.map, MADV_POPULATE_WRITE);
    if (error == EINVAL)
        error = fallocate(made.fd.get(), 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
    if (error != 0) {
        why_not = "not enough of them on node" + std::to_string(wish.domain.node.value_or(0));
        return std::nullopt;
    }
    made.pages = Pages::hugetlb;
    made.reserved = true;
    return made;
}

// On ordinary shared memory, with 2 MB pages if the kernel makes some of it.
SlabMemory on_shmem(const SlabWish& wish, bool advise_huge) {
    SlabMemory made;
    const uint64_t bytes = round_up(wish.bytes, advise_huge ? kHugePageBytes : kPageBytes);
    made.fd = create_memfd(kName, bytes);
    made.map = Mapping(made.fd.get(), bytes, Access::read_write, "slab");
    place(made, wish);
    if (advise_huge) madvise(made.map.data(), bytes, MADV_HUGEPAGE);
    if (wish.reserve || wish.huge_pages || wish.domain.node) {
        populate_for_writing(made.map, "slab");
        made.reserved = true;
    }
    if (advise_huge && pmd_mapped_bytes(made.map.data()) == bytes) made.pages = Pages::thp;
    return made;
}

SlabMemory make_unsealed(const SlabWish& wish) {
    if (!wish.huge_pages) return on_shmem(wish, false);
    const uint64_t waste = round_up(wish.bytes, kHugePageBytes) - wish.bytes;
    std::string note;
    if (waste > wish.bytes) {
        note = std::to_string(wish.bytes) + " bytes would waste more than half of their 2 MB pages";
    } else {
        std::string why_not;
        if (auto made = on_hugetlb(wish, why_not)) return std::move(*made);
        note = "no 2 MB pages from the hugetlb pool (" + why_not + ")";
        if (shmem_takes_huge_advice()) {
            SlabMemory made = on_shmem(wish, true);
            if (made.pages != Pages::thp) add_note(note, "the kernel made no transparent ones of all of it");
            add_note(made.note, note);
            return made;
        }
    }
    SlabMemory made = on_shmem(wish, false);
    add_note(made.note, note);
    return made;
}

class HostSlabs final : public SlabSource {
  public:
    SlabMemory make(const SlabWish& wish) const override {
        require_file_size(round_up(wish.bytes, wish.huge_pages ? kHugePageBytes : kPageBytes));
        SlabMemory made = make_unsealed(wish);
        made.node = node_of_pages(made.map.data(), made.map.bytes());
        if (wish.domain.node && made.node >= 0 && made.node != *wish.domain.node)
            add_note(made.note, "its pages lie on node" + std::to_string(made.node));
        // Mapped first: from here on nobody, not even we, can map it writable again.
        add_seals(made.fd.get(), kSlabSeals, "slab");
        return made;
    }
};

}  // namespace

Domain Domain::parse(const std::string& name) {
    if (name.empty()) return {};
    if (name.starts_with("emulated:") && name.size() > 9) return {};
    const bool numbered = name.size() > 4 && name.size() < 9 && name.starts_with("node") &&
                          name.find_first_not_of("0123456789", 4) == std::string::npos;
    if (!numbered)
        throw RingError("no slabs in the memory of " + name + ": memory of devices comes from their drivers, and " +
                        "there is none for it here (a domain is nodeN or emulated:DEVICE, both of the host)");
    const int node = std::stoi(name.substr(4));
    const std::vector<int> nodes = memory_nodes();
    if (!nodes.empty() && std::find(nodes.begin(), nodes.end(), node) == nodes.end())
        throw RingError("this machine has no memory on node" + std::to_string(node) +
                        "; it has: " + node_names(nodes));
    return {node};
}

const char* pages_name(Pages pages) noexcept {
    switch (pages) {
        case Pages::hugetlb: return "hugetlb";
        case Pages::thp: return "thp";
        default: return "none";
    }
}

uint64_t SlabMemory::resident_bytes() const {
    struct stat status;
    if (fstat(fd.get(), &status) != 0) fail_errno("cannot look at a slab");
    return static_cast<uint64_t>(status.st_blocks) * 512;
}

const SlabSource& host_slabs() {
    static const HostSlabs source;
    return source;
}

void populate_for_writing(const Mapping& map, const std::string& what) {
    const int error = populate(map, MADV_POPULATE_WRITE);
    if (error == 0) return;
    if (error != EINVAL) fail_populate(map, what, error);
    // An older kernel: a store that changes nothing, also under a reader's eyes.
    for (size_t at = 0; at < map.bytes(); at += kPageBytes)
        std::atomic_ref<uint8_t>(map.data()[at]).fetch_or(0, std::memory_order_relaxed);
}

void populate_for_reading(const Mapping& map, const std::string& what) {
    const int error = populate(map, MADV_POPULATE_READ);
    if (error == 0) return;
    if (error != EINVAL) fail_populate(map, what, error);
    for (size_t at = 0; at < map.bytes(); at += kPageBytes)
        static_cast<void>(*static_cast<const volatile uint8_t*>(map.data() + at));
}

}  // namespace mo
