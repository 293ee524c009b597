// Monitor: the supervisor's view of a ring and its pages.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "layout.hpp"
#include "producer.hpp"

namespace mo {

struct PageCounters {
    uint64_t taken;
    uint64_t acked;
    uint64_t held;
    uint64_t waiting;
};

class Monitor {
  public:
    explicit Monitor(int ring_fd);

    int watch(int page_fd);
    // Unmaps a page, of a consumer that is gone; its handle is not used again.
    void unwatch(int handle);
    // From now on only mappings that exist already can write the ring: the producer's and ours.
    void seal_ring();
    uint64_t first_sequence() const { return ring().first_sequence(); }
    uint64_t tail() const;
    bool ended() const;
    uint64_t end(mo_end_reason reason);
    PageCounters consumer(int handle) const;
    // The last descriptors, oldest first: as far back as the ring has cells.
    std::vector<mo_descriptor> trail() const;
    // Where the producer admitted a page; MO_UNKNOWN_U64 if it did not.
    uint64_t start_of(int handle) const;
    // Finishes a cut that the producer had begun when it died: `page_fd` gets what the watched page does not. Where that
    // begins; MO_UNKNOWN_U64 if none had begun. The ring must have ended.
    uint64_t finish_cut(int handle, int page_fd);
    // What Producer::replace does, when the producer is dead too: its ring has ended, and its consumers still read it.
    Replacement replace(int handle, int page_fd);
    void close() noexcept;

  private:
    const RingMap& ring() const;
    const mo_consumer_page& page(int handle) const;

    Fd fd_;
    std::shared_ptr<RingMap> ring_;
    std::vector<std::shared_ptr<PageMap>> pages_;
};

}  // namespace mo
