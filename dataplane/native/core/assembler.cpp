#include "assembler.hpp"

#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "error.hpp"

namespace mo {

static_assert(sizeof(mo_frame_record) == 120);

namespace {

constexpr size_t kFewestBuckets = 256;
constexpr size_t kKeptPool = 4096;

constexpr uint16_t bit(unsigned kind) { return static_cast<uint16_t>(1u << kind); }
constexpr uint16_t kProducerKinds =
    bit(MO_DMA_BUF_ALLOC) | bit(MO_PRODUCER_KERNEL_LAUNCH) | bit(MO_FENCE_SIGNAL);
constexpr uint16_t kLinkKinds = bit(MO_LINK_START) | bit(MO_LINK_END);
constexpr uint16_t kNeeded = bit(MO_FENCE_SIGNAL) | bit(MO_CONSUMER_KERNEL_LAUNCH) | bit(MO_SLOT_RELEASE);
constexpr uint16_t kExpected = kProducerKinds | kNeeded | bit(MO_CONSUMER_WAIT_FENCE);

// FENCE_SIGNAL knows the frame as it crosses the edge; the producer's other events nearly so; the consumer's
// do not know the bytes.
uint8_t rank_of(unsigned kind) noexcept {
    if (kind == MO_FENCE_SIGNAL) return 3;
    return kind < MO_FENCE_SIGNAL ? 2 : 1;
}

}  // namespace

Assembler::Assembler(std::vector<std::vector<uint32_t>> port_hops, std::span<const HopDevices> hop_devices,
                     const std::vector<bool>& expect_link)
    : port_hops_(std::move(port_hops)) {
    if (!expect_link.empty() && expect_link.size() != hop_devices.size())
        throw RingError("expect_link has " + std::to_string(expect_link.size()) + " entries for " +
                        std::to_string(hop_devices.size()) + " hops");
    for (size_t i = 0; i < hop_devices.size(); ++i) {
        const uint16_t link = !expect_link.empty() && expect_link[i] ? kLinkKinds : 0;
        Hop hop{};
        hop.devices = hop_devices[i];
        hop.needed = kNeeded | link;
        hop.expected = kExpected | link;
        hop.oldest = hop.newest = hop.last = kNone;
        hops_.push_back(hop);
    }
    for (const auto& hops : port_hops_)
        for (const uint32_t hop : hops)
            if (hop >= hops_.size())
                throw RingError("a port feeds hop " + std::to_string(hop) + " of " +
                                std::to_string(hops_.size()));
    resize_table(kFewestBuckets);
}

// -- the table ----------------------------------------------------------------------------------------------

size_t Assembler::home(uint32_t hop, uint64_t source_index) const noexcept {
    return ((source_index + hop * 0xD6E8FEB86659FD93u) * 0x9E3779B97F4A7C15u) >> shift_;
}

// Where the key is, or where it would go.
size_t Assembler::find_bucket(uint32_t hop, uint64_t source_index) const noexcept {
    const size_t mask = table_.size() - 1;
    size_t bucket = home(hop, source_index);
    while (table_[bucket].open != kNone &&
           (table_[bucket].source_index != source_index || table_[bucket].hop != hop))
        bucket = (bucket + 1) & mask;
    return bucket;
}

// Moves later entries of the run into the gap, so that no tombstones are needed.
void Assembler::erase_bucket(size_t bucket) noexcept {
    const size_t mask = table_.size() - 1;
    for (size_t next = (bucket + 1) & mask; table_[next].open != kNone; next = (next + 1) & mask) {
        const size_t distance = (next - home(table_[next].hop, table_[next].source_index)) & mask;
        if (distance < ((next - bucket) & mask)) continue;
        table_[bucket] = table_[next];
        bucket = next;
    }
    table_[bucket].open = kNone;
}

void Assembler::resize_table(size_t buckets) {
    const std::vector<Bucket> old = std::exchange(table_, std::vector<Bucket>(buckets));
    shift_ = 64 - std::countr_zero(buckets);
    for (const Bucket& bucket : old)
        if (bucket.open != kNone) table_[find_bucket(bucket.hop, bucket.source_index)] = bucket;
}

// -- records ------------------------------------------------------------------------------------------------

uint32_t Assembler::find_or_open(uint32_t hop_index, uint64_t source_index, const mo_frame_event* event,
                                 Out& out) {
    Hop& hop = hops_[hop_index];
    if (hop.last != kNone && hop.last_index == source_index) return hop.last;
    size_t bucket = find_bucket(hop_index, source_index);
    uint32_t index = table_[bucket].open;
    if (index == kNone) {
        if (hop.count >= kMostOpenPerHop) {
            close(hop.oldest, out);
            bucket = find_bucket(hop_index, source_index);
        }
        if ((open_count_ + 1) * 2 > table_.size()) {
            resize_table(table_.size() * 2);
            bucket = find_bucket(hop_index, source_index);
        }
        index = unused_;
        if (index == kNone) {
            index = static_cast<uint32_t>(pool_.size());
            pool_.emplace_back();
        } else {
            unused_ = pool_[index].newer;
        }
        Open& open = pool_[index];
        open.seen = 0;
        open.needed = hop.needed;
        open.rank = 0;
        open.older = hop.newest;
        open.newer = kNone;
        mo_frame_record& record = open.record;
        record.stream = event != nullptr ? event->stream : MO_UNKNOWN_U32;
        record.epoch = event != nullptr ? event->epoch : MO_UNKNOWN_U32;
        record.source_index = source_index;
        record.pts = MO_UNKNOWN_I64;
        record.time_base_num = 0;
        record.time_base_den = 1;
        record.hop = hop_index;
        record.slot = MO_UNKNOWN_U32;
        record.bytes = MO_UNKNOWN_U32;
        record.producer_device = hop.devices.producer_planned;
        record.consumer_device = hop.devices.consumer_planned;
        record.producer_real_device = hop.devices.producer_real;
        record.consumer_real_device = hop.devices.consumer_real;
        record.flags = 0;
        record.version = MO_RECORD_ABI;
        for (int64_t& time : record.times_ns) time = MO_UNKNOWN_I64;
        if (hop.newest == kNone)
            hop.oldest = index;
        else
            pool_[hop.newest].newer = index;
        hop.newest = index;
        ++hop.count;
        ++open_count_;
        table_[bucket] = {source_index, hop_index, index};
    }
    hop.last = index;
    hop.last_index = source_index;
    return index;
}

void Assembler::close(uint32_t index, Out& out) {
    Open& open = pool_[index];
    Hop& hop = hops_[open.record.hop];
    const uint16_t expected = open.record.flags & MO_RECORD_DROPPED ? kProducerKinds : hop.expected;
    if ((open.seen & expected) != expected) open.record.flags |= MO_RECORD_INCOMPLETE;
    out.push_back(open.record);

    erase_bucket(find_bucket(open.record.hop, open.record.source_index));
    if (open.older == kNone)
        hop.oldest = open.newer;
    else
        pool_[open.older].newer = open.newer;
    if (open.newer == kNone)
        hop.newest = open.older;
    else
        pool_[open.newer].older = open.older;
    --hop.count;
    --open_count_;
    if (hop.last == index) hop.last = kNone;
    open.newer = unused_;
    unused_ = index;
}

void Assembler::apply(uint32_t hop, const mo_frame_event& event, Out& out) {
    const uint32_t index = find_or_open(hop, event.source_index, &event, out);
    Open& open = pool_[index];
    mo_frame_record& record = open.record;
    const unsigned kind = event.kind;
    const bool seen_before = open.seen & bit(kind);
    if (!seen_before || event.time_ns > record.times_ns[kind]) {
        record.times_ns[kind] = event.time_ns;
        const uint8_t rank = rank_of(kind);
        if (rank >= open.rank) {
            open.rank = rank;
            record.stream = event.stream;
            record.epoch = event.epoch;
            record.pts = event.pts;
            record.time_base_num = event.time_base_num;
            record.time_base_den = event.time_base_den;
            record.slot = event.slot;
            record.bytes = event.bytes;
        }
        if (event.device != MO_UNKNOWN_U16) {
            // The last event of each side has the last word.
            if (kind == MO_FENCE_SIGNAL || (kind < MO_FENCE_SIGNAL && !(open.seen & bit(MO_FENCE_SIGNAL))))
                record.producer_real_device = event.device;
            else if (kind == MO_SLOT_RELEASE || (kind > MO_LINK_END && !(open.seen & bit(MO_SLOT_RELEASE))))
                record.consumer_real_device = event.device;
        }
    }
    open.seen |= bit(kind);
    if ((open.seen & open.needed) == open.needed) close(index, out);
}

void Assembler::feed(const void* events, size_t count, Out& out) {
    const auto* bytes = static_cast<const uint8_t*>(events);
    for (size_t i = 0; i < count; ++i) {
        mo_frame_event event;
        std::memcpy(&event, bytes + i * sizeof event, sizeof event);
        if (event.kind <= MO_FENCE_SIGNAL && event.place < port_hops_.size()) {
            for (const uint32_t hop : port_hops_[event.place]) apply(hop, event, out);
        } else if (event.kind > MO_FENCE_SIGNAL && event.kind < MO_EVENT_KINDS &&
                   event.place < hops_.size()) {
            apply(event.place, event, out);
        } else {
            ++unmatched_;
        }
    }
}

void Assembler::drop(uint32_t hop, std::span<const uint64_t> source_indices, Out& out) {
    if (hop >= hops_.size())
        throw RingError("there is no hop " + std::to_string(hop) + " among " + std::to_string(hops_.size()));
    for (const uint64_t source_index : source_indices) {
        const uint32_t index = find_or_open(hop, source_index, nullptr, out);
        Open& open = pool_[index];
        open.record.flags |= MO_RECORD_DROPPED;
        open.needed = bit(MO_FENCE_SIGNAL);
        if (open.seen & open.needed) close(index, out);
    }
}

void Assembler::flush(Out& out) {
    for (Hop& hop : hops_) {
        while (hop.oldest != kNone) {
            pool_[hop.oldest].record.flags |= MO_RECORD_INCOMPLETE;
            close(hop.oldest, out);
        }
    }
    if (pool_.size() > kKeptPool) {
        pool_ = {};
        unused_ = kNone;
    }
    if (table_.size() > kFewestBuckets) resize_table(kFewestBuckets);
}

}  // namespace mo
