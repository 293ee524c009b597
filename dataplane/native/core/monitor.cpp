#include "monitor.hpp"

#include <fcntl.h>

#include <string>

#include "error.hpp"

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

PageCounters Monitor::consumer(int handle) const {
    const RingMap& ring = this->ring();
    if (handle < 0 || static_cast<size_t>(handle) >= pages_.size())
        throw RingError("there is no consumer page " + std::to_string(handle));
    const mo_consumer_page& page = pages_[handle]->page();
    const uint64_t taken = load_acquire(page.taken);
    // A page that has not started yet stands where the ring starts.
    return {taken == MO_UNKNOWN_U64 ? ring.first_sequence() : taken, load_acquire(page.acked),
            load_relaxed(page.held), load_relaxed(page.waiting)};
}

void Monitor::close() noexcept {
    pages_.clear();
    ring_.reset();
    fd_.reset();
}

}  // namespace mo
