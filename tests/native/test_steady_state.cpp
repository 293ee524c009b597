// Two processes hand frames over, spinning: once everything is warm, a frame costs no system call and no page fault.
// The parent counts the system calls of both by tracing them.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>

#include <csignal>
#include <map>
#include <utility>

#include "rig.hpp"

namespace {

using namespace rig;

constexpr uint64_t kWarm = 2000;
constexpr uint64_t kBytes = 64 << 10;
constexpr uint32_t kEvents = 4096;  // wrapped around while warming up

// System calls that nothing here makes otherwise; they tell the tracer where the counting begins and ends.
void mark_begin() { syscall(SYS_getpgid, 0); }
void mark_end() { syscall(SYS_getsid, 0); }

long faults() {
    rusage usage{};
    CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
    return usage.ru_minflt + usage.ru_majflt;
}

// Maps every page of what is not shared with the other process: program, libraries, heap, stack. What is executed or
// allocated for the first time in the middle of the run is not what is looked for.
void populate_private() {
    FILE* maps = std::fopen("/proc/self/maps", "re");
    CHECK(maps != nullptr);
    char line[512];
    while (std::fgets(line, sizeof line, maps) != nullptr) {
        if (std::strstr(line, "/memfd:observatory-") != nullptr) continue;
        unsigned long begin = 0, end = 0;
        char access[5] = {};
        CHECK(std::sscanf(line, "%lx-%lx %4s", &begin, &end, access) == 3);
        const int advice = access[1] == 'w' ? 23 : 22;  // MADV_POPULATE_WRITE, MADV_POPULATE_READ
        if (access[0] == 'r') madvise(reinterpret_cast<void*>(begin), end - begin, advice);
    }
    std::fclose(maps);
}

// Calls `step` until it has done `kWarm` and then `frames`; nothing between the marks but the steps.
template <class Step>
void run(uint64_t frames, Step&& step) {
    for (uint64_t done = 0; done < kWarm;) done += step() ? 1 : 0;
    populate_private();
    const long before = faults();
    mark_begin();
    for (uint64_t done = 0; done < frames;) done += step() ? 1 : 0;
    mark_end();
    const long after = faults();
    if (after != before) std::fprintf(stderr, "  %ld page faults\n", after - before);
    CHECK(after == before);
}

// A traced child that waits until it is told to go on.
template <class Work>
pid_t child(Work&& work) {
    const pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid != 0) return pid;
    CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    CHECK(ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0);
    CHECK(raise(SIGSTOP) == 0);
    work();
    _exit(0);
}

struct Counts {
    bool counting = false, inside = false, whole = false;
    uint64_t calls = 0;
};

// Follows both children to their ends and counts what they call between their marks.
std::map<pid_t, Counts> follow(std::initializer_list<pid_t> pids) {
    std::map<pid_t, Counts> found;
    for (const pid_t pid : pids) {
        int status = 0;
        CHECK(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status));
        CHECK(ptrace(PTRACE_SETOPTIONS, pid, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL) == 0);
        found[pid];
    }
    for (const pid_t pid : pids) CHECK(ptrace(PTRACE_SYSCALL, pid, nullptr, nullptr) == 0);
    size_t running = found.size();
    while (running > 0) {
        int status = 0;
        const pid_t pid = waitpid(-1, &status, 0);
        CHECK(pid > 0);
        Counts& counts = found[pid];
        if (!WIFSTOPPED(status)) {
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
            --running;
            continue;
        }
        long deliver = 0;
        if (WSTOPSIG(status) == (SIGTRAP | 0x80)) {
            counts.inside = !counts.inside;
            if (counts.inside) {
                __ptrace_syscall_info info{};
                CHECK(ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, &info) > 0);
                const auto number = static_cast<long>(info.entry.nr);
                if (number == SYS_getsid) {
                    counts.counting = false;
                    counts.whole = true;
                }
                if (counts.counting) ++counts.calls;
                if (number == SYS_getpgid) counts.counting = true;
            }
        } else {
            deliver = WSTOPSIG(status);
        }
        CHECK(ptrace(PTRACE_SYSCALL, pid, nullptr, deliver) == 0);
    }
    return found;
}

// The system calls of the producer and of the consumer while `frames` frames crossed.
std::pair<uint64_t, uint64_t> calls_of(uint64_t frames, bool with_a_call_per_frame) {
    auto p = producer(64, {{kBytes, 32}});
    Consumer c(MO_BLOCK);
    p->admit(c.page_fd(), MO_BLOCK);
    const auto ours = EventRing::create(kEvents), theirs = EventRing::create(kEvents);
    const auto drain = [](EventRing& ring) {
        static mo_frame_event events[kEvents];
        ring.drain(events, kEvents);
    };

    const pid_t consuming = child([&] {
        std::vector<int> fds;
        for (size_t i = 0; i < p->pool().size(); ++i) fds.push_back(p->pool().fd(i));
        const uint64_t slot_bytes[] = {p->pool().made(0).slot_bytes};
        c.attach(p->ring_fd(), fds, slot_bytes, true);
        c.trace({theirs, 1, 1, 0, 0});
        uint64_t next = 0;
        run(frames, [&] {
            auto slot = c.try_take();
            if (!slot) return false;
            CHECK(holds(*slot, next++));
            c.release(*slot);
            drain(*theirs);
            return true;
        });
    });
    const pid_t producing = child([&] {
        prefault(p->pool().mappings());
        p->trace({ours, 1, 1, 0, 0});
        uint64_t next = 0;
        run(frames, [&] {
            const auto slot = p->try_acquire(kBytes);
            if (!slot) return false;
            if (with_a_call_per_frame) syscall(SYS_getppid);
            fill(*slot, kBytes, next);
            p->publish(*slot, frame(next++), kBytes);
            drain(*ours);
            return true;
        });
    });
    auto counts = follow({consuming, producing});
    for (const auto& [pid, counted] : counts) CHECK(counted.whole);
    return {counts[producing].calls, counts[consuming].calls};
}

void a_frame_costs_no_system_call_and_no_fault() {
    const auto [producer, consumer] = calls_of(5000, false);
    CHECK(producer == 0 && consumer == 0);
}

// The counting itself works.
void a_system_call_per_frame_is_seen() {
    const auto [producer, consumer] = calls_of(1000, true);
    CHECK(producer == 1000 && consumer == 0);
}

}  // namespace

int main() {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    std::fprintf(stderr, "skipped: a sanitizer's own system calls and faults would be counted\n");
    return 0;
#endif
    RUN(a_frame_costs_no_system_call_and_no_fault);
    RUN(a_system_call_per_frame_is_seen);
}
