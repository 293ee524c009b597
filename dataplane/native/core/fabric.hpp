// The emulated fabric: links whose bandwidth the transfers of all processes share. Bytes are never copied; a transfer
// only takes as long as they would.
//
// A transfer's progress is worked out from the clock, not from when it happened to be woken: it knows until when it
// has been accounted for, and who shared its links since. So a process that the kernel leaves waiting loses nothing,
// as long as it keeps its seats (see fabric.h), and neither do the others.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "clock.hpp"
#include "fabric.h"
#include "sys.hpp"

namespace mo {

class Fabric {
  public:
    // A fabric of our own: only this process can change the state of its links.
    static std::shared_ptr<Fabric> create(std::span<const mo_link_constants> links, double time_scale);
    // One that somebody else made.
    static std::shared_ptr<Fabric> open(int state_fd, int traffic_fd);

    // Of the creator; RingError from an opened fabric, which keeps none.
    int state_fd() const;
    int traffic_fd() const;
    size_t size() const noexcept { return links_; }
    double time_scale() const noexcept { return time_scale_; }

    const mo_link_constants& constants(size_t link) const;
    mo_link_state state(size_t link) const;
    void set_state(size_t link, const mo_link_state& state);

    // Per direction; the counters are others' to garble, and then only wrong.
    mo_way& way(size_t way) const;
    // How many hold a live seat there, now.
    size_t on_way(size_t way) const;

  private:
    Fabric() = default;
    mo_link& link(size_t link) const;

    Fd state_fd_;
    Fd traffic_fd_;
    Mapping state_map_;
    Mapping traffic_map_;
    size_t links_ = 0;
    double time_scale_ = 1;
    bool owner_ = false;
};

// The ways from one device to another. Within a segment all of them work at the same time, the slowest sets the pace
// (cut-through); each further segment starts when the whole message has arrived (store and forward).
using Route = std::vector<std::vector<uint32_t>>;

struct Moved {
    int64_t start_ns;  // the first byte left
    int64_t sent_ns;   // the last byte left
    int64_t end_ns;    // and arrived
    int64_t queued_ns;
};

// One edge's transfers, one after the other. For one thread.
class Mover {
  public:
    // Sleeps until that time; false: give the transfer up.
    using Sleep = std::function<bool(int64_t until_ns)>;

    // RingError when the route is empty or names a way that the fabric does not have.
    Mover(std::shared_ptr<Fabric> fabric, Route route);
    ~Mover() { leave(); }
    Mover(const Mover&) = delete;
    Mover& operator=(const Mover&) = delete;

    // Returns when the last byte has left: who wants to know it arrived has to wait until `end_ns`. The message was
    // there to be sent at `ready_ns`: it may have started then, if we had our seats already. Nothing when given up.
    std::optional<Moved> move(uint64_t bytes, int64_t ready_ns, const Sleep& sleep);

    // Another message is there: keep the seats, so that it starts where the last one ended although we look later.
    void stay(int64_t until_ns) noexcept;
    void leave() noexcept;

  private:
    struct Seat {
        size_t way;
        size_t index;
        uint64_t until_ns;
    };
    struct Segment {
        double latency_ns = 0;  // scaled, jitter included
        double overhead_bytes = 0;
        uint64_t chunk = 1;
    };

    bool claim(const std::vector<uint32_t>& ways, int64_t now);
    bool renew(int64_t until_ns) noexcept;
    Segment look_at(const std::vector<uint32_t>& ways);
    bool cross(const std::vector<uint32_t>& ways, uint64_t bytes, const Sleep& sleep, Moved& moved, int64_t& t);
    struct Rate {
        double mine;   // bytes per ns
        double alone;  // if nobody else were there
        size_t slowest;
    };
    Rate rate(const std::vector<uint32_t>& ways, int64_t now);

    std::shared_ptr<Fabric> fabric_;
    Route route_;
    std::vector<Seat> seats_;
    int64_t held_until_ = 0;  // of all our seats
    int64_t free_at_ = 0;     // the last byte of the last message left
};

// The most bytes per nanosecond for one more on a way of `capacity`, when each other one takes no more than its cap.
double fair_share(double capacity, std::span<const double> caps) noexcept;

}  // namespace mo
