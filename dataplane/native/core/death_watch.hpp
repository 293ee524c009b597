// Deaths, and other things that a descriptor reports, as words to sleep on beside those of rings and fences.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "clock.hpp"
#include "futex.hpp"
#include "sys.hpp"

namespace mo {

// How many forks lie between this process and the one that loaded the core. Threads do not survive a fork, and
// neither does being the one who made something.
uint64_t fork_generation() noexcept;

// Happens once: as soon as its descriptor can be read. One thread per process watches all of them; it starts
// with the first that somebody sleeps on, and a forked child starts its own in the same way.
class FdWatch : public std::enable_shared_from_this<FdWatch> {
  public:
    // `what` names the thing in errors.
    static std::shared_ptr<FdWatch> open(Fd fd, const std::string& what);
    ~FdWatch();
    FdWatch(const FdWatch&) = delete;
    FdWatch& operator=(const FdWatch&) = delete;

    // Asks the kernel, so what happened before anybody watched is known at once, thread or no thread.
    bool happened();
    // One more word to sleep on: it changes, and wakes, when it happens. Look (`happened`) after adding it.
    void add_to(WaitSet& set);

    // Until it happens (true) or the deadline is over, with `sleep(WaitSet, ns)` in between.
    template <class Sleep>
    bool wait_until(int64_t deadline, Sleep&& sleep) {
        for (;;) {
            if (happened()) return true;
            const int64_t left = deadline - monotonic_ns();
            if (left <= 0) return false;
            WaitSet set;
            add_to(set);
            sleep(set, std::min(left, kSlice));
        }
    }

    int fd() const noexcept { return fd_.get(); }

    static constexpr int64_t kSlice = 100 * kMillisecond;

  private:
    friend class Watcher;
    FdWatch(Fd fd, std::string what) : fd_(std::move(fd)), what_(std::move(what)) {}

    Fd fd_;
    std::string what_;
    uint32_t happened_ = 0;    // the word; never back to 0
    uint64_t key_ = 0;         // in the watcher's table, 0: in none; like the next under the watcher's lock
    uint64_t generation_ = 0;  // whose watcher
};

// The death of one process, told by its pidfd, which never comes to mean another process. Dead is a process of
// which no thread runs any more: a zombie is, a stopped one is not.
class DeathWatch {
  public:
    // RingError when it is no pidfd. It has to come from somebody who knows the process: itself, its parent, or
    // who opened it and then checked that the peer is still there. From a mere number it may be a stranger's.
    explicit DeathWatch(Fd pidfd);

    // 0 in a namespace that does not show it, -1 when it was gone and collected already.
    int64_t pid() const noexcept { return pid_; }
    // What it takes for its own: differs from `pid` when it lives in a namespace below ours.
    int64_t own_pid() const noexcept { return own_pid_; }
    bool dead() const { return watch_->happened(); }
    void add_to(WaitSet& set) const { watch_->add_to(set); }
    int pidfd() const noexcept { return watch_->fd(); }
    const std::shared_ptr<FdWatch>& watch() const noexcept { return watch_; }

  private:
    int64_t pid_ = 0;
    int64_t own_pid_ = 0;
    std::shared_ptr<FdWatch> watch_;
};

Fd open_own_pidfd();

// What /proc calls the file behind a descriptor ("pipe:[4711]", "anon_inode:[pidfd]"); RingError when none is.
std::string kind_of_fd(int fd, const std::string& what);

}  // namespace mo
