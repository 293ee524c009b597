// The one clock: CLOCK_MONOTONIC in nanoseconds, and deadlines on it.
#pragma once

#include <cstdint>
#include <ctime>

namespace mo {

inline constexpr int64_t kForever = INT64_MAX;
inline constexpr int64_t kMillisecond = 1'000'000;

inline int64_t monotonic_ns() noexcept {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// The point in time `timeout_ns` from now; never before now, and kForever where it would overflow.
inline int64_t deadline_after(int64_t timeout_ns) noexcept {
    const int64_t now = monotonic_ns();
    if (timeout_ns <= 0) return now;
    return timeout_ns > kForever - now ? kForever : now + timeout_ns;
}

// Tells the core that we are only looking.
inline void pause_cpu() noexcept {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace mo
