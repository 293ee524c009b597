// The memory of one slab: where it comes from, on which pages, on which node. Made, sealed, never resized.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sys.hpp"

namespace mo {

// What a size class says of where its memory is to lie: "" (wherever the kernel likes), "nodeN", or
// "emulated:DEVICE": the memory of a device that only exists as a model, for which the host's stands in.
struct Domain {
    std::optional<int> node;

    // RingError for the memory of a real device, and for what is no domain.
    static Domain parse(const std::string& name);
};

enum class Pages { small, thp, hugetlb };
const char* pages_name(Pages pages) noexcept;

struct SlabWish {
    uint64_t bytes = 0;  // of all slots
    Domain domain;
    bool huge_pages = false;
    bool reserve = false;  // always with huge pages, and on a node: the kernel would end us later, where there is none
};

struct SlabMemory {
    Fd fd;
    Mapping map;
    Pages pages = Pages::small;
    bool reserved = false;
    int node = -1;     // where the pages were found: kUnknownNode, kMixedNodes
    std::string note;  // what was asked for and could not be had, and why; "" if nothing

    uint64_t bytes() const noexcept { return map.bytes(); }
    // Bytes that the file takes in memory (or swap) now; nobody's reading and writing changes that of another file.
    uint64_t resident_bytes() const;
};

// Who makes the memory of a domain. The host is the only one there is: memory of a device would come from its
// driver, as a file descriptor that can be passed on and, if at all, mapped by the host.
class SlabSource {
  public:
    virtual ~SlabSource() = default;
    // RingError when it cannot be had; nothing is left then.
    virtual SlabMemory make(const SlabWish& wish) const = 0;
};
const SlabSource& host_slabs();

// Takes and maps all pages of a mapping now, whatever they hold: later stores cannot fault. RingError when the
// memory is not there.
void populate_for_writing(const Mapping& map, const std::string& what);
// The same for a mapping that is only read.
void populate_for_reading(const Mapping& map, const std::string& what);

}  // namespace mo
