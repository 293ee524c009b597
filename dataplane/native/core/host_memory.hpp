// What this machine's memory is like: its NUMA nodes, what they and the control groups leave, the 2 MB pages.
// `root` goes before every path under /proc and /sys: "" is this machine, anything else a recorded one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mo {

struct Available {
    uint64_t bytes;
    std::string origin;  // which limit it is
};

// What slabs may take: the smallest of MemAvailable and what is left under the limit of each control group of
// this process, version 1 and 2, its own and those above.
Available available_memory(const std::string& root = "");

// The nodes that have memory; empty where the kernel does not say.
std::vector<int> memory_nodes(const std::string& root = "");
std::string node_names(const std::vector<int>& nodes);

// What one node could give: MemFree and Inactive(file), which the kernel gives up first.
std::optional<Available> node_memory(int node, const std::string& root = "");

// Bytes of 2 MB pages that nobody has taken or been promised, of one node or (-1) of all.
uint64_t free_hugetlb_bytes(int node, const std::string& root = "");

// Whether shared memory may get 2 MB pages when it is advised to.
bool shmem_takes_huge_advice(const std::string& root = "");

// Binds a mapping to one node, before its first page is taken. 0, or the errno of the kernel that refused.
int bind_to_node(void* data, size_t bytes, int node) noexcept;

// On which node the pages of a mapping lie: one number, kMixed, or kUnknown where none is resident or the kernel
// does not say. Looks at 1024 pages spread over the mapping.
inline constexpr int kUnknownNode = -1;
inline constexpr int kMixedNodes = -2;
int node_of_pages(void* data, size_t bytes) noexcept;

// Bytes of a mapping that 2 MB pages of shared memory map (smaps: ShmemPmdMapped).
uint64_t pmd_mapped_bytes(const void* data);

}  // namespace mo
