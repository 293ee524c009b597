#include "host_memory.hpp"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <memory>
#include <string_view>

#include "sys.hpp"

namespace mo {
namespace {

using File = std::unique_ptr<FILE, decltype([](FILE* file) { std::fclose(file); })>;

File open_text(const std::string& path) { return File(std::fopen(path.c_str(), "re")); }

// Calls `look(line)` for every line, without its end, until it returns false.
template <class Look>
bool each_line(const std::string& path, Look&& look) {
    const File file = open_text(path);
    if (!file) return false;
    char line[1024];
    while (std::fgets(line, sizeof line, file.get()) != nullptr) {
        std::string_view text(line);
        while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.remove_suffix(1);
        if (!look(text)) break;
    }
    return true;
}

std::optional<std::string> first_line(const std::string& path) {
    std::optional<std::string> found;
    each_line(path, [&](std::string_view line) {
        found = std::string(line);
        return false;
    });
    return found;
}

std::optional<uint64_t> number_in(std::string_view text) {
    const size_t begin = text.find_first_of("0123456789");
    if (begin == std::string_view::npos) return std::nullopt;
    return std::strtoull(std::string(text.substr(begin)).c_str(), nullptr, 10);
}

std::optional<uint64_t> number_of(const std::string& path) {
    const auto line = first_line(path);
    return line ? number_in(*line) : std::nullopt;
}

// "NAME: 12 kB" or "NAME 12" of a file of such lines.
std::optional<uint64_t> value_of(const std::string& path, std::string_view name) {
    std::optional<uint64_t> found;
    each_line(path, [&](std::string_view line) {
        const size_t at = line.find(name);
        // A whole word: of `inactive_file` and `total_inactive_file` the one that was asked for.
        const bool begins = at == 0 || (at != std::string_view::npos && line[at - 1] == ' ');
        const std::string_view rest = at == std::string_view::npos ? line : line.substr(at + name.size());
        if (!begins || rest.empty() || (rest.front() != ':' && rest.front() != ' ')) return true;
        found = number_in(rest);
        return false;
    });
    return found;
}

// What a version of control groups calls its files.
struct GroupFiles {
    const char* limit;
    const char* used;
    const char* reclaimable;  // a line of memory.stat, with what is in the groups below
};
constexpr GroupFiles kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr GroupFiles kVersion2{"memory.max", "memory.current", "inactive_file"};

std::optional<uint64_t> left_in(const std::string& group, const GroupFiles& names) {
    const auto limit = first_line(group + "/" + names.limit);
    if (!limit || limit->empty() || std::isdigit(static_cast<unsigned char>(limit->front())) == 0)
        return std::nullopt;  // "max"
    const auto allowed = number_in(*limit), used = number_of(group + "/" + names.used);
    if (!allowed || !used) return std::nullopt;
    const uint64_t reclaimable = value_of(group + "/memory.stat", names.reclaimable).value_or(0);
    const uint64_t kept = *used > reclaimable ? *used - reclaimable : 0;
    return *allowed > kept ? *allowed - kept : 0;
}

bool lists(std::string_view words, std::string_view word) {
    for (size_t begin = 0; begin <= words.size();) {
        const size_t end = std::min(words.find(',', begin), words.size());
        if (words.substr(begin, end - begin) == word) return true;
        begin = end + 1;
    }
    return false;
}

// The smallest of what the groups of one line of /proc/self/cgroup leave ("4:memory:/a/b", "0::/a/b").
void bound_by_groups(const std::string& root, std::string_view line, Available& available) {
    const size_t first = line.find(':');
    const size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) return;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const bool unified = line.substr(0, first) == "0";
    if (!unified && !lists(controllers, "memory")) return;
    const std::string mount = root + (unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory");
    const GroupFiles& names = unified ? kVersion2 : kVersion1;
    // In a container the path may be that of the host, of which only the last part is mounted, as the root.
    std::string group(line.substr(second + 1));
    while (!group.empty() && group.back() == '/') group.pop_back();
    for (;;) {
        const std::string folder = mount + group;
        const auto left = left_in(folder, names);
        if (left && *left < available.bytes) available = {*left, folder + "/" + names.limit};
        if (group.empty()) return;
        group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
    }
}

}  // namespace

Available available_memory(const std::string& root) {
    auto kilobytes = value_of(root + "/proc/meminfo", "MemAvailable");
    if (!kilobytes) kilobytes = value_of("/proc/meminfo", "MemAvailable");
    Available available{kilobytes.value_or(UINT64_MAX / 1024) * 1024, "MemAvailable"};
    each_line(root + "/proc/self/cgroup", [&](std::string_view line) {
        bound_by_groups(root, line, available);
        return true;
    });
    return available;
}

std::vector<int> memory_nodes(const std::string& root) {
    std::vector<int> nodes;
    const auto list = first_line(root + "/sys/devices/system/node/has_memory");
    if (!list) return nodes;
    const char* at = list->c_str();
    while (std::isdigit(static_cast<unsigned char>(*at)) != 0) {  // "0-1,3"
        char* end;
        const long low = std::strtol(at, &end, 10);
        const long high = *end == '-' ? std::strtol(end + 1, &end, 10) : low;
        for (long node = low; node <= high; ++node) nodes.push_back(static_cast<int>(node));
        at = *end == ',' ? end + 1 : end;
    }
    return nodes;
}

std::string node_names(const std::vector<int>& nodes) {
    std::string words;
    for (const int node : nodes) words += (words.empty() ? "node" : ", node") + std::to_string(node);
    return words;
}

std::optional<Available> node_memory(int node, const std::string& root) {
    const std::string path = root + "/sys/devices/system/node/node" + std::to_string(node) + "/meminfo";
    const auto free = value_of(path, "MemFree");
    if (!free) return std::nullopt;
    const uint64_t inactive = value_of(path, "Inactive(file)").value_or(0);
    return Available{(*free + inactive) * 1024, "MemFree and Inactive(file) of " + path};
}

uint64_t free_hugetlb_bytes(int node, const std::string& root) {
    const std::string folder =
        root + (node < 0 ? std::string("/sys/kernel/mm")
                         : "/sys/devices/system/node/node" + std::to_string(node)) +
        "/hugepages/hugepages-2048kB";
    const uint64_t free = number_of(folder + "/free_hugepages").value_or(0);
    const uint64_t promised = number_of(folder + "/resv_hugepages").value_or(0);  // nodes have no such file
    return free > promised ? (free - promised) * kHugePageBytes : 0;
}

bool shmem_takes_huge_advice(const std::string& root) {
    const std::string folder = root + "/sys/kernel/mm/transparent_hugepage/";
    const auto chosen = [](const std::optional<std::string>& line) {
        if (!line) return std::string();
        const size_t begin = line->find('['), end = line->find(']');
        return begin == std::string::npos || end == std::string::npos
                   ? std::string()
                   : line->substr(begin + 1, end - begin - 1);
    };
    std::string setting = chosen(first_line(folder + "hugepages-2048kB/shmem_enabled"));
    if (setting.empty() || setting == "inherit") setting = chosen(first_line(folder + "shmem_enabled"));
    return setting == "advise" || setting == "within_size" || setting == "always" || setting == "force";
}

int bind_to_node(void* data, size_t bytes, int node) noexcept {
    constexpr size_t kBits = 8 * sizeof(unsigned long);
    std::array<unsigned long, 1024 / kBits> mask{};
    if (node < 0 || node >= 1024) return EINVAL;
    mask[static_cast<size_t>(node) / kBits] = 1ul << (static_cast<size_t>(node) % kBits);
    // The kernel takes one bit less than it is told of.
    return syscall(SYS_mbind, data, bytes, MPOL_BIND, mask.data(), 1024ul + 1, 0u) == 0 ? 0 : errno;
}

int node_of_pages(void* data, size_t bytes) noexcept {
    constexpr size_t kMost = 1024;
    std::array<void*, kMost> pages;
    std::array<int, kMost> nodes;
    const size_t all = (bytes + kPageBytes - 1) / kPageBytes;
    const size_t count = std::min(all, kMost);
    for (size_t i = 0; i < count; ++i) {
        const size_t page = count < 2 ? 0 : i * (all - 1) / (count - 1);
        pages[i] = static_cast<uint8_t*>(data) + page * kPageBytes;
    }
    nodes.fill(-ENOENT);
    // Without a list of nodes to move to, move_pages only tells where pages are.
    if (syscall(SYS_move_pages, 0, count, pages.data(), nullptr, nodes.data(), 0) < 0) return kUnknownNode;
    int found = kUnknownNode;
    for (size_t i = 0; i < count; ++i) {
        if (nodes[i] < 0) continue;  // not resident, or not mapped here yet
        if (found != kUnknownNode && found != nodes[i]) return kMixedNodes;
        found = nodes[i];
    }
    return found;
}

uint64_t pmd_mapped_bytes(const void* data) {
    char head[32];
    std::snprintf(head, sizeof head, "%" PRIxPTR "-", reinterpret_cast<uintptr_t>(data));
    const std::string_view wanted(head);
    bool inside = false;
    uint64_t bytes = 0;
    each_line("/proc/self/smaps", [&](std::string_view line) {
        if (line.starts_with(wanted))
            inside = true;
        else if (inside && line.starts_with("ShmemPmdMapped:"))
            bytes = number_in(line).value_or(0) * 1024;
        else if (inside && line.starts_with("VmFlags:"))
            return false;
        return true;
    });
    return bytes;
}

}  // namespace mo
