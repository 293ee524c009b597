#include "fence.hpp"

#include <fcntl.h>
#include <linux/sync_file.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstring>

#include "atomics.hpp"

namespace mo {

static_assert(sizeof(mo_fence) <= MO_FENCE_BYTES && sizeof(mo_fence_waiters) <= MO_FENCE_BYTES);

namespace {

constexpr int kFenceSeals = F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr int kWaitersSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr int64_t kWithoutHint = kMillisecond;

template <class T>
Mapping open_map(int fd, Access access, int seals, uint32_t magic, const std::string& what) {
    require_seals(fd, seals & ~F_SEAL_SEAL, what);
    if (file_bytes(fd, what) < MO_FENCE_BYTES) throw RingError("the " + what + " is too short to be one");
    Mapping map(fd, MO_FENCE_BYTES, access, what);
    const T& header = *reinterpret_cast<const T*>(map.data());
    if (header.magic != magic) throw RingError("this file is not a " + what);
    if (header.abi != MO_FENCE_ABI)
        throw RingError("the " + what + " has layout version " + std::to_string(header.abi) +
                        ", this program has " + std::to_string(MO_FENCE_ABI));
    return map;
}

mo_fence_waiters& waiters_in(const Mapping& map) { return *reinterpret_cast<mo_fence_waiters*>(map.data()); }

}  // namespace

// -- timelines ----------------------------------------------------------------------------------------------

std::shared_ptr<Timeline> Timeline::create(uint64_t value) {
    if (value == MO_UNKNOWN_U64) throw RingError("a fence cannot start at 2**64 - 1, which means unknown");
    auto maps = std::make_shared<Maps>();
    std::array<Fd, 2> fds{create_memfd("observatory-fence", MO_FENCE_BYTES),
                          create_memfd("observatory-waiters", MO_FENCE_BYTES)};
    maps->fence = Mapping(fds[0].get(), MO_FENCE_BYTES, Access::read_write, "fence");
    maps->waiters = Mapping(fds[1].get(), MO_FENCE_BYTES, Access::read_write, "waiters' page");
    add_seals(fds[0].get(), kFenceSeals, "fence");
    add_seals(fds[1].get(), kWaitersSeals, "waiters' page");

    auto& fence = *reinterpret_cast<mo_fence*>(maps->fence.data());
    fence.magic = MO_FENCE_MAGIC;
    fence.abi = MO_FENCE_ABI;
    fence.fence_id = random_id();
    fence.signaller_pid = static_cast<uint32_t>(getpid());
    fence.value = value;
    mo_fence_waiters& waiters = waiters_in(maps->waiters);
    waiters.magic = MO_FENCE_WAITERS_MAGIC;
    waiters.abi = MO_FENCE_ABI;
    waiters.fence_id = fence.fence_id;

    std::shared_ptr<Timeline> made(new Timeline(std::move(maps), fork_generation()));
    // For handing over, and for its forks: to them this process is somebody else.
    made->death_.emplace(open_own_pidfd());
    made->fds_ = std::move(fds);
    return made;
}

std::shared_ptr<Timeline> Timeline::attach(int fence_fd, int waiters_fd, int pidfd) {
    auto maps = std::make_shared<Maps>();
    maps->fence = open_map<mo_fence>(fence_fd, Access::read_only, kFenceSeals, MO_FENCE_MAGIC, "fence");
    const auto& fence = *reinterpret_cast<const mo_fence*>(maps->fence.data());
    if (waiters_fd >= 0) {
        maps->waiters = open_map<mo_fence_waiters>(waiters_fd, Access::read_write, kWaitersSeals,
                                                   MO_FENCE_WAITERS_MAGIC, "waiters' page");
        if (waiters_in(maps->waiters).fence_id != fence.fence_id)
            throw RingError("the waiters' page belongs to another fence");
    }
    const uint32_t signaller = fence.signaller_pid;
    std::shared_ptr<Timeline> made(new Timeline(std::move(maps), kAttached));
    if (pidfd < 0) return made;
    made->death_.emplace(Fd::duplicate(pidfd, "process"));
    // A mix-up of the caller's. Where the kernel shows no pid (gone, or not of our namespace) nothing is known.
    const int64_t pid = made->death_->own_pid();
    if (pid > 0 && pid != signaller)
        throw RingError("the fence is signalled by process " + std::to_string(signaller) +
                        ", but the process descriptor is that of " + std::to_string(pid));
    return made;
}

mo_fence& Timeline::fence() const {
    if (!maps_) throw RingError("the fence is closed");
    return *reinterpret_cast<mo_fence*>(maps_->fence.data());
}

uint64_t Timeline::value() const { return load_acquire(fence().value); }

uint32_t Timeline::signaller_pid() const { return fence().signaller_pid; }

std::array<int, 3> Timeline::fds() const {
    fence();
    if (!fds_[0]) throw RingError("an attached fence keeps no descriptors: its signaller has them");
    return {fds_[0].get(), fds_[1].get(), death_->pidfd()};
}

bool Timeline::has_died() const { return death_ && !is_signaller() && death_->dead(); }

void Timeline::throw_broken(const char* how) const {
    const mo_fence& shared = fence();
    const uint64_t last = load_acquire(shared.value);
    throw FenceBroken("process " + std::to_string(shared.signaller_pid) + " " + how + " the fence at " +
                          std::to_string(last),
                      shared.signaller_pid, last, 0);
}

bool Timeline::reached(uint64_t target) const {
    const mo_fence& shared = fence();
    if (load_seq_cst(shared.value) >= target) return true;
    const bool closed = load_acquire(shared.closed) != 0;
    if (!closed && !has_died()) return false;
    // It may have come between the look at the value and the end: after the end it moves no more.
    if (load_seq_cst(shared.value) >= target) return true;
    throw_broken(closed ? "closed" : "died with");
}

int64_t Timeline::prepare(WaitSet& set) {
    const mo_fence& shared = fence();
    const uint64_t seen = load_seq_cst(shared.value);
    set.add(low_word(shared.value), static_cast<uint32_t>(seen), maps_);
    set.add(shared.closed, 0, maps_);
    if (death_ && !is_signaller()) death_->add_to(set);
    if (!maps_->waiters) return kWithoutHint;
    // Only ever up: a waiter that saw an older value must not hide one that saw a newer.
    uint64_t& asleep_after = waiters_in(maps_->waiters).asleep_after;
    uint64_t found = load_seq_cst(asleep_after);
    while (found <= seen && !compare_exchange(asleep_after, found, seen + 1)) {
    }
    return kSlice;
}

void Timeline::signal(uint64_t value) {
    mo_fence& shared = fence();
    if (!is_signaller())
        throw RingError("only the process that made a fence signals it (process " +
                        std::to_string(shared.signaller_pid) + ")");
    if (value == MO_UNKNOWN_U64) throw RingError("a fence cannot reach 2**64 - 1, which means unknown");
    const uint64_t before = load_relaxed(shared.value);
    if (value < before)
        throw RingError("a fence never goes back: it has reached " + std::to_string(before) + ", not " +
                        std::to_string(value));
    if (value == before) return;
    // The commit. Sequentially consistent, as the look at the hint and the waiters' two accesses are: of "the
    // waiter sees the new value" and "we see its hint" at least one is true.
    store_seq_cst(shared.value, value);
    if (load_seq_cst(waiters_in(maps_->waiters).asleep_after) > before) futex_wake(low_word(shared.value));
}

void Timeline::close() noexcept {
    if (maps_ && is_signaller()) {
        auto& shared = *reinterpret_cast<mo_fence*>(maps_->fence.data());
        store_seq_cst(shared.closed, 1u);
        futex_wake(shared.closed);
    }
    maps_.reset();
    death_.reset();
    for (Fd& fd : fds_) fd.reset();
}

// -- fences of the kernel -----------------------------------------------------------------------------------

namespace {

sync_file_info ask(int fd, std::vector<sync_fence_info>& fences) {
    sync_file_info info{};
    if (ioctl(fd, SYNC_IOC_FILE_INFO, &info) != 0) fail_errno("cannot ask a sync_file about itself");
    if (info.num_fences == 0) return info;
    fences.resize(info.num_fences);
    info.flags = 0;
    info.sync_fence_info = reinterpret_cast<uint64_t>(fences.data());
    if (ioctl(fd, SYNC_IOC_FILE_INFO, &info) != 0) fail_errno("cannot ask a sync_file about its fences");
    fences.resize(info.num_fences);
    return info;
}

// The kernel's strings end within their arrays; ours do even if they did not.
template <size_t N>
std::string text(const char (&field)[N]) {
    return std::string(field, strnlen(field, N));
}

int status_of(int fd) {
    sync_file_info info{};
    if (ioctl(fd, SYNC_IOC_FILE_INFO, &info) != 0) fail_errno("cannot ask a sync_file about itself");
    return info.status;
}

}  // namespace

SyncFile::SyncFile(int fd) {
    // Asked first: the same ioctl means something else to other devices.
    const std::string kind = kind_of_fd(fd, "sync_file");
    if (kind != "anon_inode:sync_file")
        throw RingError("descriptor " + std::to_string(fd) + " is no sync_file but " + kind);
    std::vector<sync_fence_info> fences;
    ask(fd, fences);
    watch_ = FdWatch::open(Fd::duplicate(fd, "sync_file"), "sync_file");
}

int SyncFile::fd() const {
    if (!watch_) throw RingError("the fence is closed");
    return watch_->fd();
}

SyncFile::Info SyncFile::info() const {
    std::vector<sync_fence_info> fences;
    const sync_file_info asked = ask(fd(), fences);
    Info info{text(asked.name), asked.status, {}, MO_UNKNOWN_I64};
    for (const sync_fence_info& fence : fences) {
        info.names.push_back(text(fence.driver_name) + " " + text(fence.obj_name));
        // 0 before, and where the driver did not note it.
        if (asked.status != 0 && fence.timestamp_ns != 0)
            info.signalled_ns = std::max(info.signalled_ns, static_cast<int64_t>(fence.timestamp_ns));
    }
    return info;
}

uint64_t SyncFile::value() const { return status_of(fd()) == 1 ? 1 : 0; }

bool SyncFile::reached(uint64_t target) const {
    if (target > 1) throw RingError("a sync_file reaches 1 and no more, not " + std::to_string(target));
    const int status = status_of(fd());
    if (target == 0 || status == 1) return true;
    if (status == 0) return false;
    throw FenceBroken("the kernel's fence " + info().name + " failed: " + std::strerror(-status), -1, 0,
                      -status);
}

int64_t SyncFile::prepare(WaitSet& set) {
    fd();
    watch_->add_to(set);
    return kSlice;
}

// -- several ------------------------------------------------------------------------------------------------

std::vector<size_t> reached_points(std::span<const FencePoint> points) {
    std::vector<size_t> reached;
    std::optional<FenceBroken> broken;
    for (size_t i = 0; i < points.size(); ++i) {
        try {
            if (points[i].fence->reached(points[i].value)) reached.push_back(i);
        } catch (const FenceBroken& error) {
            if (!broken) broken = error;
        }
    }
    if (reached.empty() && broken) throw *broken;
    return reached;
}

}  // namespace mo
