#include "producer.hpp"

#include <algorithm>
#include <bit>

#include "error.hpp"
#include "steps.hpp"

namespace mo {

Producer::Producer(uint32_t capacity, std::span<const SizeClass> classes, uint64_t incarnation,
                   std::optional<uint64_t> first_sequence)
    : ring_(RingMap::create(capacity, incarnation, ring_fd_)), pool_(std::make_unique<SlabPool>(classes)) {
    if (first_sequence) begin(*first_sequence);
}

void Producer::begin(uint64_t first_sequence) {
    require_open();
    if (begun_) throw RingError("the ring has begun already");
    ring_->begin(first_sequence);
    MO_STEP("producer.begin.begun");
    tail_ = first_sequence;
    begun_ = true;
    ring_doorbell(*ring_);  // of our own process: somebody may wait for a slot
}

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

Producer::Reader& Producer::active(int consumer) {
    Reader& found = reader(consumer);
    if (!found.page) throw RingError("consumer " + std::to_string(consumer) + " was dismissed before");
    return found;
}

// A page of that policy that is not admitted already.
std::shared_ptr<PageMap> Producer::open_page(int page_fd, mo_edge_policy policy) const {
    auto page = PageMap::open(page_fd, policy == MO_DROP_OLDEST ? Access::read_write : Access::read_only);
    if (page->page().policy != policy) throw RingError("the consumer page was made for the other policy");
    for (const Reader* other : active_)
        if (other->page->page().page_id == page->page().page_id)
            throw RingError("the consumer page is admitted already");
    return page;
}

uint32_t Producer::free_index() const {
    uint64_t used = 0;
    for (const Reader* other : active_) used |= uint64_t{1} << other->index;
    if (~used == 0) throw RingError("a ring has at most " + std::to_string(MO_MAX_CONSUMERS) + " consumers");
    return static_cast<uint32_t>(std::countr_one(used));
}

// Names the reader's page in the ring. `page_id` last: whoever sees it sees the rest.
void Producer::list(Reader& reader) {
    mo_admission& admission = ring_->header().admissions[reader.index];
    store_relaxed(admission.start, reader.start);
    store_relaxed(admission.stop, reader.stop);
    MO_STEP("producer.list.share_stored");
    store_release(admission.page_id, reader.page->page().page_id);
    MO_STEP("producer.list.page_stored");
    cell_limit_ = 0;
}

// A drop_oldest page that was in no ring yet starts where we say, so frames can be dropped for it before it attaches.
// A page still in an older ring is left alone: its consumer moves `taken` when it comes.
void Producer::give_start(Reader& reader) {
    if (reader.policy != MO_DROP_OLDEST) return;
    uint64_t fresh = MO_UNKNOWN_U64;
    compare_exchange(reader.page->page().taken, fresh, reader.start);
}

int Producer::add_reader(std::shared_ptr<PageMap> page, mo_edge_policy policy, uint32_t index) {
    auto reader = std::make_unique<Reader>();
    reader->page = std::move(page);
    reader->policy = policy;
    reader->index = index;
    reader->start = reader->acked = reader->taken = tail_;
    give_start(*reader);
    outstanding_.admit(index);
    list(*reader);
    active_.push_back(reader.get());
    readers_.push_back(std::move(reader));
    return static_cast<int>(readers_.size()) - 1;
}

int Producer::admit(int page_fd, mo_edge_policy policy) {
    require_running();
    if (!begun_) throw RingError("the ring has not begun yet");
    const int handle = add_reader(open_page(page_fd, policy), policy, free_index());
    ring_doorbell(*ring_);
    return handle;
}

Replacement Producer::replace(int consumer, int page_fd) {
    require_open();  // the ring may have ended: what is outstanding is still delivered
    Reader& replaced = active(consumer);
    auto page = open_page(page_fd, replaced.policy);
    refresh();
    Replacement result;
    if (replaced.policy == MO_DROP_OLDEST) {
        // It kept what it had taken in memory that is gone, and nothing is delivered twice under this policy.
        read_taken(replaced);
        result.lost = outstanding_.frames_below(replaced.index, replaced.taken);
        outstanding_.finish_below(replaced.index, replaced.taken, freed_);
        return_slots();
    }
    result.start = replaced.past();
    replaced.page = std::move(page);
    replaced.start = replaced.acked = replaced.taken = result.start;
    replaced.acked_seen = replaced.taken_seen = 0;
    replaced.arrived = false;
    MO_STEP("producer.replace.decided");
    give_start(replaced);
    // The dead page is listed until the new one is, so whoever comes after us finds one of them.
    list(replaced);
    MO_STEP("producer.replace.listed");
    ring_doorbell(*ring_);
    return result;
}

int Producer::cut(int consumer, int page_fd) {
    require_running();
    Reader& old = unstopped(consumer);
    auto page = open_page(page_fd, old.policy);
    const uint32_t index = free_index();
    end_share(old);
    MO_STEP("producer.cut.stopped");
    const int handle = add_reader(std::move(page), old.policy, index);
    MO_STEP("producer.cut.listed");
    ring_doorbell(*ring_);
    return handle;
}

Producer::Reader& Producer::unstopped(int consumer) {
    Reader& found = active(consumer);
    if (found.stop != MO_UNKNOWN_U64)
        throw RingError("consumer " + std::to_string(consumer) + " was cut off at sequence " +
                        std::to_string(found.stop) + " before");
    return found;
}

// Before the next commit: whoever sees that one sees this too.
void Producer::end_share(Reader& reader) {
    reader.stop = tail_;
    store_seq_cst(ring_->header().admissions[reader.index].stop, tail_);
}

void Producer::stop(const std::vector<int>& consumers) {
    require_running();
    for (const int consumer : consumers) unstopped(consumer);
    for (const int consumer : consumers) end_share(active(consumer));
    cell_limit_ = 0;
    ring_doorbell(*ring_);
}

void Producer::dismiss(int consumer) {
    require_open();
    Reader& leaving = active(consumer);
    std::erase(active_, &leaving);
    store_release(ring_->header().admissions[leaving.index].page_id, uint64_t{0});
    // Said before anything that it may still be reading is overwritten (Consumer::dismissed).
    fence_seq_cst();
    MO_STEP("producer.dismiss.unlisted");
    outstanding_.finish_below(leaving.index, tail_, freed_);
    return_slots();
    futex_wake(low_word(leaving.page->page().acked));  // whoever sleeps in wait_until may have room now
    MO_STEP("producer.dismiss.freed");
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

// The descriptor of sequence s may be overwritten by s + capacity once every consumer is past it: has acknowledged it
// (before, it may be delivered again) or, under drop_oldest, has taken it.
bool Producer::has_cell() {
    if (tail_ + writing_ < cell_limit_) return true;
    uint64_t lowest = tail_;
    for (Reader* reader : active_) {
        if (reader->policy == MO_DROP_OLDEST) read_taken(*reader);
        if (reader->past() < reader->stop) lowest = std::min(lowest, reader->past());
    }
    cell_limit_ = lowest + ring_->capacity();
    return tail_ + writing_ < cell_limit_;
}

bool Producer::can_drop(const Reader& reader) const noexcept {
    return reader.policy == MO_DROP_OLDEST && reader.arrived && reader.taken < reader.end(tail_);
}

// Takes the oldest unread frame away from a consumer, unless it is quicker. False when neither happened.
bool Producer::drop_next(Reader& reader) {
    const uint64_t sequence = reader.taken;
    uint64_t found = sequence;
    if (!compare_exchange(reader.page->page().taken, found, sequence + 1)) {
        read_taken(reader);
        return reader.taken != sequence;
    }
    MO_STEP("producer.drop.swapped");
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
        const auto in_the_way = [wanted](const Reader* reader) {
            return reader->past() <= wanted && reader->past() < reader->stop;
        };
        for (const Reader* reader : active_)
            if (in_the_way(reader) && !can_drop(*reader)) return false;
        bool progress = false;
        for (Reader* reader : active_) {
            if (!in_the_way(reader)) continue;
            if (!drop_through(*reader, std::min(wanted, reader->end(tail_) - 1))) return false;
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
    if (!begun_) return std::nullopt;
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
    MO_STEP("producer.acquire.slot_taken");
    ++writing_;
    const int64_t now = trace_ ? monotonic_ns() : MO_UNKNOWN_I64;
    return WriteSlot{*place, pool_->data(*place), pool_->made(place->slab).slot_bytes, now, now};
}

void Producer::abandon(SlotRef slot) noexcept {
    if (closed()) return;
    pool_->put(slot);
    --writing_;
}

// -- publishing ---------------------------------------------------------------------------------------------

void Producer::check(const WriteSlot& slot, const mo_descriptor& described, uint64_t bytes) const {
    if (bytes > slot.capacity_bytes)
        throw RingError("the slot holds " + std::to_string(slot.capacity_bytes) + " bytes, not " +
                        std::to_string(bytes));
    if (described.payload_kind == MO_FRAME_LOST)
        throw RingError("a lost frame has no payload: publish_empty");
}

// What the ring says of a payload: what its producer said, and where it lies.
mo_descriptor Producer::complete(const WriteSlot& slot, const mo_descriptor& described,
                                 uint64_t bytes) const {
    mo_descriptor descriptor = described;
    descriptor.slab = slot.place.slab;
    descriptor.slot = slot.place.slot;
    descriptor.offset = pool_->offset(slot.place);
    descriptor.bytes = bytes;
    descriptor.alloc_ns = slot.alloc_ns;
    descriptor.launch_ns = slot.launch_ns;
    if (trace_ && slot.alloc_ns == MO_UNKNOWN_I64)  // lent before there was a trace
        descriptor.alloc_ns = descriptor.launch_ns = monotonic_ns();
    if (!planes_fit(descriptor)) throw RingError(problem_with_planes(descriptor));
    return descriptor;
}

uint64_t Producer::publish(const WriteSlot& slot, const mo_descriptor& described, uint64_t bytes) {
    require_running();
    check(slot, described, bytes);
    mo_descriptor descriptor = complete(slot, described, bytes);
    --writing_;
    const uint64_t sequence = tail_;
    write_cell(descriptor, slot.place, sequence);
    commit(1);
    announce(descriptor);
    return sequence;
}

uint64_t Producer::publish_together(std::span<const Publication> payloads) {
    require_running();
    std::vector<mo_descriptor> descriptors;
    descriptors.reserve(payloads.size());
    for (const auto& [slot, described, bytes] : payloads) {
        check(*slot, *described, bytes);
        descriptors.push_back(complete(*slot, *described, bytes));
    }
    // Every slot that was lent has the right to a descriptor, so there is room for all.
    const uint64_t first = tail_;
    for (size_t i = 0; i < descriptors.size(); ++i)
        write_cell(descriptors[i], payloads[i].slot->place, first + i);
    writing_ -= static_cast<uint32_t>(descriptors.size());
    if (!descriptors.empty()) commit(descriptors.size());
    for (const mo_descriptor& descriptor : descriptors) announce(descriptor);
    return first;
}

std::optional<uint64_t> Producer::try_publish_empty(const mo_descriptor& described) {
    require_running();
    if (described.payload_kind != MO_FRAME_LOST) throw RingError("only a lost frame has no payload");
    if (!begun_) return std::nullopt;
    refresh();
    if (lacks_cell_ = !make_cell(); lacks_cell_) return std::nullopt;
    mo_descriptor descriptor = described;
    descriptor.slab = descriptor.slot = MO_UNKNOWN_U32;
    descriptor.offset = descriptor.bytes = 0;
    descriptor.plane_count = 0;
    descriptor.alloc_ns = descriptor.launch_ns = MO_UNKNOWN_I64;
    const uint64_t sequence = tail_;
    write_cell(descriptor, SlotRef{}, sequence);
    commit(1);
    return sequence;
}

// Writes a descriptor that nobody looks at before the commit.
void Producer::write_cell(mo_descriptor& descriptor, SlotRef slot, uint64_t sequence) {
    descriptor.sequence = sequence;
    descriptor.fence_value = sequence + 1;  // the port's timeline is the tail
    const uint64_t source_index = is_frame(descriptor.payload_kind) ? descriptor.source_index : MO_UNKNOWN_U64;
    if (source_index != MO_UNKNOWN_U64) next_source_index_ = std::max(next_source_index_, source_index + 1);
    if (slot.exists()) pool_->note_payload(slot, descriptor.bytes);
    uint64_t needed_by = 0;
    for (const Reader* reader : active_)
        if (reader->stop == MO_UNKNOWN_U64) needed_by |= uint64_t{1} << reader->index;
    if (needed_by != 0)
        outstanding_.append(sequence, source_index, needed_by, slot);
    else if (slot.exists())
        pool_->put(slot);  // nobody will ever read it
    descriptor.signal_ns = trace_ ? monotonic_ns() : MO_UNKNOWN_I64;
    MO_STEP("producer.publish.slot_booked");
    store_words(ring_->cell(sequence), descriptor);
    MO_STEP("producer.publish.cell_written");
}

// The commit. Sequentially consistent, as `waiting` below and the consumers' two accesses are: of "the consumer sees
// the new tail" and "we see it waiting" at least one is true.
void Producer::commit(uint64_t count) {
    tail_ += count;
    store_seq_cst(ring_->header().tail, tail_);
    MO_STEP("producer.publish.tail_stored");
    for (const Reader* reader : active_) {
        if (load_seq_cst(reader->page->page().waiting) == 0) continue;
        MO_STEP("producer.publish.waiting_seen");
        ring_doorbell(*ring_);
        break;
    }
}

void Producer::announce(const mo_descriptor& descriptor) const {
    if (!trace_ || !is_traced(descriptor.payload_kind)) return;
    const mo_frame_event events[] = {
        trace_.event(MO_DMA_BUF_ALLOC, descriptor.alloc_ns, descriptor),
        trace_.event(MO_PRODUCER_KERNEL_LAUNCH, descriptor.launch_ns, descriptor),
        trace_.event(MO_FENCE_SIGNAL, descriptor.signal_ns, descriptor),
    };
    trace_.events->emit(events, std::size(events));
}

uint64_t Producer::finish(mo_end_reason reason) {
    require_open();
    if (!begun_) throw RingError("the ring has not begun yet");
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
    return std::min(tail_, asked.stop) - asked.taken;
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

// Who acknowledges wakes us through `acked`, who takes under drop_oldest (and so frees a descriptor) through `taken`. The
// values are those that the last attempt judged by, so nothing that happened since is slept over.
WaitSet Producer::room() const {
    WaitSet set;
    if (!begun_) set.add(ring_->header().doorbell, load_acquire(ring_->header().doorbell), ring_);
    for (const Reader* reader : active_) {
        const mo_consumer_page& page = reader->page->page();
        set.add(low_word(page.acked), static_cast<uint32_t>(reader->acked_seen), reader->page);
        if (lacks_cell_ && reader->policy == MO_DROP_OLDEST)
            set.add(low_word(page.taken), static_cast<uint32_t>(reader->taken_seen), reader->page);
    }
    return set;
}

WaitSet Producer::end() const {
    require_open();
    WaitSet set;
    const uint64_t& final_seq = ring_->header().final_seq;
    set.add(low_word(final_seq), static_cast<uint32_t>(load_seq_cst(final_seq)), ring_);
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
