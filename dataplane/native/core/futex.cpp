#include "futex.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>

#include "clock.hpp"
#include "error.hpp"

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif

namespace mo {
namespace {

// The kernel's struct futex_waitv: here so that older headers do.
struct Waitv {
    uint64_t value;
    uint64_t address;
    uint32_t flags;
    uint32_t reserved;
};
constexpr size_t kMostWords = 128;      // FUTEX_WAITV_MAX
constexpr uint32_t kFutexShared32 = 2;  // FUTEX_32, without FUTEX_PRIVATE_FLAG: the words are in memfds

std::atomic<bool> waitv_hidden{false};

// Asks for a sleep on nothing, which a kernel (and a seccomp filter) that knows the call refuses as invalid.
bool probe_waitv() noexcept {
    return syscall(SYS_futex_waitv, nullptr, 0, 0, nullptr, 0) != 0 && errno == EINVAL;
}

timespec to_timespec(int64_t ns) noexcept {
    return {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
}

void pause(int64_t timeout_ns) noexcept {
    const timespec time = to_timespec(timeout_ns);
    nanosleep(&time, nullptr);
}

bool ends_a_sleep(int error) noexcept { return error == EAGAIN || error == ETIMEDOUT || error == EINTR; }

}  // namespace

bool have_futex_waitv() noexcept {
    static const bool works = probe_waitv();
    return works && !waitv_hidden.load();
}

void pretend_no_futex_waitv(bool pretend) noexcept { waitv_hidden.store(pretend); }

void futex_wake(const uint32_t& word) noexcept {
    syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool WaitSet::changed() const noexcept {
    return std::any_of(words_.begin(), words_.end(),
                       [](const Word& word) { return load_seq_cst(*word.word) != word.seen; });
}

void WaitSet::sleep(int64_t timeout_ns) const {
    if (timeout_ns <= 0) return;
    if (words_.empty()) return pause(timeout_ns);
    if (words_.size() == 1) {
        const timespec time = to_timespec(timeout_ns);
        if (syscall(SYS_futex, words_[0].word, FUTEX_WAIT, words_[0].seen, &time, nullptr, 0) != 0 &&
            !ends_a_sleep(errno)) {
            fail_errno("cannot sleep on a futex");
        }
        return;
    }
    if (have_futex_waitv() && words_.size() <= kMostWords) {
        std::array<Waitv, kMostWords> waits;
        for (size_t i = 0; i < words_.size(); ++i)
            waits[i] = {words_[i].seen, reinterpret_cast<uint64_t>(words_[i].word), kFutexShared32, 0};
        // Unlike FUTEX_WAIT it takes a point in time.
        const timespec until = to_timespec(deadline_after(timeout_ns));
        if (syscall(SYS_futex_waitv, waits.data(), words_.size(), 0, &until, CLOCK_MONOTONIC) >= 0) return;
        if (!ends_a_sleep(errno)) fail_errno("cannot sleep on several futexes");
        return;
    }
    pause(std::min(timeout_ns, kMillisecond));
}

}  // namespace mo
