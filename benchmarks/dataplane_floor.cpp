// The least that waking another process can cost: one word in shared memory, one futex, nothing around it.
// Built by benchmarks/dataplane_floor.py.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace {

int64_t now() {
    timespec at{};
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1'000'000'000LL + at.tv_nsec;
}

struct Shared {
    std::atomic<uint32_t> word;
    uint32_t unused;
    int64_t stamp;
};

}  // namespace

extern "C" void floor_wake(Shared* shared) {
    shared->stamp = now();
    shared->word.fetch_add(1);
    syscall(SYS_futex, &shared->word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

// Nanoseconds from the stamp until here, once the word is another one than `seen`.
extern "C" int64_t floor_wait(Shared* shared, uint32_t seen) {
    while (shared->word.load() == seen) syscall(SYS_futex, &shared->word, FUTEX_WAIT, seen, nullptr, nullptr, 0);
    return now() - shared->stamp;
}
