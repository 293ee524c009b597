#include "producer.hpp"

#include <algorithm>
#include <bit>

#include "error.hpp"

namespace mo {

Producer::Producer(uint32_t capacity, std::span<const SizeClass> classes, uint64_t incarnation,
                   uint64_t first_sequence)
    : ring_(RingMap::create(capacity, incarnation, first_sequence, ring_fd_)),
      pool_(std::make_unique<SlabPool>(classes)), tail_(first_sequence) {}

void Producer::require_open() const {
    if (closed()) throw RingError("the producer is closed");
}

void Producer::require_running() const {
    require_open();
    // Read every time: the supervisor may have ended the ring, taking us for dead.
    if (load_acquire(ring_->header().final_seq) != MO_UNKNOWN_U64) throw RingError("the ring has ended");
}

int Producer::ring_fd() const {
    require_open();
    return ring_fd_.get();
}

const SlabPool& Producer::pool() const {
    require_open();
    return *pool_;
}

PoolStats Producer::pool_stats(bool reset) {
    require_open();
    refresh();
    return pool_->stats(reset);
}

// -- consumers ----------------------------------------------------------------------------------------------

Producer::Reader& Producer::reader(int consumer) {
    return const_cast<Reader&>(static_cast<const Producer*>(this)->reader(consumer));
}

const Producer::Reader& Producer::reader(int consumer) const {
    if (consumer < 0 || static_cast<size_t>(consumer) >= readers_.size())
        throw RingError("there is no consumer " + std::to_string(consumer));
    return *readers_[consumer];
}

int Producer::admit(int page_fd, mo_edge_policy policy) {
    require_running();
    auto page = PageMap::open(page_fd, policy == MO_DROP_OLDEST ? Access::read_write : Access::read_only);
    if (page->page().policy != policy) throw RingError("the consumer page was made for the other policy");
    const uint64_t id = page->page().page_id;
    uint64_t used = 0;
    for (const Reader* other : active_) {
        used |= uint64_t{1} << other->index;
        if (other->page->page().page_id == id) throw RingError("the consumer page is admitted already");
    }
    if (~used == 0) throw RingError("a ring has at most " + std::to_string(MO_MAX_CONSUMERS) + " consumers");

    auto reader = std::make_unique<Reader>();
    reader->page = std::move(page);
    reader->policy = policy;
    reader->index = static_cast<uint32_t>(std::countr_one(used));
    reader->start = reader->acked = reader->taken = tail_;
    if (policy == MO_DROP_OLDEST) {
        // A page that was in no ring yet starts here, so frames can be dropped for it before it attaches.
        // A page still in an older ring is left alone: its consumer moves `taken` when it comes.
        uint64_t fresh = MO_UNKNOWN_U64;
        compare_exchange(reader->page->page().taken, fresh, tail_);
    }
    outstanding_.admit(reader->index);
    mo_admission& admission = ring_->header().admissions[reader->index];
    store_relaxed(admission.start, tail_);
    store_release(admission.page_id, id);
    cell_limit_ = 0;
    active_.push_back(reader.get());
    readers_.push_back(std::move(reader));
    ring_doorbell(*ring_);
    return static_cast<int>(readers_.size()) - 1;
}

void Producer::dismiss(int consumer) {
    require_open();
    Reader& leaving = reader(consumer);
    const auto found = std::find(active_.begin(), active_.end(), &leaving);
    if (found == active_.end())
        throw RingError("consumer " + std::to_string(consumer) + " was dismissed before");
    active_.erase(found);
    store_release(ring_->header().admissions[leaving.index].page_id, uint64_t{0});
    // Said before anything that it may still be reading is overwritten (Consumer::dismissed).
    std::atomic_thread_fence(std::memory_order_seq_cst);
    outstanding_.finish_below(leaving.index, tail_, freed_);
    return_slots();
    futex_wake(low_word(leaving.page->page().acked));  // whoever sleeps in wait_until may have room now
    leaving.page.reset();
    cell_limit_ = 0;
}

void Producer::return_slots() {
    for (const SlotRef slot : freed_) pool_->put(slot);
    freed_.clear();
}

// What consumers say is believed only as far as it makes sense: their counters never go back and never pass
// the tail. A garbled page can thus free its own frames too early, never anybody else's.
void Producer::refresh() {
    for (Reader* reader : active_) {
        const uint64_t seen = load_seq_cst(reader->page->page().acked);
        if (seen == reader->acked_seen) continue;
        reader->acked_seen = seen;
        const uint64_t acked = std::min(seen, tail_);
        if (acked <= reader->acked) continue;
        reader->acked = acked;
        outstanding_.finish_below(reader->index, acked, freed_);
    }
    if (!freed_.empty()) return_slots();
}

void Producer::read_taken(Reader& reader) {
    const uint64_t seen = load_seq_cst(reader.page->page().taken);
    reader.taken_seen = seen;
    reader.arrived = seen != MO_UNKNOWN_U64 && seen >= reader.start;
    if (reader.arrived) reader.taken = std::max(reader.taken, std::min(seen, tail_));
    // What is acknowledged was taken, whatever the page says: no descriptor is kept for it.
    reader.taken = std::max(reader.taken, reader.acked);
}

// -- room ---------------------------------------------------------------------------------------------------

// The descriptor of sequence s may be overwritten by s + capacity once every consumer has taken (copied) it.
bool Producer::has_cell() {
    if (tail_ + writing_ < cell_limit_) return true;
    uint64_t lowest = tail_;
    for (Reader* reader : active_) {
        read_taken(*reader);
        lowest = std::min(lowest, reader->taken);
    }
    cell_limit_ = lowest + ring_->capacity();
    return tail_ + writing_ < cell_limit_;
}

bool Producer::can_drop(const Reader& reader) const noexcept {
    return reader.policy == MO_DROP_OLDEST && reader.arrived && reader.taken < tail_;
}

// Takes the oldest unread frame away from a consumer, unless it is quicker. False when neither happened.
bool Producer::drop_next(Reader& reader) {
    const uint64_t sequence = reader.taken;
    uint64_t found = sequence;
    if (!compare_exchange(reader.page->page().taken, found, sequence + 1)) {
        read_taken(reader);
        return reader.taken != sequence;
    }
    reader.taken = sequence + 1;
    const mo_descriptor& cell = ring_->cell(sequence);
    if (is_traced(cell.payload_kind)) {
        ++reader.dropped;
        reader.dropped_indices.push_back(cell.source_index);
    }
    outstanding_.finish_one(reader.index, sequence, freed_);
    return true;
}

bool Producer::drop_through(Reader& reader, uint64_t sequence) {
    while (reader.taken <= sequence)
        if (!drop_next(reader)) return false;
    return true;
}

bool Producer::make_cell() {
    while (!has_cell()) {
        const uint64_t wanted = tail_ + writing_ - ring_->capacity();  // has to be taken by everybody
        for (const Reader* reader : active_)
            if (reader->taken <= wanted && !can_drop(*reader)) return false;
        bool progress = false;
        for (Reader* reader : active_) {
            if (reader->taken > wanted) continue;
            if (!drop_through(*reader, std::min(wanted, tail_ - 1))) return false;
            progress = true;
        }
        return_slots();
        // Only our own open slots are in the way.
        if (!progress) return false;
    }
    return true;
}

// Frees the oldest fitting slot that only drop_oldest consumers keep, and that none of them holds.
bool Producer::make_slot(uint64_t bytes) {
    std::array<Reader*, MO_MAX_CONSUMERS> by_index{};
    bool possible = false;
    for (Reader* reader : active_) {
        by_index[reader->index] = reader;
        if (reader->policy != MO_DROP_OLDEST) continue;
        read_taken(*reader);
        possible |= can_drop(*reader);
    }
    if (!possible) return false;

    const auto droppable = [&](const Outstanding::Entry& entry) {
        for (uint64_t bits = entry.needed_by; bits != 0; bits &= bits - 1) {
            const Reader& reader = *by_index[std::countr_zero(bits)];
            if (!can_drop(reader) || reader.taken > entry.sequence) return false;
        }
        return pool_->fits(entry.slot, bytes);
    };
    uint32_t index = outstanding_.first();
    while (index != Outstanding::kEnd) {
        const Outstanding::Entry entry = outstanding_.at(index);
        if (!droppable(entry)) {
            index = entry.next;
            continue;
        }
        const uint64_t before = outstanding_.size();
        bool dropped = true;
        for (uint64_t bits = entry.needed_by; bits != 0 && dropped; bits &= bits - 1)
            dropped = drop_through(*by_index[std::countr_zero(bits)], entry.sequence);
        return_slots();
        if (outstanding_.size() < before) return true;
        if (!dropped) return false;  // a page that contradicts itself
        // A consumer took this frame just before we did, and dropping may have changed the list: look again.
        index = outstanding_.first();
    }
    return false;
}

std::optional<WriteSlot> Producer::try_acquire(uint64_t bytes) {
    require_running();
    if (pool_->size() == 0 || bytes > pool_->largest()) {
        pool_->failed(Allocation::too_big);
        throw RingError("no slot holds " + std::to_string(bytes) + " bytes: the largest has " +
                        std::to_string(pool_->largest()));
    }
    refresh();
    if (lacks_cell_ = !make_cell(); lacks_cell_) {
        pool_->failed(Allocation::wait_for_descriptor);
        return std::nullopt;
    }
    auto place = pool_->take(bytes);
    const bool reclaimed = !place;
    while (!place) {
        if (!make_slot(bytes)) {
            pool_->failed(Allocation::wait_for_slot);
            return std::nullopt;
        }
        place = pool_->take(bytes);
    }
    pool_->allocated(*place, bytes, reclaimed);
    ++writing_;
    WriteSlot slot{*place, pool_->data(*place), pool_->made(place->slab).slot_bytes, monotonic_ns(), 0};
    slot.launch_ns = slot.alloc_ns;
    return slot;
}

void Producer::abandon(SlotRef slot) noexcept {
    if (closed()) return;
    pool_->put(slot);
    --writing_;
}

// -- publishing ---------------------------------------------------------------------------------------------

uint64_t Producer::publish(const WriteSlot& slot, const mo_descriptor& described, uint64_t bytes) {
    require_running();
    if (bytes > slot.capacity_bytes)
        throw RingError("the slot holds " + std::to_string(slot.capacity_bytes) + " bytes, not " +
                        std::to_string(bytes));
    if (described.payload_kind == MO_FRAME_LOST)
        throw RingError("a lost frame has no payload: publish_empty");
    mo_descriptor descriptor = described;
    descriptor.slab = slot.place.slab;
    descriptor.slot = slot.place.slot;
    descriptor.offset = pool_->offset(slot.place);
    descriptor.bytes = bytes;
    descriptor.alloc_ns = slot.alloc_ns;
    descriptor.launch_ns = slot.launch_ns;
    if (const std::string problem = problem_with_planes(descriptor); !problem.empty())
        throw RingError(problem);
    --writing_;
    pool_->note_payload(slot.place, bytes);
    const uint64_t sequence = commit(descriptor, slot.place);
    if (trace_ && is_traced(descriptor.payload_kind)) {
        const mo_frame_event events[] = {
            trace_.event(MO_DMA_BUF_ALLOC, descriptor.alloc_ns, descriptor),
            trace_.event(MO_PRODUCER_KERNEL_LAUNCH, descriptor.launch_ns, descriptor),
            trace_.event(MO_FENCE_SIGNAL, descriptor.signal_ns, descriptor),
        };
        trace_.events->emit(events, std::size(events));
    }
    return sequence;
}

std::optional<uint64_t> Producer::try_publish_empty(const mo_descriptor& described) {
    require_running();
    if (described.payload_kind != MO_FRAME_LOST) throw RingError("only a lost frame has no payload");
    refresh();
    if (lacks_cell_ = !make_cell(); lacks_cell_) return std::nullopt;
    mo_descriptor descriptor = described;
    descriptor.slab = descriptor.slot = MO_UNKNOWN_U32;
    descriptor.offset = descriptor.bytes = 0;
    descriptor.plane_count = 0;
    descriptor.alloc_ns = descriptor.launch_ns = MO_UNKNOWN_I64;
    return commit(descriptor, SlotRef{});
}

uint64_t Producer::commit(mo_descriptor& descriptor, SlotRef slot) {
    mo_ring_header& header = ring_->header();
    const uint64_t sequence = tail_;
    descriptor.sequence = sequence;
    descriptor.fence_value = sequence + 1;  // the port's timeline is the tail
    uint64_t needed_by = 0;
    for (const Reader* reader : active_) needed_by |= uint64_t{1} << reader->index;
    if (needed_by != 0)
        outstanding_.append(sequence, needed_by, slot);
    else if (slot.exists())
        pool_->put(slot);  // nobody will ever read it

    descriptor.signal_ns = monotonic_ns();
    store_words(ring_->cell(sequence), descriptor);
    tail_ = sequence + 1;
    const bool counts = is_traced(descriptor.payload_kind) || descriptor.payload_kind == MO_FRAME_LOST;
    if (counts && descriptor.source_index != MO_UNKNOWN_U64)
        next_source_index_ = std::max(next_source_index_, descriptor.source_index + 1);
    // The commit. Sequentially consistent, as `waiting` below and the consumers' two accesses are: of "the
    // consumer sees the new tail" and "we see it waiting" at least one is true.
    store_seq_cst(header.tail, tail_);
    for (const Reader* reader : active_) {
        if (load_seq_cst(reader->page->page().waiting) == 0) continue;
        ring_doorbell(*ring_);
        break;
    }
    return sequence;
}

uint64_t Producer::finish(mo_end_reason reason) {
    require_open();
    return end_ring(*ring_, reason);
}

// -- looking ------------------------------------------------------------------------------------------------

uint32_t Producer::free_slots() {
    require_open();
    refresh();
    return pool_->free_slots();
}

uint64_t Producer::outstanding() {
    require_open();
    refresh();
    return outstanding_.size();
}

uint64_t Producer::backlog(int consumer) {
    require_open();
    Reader& asked = reader(consumer);
    if (!asked.page) return 0;
    read_taken(asked);
    return tail_ - asked.taken;
}

uint64_t Producer::held(int consumer) {
    require_open();
    Reader& asked = reader(consumer);
    if (!asked.page) return 0;
    refresh();
    read_taken(asked);
    // From a page that contradicts itself nothing can be dropped: all that is kept for it is out of our reach.
    const bool contradicts = asked.policy == MO_DROP_OLDEST && asked.taken_seen != asked.taken;
    return outstanding_.needed_below(asked.index, contradicts ? tail_ : asked.taken);
}

void Producer::close() noexcept {
    active_.clear();
    for (const auto& reader : readers_) reader->page.reset();
    pool_.reset();
    ring_fd_.reset();
    ring_.reset();
    trace_ = {};
}

// -- waiting ------------------------------------------------------------------------------------------------

// Who acknowledges wakes us through `acked`, who takes (and so frees a descriptor) through `taken`. The
// values are those that the last attempt judged by, so nothing that happened since is slept over.
WaitSet Producer::wait_set() const {
    WaitSet set;
    for (const Reader* reader : active_) {
        const mo_consumer_page& page = reader->page->page();
        set.add(low_word(page.acked), static_cast<uint32_t>(reader->acked_seen), reader->page);
        if (lacks_cell_)
            set.add(low_word(page.taken), static_cast<uint32_t>(reader->taken_seen), reader->page);
    }
    return set;
}

namespace {
constexpr auto plain_sleep = [](const WaitSet& set, int64_t ns) { set.sleep(ns); };
}  // namespace

std::optional<WriteSlot> Producer::acquire(uint64_t bytes, int64_t timeout_ns) {
    return wait_until(deadline_after(timeout_ns), [&] { return try_acquire(bytes); }, plain_sleep);
}

std::optional<uint64_t> Producer::publish_empty(const mo_descriptor& described, int64_t timeout_ns) {
    return wait_until(deadline_after(timeout_ns), [&] { return try_publish_empty(described); }, plain_sleep);
}

bool Producer::all_acknowledged() {
    lacks_cell_ = false;
    return outstanding() == 0;
}

bool Producer::wait_acknowledged(int64_t timeout_ns) {
    return wait_until(deadline_after(timeout_ns), [&] { return all_acknowledged(); }, plain_sleep);
}

}  // namespace mo
