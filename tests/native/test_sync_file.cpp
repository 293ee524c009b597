// What the kernel says of a sync_file that failed, and of ones in other states. This kernel has no source of them, so
// a pipe plays one here: readable means signalled, and `ioctl` and `readlink` below answer in the kernel's place. That
// the importer works with real ones is shown in tests/lab.
#include <fcntl.h>
#include <linux/sync_file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>

#include "fence.hpp"
#include "rig.hpp"

namespace {

std::atomic<int> status{0};
std::atomic<int64_t> timestamp{0};

}  // namespace

extern "C" int ioctl(int, unsigned long request, ...) noexcept {
    va_list arguments;
    va_start(arguments, request);
    auto* const info = va_arg(arguments, sync_file_info*);
    va_end(arguments);
    CHECK(request == SYNC_IOC_FILE_INFO && info->flags == 0 && info->pad == 0);
    std::strcpy(info->name, "emulated");
    info->status = status;
    if (info->num_fences != 0) {
        auto* const fences = reinterpret_cast<sync_fence_info*>(info->sync_fence_info);
        CHECK(info->num_fences == 2);
        for (int i = 0; i < 2; ++i) {
            fences[i] = {};
            // As long as the field: it need not end with a zero.
            std::memset(fences[i].obj_name, 'o', sizeof fences[i].obj_name);
            std::strcpy(fences[i].driver_name, "pipe");
            fences[i].status = status;
            fences[i].timestamp_ns = timestamp == 0 ? 0 : static_cast<uint64_t>(timestamp + i);
        }
    }
    info->num_fences = 2;
    return 0;
}

extern "C" ssize_t readlink(const char*, char* target, size_t) noexcept {
    constexpr char kKind[] = "anon_inode:sync_file";
    std::memcpy(target, kKind, sizeof kKind - 1);
    return sizeof kKind - 1;
}

namespace {

using namespace rig;

constexpr auto plain_sleep = [](const WaitSet& set, int64_t ns) { set.sleep(ns); };

struct Emulated {
    Emulated() {
        status = 0;
        timestamp = 0;
        CHECK(pipe2(ends, O_CLOEXEC) == 0);
        fence = std::make_shared<SyncFile>(ends[0]);
    }
    ~Emulated() {
        close(ends[0]);
        close(ends[1]);
    }
    void end(int with, int64_t at) {
        timestamp = at;
        status = with;
        CHECK(write(ends[1], "x", 1) == 1);
    }
    int ends[2];
    std::shared_ptr<SyncFile> fence;
};

bool wait(const std::shared_ptr<Fence>& fence, uint64_t value) {
    const FencePoint point{fence, value};
    return !wait_any_until(std::span(&point, 1), kForever, sleep_until_woken).empty();
}

void a_fence_signals_once() {
    Emulated kernel;
    CHECK(kernel.fence->value() == 0 && kernel.fence->reached(0) && !kernel.fence->reached(1));
    CHECK(kernel.fence->info().status == 0 && kernel.fence->info().signalled_ns == MO_UNKNOWN_I64);
    const FencePoint point{kernel.fence, 1};
    const int64_t soon = deadline_after(20 * kMillisecond);
    CHECK(wait_any_until(std::span(&point, 1), soon, plain_sleep).empty() && monotonic_ns() >= soon);
    std::thread later([&] {
        usleep(20'000);
        kernel.end(1, 12345);
    });
    CHECK(wait(kernel.fence, 1));
    later.join();
    const SyncFile::Info info = kernel.fence->info();
    CHECK(info.name == "emulated" && info.status == 1 && info.signalled_ns == 12346);
    CHECK(info.names == std::vector<std::string>(2, "pipe " + std::string(32, 'o')));
    CHECK_THROWS(kernel.fence->reached(2), RingError, "reaches 1 and no more, not 2");
    kernel.fence->close();
    CHECK_THROWS(kernel.fence->value(), RingError, "is closed");
}

void a_failed_fence_is_an_error_with_its_reason() {
    Emulated kernel;
    std::thread later([&] {
        usleep(20'000);
        kernel.end(-EIO, 0);
    });
    try {
        wait(kernel.fence, 1);
        CHECK(!"a failed fence was taken for a signalled one");
    } catch (const FenceBroken& error) {
        CHECK(error.pid == -1 && error.value == 0 && error.error == EIO);
        CHECK(std::strstr(error.what(), "emulated failed: Input/output error") != nullptr);
    }
    later.join();
    CHECK(kernel.fence->value() == 0 && kernel.fence->reached(0));
    CHECK(kernel.fence->info().signalled_ns == MO_UNKNOWN_I64);  // nobody noted it
}

}  // namespace

int main() {
    RUN(a_fence_signals_once);
    RUN(a_failed_fence_is_an_error_with_its_reason);
}
