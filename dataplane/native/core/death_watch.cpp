#include "death_watch.hpp"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <fstream>
#include <mutex>
#include <sstream>
#include <system_error>
#include <thread>
#include <unordered_map>

#include "atomics.hpp"
#include "error.hpp"

namespace mo {

// The thread, and what it watches. Never destroyed: the thread outlives every static object.
class Watcher {
  public:
    static Watcher& instance() {
        static Watcher* const watcher = new Watcher;
        return *watcher;
    }

    void add(FdWatch& watch) {
        const std::lock_guard guard(lock_);
        if (watch.key_ != 0 && watch.generation_ == generation_.load()) return;
        if (load_acquire(watch.happened_) != 0) return;
        start();
        const uint64_t key = ++last_key_;
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.u64 = key;
        // Level-triggered: what can be read already is reported at once.
        if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, watch.fd_.get(), &event) != 0)
            fail_errno("cannot watch the " + watch.what_);
        watches_.emplace(key, &watch);
        watch.key_ = key;
        watch.generation_ = generation_.load();
    }

    void remove(FdWatch& watch) noexcept {
        const std::lock_guard guard(lock_);
        if (watch.key_ == 0 || watch.generation_ != generation_.load()) return;
        forget(watch);
    }

    uint64_t generation() const noexcept { return generation_.load(); }

  private:
    // Forks wait until the table is whole; the child has a copy of it, and no thread.
    Watcher() {
        pthread_atfork([] { instance().lock_.lock(); }, [] { instance().lock_.unlock(); },
                       [] { instance().after_fork(); });
    }

    void after_fork() noexcept {
        watches_.clear();
        epoll_.reset();  // the child's descriptor of it: the parent's watch goes on
        generation_.fetch_add(1);
        lock_.unlock();
    }

    void start() {
        if (epoll_) return;
        Fd epoll(epoll_create1(EPOLL_CLOEXEC));
        if (!epoll) fail_errno("cannot watch descriptors");
        // Signals are for the threads that expect them, Python's main thread above all.
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        try {
            std::thread([this, fd = epoll.get()] { run(fd); }).detach();
        } catch (const std::system_error& error) {
            pthread_sigmask(SIG_SETMASK, &before, nullptr);
            fail_errno("cannot start the thread that watches processes", error.code().value());
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        epoll_ = std::move(epoll);
    }

    void run(int epoll) noexcept {
        pthread_setname_np(pthread_self(), "ring-watch");
        std::array<epoll_event, 64> events;
        for (;;) {
            const int count = epoll_wait(epoll, events.data(), events.size(), -1);
            // Somebody closed our descriptor: sleepers then find out when their slice is over.
            if (count < 0 && errno != EINTR) return;
            const std::lock_guard guard(lock_);
            for (int i = 0; i < count; ++i) {
                const auto found = watches_.find(events[i].data.u64);
                if (found == watches_.end()) continue;  // removed since
                FdWatch& watch = *found->second;
                forget(watch);
                store_seq_cst(watch.happened_, 1u);
                futex_wake(watch.happened_);
            }
        }
    }

    void forget(FdWatch& watch) noexcept {
        // By hand: a descriptor leaves an epoll by itself only with its last copy, and others may have some.
        epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, watch.fd_.get(), nullptr);
        watches_.erase(watch.key_);
        watch.key_ = 0;
    }

    std::mutex lock_;
    Fd epoll_;  // while the thread runs
    std::unordered_map<uint64_t, FdWatch*> watches_;
    uint64_t last_key_ = 0;
    std::atomic<uint64_t> generation_{0};
};

uint64_t fork_generation() noexcept { return Watcher::instance().generation(); }

namespace {
// Forks are counted from the start, not from the first question.
[[maybe_unused]] const uint64_t counting = fork_generation();
}  // namespace

std::shared_ptr<FdWatch> FdWatch::open(Fd fd, const std::string& what) {
    return std::shared_ptr<FdWatch>(new FdWatch(std::move(fd), what));
}

FdWatch::~FdWatch() { Watcher::instance().remove(*this); }

bool FdWatch::happened() {
    if (load_acquire(happened_) != 0) return true;
    pollfd asked{fd_.get(), POLLIN, 0};
    if (poll(&asked, 1, 0) <= 0 || (asked.revents & (POLLIN | POLLHUP | POLLERR)) == 0) return false;
    store_seq_cst(happened_, 1u);
    return true;
}

void FdWatch::add_to(WaitSet& set) {
    Watcher::instance().add(*this);
    set.add(happened_, 0, shared_from_this());
}

std::string kind_of_fd(int fd, const std::string& what) {
    if (fcntl(fd, F_GETFD) < 0)
        fail_errno("cannot look at the " + what + " (descriptor " + std::to_string(fd) + ")");
    char target[256];
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    const ssize_t length = readlink(link.c_str(), target, sizeof target);
    if (length < 0) fail_errno("cannot read " + link);
    return std::string(target, static_cast<size_t>(length));
}

Fd open_own_pidfd() {
    Fd pidfd(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
    if (!pidfd) fail_errno("cannot open a descriptor of this process");
    return pidfd;
}

DeathWatch::DeathWatch(Fd pidfd) {
    std::ifstream info("/proc/self/fdinfo/" + std::to_string(pidfd.get()));
    bool is_one = false;
    for (std::string line; std::getline(info, line);) {
        std::istringstream words(line);
        std::string name;
        words >> name;
        if (name == "Pid:" && words >> pid_) {
            is_one = true;
            own_pid_ = pid_;
        } else if (name == "NSpid:") {
            // From our namespace down to its own.
            for (int64_t pid; words >> pid;) own_pid_ = pid;
        }
    }
    if (!is_one)
        throw RingError("this is no process descriptor (pidfd) but " + kind_of_fd(pidfd.get(), "process"));
    watch_ = FdWatch::open(std::move(pidfd), "process " + std::to_string(pid_));
}

}  // namespace mo
