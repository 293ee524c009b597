#include "layout.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <bit>

#include "error.hpp"
#include "futex.hpp"
#include "steps.hpp"

namespace mo {
namespace {

constexpr uint32_t kMostDescriptors = 1u << 20;
constexpr uint64_t kMostSequence = uint64_t{1} << 62;  // far from MO_UNKNOWN_U64, so sums never wrap

size_t ring_bytes(uint32_t capacity) {
    return round_up(sizeof(mo_ring_header) + uint64_t{capacity} * sizeof(mo_descriptor), kPageBytes);
}

std::string version_problem(const char* what, uint32_t found, uint32_t ours) {
    return std::string(what) + " has layout version " + std::to_string(found) + ", this program has " +
           std::to_string(ours);
}

}  // namespace

RingMap::RingMap(Mapping map, uint32_t capacity, uint64_t first_sequence)
    : map_(std::move(map)), cells_(reinterpret_cast<mo_descriptor*>(map_.data() + sizeof(mo_ring_header))),
      capacity_(capacity), first_sequence_(first_sequence) {}

std::shared_ptr<RingMap> RingMap::create(uint32_t capacity, uint64_t incarnation, Fd& fd) {
    if (capacity < 1 || capacity > kMostDescriptors)
        throw RingError("a ring has 1 to " + std::to_string(kMostDescriptors) + " descriptors, not " +
                        std::to_string(capacity));
    capacity = std::bit_ceil(capacity);
    const size_t bytes = ring_bytes(capacity);
    Fd file = create_memfd("observatory-ring", bytes);
    Mapping map(file.get(), bytes, Access::read_write, "ring");
    // Against resizing at once: whoever maps it may then rely on its size. Against writing by others only
    // later, because the supervisor has to map it writable too (RingMonitor::seal_ring).
    add_seals(file.get(), F_SEAL_SHRINK | F_SEAL_GROW, "ring");

    auto& header = *reinterpret_cast<mo_ring_header*>(map.data());
    header.magic = MO_RING_MAGIC;
    header.abi = MO_RING_ABI;
    header.capacity = capacity;
    header.descriptor_bytes = sizeof(mo_descriptor);
    header.incarnation = incarnation;
    header.first_sequence = MO_UNKNOWN_U64;
    header.producer_pid = static_cast<uint32_t>(getpid());
    header.tail = MO_UNKNOWN_U64;
    header.final_seq = MO_UNKNOWN_U64;
    header.end_reason = MO_END_NONE;
    fd = std::move(file);
    return std::shared_ptr<RingMap>(new RingMap(std::move(map), capacity, MO_UNKNOWN_U64));
}

void RingMap::begin(uint64_t first_sequence) {
    if (first_sequence > kMostSequence)
        throw RingError("sequence " + std::to_string(first_sequence) + " is too far up to start at");
    mo_ring_header& header = this->header();
    store_release(header.tail, first_sequence);
    MO_STEP("ring.begin.tail_stored");
    store_release(header.first_sequence, first_sequence);
    first_sequence_ = first_sequence;
}

std::shared_ptr<RingMap> RingMap::open(int fd, Access access) {
    require_seals(fd, F_SEAL_SHRINK | F_SEAL_GROW, "ring");
    const size_t bytes = file_bytes(fd, "ring");
    if (bytes < sizeof(mo_ring_header)) throw RingError("the ring is too short to be one");
    Mapping map(fd, bytes, access, "ring");
    const auto& header = *reinterpret_cast<const mo_ring_header*>(map.data());
    if (header.magic != MO_RING_MAGIC) throw RingError("this file is not a ring");
    if (header.abi != MO_RING_ABI) throw RingError(version_problem("the ring", header.abi, MO_RING_ABI));
    const uint32_t capacity = header.capacity;
    const uint64_t first_sequence = load_acquire(header.first_sequence);
    if (first_sequence == MO_UNKNOWN_U64) throw RingError("the ring has not begun yet");
    if (header.descriptor_bytes != sizeof(mo_descriptor) || !std::has_single_bit(capacity) ||
        capacity > kMostDescriptors || bytes < ring_bytes(capacity) || first_sequence > kMostSequence)
        throw RingError("the ring's header contradicts itself");
    return std::shared_ptr<RingMap>(new RingMap(std::move(map), capacity, first_sequence));
}

uint64_t end_ring(const RingMap& ring, mo_end_reason reason) {
    auto& header = ring.header();
    uint64_t final_seq = load_acquire(header.final_seq);
    if (final_seq == MO_UNKNOWN_U64) {
        store_relaxed<uint32_t>(header.end_reason, reason);
        MO_STEP("ring.end.reason_stored");
        const uint64_t tail = load_acquire(header.tail);
        // A compare-and-swap only so that two enders (which the rules forbid) still leave one end.
        if (compare_exchange(header.final_seq, final_seq, tail)) final_seq = tail;
    }
    MO_STEP("ring.end.final_stored");
    ring_doorbell(ring);
    return final_seq;
}

void ring_doorbell(const RingMap& ring) {
    auto& header = ring.header();
    fetch_add(header.doorbell, 1u);
    MO_STEP("ring.doorbell.bumped");
    futex_wake(header.doorbell);
}

std::shared_ptr<PageMap> PageMap::create(mo_edge_policy policy, Fd& fd) {
    Fd file = create_memfd("observatory-page", MO_PAGE_BYTES);
    Mapping map(file.get(), MO_PAGE_BYTES, Access::read_write, "consumer page");
    int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    // Under drop_oldest the producer too has to store `taken`.
    if (policy == MO_BLOCK) seals |= F_SEAL_FUTURE_WRITE;
    add_seals(file.get(), seals, "consumer page");

    auto& page = *reinterpret_cast<mo_consumer_page*>(map.data());
    page.magic = MO_PAGE_MAGIC;
    page.abi = MO_RING_ABI;
    page.consumer_pid = static_cast<uint32_t>(getpid());
    page.policy = policy;
    page.page_id = random_id();
    page.taken = MO_UNKNOWN_U64;
    fd = std::move(file);
    return std::shared_ptr<PageMap>(new PageMap(std::move(map)));
}

std::shared_ptr<PageMap> PageMap::open(int fd, Access access) {
    require_seals(fd, F_SEAL_SHRINK, "consumer page");
    require_plain_pages(fd, "consumer page");
    if (file_bytes(fd, "consumer page") < MO_PAGE_BYTES)
        throw RingError("the consumer page is too short to be one");
    Mapping map(fd, MO_PAGE_BYTES, access, "consumer page");
    const auto& page = *reinterpret_cast<const mo_consumer_page*>(map.data());
    if (page.magic != MO_PAGE_MAGIC) throw RingError("this file is not a consumer page");
    if (page.abi != MO_RING_ABI) throw RingError(version_problem("the consumer page", page.abi, MO_RING_ABI));
    if (page.page_id == 0 || page.policy > MO_DROP_OLDEST)
        throw RingError("the consumer page's header contradicts itself");
    return std::shared_ptr<PageMap>(new PageMap(std::move(map)));
}

mo_descriptor unknown_descriptor(uint16_t payload_kind) noexcept {
    mo_descriptor descriptor{};
    descriptor.sequence = MO_UNKNOWN_U64;
    descriptor.source_index = MO_UNKNOWN_U64;
    descriptor.pts = descriptor.dts = descriptor.duration = MO_UNKNOWN_I64;
    descriptor.time_base_den = 1;
    descriptor.payload_kind = payload_kind;
    descriptor.slab = descriptor.slot = MO_UNKNOWN_U32;
    descriptor.color_primaries = descriptor.color_transfer = descriptor.color_matrix =
        2;  // H.273: unspecified
    descriptor.sample_aspect_den = 1;
    descriptor.fence_value = MO_UNKNOWN_U64;
    descriptor.alloc_ns = descriptor.launch_ns = descriptor.signal_ns = MO_UNKNOWN_I64;
    return descriptor;
}

std::string problem_with_fields(const mo_descriptor& descriptor) {
    if (descriptor.payload_kind < MO_VIDEO_FRAME || descriptor.payload_kind > MO_FRAME_LOST)
        return "payload kind " + std::to_string(descriptor.payload_kind) + " is unknown";
    if (descriptor.pixel_format > MO_P010LE)
        return "pixel format " + std::to_string(descriptor.pixel_format) + " is unknown";
    if (descriptor.plane_count > MO_MAX_PLANES)
        return std::to_string(descriptor.plane_count) + " planes are more than " +
               std::to_string(MO_MAX_PLANES);
    if (descriptor.color_range > 2)
        return "color range " + std::to_string(descriptor.color_range) + " is not 0, 1 or 2";
    return {};
}

std::string problem_with_planes(const mo_descriptor& descriptor) {
    for (unsigned i = 0; i < descriptor.plane_count; ++i) {
        const uint64_t end = plane_end(descriptor, i);
        if (end > descriptor.bytes)
            return "plane " + std::to_string(i) + " ends at byte " + std::to_string(end) + " of " +
                   std::to_string(descriptor.bytes);
    }
    return {};
}

}  // namespace mo
