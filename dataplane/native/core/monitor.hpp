// Monitor: the supervisor's view of a ring and its pages.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "layout.hpp"

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
    // From now on only mappings that exist already can write the ring: the producer's and ours.
    void seal_ring();
    uint64_t tail() const;
    bool ended() const;
    uint64_t end(mo_end_reason reason);
    PageCounters consumer(int handle) const;
    void close() noexcept;

  private:
    const RingMap& ring() const;

    Fd fd_;
    std::shared_ptr<RingMap> ring_;
    std::vector<std::shared_ptr<PageMap>> pages_;
};

}  // namespace mo
