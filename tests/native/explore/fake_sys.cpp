// sys.hpp without a kernel. Seals are not kept: the explored actors are not malicious.
#include <sys/mman.h>

#include <array>
#include <cstdlib>
#include <cstring>

#include "error.hpp"
#include "fake_memory.hpp"
#include "ring.h"
#include "sys.hpp"

namespace mo {
namespace {

constexpr int kFirstFd = 1000;
constexpr size_t kMostFiles = 32;
constexpr size_t kFileBytes = size_t{64} << 10;

enum class Content { ring, page, slab, other };

struct File {
    Content content;
    size_t bytes;
    int number;  // among those of its kind
};

struct Files {
    uint8_t* memory = nullptr;
    std::array<File, kMostFiles> files;
    size_t count = 0;
    std::array<int, 4> per_content{};

    uint8_t* data(size_t file) const { return memory + file * kFileBytes; }
};
Files files;
uint64_t last_id = 0;

const File& file_of(int fd) { return files.files.at(static_cast<size_t>(fd - kFirstFd)); }

Content content_of(const char* name) {
    if (std::strcmp(name, "observatory-ring") == 0) return Content::ring;
    if (std::strcmp(name, "observatory-page") == 0) return Content::page;
    return std::strcmp(name, "observatory-slab") == 0 ? Content::slab : Content::other;
}

}  // namespace

void fail_errno(const std::string& what, int error) { throw RingError(what + ": " + std::strerror(error)); }

Fd Fd::duplicate(int fd, const std::string&) { return Fd(fd); }
void Fd::reset() noexcept { fd_ = -1; }

Mapping::Mapping(int fd, size_t bytes, Access, const std::string&)
    : data_(files.data(static_cast<size_t>(fd - kFirstFd))), bytes_(bytes) {}
void Mapping::reset() noexcept {
    data_ = nullptr;
    bytes_ = 0;
}

Fd create_memfd(const char* name, size_t bytes) {
    if (files.memory == nullptr) {
        void* data = mmap(nullptr, kMostFiles * kFileBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (data == MAP_FAILED) std::abort();
        files.memory = static_cast<uint8_t*>(data);
    }
    if (files.count == kMostFiles || bytes > kFileBytes) std::abort();
    const size_t index = files.count++;
    const Content content = content_of(name);
    files.files[index] = {content, bytes, ++files.per_content[static_cast<size_t>(content)]};
    // Slabs are only stamped, never looked at as they were.
    if (content != Content::slab) std::memset(files.data(index), 0, bytes);
    return Fd(kFirstFd + static_cast<int>(index));
}

void add_seals(int, int, const std::string&) {}
void require_seals(int, int, const std::string&) {}
void require_plain_pages(int, const std::string&) {}
size_t file_bytes(int fd, const std::string&) { return file_of(fd).bytes; }
uint64_t random_id() { return ++last_id; }

namespace explore {
namespace {

std::string field_of_ring(size_t offset) {
    struct Field {
        size_t offset;
        const char* name;
    };
    constexpr Field fields[] = {
        {offsetof(mo_ring_header, first_sequence), "first_sequence"},
        {offsetof(mo_ring_header, tail), "tail"},
        {offsetof(mo_ring_header, doorbell), "doorbell"},
        {offsetof(mo_ring_header, producer_waiting), "producer_waiting"},
        {offsetof(mo_ring_header, final_seq), "final_seq"},
        {offsetof(mo_ring_header, end_reason), "end_reason"},
    };
    for (const Field& field : fields)
        if (field.offset == offset) return field.name;
    return "at " + std::to_string(offset);
}

void describe_ring(size_t offset, std::string& field, std::string& number) {
    constexpr size_t admissions = offsetof(mo_ring_header, admissions);
    if (offset >= sizeof(mo_ring_header)) {
        const size_t cell = (offset - sizeof(mo_ring_header)) / sizeof(mo_descriptor);
        const size_t within = (offset - sizeof(mo_ring_header)) % sizeof(mo_descriptor);
        number = "cell" + std::to_string(cell);
        field = within == 0 ? "cell.sequence" : "cell.rest";
    } else if (offset >= admissions) {
        const size_t entry = (offset - admissions) / sizeof(mo_admission);
        const size_t within = (offset - admissions) % sizeof(mo_admission);
        number = "admission" + std::to_string(entry);
        constexpr const char* names[] = {"page_id", "start", "stop", "reserved"};
        field = std::string("admission.") + names[within / 8];
    } else {
        field = field_of_ring(offset);
        return;
    }
    number += field.substr(field.find('.'));
}

std::string field_of_page(size_t offset) {
    if (offset == offsetof(mo_consumer_page, taken)) return "taken";
    if (offset == offsetof(mo_consumer_page, acked)) return "acked";
    if (offset == offsetof(mo_consumer_page, held)) return "held";
    if (offset == offsetof(mo_consumer_page, waiting)) return "waiting";
    return "at " + std::to_string(offset);
}

}  // namespace

void forget_files() noexcept {
    files.count = 0;
    files.per_content = {};
    last_id = 0;
}

void describe(const void* address, std::string& kind, std::string& name) {
    const auto* at = static_cast<const uint8_t*>(address);
    kind = name = "elsewhere";
    if (files.memory == nullptr || at < files.memory || at >= files.data(files.count)) return;
    const size_t index = static_cast<size_t>(at - files.memory) / kFileBytes;
    const size_t offset = static_cast<size_t>(at - files.memory) % kFileBytes;
    const File& file = files.files[index];
    std::string number;
    if (file.content == Content::ring) {
        std::string field;
        describe_ring(offset, field, number);
        if (number.empty()) number = field;
        kind = "ring." + field;
        name = "ring" + std::to_string(file.number) + "." + number;
    } else if (file.content == Content::page) {
        const std::string field = field_of_page(offset);
        kind = "page." + field;
        name = "page" + std::to_string(file.number) + "." + field;
    } else {
        kind = "slab";
        name = "slab" + std::to_string(file.number) + " at " + std::to_string(offset);
    }
}

}  // namespace explore
}  // namespace mo
