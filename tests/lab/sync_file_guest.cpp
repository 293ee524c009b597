// The only process of a small machine whose kernel has real fences: loads its modules, makes sync_files with vgem and
// waits for them with our importer. Prints one line per step; the last one is "passed", or what is wrong.
#include <fcntl.h>
#include <linux/dma-buf.h>
#include <linux/module.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>

#include "fence.hpp"

namespace {

using namespace mo;

#define CHECK(condition) \
    if (!(condition)) throw std::runtime_error(std::to_string(__LINE__) + ": not true: " #condition)

constexpr auto plain_sleep = [](const WaitSet& set, int64_t ns) { set.sleep(ns); };
constexpr int64_t kSecond = 1000 * kMillisecond;

// The kernel's interface to buffers and vgem, of which a Debian without libdrm's headers says nothing.
struct CreateDumb {
    uint32_t height, width, bits_per_pixel, flags, handle, pitch;
    uint64_t bytes;
};
struct PrimeHandle {
    uint32_t handle, flags;
    int32_t fd;
};
struct VgemAttach {
    uint32_t handle, flags, out_fence, reserved;
};
struct VgemSignal {
    uint32_t fence, flags;
};
constexpr unsigned long kCreateDumb = _IOWR('d', 0xB2, CreateDumb);
constexpr unsigned long kPrimeHandleToFd = _IOWR('d', 0x2D, PrimeHandle);
constexpr unsigned long kVgemAttach = _IOWR('d', 0x41, VgemAttach);
constexpr unsigned long kVgemSignal = _IOW('d', 0x42, VgemSignal);
constexpr uint32_t kVgemWrite = 1;

void call(int result, const char* what) {
    if (result < 0) fail_errno(what);
}

// A buffer of the vgem device, as a DMA-BUF, and the fences that are attached to it.
class Buffer {
  public:
    Buffer() : card_(open("/dev/dri/card0", O_RDWR | O_CLOEXEC)) {
        if (!card_) fail_errno("cannot open the vgem device");
        CreateDumb dumb{64, 64, 32, 0, 0, 0, 0};
        call(ioctl(card_.get(), kCreateDumb, &dumb), "cannot make a buffer");
        handle_ = dumb.handle;
        PrimeHandle prime{handle_, O_RDWR, -1};
        call(ioctl(card_.get(), kPrimeHandleToFd, &prime), "cannot export the buffer");
        buffer_ = Fd(prime.fd);
    }

    uint32_t attach_fence() const {
        VgemAttach attach{handle_, kVgemWrite, 0, 0};
        call(ioctl(card_.get(), kVgemAttach, &attach), "cannot attach a fence");
        return attach.out_fence;
    }
    void signal(uint32_t fence) const {
        VgemSignal signal{fence, 0};
        call(ioctl(card_.get(), kVgemSignal, &signal), "cannot signal the fence");
    }
    Fd export_sync_file() const {
        dma_buf_export_sync_file request{DMA_BUF_SYNC_READ, -1};
        call(ioctl(buffer_.get(), DMA_BUF_IOCTL_EXPORT_SYNC_FILE, &request), "cannot export a sync_file");
        return Fd(request.fd);
    }
    int fd() const { return buffer_.get(); }

  private:
    Fd card_;
    Fd buffer_;
    uint32_t handle_ = 0;
};

bool wait(const std::shared_ptr<Fence>& fence, int64_t timeout_ns) {
    const FencePoint point{fence, 1};
    return !wait_any_until(std::span(&point, 1), deadline_after(timeout_ns), plain_sleep).empty();
}

void a_fence_is_awaited_and_signals(const Buffer& buffer) {
    const uint32_t handle = buffer.attach_fence();
    const auto fence = std::make_shared<SyncFile>(buffer.export_sync_file().get());
    CHECK(fence->value() == 0 && fence->info().status == 0 && fence->info().signalled_ns == MO_UNKNOWN_I64);
    CHECK(!wait(fence, 50 * kMillisecond));
    int64_t signalled = 0;
    std::thread later([&] {
        usleep(100'000);
        signalled = monotonic_ns();
        buffer.signal(handle);
    });
    CHECK(wait(fence, 8 * kSecond));  // vgem gives up after ten
    const int64_t woken = monotonic_ns();
    later.join();
    const auto info = fence->info();
    CHECK(fence->value() == 1 && info.status == 1);
    CHECK(info.signalled_ns >= signalled && info.signalled_ns <= woken);
    CHECK(info.names.size() == 1 && info.names[0].find("vgem") != std::string::npos);
    std::printf("signalled: %s, %s\n", info.name.c_str(), info.names[0].c_str());
    // As a second import of one that has signalled already.
    CHECK(wait(std::make_shared<SyncFile>(buffer.export_sync_file().get()), 0));
}

void timelines_and_the_kernels_fences_are_awaited_together(const Buffer& buffer) {
    const uint32_t handle = buffer.attach_fence();
    const auto imported = std::make_shared<SyncFile>(buffer.export_sync_file().get());
    const auto mine = Timeline::create(0);
    const FencePoint points[] = {{mine, 1}, {imported, 1}};
    std::thread later([&] {
        usleep(50'000);
        buffer.signal(handle);
        usleep(50'000);
        mine->signal(1);
    });
    CHECK(wait_any_until(std::span(points), deadline_after(8 * kSecond), plain_sleep) == std::vector<size_t>{1});
    CHECK(wait_all_until(std::span(points), deadline_after(8 * kSecond), plain_sleep));
    later.join();
}

void other_files_are_refused(const Buffer& buffer) {
    try {
        SyncFile refused(buffer.fd());
    } catch (const RingError& error) {
        std::printf("refused: %s\n", error.what());
        CHECK(std::strstr(error.what(), "is no sync_file but /dmabuf:") != nullptr);
        return;
    }
    CHECK(!"a DMA-BUF was taken for a sync_file");
}

void load_modules() {
    std::ifstream order("/modules/order");
    for (std::string name; std::getline(order, name);) {
        const Fd file(open(("/modules/" + name).c_str(), O_RDONLY | O_CLOEXEC));
        call(file.get(), "cannot open a module");
        if (syscall(SYS_finit_module, file.get(), "", MODULE_INIT_COMPRESSED_FILE) != 0)
            fail_errno("cannot load " + name);
    }
}

void run() {
    mkdir("/proc", 0755);
    mkdir("/dev", 0755);
    call(mount("proc", "/proc", "proc", 0, nullptr), "cannot mount /proc");
    call(mount("dev", "/dev", "devtmpfs", 0, nullptr), "cannot mount /dev");
    load_modules();
    std::printf("modules loaded\n");
    const Buffer buffer;
    a_fence_is_awaited_and_signals(buffer);
    timelines_and_the_kernels_fences_are_awaited_together(buffer);
    other_files_are_refused(buffer);
}

}  // namespace

int main() {
    setvbuf(stdout, nullptr, _IONBF, 0);
    try {
        run();
        std::printf("lab: passed\n");
    } catch (const std::exception& error) {
        std::printf("lab: %s\n", error.what());
    }
    sync();
    if (getpid() == 1) reboot(RB_POWER_OFF);
}
