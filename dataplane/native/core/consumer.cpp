#include "consumer.hpp"

#include <fcntl.h>

#include <algorithm>

#include "error.hpp"
#include "names.hpp"
#include "steps.hpp"
#include "slab_memory.hpp"

namespace mo {

Consumer::Consumer(mo_edge_policy policy)
    : page_(PageMap::create(policy, page_fd_)), policy_(policy), page_id_(page_->page().page_id) {}

void Consumer::require_open() const {
    if (closed()) throw RingError("the consumer is closed");
}

void Consumer::require_attached() const {
    require_open();
    if (!attachment_) throw RingError("the consumer is not attached to a ring");
}

int Consumer::page_fd() const {
    require_open();
    return page_fd_.get();
}

// -- attaching ----------------------------------------------------------------------------------------------

void Consumer::attach(int ring_fd, std::span<const int> slab_fds, std::span<const uint64_t> slot_bytes,
                      bool populate) {
    require_open();
    if (slab_fds.size() != slot_bytes.size())
        throw RingError(std::to_string(slab_fds.size()) + " slabs, but slot sizes for " +
                        std::to_string(slot_bytes.size()));
    if (attachment_ && !ended_)
        throw RingError("the consumer is attached to a ring that has not ended (or was not read to its end)");

    auto attachment = std::make_shared<Attachment>();
    attachment->ring = RingMap::open(ring_fd, Access::read_only);
    MO_STEP("consumer.attach.ring_mapped");
    for (size_t i = 0; i < slab_fds.size(); ++i) {
        const std::string what = "slab " + std::to_string(i);
        require_seals(slab_fds[i], F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE, what);
        const size_t bytes = file_bytes(slab_fds[i], what);
        if (slot_bytes[i] == 0 || bytes < slot_bytes[i])
            throw RingError(what + " has " + std::to_string(bytes) + " bytes: too short for a slot of " +
                            std::to_string(slot_bytes[i]));
        attachment->slabs.push_back({Mapping(slab_fds[i], bytes, Access::read_only, what), slot_bytes[i]});
        if (populate) populate_for_reading(attachment->slabs.back().map, what);
    }
    const uint64_t first = attachment->ring->first_sequence();
    if (followed_by_ != MO_UNKNOWN_U64 && first != followed_by_)
        throw RingError("the ring starts at sequence " + std::to_string(first) +
                        ", the one before ended at " + std::to_string(followed_by_));

    follower_.reset();
    if (fabric_) {
        const uint64_t largest = slot_bytes.empty() ? 0 : *std::ranges::max_element(slot_bytes);
        follower_ = std::make_unique<LinkFollower>(fabric_, route_, attachment->ring, page_, policy_, largest);
    }
    MO_STEP("consumer.attach.slabs_mapped");
    attachment_ = std::move(attachment);
    spare_.reset();
    admission_ = nullptr;
    final_override_ = MO_UNKNOWN_U64;
    override_reason_ = MO_END_NONE;
    limit_ = 0;
    ended_ = false;
}

void Consumer::link(std::shared_ptr<Fabric> fabric, Route route) {
    require_open();
    Mover(fabric, route);  // refuses what it could not cross
    fabric_ = std::move(fabric);
    route_ = std::move(route);
}

// Finds where the producer lets us start. False while it has not admitted our page.
bool Consumer::start() {
    const mo_ring_header& header = attachment_->ring->header();
    for (const mo_admission& admission : header.admissions) {
        if (load_acquire(admission.page_id) != page_id_) continue;
        const uint64_t start = load_relaxed(admission.start);
        if (start > load_acquire(header.tail) || (taken_ != MO_UNKNOWN_U64 && start < taken_))
            throw RingError("the producer admitted us at sequence " + std::to_string(start) +
                            ", which cannot be (a broken producer)");
        mo_consumer_page& page = page_->page();
        if (policy_ == MO_BLOCK) {
            store_release(page.taken, start);
        } else {
            // The producer may have moved it on by dropping frames.
            uint64_t taken = load_acquire(page.taken);
            while (taken == MO_UNKNOWN_U64 || taken < start)
                if (compare_exchange(page.taken, taken, start)) break;
        }
        MO_STEP("consumer.start.taken_stored");
        taken_ = start;
        admission_ = &admission;
        acknowledge(*attachment_->ring);
        return true;
    }
    return false;
}

// -- taking -------------------------------------------------------------------------------------------------

uint64_t Consumer::next() const noexcept {
    return policy_ == MO_BLOCK ? taken_ : load_acquire(page_->page().taken);
}

bool Consumer::has_next(uint64_t next) {
    if (next < limit_) return true;
    const mo_ring_header& header = attachment_->ring->header();
    // In this order: when the end is already there, the tail read after it is the last one; and a tail beyond our share
    // was stored after the word that says where our share ends.
    const uint64_t final_seq = std::min(load_seq_cst(header.final_seq), final_override_);
    const uint64_t tail = load_seq_cst(header.tail);
    limit_ = std::min({tail, final_seq, share_end()});
    if (follower_) {
        follower_->ensure_running();
        limit_ = std::min(limit_, follower_->arrived());
    }
    return next < limit_;
}

// Where the producer handed over to another consumer, if it did.
uint64_t Consumer::share_end() const noexcept {
    return admission_ == nullptr ? MO_UNKNOWN_U64 : load_seq_cst(admission_->stop);
}

// Where the ring ends, as far as is known.
uint64_t Consumer::end() const noexcept {
    return std::min(load_acquire(attachment_->ring->header().final_seq), final_override_);
}

// Throws RingEnded if the ring, or our share of it, has ended and `next` is not below its end.
void Consumer::throw_end(uint64_t next) {
    const mo_ring_header& header = attachment_->ring->header();
    const uint64_t ring_final = load_acquire(header.final_seq);
    const uint64_t stop = share_end();
    const uint64_t final_seq = std::min({ring_final, final_override_, stop});
    if (final_seq == MO_UNKNOWN_U64) return;
    // A dead producer's tail stands still: what was announced beyond it never comes.
    const uint64_t end = std::min(final_seq, load_acquire(header.tail));
    if (next < end) return;
    ended_ = true;
    followed_by_ = end;
    uint32_t reason = load_relaxed(header.end_reason);
    if (ring_final == MO_UNKNOWN_U64) reason = override_reason_;
    // Also where the ring ended there: what comes after it is for another consumer.
    if (stop != MO_UNKNOWN_U64 && stop <= std::min(ring_final, final_override_)) reason = MO_END_CUT;
    throw RingEnded(end_reason_name(reason), end);
}

// What is said here of a payload is believed: it decides which memory is read.
bool Consumer::makes_sense(const mo_descriptor& descriptor, uint64_t sequence) const noexcept {
    if (descriptor.sequence != sequence || !fields_make_sense(descriptor)) return false;
    if (descriptor.payload_kind == MO_FRAME_LOST) return descriptor.bytes == 0 && descriptor.plane_count == 0;
    if (descriptor.slab >= attachment_->slabs.size()) return false;
    const Attachment::Slab& slab = attachment_->slabs[descriptor.slab];
    return descriptor.slot < slab.slots && descriptor.offset == descriptor.slot * slab.slot_bytes &&
           descriptor.bytes <= slab.slot_bytes && planes_fit(descriptor);
}

// In words, of one that does not.
std::string Consumer::problem_with(const mo_descriptor& descriptor, uint64_t sequence) const {
    if (descriptor.sequence != sequence) return "it says sequence " + std::to_string(descriptor.sequence);
    if (!fields_make_sense(descriptor)) return problem_with_fields(descriptor);
    if (descriptor.payload_kind == MO_FRAME_LOST) return "a lost frame with a payload";
    const auto& slabs = attachment_->slabs;
    if (descriptor.slab >= slabs.size())
        return "slab " + std::to_string(descriptor.slab) + " of " + std::to_string(slabs.size());
    const auto& slab = slabs[descriptor.slab];
    if (descriptor.slot >= slab.slots)
        return "slot " + std::to_string(descriptor.slot) + " is beyond its slab";
    if (descriptor.offset != descriptor.slot * slab.slot_bytes) return "its offset is not that of its slot";
    if (descriptor.bytes > slab.slot_bytes)
        return std::to_string(descriptor.bytes) + " bytes in a slot of " + std::to_string(slab.slot_bytes);
    return problem_with_planes(descriptor);
}

bool Consumer::try_take(ReadSlot& slot) {
    require_attached();
    if (trace_) note_ready();
    if (admission_ == nullptr && !start()) {
        const bool has_ended = end() != MO_UNKNOWN_U64;
        // We may have been admitted, and the ring ended, since we looked: what was published between is ours. So the end
        // counts only if it was there before we looked once more.
        if (!has_ended || !start()) {
            if (has_ended) throw_end(MO_UNKNOWN_U64);
            note_ready();
            return false;
        }
    }
    mo_consumer_page& page = page_->page();
    const RingMap& ring = *attachment_->ring;
    uint64_t sequence;
    bool sound;
    for (;;) {
        sequence = next();
        if (!has_next(sequence)) {
            throw_end(sequence);
            note_ready();
            return false;
        }
        load_words(slot.descriptor, ring.cell(sequence));
        // Nothing is kept for us after a dismissal: not even the descriptor while we copied it, so looked at after that.
        if (dismissed()) throw RingError("the producer has dismissed this consumer");
        MO_STEP("consumer.take.copied");
        if (follower_) slot.link = follower_->times(sequence);
        sound = makes_sense(slot.descriptor, sequence);
        if (policy_ == MO_BLOCK) {
            if (!sound) break;
            store_release(page.taken, sequence + 1);  // for those who look: the cell is ours until we acknowledge
            break;
        }
        // The copy counts only if the frame was still ours to take when it was finished.
        uint64_t expected = sequence;
        if (compare_exchange(page.taken, expected, sequence + 1)) break;
    }
    if (!sound)
        throw RingError("the descriptor of sequence " + std::to_string(sequence) +
                        " is broken: " + problem_with(slot.descriptor, sequence));
    MO_STEP("consumer.take.taken");
    taken_ = sequence + 1;
    hold(sequence);
    MO_STEP("consumer.take.held");
    // Under drop_oldest, taking frees the descriptor: the producer may be waiting for one.
    if (policy_ == MO_DROP_OLDEST && load_seq_cst(ring.header().producer_waiting) != 0)
        futex_wake(low_word(page.taken));

    slot.attachment = spare_ ? std::move(spare_) : attachment_;
    slot.data = slot.descriptor.payload_kind == MO_FRAME_LOST
                    ? nullptr
                    : attachment_->slabs[slot.descriptor.slab].map.data() + slot.descriptor.offset;
    if (ready_since_ != 0) slot.wait_ns = std::exchange(ready_since_, 0);
    if (trace_ && is_traced(slot.descriptor.payload_kind)) {
        slot.taken_ns = monotonic_ns();
        trace_.emit(MO_CONSUMER_WAIT_FENCE, slot.wait_ns, slot.descriptor);
        if (slot.link.known()) {
            trace_.emit(MO_LINK_START, slot.link.start_ns, slot.descriptor);
            trace_.emit(MO_LINK_END, slot.link.end_ns, slot.descriptor);
        }
    }
    return true;
}

// -- acknowledging ------------------------------------------------------------------------------------------

void Consumer::hold(uint64_t sequence) {
    if (first_held_ == held_.size()) {
        held_.clear();
        first_held_ = 0;
    } else if (first_held_ >= 64 && first_held_ * 2 >= held_.size()) {
        held_.erase(held_.begin(), held_.begin() + static_cast<ptrdiff_t>(first_held_));
        first_held_ = 0;
    }
    held_.push_back({sequence, false});
    store_relaxed(page_->page().held, ++held_count_);
}

// Moves `acked` to the oldest sequence that is still held, or to what was taken.
void Consumer::acknowledge(const RingMap& of) {
    while (first_held_ < held_.size() && held_[first_held_].done) ++first_held_;
    const uint64_t acked = first_held_ < held_.size() ? held_[first_held_].sequence : taken_;
    if (acked <= acked_) return;
    acked_ = acked;
    mo_consumer_page& page = page_->page();
    MO_STEP("consumer.release.decided");
    store_seq_cst(page.acked, acked);
    MO_STEP("consumer.release.acked");
    // A frame of the last ring may be acknowledged while we read the next: either producer may wait.
    const bool waited_for = load_seq_cst(of.header().producer_waiting) != 0 ||
                            (attachment_ && attachment_->ring.get() != &of &&
                             load_seq_cst(attachment_->ring->header().producer_waiting) != 0);
    if (waited_for) futex_wake(low_word(page.acked));
}

void Consumer::launch(ReadSlot& slot) const noexcept {
    if (slot.launched) return;
    slot.launched = true;
    MO_STEP("consumer.launch");
    if (trace_ && is_traced(slot.descriptor.payload_kind))
        trace_.emit(MO_CONSUMER_KERNEL_LAUNCH, monotonic_ns(), slot.descriptor);
}

void Consumer::release(ReadSlot& slot) {
    require_open();
    const uint64_t sequence = slot.descriptor.sequence;
    const auto found =
        std::lower_bound(held_.begin() + static_cast<ptrdiff_t>(first_held_), held_.end(), sequence,
                         [](const Held& held, uint64_t wanted) { return held.sequence < wanted; });
    if (found == held_.end() || found->sequence != sequence || found->done)
        throw LeaseError("sequence " + std::to_string(sequence) + " is not held by this consumer");
    found->done = true;
    store_relaxed(page_->page().held, --held_count_);
    const bool traced = trace_ && is_traced(slot.descriptor.payload_kind);
    const int64_t now = traced ? monotonic_ns() : 0;
    acknowledge(*slot.attachment->ring);
    if (!traced) return;
    // Untold, the work began when the frame came.
    mo_frame_event events[] = {
        trace_.event(MO_CONSUMER_KERNEL_LAUNCH, slot.taken_ns != 0 ? slot.taken_ns : now, slot.descriptor),
        trace_.event(MO_SLOT_RELEASE, now, slot.descriptor),
    };
    trace_.events->emit(events + (slot.launched ? 1 : 0), slot.launched ? 1 : 2);
    slot.launched = true;
}

// -- looking ------------------------------------------------------------------------------------------------

void Consumer::end_at(uint64_t final_seq, mo_end_reason reason) {
    require_attached();
    if (final_override_ != MO_UNKNOWN_U64) return;
    final_override_ = final_seq;
    override_reason_ = reason;
    limit_ = 0;
    futex_wake(attachment_->ring->header().doorbell);  // a reader may: only our own sleepers have reason to care
    if (follower_) follower_->ring_bell();
}

bool Consumer::dismissed() const {
    require_open();
    if (admission_ == nullptr) return false;
    // What was read of the frame was read before.
    fence_acquire();
    return load_acquire(admission_->page_id) != page_id_;
}

bool Consumer::ready() {
    require_open();
    if (!attachment_) return false;
    const bool started = admission_ != nullptr || start();
    const mo_ring_header& header = attachment_->ring->header();
    if (!started) return ended_ || std::min(load_acquire(header.final_seq), final_override_) != MO_UNKNOWN_U64;
    const uint64_t following = next();
    if (has_next(following)) return true;
    const uint64_t end = std::min({load_acquire(header.final_seq), final_override_, share_end()});
    // What is still on its way over a link comes before the end.
    return end != MO_UNKNOWN_U64 && (!follower_ || following >= std::min(end, load_acquire(header.tail)));
}

bool Consumer::Spot::wait(int64_t spin_ns) const noexcept {
    if (!attachment) return false;
    const mo_ring_header& header = attachment->ring->header();
    const int64_t until = monotonic_ns() + spin_ns;
    do {
        for (int i = 0; i < 64; ++i) {
            if (load_acquire(header.tail) > next || load_acquire(header.final_seq) != MO_UNKNOWN_U64) return true;
            pause_cpu();
        }
    } while (monotonic_ns() < until);
    return false;
}

Consumer::Spot Consumer::spot() const {
    require_attached();
    if (admission_ == nullptr) return {};
    return {attachment_, next()};
}

uint64_t Consumer::taken() const {
    require_open();
    const uint64_t taken = load_acquire(page_->page().taken);
    if (taken != MO_UNKNOWN_U64) return taken;
    return attachment_ ? attachment_->ring->first_sequence() : 0;
}

uint64_t Consumer::acked() const {
    require_open();
    return acked_;
}

uint64_t Consumer::held() const {
    require_open();
    return held_count_;
}

uint64_t Consumer::backlog() {
    require_open();
    if (!attachment_ || (admission_ == nullptr && !start())) return 0;
    const mo_ring_header& header = attachment_->ring->header();
    const uint64_t end =
        std::min({load_acquire(header.final_seq), final_override_, load_acquire(header.tail), share_end()});
    const uint64_t following = next();
    return end > following ? end - following : 0;
}

void Consumer::close() noexcept {
    follower_.reset();
    attachment_.reset();
    spare_.reset();
    admission_ = nullptr;
    page_.reset();
    page_fd_.reset();
    trace_ = {};
}

void Consumer::add_doorbell(WaitSet& set) const {
    if (!attachment_) return;
    if (follower_) {
        const std::shared_ptr<uint32_t> bell = follower_->bell();
        set.add(*bell, load_seq_cst(*bell), bell);
        return;
    }
    const uint32_t& doorbell = attachment_->ring->header().doorbell;
    set.add(doorbell, load_seq_cst(doorbell), attachment_);
}

void Consumer::add_progress(WaitSet& set) const {
    if (!attachment_) return;
    if (follower_) {
        const std::shared_ptr<uint64_t> arrived = follower_->progress();
        set.add(low_word(*arrived), static_cast<uint32_t>(load_seq_cst(*arrived)), arrived);
        return;
    }
    const mo_ring_header& header = attachment_->ring->header();
    for (const uint64_t* word : {&header.tail, &header.final_seq})
        set.add(low_word(*word), static_cast<uint32_t>(load_seq_cst(*word)), attachment_);
}

// -- waiting ------------------------------------------------------------------------------------------------

namespace {
constexpr auto plain_sleep = [](const WaitSet& set, int64_t ns) { set.sleep(ns); };
}  // namespace

std::optional<ReadSlot> Consumer::take(int64_t timeout_ns) {
    const int64_t deadline = deadline_after(timeout_ns);
    auto slot = try_take();
    if (slot || timeout_ns <= 0) return slot;
    if (spin_ns_ > 0) spot().wait(std::min(spin_ns_, timeout_ns));
    return take_until(deadline, plain_sleep);
}

std::vector<size_t> ready_consumers(std::span<Consumer* const> consumers) {
    std::vector<size_t> ready;
    const int64_t now = monotonic_ns();
    for (size_t i = 0; i < consumers.size(); ++i) {
        consumers[i]->note_ready(now);
        if (consumers[i]->ready()) ready.push_back(i);
    }
    return ready;
}

std::vector<size_t> wait_any(std::span<Consumer* const> consumers, int64_t timeout_ns) {
    return wait_any_until(consumers, deadline_after(timeout_ns), plain_sleep);
}

}  // namespace mo
