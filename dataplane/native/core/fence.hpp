// Fences: values that somebody else reaches. A timeline in shared memory, or a fence of the kernel (sync_file).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "clock.hpp"
#include "death_watch.hpp"
#include "error.hpp"
#include "fence.h"
#include "futex.hpp"
#include "sys.hpp"

namespace mo {

// The value waited for will never be reached: the signaller died or closed the fence, or the kernel's fence
// failed.
class FenceBroken : public RingError {
  public:
    FenceBroken(const std::string& message, int64_t pid, uint64_t value, int error)
        : RingError(message), pid(pid), value(value), error(error) {}

    int64_t pid;     // of the signaller; -1: a fence of the kernel's
    uint64_t value;  // the last one
    int error;       // of the kernel's fence, an errno; 0 otherwise
};

// What can be waited for. Values only grow, so what was reached stays reached.
class Fence {
  public:
    virtual ~Fence() = default;

    virtual uint64_t value() const = 0;
    // FenceBroken when it never will be. What was reached before the end counts as reached.
    virtual bool reached(uint64_t target) const = 0;
    // Adds what to sleep on, as seen now, and says how long to sleep at most. Look (`reached`) once more then.
    virtual int64_t prepare(WaitSet& set) = 0;
    virtual void close() noexcept = 0;

    // A sleep that nothing ends, because the other side's hint was garbled, ends after this.
    static constexpr int64_t kSlice = 100 * kMillisecond;
};

// A timeline in shared memory. The process that made it signals, from one thread at a time; everybody may wait.
class Timeline : public Fence {
  public:
    static std::shared_ptr<Timeline> create(uint64_t value);
    // Somebody else's. Without the waiters' page (-1) a wait looks every millisecond; without a pidfd (-1)
    // nobody learns of the signaller's death. The descriptors may be closed afterwards.
    static std::shared_ptr<Timeline> attach(int fence_fd, int waiters_fd, int pidfd);
    ~Timeline() override { close(); }

    uint64_t value() const override;
    bool reached(uint64_t target) const override;
    int64_t prepare(WaitSet& set) override;

    // Moves the value on, or leaves it; RingError when it would go back, and from a process that did not make
    // the fence.
    void signal(uint64_t value);
    bool is_signaller() const noexcept { return maker_ == fork_generation(); }

    uint32_t signaller_pid() const;
    // Timeline, waiters' page, pidfd of the signaller: what `attach` takes. Of the maker only.
    std::array<int, 3> fds() const;

    // The maker's: no value will come any more. A waiter's: it stops looking.
    void close() noexcept override;

  private:
    static constexpr uint64_t kAttached = UINT64_MAX;

    struct Maps {
        Mapping fence;
        Mapping waiters;
    };

    Timeline(std::shared_ptr<Maps> maps, uint64_t maker) : maps_(std::move(maps)), maker_(maker) {}
    mo_fence& fence() const;
    bool has_died() const;
    [[noreturn]] void throw_broken(const char* how) const;

    std::shared_ptr<Maps> maps_;  // null after close
    uint64_t maker_;              // the generation of the process that made it, or kAttached
    std::array<Fd, 2> fds_;       // of the maker and its forks
    std::optional<DeathWatch> death_;
};

// A fence of the kernel's: value 0 until it has signalled, then 1.
class SyncFile : public Fence {
  public:
    struct Info {
        std::string name;
        int status;                      // 0 active, 1 signalled, below 0 an errno
        std::vector<std::string> names;  // "driver object", one per fence
        int64_t signalled_ns;            // CLOCK_MONOTONIC, of the last fence; MO_UNKNOWN_I64 before
    };

    // RingError when the descriptor is no sync_file. It may be closed afterwards.
    explicit SyncFile(int fd);

    Info info() const;
    uint64_t value() const override;
    bool reached(uint64_t target) const override;
    int64_t prepare(WaitSet& set) override;
    void close() noexcept override { watch_.reset(); }

  private:
    int fd() const;

    std::shared_ptr<FdWatch> watch_;
};

struct FencePoint {
    std::shared_ptr<Fence> fence;
    uint64_t value;
};

// Indices of the points that are reached. FenceBroken when none is and one never will be.
std::vector<size_t> reached_points(std::span<const FencePoint> points);

// The same, with `sleep(WaitSet, ns)` until there is one or the deadline is over.
template <class Sleep>
std::vector<size_t> wait_any_until(std::span<const FencePoint> points, int64_t deadline, Sleep&& sleep) {
    for (;;) {
        auto reached = reached_points(points);
        const int64_t left = deadline - monotonic_ns();
        if (!reached.empty() || left <= 0) return reached;
        WaitSet set;
        int64_t slice = Fence::kSlice;
        for (const FencePoint& point : points) slice = std::min(slice, point.fence->prepare(set));
        // Again, with all hints up: a signaller that came before it saw ours wakes nobody.
        reached = reached_points(points);
        if (!reached.empty()) return reached;
        sleep(set, std::min(left, slice));
    }
}

// Whether all points were reached before the deadline. FenceBroken as soon as one never will be.
template <class Sleep>
bool wait_all_until(std::span<const FencePoint> points, int64_t deadline, Sleep&& sleep) {
    std::vector<FencePoint> left(points.begin(), points.end());
    const auto is_reached = [](const FencePoint& point) { return point.fence->reached(point.value); };
    for (;;) {
        // All are looked at: a broken one is an error even while others are awaited.
        std::erase_if(left, is_reached);
        if (left.empty()) return true;
        if (monotonic_ns() >= deadline) return false;
        // Every one has to come, so sleeping until any does loses nothing.
        wait_any_until(std::span<const FencePoint>(left), deadline, sleep);
    }
}

}  // namespace mo
