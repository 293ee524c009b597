#include "monitor.hpp"

#include <fcntl.h>

#include <algorithm>
#include <string>

#include "error.hpp"
#include "steps.hpp"

namespace mo {

Monitor::Monitor(int ring_fd)
    : fd_(Fd::duplicate(ring_fd, "ring")), ring_(RingMap::open(ring_fd, Access::read_write)) {}

const RingMap& Monitor::ring() const {
    if (!ring_) throw RingError("the monitor is closed");
    return *ring_;
}

int Monitor::watch(int page_fd) {
    ring();
    pages_.push_back(PageMap::open(page_fd, Access::read_only));
    return static_cast<int>(pages_.size()) - 1;
}

void Monitor::unwatch(int handle) {
    page(handle);
    pages_[handle].reset();
}

void Monitor::seal_ring() {
    ring();
    constexpr int seals = F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    // A second call is no error, though the kernel would refuse it.
    const int found = fcntl(fd_.get(), F_GET_SEALS);
    if (found >= 0 && (found & seals) == seals) return;
    add_seals(fd_.get(), seals, "ring");
}

uint64_t Monitor::tail() const { return load_acquire(ring().header().tail); }

bool Monitor::ended() const { return load_acquire(ring().header().final_seq) != MO_UNKNOWN_U64; }

uint64_t Monitor::end(mo_end_reason reason) { return end_ring(ring(), reason); }

const mo_consumer_page& Monitor::page(int handle) const {
    if (handle < 0 || static_cast<size_t>(handle) >= pages_.size() || !pages_[handle])
        throw RingError("there is no consumer page " + std::to_string(handle));
    return pages_[handle]->page();
}

PageCounters Monitor::consumer(int handle) const {
    const RingMap& ring = this->ring();
    const mo_consumer_page& page = this->page(handle);
    const uint64_t taken = load_acquire(page.taken);
    // A page that has not started yet stands where the ring starts.
    return {taken == MO_UNKNOWN_U64 ? ring.first_sequence() : taken, load_acquire(page.acked),
            load_relaxed(page.held), load_relaxed(page.waiting)};
}

std::vector<mo_descriptor> Monitor::trail() const {
    const RingMap& ring = this->ring();
    const uint64_t tail = load_acquire(ring.header().tail);
    const uint64_t oldest = std::max(ring.first_sequence(), tail < ring.capacity() ? 0 : tail - ring.capacity());
    std::vector<mo_descriptor> found;
    for (uint64_t sequence = oldest; sequence < tail; ++sequence) {
        mo_descriptor descriptor{};
        load_words(descriptor, ring.cell(sequence));
        if (descriptor.sequence == sequence)  // a living producer may be writing there
            found.push_back(descriptor);
    }
    return found;
}

uint64_t Monitor::start_of(int handle) const {
    const uint64_t id = page(handle).page_id;
    for (const mo_admission& listed : ring().header().admissions)
        if (load_acquire(listed.page_id) == id) return load_relaxed(listed.start);
    return MO_UNKNOWN_U64;
}

uint64_t Monitor::finish_cut(int handle, int page_fd) {
    if (!ended()) throw RingError("the ring has not ended: its producer cuts");
    const mo_consumer_page& old = page(handle);
    const auto policy = static_cast<mo_edge_policy>(old.policy);
    auto fresh = PageMap::open(page_fd, policy == MO_DROP_OLDEST ? Access::read_write : Access::read_only);
    if (fresh->page().policy != policy) throw RingError("the consumer page was made for the other policy");
    uint64_t stop = MO_UNKNOWN_U64;
    mo_admission* unused = nullptr;
    for (mo_admission& listed : ring().header().admissions) {
        const uint64_t id = load_acquire(listed.page_id);
        if (id == fresh->page().page_id) return load_relaxed(listed.start);
        if (id == old.page_id) stop = load_relaxed(listed.stop);
        if (id == 0 && unused == nullptr) unused = &listed;
    }
    if (stop == MO_UNKNOWN_U64) return stop;
    if (unused == nullptr) throw RingError("no further consumer can be listed");
    uint64_t unknown = MO_UNKNOWN_U64;
    if (policy == MO_DROP_OLDEST) compare_exchange(fresh->page().taken, unknown, stop);
    store_relaxed(unused->start, stop);
    store_relaxed(unused->stop, MO_UNKNOWN_U64);
    store_release(unused->page_id, fresh->page().page_id);
    ring_doorbell(ring());
    return stop;
}

Replacement Monitor::replace(int handle, int page_fd) {
    const RingMap& ring = this->ring();
    if (!ended()) throw RingError("the ring has not ended: its producer replaces consumers");
    const mo_consumer_page& dead = page(handle);
    const auto policy = static_cast<mo_edge_policy>(dead.policy);
    auto fresh = PageMap::open(page_fd, policy == MO_DROP_OLDEST ? Access::read_write : Access::read_only);
    if (fresh->page().policy != policy) throw RingError("the consumer page was made for the other policy");
    if (fresh->page().page_id == dead.page_id) throw RingError("the page cannot take its own place");
    // The new page is there already if the producer died after it had replaced the old one, before it could say so.
    mo_admission* admission = nullptr;
    bool replaced = false;
    for (mo_admission& listed : ring.header().admissions) {
        const uint64_t id = load_acquire(listed.page_id);
        if (id != dead.page_id && id != fresh->page().page_id) continue;
        admission = &listed;
        replaced = id == fresh->page().page_id;
    }
    if (admission == nullptr) throw RingError("the producer never admitted the consumer page");

    const uint64_t start = load_relaxed(admission->start);
    const uint64_t end = std::min(load_relaxed(admission->stop), load_acquire(ring.header().final_seq));
    // Replaced, the admission says where the new page starts and no longer where the dead one did.
    const uint64_t dead_acked = load_acquire(dead.acked);
    const uint64_t first = replaced && dead_acked >= ring.first_sequence() ? std::min(dead_acked, start) : start;
    const auto within = [&](uint64_t seen) { return seen == MO_UNKNOWN_U64 ? first : std::clamp(seen, first, end); };
    const uint64_t acked = within(dead_acked);
    Replacement result;
    result.start = acked;
    if (policy == MO_DROP_OLDEST) result.start = std::max(acked, within(load_acquire(dead.taken)));
    if (replaced) result.start = start;
    if (policy == MO_DROP_OLDEST)
        for (const mo_descriptor& payload : trail())
            if (payload.sequence >= acked && payload.sequence < result.start && is_traced(payload.payload_kind))
                result.lost.push_back(payload.source_index);
    if (!replaced) {
        uint64_t unknown = MO_UNKNOWN_U64;
        if (policy == MO_DROP_OLDEST) compare_exchange(fresh->page().taken, unknown, result.start);
        // The dead page stays listed until the new one is: if we die in between, this can be done again.
        store_relaxed(admission->start, result.start);
        MO_STEP("supervisor.replace.start_stored");
        store_release(admission->page_id, fresh->page().page_id);
        MO_STEP("supervisor.replace.listed");
    }
    pages_[handle] = std::move(fresh);
    ring_doorbell(ring);
    return result;
}

void Monitor::close() noexcept {
    pages_.clear();
    ring_.reset();
    fd_.reset();
}

}  // namespace mo
