#include "wakeups.hpp"

#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "error.hpp"

namespace mo {
namespace {

// A thread that no signal is delivered to: they are for the threads that handle them.
template <class Body>
std::thread quiet_thread(Body body) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        std::thread thread(body);
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        return thread;
    } catch (const std::system_error& error) {
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        throw RingError(std::string("cannot start the thread that sleeps for an event loop: ") + error.what());
    }
}

constexpr int64_t kHour = 3'600'000 * kMillisecond;

}  // namespace

Wakeups::Wakeups(int64_t slice_ns)
    : slice_ns_(slice_ns), pid_(getpid()), event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!event_) fail_errno("cannot make an eventfd");
}

Wakeups::~Wakeups() {
    if (forked()) {
        // The thread is the parent's; there is none to join here, and it may have held the mutex at the fork.
        if (thread_.joinable()) thread_.detach();
        return;
    }
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
        prod();
    }
    if (thread_.joinable()) thread_.join();
}

bool Wakeups::forked() const noexcept { return getpid() != pid_; }

void Wakeups::watch(uint64_t token, WaitSet sleep_on, WaitSet look_at) {
    if (forked()) throw RingError("this process was forked from the one that waits: it needs wake-ups of its own");
    const std::lock_guard lock(mutex_);
    watches_.push_back({token, std::move(sleep_on), std::move(look_at)});
    if (thread_.joinable()) return prod();
    try {
        thread_ = quiet_thread([this] { run(); });
    } catch (...) {
        watches_.pop_back();
        throw;
    }
}

void Wakeups::forget(uint64_t token) noexcept {
    if (forked()) return;
    const std::lock_guard lock(mutex_);
    const size_t before = watches_.size();
    std::erase_if(watches_, [token](const Watch& watch) { return watch.token == token; });
    std::erase(fired_, token);
    if (watches_.size() != before) prod();
}

void Wakeups::fire(uint64_t token) noexcept {
    if (forked()) return;
    const std::lock_guard lock(mutex_);
    if (std::erase_if(watches_, [token](const Watch& watch) { return watch.token == token; }) == 0) return;
    fired_.push_back(token);
    signal();
    prod();
}

std::vector<uint64_t> Wakeups::fired() {
    if (forked()) return {};
    const std::lock_guard lock(mutex_);
    eventfd_t count;
    eventfd_read(event_.get(), &count);  // nothing to read is no error: somebody asks without having been told
    return std::exchange(fired_, {});
}

void Wakeups::run() noexcept {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
        collect();
        WaitSet set;
        set.add(control_, load_relaxed(control_), nullptr);
        for (const Watch& watch : watches_) set.add(watch.sleep_on);
        const int64_t slice = watches_.empty() ? kHour : slice_ns_;
        lock.unlock();
        try {
            set.sleep(slice);
        } catch (const RingError&) {
            usleep(1000);  // no sleep on these words: look at them instead
        }
        set = WaitSet();  // unmaps what was forgotten meanwhile
        lock.lock();
    }
}

void Wakeups::collect() {
    const size_t before = fired_.size();
    std::erase_if(watches_, [this](const Watch& watch) {
        if (!watch.sleep_on.changed() && !watch.look_at.changed()) return false;
        fired_.push_back(watch.token);
        return true;
    });
    if (fired_.size() != before) signal();
}

void Wakeups::signal() noexcept { eventfd_write(event_.get(), 1); }

// Under the mutex, so that the thread either has not read the word yet or sleeps on the value before.
void Wakeups::prod() noexcept {
    store_seq_cst(control_, control_ + 1);
    futex_wake(control_);
}

}  // namespace mo
