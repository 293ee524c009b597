// Wakeups: a thread that sleeps in the place of an event loop, and an eventfd that it makes readable.
#pragma once

#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "clock.hpp"
#include "futex.hpp"
#include "sys.hpp"

namespace mo {

// An event loop can only wait for file descriptors, while rings wake by futexes. The loop's thread calls everything here;
// the sleeping thread starts with the first watch, touches only words in mappings that the watches keep, and sleeps
// without end while there is nothing to watch. A forked child has no such thread: there, watching throws, and the rest
// does nothing.
class Wakeups {
  public:
    // `slice_ns`: how often `look_at` is looked at, which bounds what a dead peer costs.
    explicit Wakeups(int64_t slice_ns = 50 * kMillisecond);
    ~Wakeups();
    Wakeups(const Wakeups&) = delete;
    Wakeups& operator=(const Wakeups&) = delete;

    // Readable while `fired` has something to say.
    int fd() const noexcept { return event_.get(); }

    // Fires once, when a word of `sleep_on` has another value than seen or one of `look_at` has. The token is the
    // caller's, and not in use.
    void watch(uint64_t token, WaitSet sleep_on, WaitSet look_at);
    void forget(uint64_t token) noexcept;
    // As if it had woken.
    void fire(uint64_t token) noexcept;
    // The tokens that fired since the last call; they are not watched any more.
    std::vector<uint64_t> fired();

    bool forked() const noexcept;

  private:
    struct Watch {
        uint64_t token;
        WaitSet sleep_on;
        WaitSet look_at;
    };

    void run() noexcept;
    void collect();
    void signal() noexcept;
    void prod() noexcept;

    const int64_t slice_ns_;
    const int pid_;
    Fd event_;
    std::mutex mutex_;  // guards all below
    std::vector<Watch> watches_;
    std::vector<uint64_t> fired_;
    bool stopping_ = false;
    uint32_t control_ = 0;  // what the thread sleeps on besides: bumped when it has to look at the above again
    std::thread thread_;
};

}  // namespace mo
