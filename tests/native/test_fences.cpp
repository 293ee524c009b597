// Fences: who waits is woken by the value, by the signaller's death or by its closing, and by nothing else.
#include "fence.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <atomic>
#include <random>

#include "rig.hpp"

namespace {

using namespace rig;

constexpr auto plain_sleep = [](const WaitSet& set, int64_t ns) { set.sleep(ns); };

// -- two processes ------------------------------------------------------------------------------------------

void send_fds(int channel, std::array<int, 3> fds) {
    char byte = 'f';
    iovec data{&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof fds)] = {};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fds);
    std::memcpy(CMSG_DATA(header), fds.data(), sizeof fds);
    CHECK(sendmsg(channel, &message, 0) == 1);
}

std::array<Fd, 3> receive_fds(int channel) {
    char byte;
    iovec data{&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(3 * sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    CHECK(recvmsg(channel, &message, MSG_CMSG_CLOEXEC) == 1);
    std::array<int, 3> fds;
    CHECK(CMSG_FIRSTHDR(&message) != nullptr);
    std::memcpy(fds.data(), CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fds);
    return {Fd(fds[0]), Fd(fds[1]), Fd(fds[2])};
}

// A process with a fence of its own, which `body` signals; the fence as it is seen from here.
struct Signaller {
    template <class Body>
    explicit Signaller(Body&& body) {
        int ends[2];
        CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
        pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            try {
                const auto mine = Timeline::create(0);
                send_fds(ends[1], mine->fds());
                body(*mine, ends[1]);
            } catch (const std::exception& error) {
                std::fprintf(stderr, "signaller: %s\n", error.what());
                _exit(1);
            }
            _exit(0);
        }
        channel = Fd(ends[0]);
        close(ends[1]);
        fds = receive_fds(channel.get());
        fence = Timeline::attach(fds[0].get(), fds[1].get(), fds[2].get());
    }
    ~Signaller() {
        if (pid > 0) end();
    }

    void go() { CHECK(write(channel.get(), "g", 1) == 1); }
    void end() {
        kill(pid, SIGKILL);
        CHECK(waitpid(pid, nullptr, 0) == pid);
        pid = 0;
    }
    std::shared_ptr<Timeline> again() const {
        return Timeline::attach(fds[0].get(), fds[1].get(), fds[2].get());
    }

    pid_t pid;
    Fd channel;
    std::array<Fd, 3> fds;
    std::shared_ptr<Timeline> fence;
};

void stand_by(int channel) {
    char byte;
    CHECK(read(channel, &byte, 1) == 1);
}

constexpr auto idle = [](Timeline&, int) {
    for (;;) pause();
};

bool wait(const std::shared_ptr<Fence>& fence, uint64_t value, int64_t timeout_ns = kLong) {
    const FencePoint point{fence, value};
    return !wait_any_until(std::span(&point, 1), deadline_after(timeout_ns), plain_sleep).empty();
}

// The same, and nothing but a wake-up may end a sleep.
bool wait_woken(const std::shared_ptr<Fence>& fence, uint64_t value) {
    const FencePoint point{fence, value};
    return !wait_any_until(std::span(&point, 1), kForever, sleep_until_woken).empty();
}

// -- tests --------------------------------------------------------------------------------------------------

void a_value_moves_up_only_and_its_maker_alone_moves_it() {
    const auto mine = Timeline::create(5);
    CHECK(mine->value() == 5 && mine->reached(5) && !mine->reached(6));
    mine->signal(5);
    mine->signal(9);
    CHECK(mine->value() == 9);
    CHECK_THROWS(mine->signal(8), RingError, "it has reached 9, not 8");
    CHECK_THROWS(mine->signal(MO_UNKNOWN_U64), RingError, "means unknown");
    CHECK_THROWS(Timeline::create(MO_UNKNOWN_U64), RingError, "means unknown");
    CHECK(mine->value() == 9);
    mine->signal(MO_UNKNOWN_U64 - 1);
    CHECK(wait(mine, MO_UNKNOWN_U64 - 1, 0));

    const auto fds = mine->fds();
    const auto theirs = Timeline::attach(fds[0], fds[1], fds[2]);
    CHECK_THROWS(theirs->signal(MO_UNKNOWN_U64 - 1), RingError, "only the process that made a fence");
    CHECK_THROWS(theirs->fds(), RingError, "its signaller has them");
    const pid_t child = fork();
    if (child == 0) {
        // Our mapping is the child's too, our office is not.
        CHECK_THROWS(mine->signal(MO_UNKNOWN_U64 - 1), RingError, "only the process that made a fence");
        mine->close();
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(!theirs->reached(MO_UNKNOWN_U64));  // still open
    mine->close();
    CHECK_THROWS(mine->value(), RingError, "is closed");
}

void every_wait_is_woken_by_its_value() {
    for (const bool waitv : {true, false}) {
        pretend_no_futex_waitv(!waitv);
        const uint64_t count = static_cast<uint64_t>(rounds(waitv ? 20'000 : 400));
        Signaller other([count](Timeline& mine, int channel) {
            stand_by(channel);
            std::minstd_rand random(7);
            for (uint64_t i = 1; i <= count; ++i) {
                if (random() % 4 == 0) usleep(random() % 50);
                mine.signal(i);
            }
            for (;;) pause();
        });
        other.go();
        std::vector<std::thread> waiters;
        for (uint64_t step : {1, 3, 7}) {
            waiters.emplace_back([&, step, fence = other.again()] {
                for (uint64_t value = step; value <= count; value += step) CHECK(wait_woken(fence, value));
            });
        }
        for (auto& waiter : waiters) waiter.join();
        CHECK(wait_woken(other.fence, count) && other.fence->value() == count);
        pretend_no_futex_waitv(false);
    }
}

// ThreadSanitizer looks at `data`, which is plain memory: written before the signal, read after the wait.
void what_was_written_before_a_signal_is_seen_after_the_wait() {
    const uint64_t count = static_cast<uint64_t>(rounds(40'000));
    std::vector<uint64_t> data(count + 1);
    const auto mine = Timeline::create(0);
    const auto fds = mine->fds();
    std::vector<std::thread> waiters;
    for (int i = 0; i < 3; ++i) {
        waiters.emplace_back([&, fence = Timeline::attach(fds[0], fds[1], -1)] {
            for (uint64_t value = 1; value <= count; ++value) {
                CHECK(wait_woken(fence, value));
                CHECK(data[value] == value * 3);
            }
        });
    }
    for (uint64_t value = 1; value <= count; ++value) {
        data[value] = value * 3;
        mine->signal(value);
    }
    for (auto& waiter : waiters) waiter.join();
}

void a_killed_signaller_is_an_error_for_every_waiter_at_once() {
    std::minstd_rand random(11);
    for (int round = 0; round < rounds(80); ++round) {
        Signaller other([](Timeline& mine, int channel) {
            stand_by(channel);
            for (uint64_t i = 1;; ++i) {
                mine.signal(i);
                usleep(i % 40);
            }
        });
        std::atomic<int> broken{0};
        std::vector<std::thread> waiters;
        constexpr int kWaiters = 12;
        for (int i = 0; i < kWaiters; ++i) {
            waiters.emplace_back([&, i, fence = other.again()] {
                uint64_t value = 1;
                try {
                    // Some follow the values, some wait for what never comes.
                    for (;; ++value) CHECK(wait_woken(fence, i % 2 == 0 ? value : value + 1'000'000'000));
                } catch (const FenceBroken& error) {
                    // What was reached is no error, so the value that failed is above the last.
                    CHECK(error.pid == other.pid && error.value == fence->value() && error.error == 0);
                    CHECK(error.value < (i % 2 == 0 ? value : value + 1'000'000'000));
                    CHECK(std::strstr(error.what(), std::to_string(other.pid).c_str()) != nullptr);
                    CHECK(std::strstr(error.what(), std::to_string(error.value).c_str()) != nullptr);
                    ++broken;
                }
            });
        }
        other.go();
        usleep(random() % 4000);
        kill(other.pid, SIGKILL);
        // Nobody collects the process meanwhile: a zombie is dead enough.
        for (auto& waiter : waiters) waiter.join();
        CHECK(broken == kWaiters);
        other.end();
    }
}

void who_comes_after_the_death_learns_of_it_without_waiting() {
    Signaller other([](Timeline& mine, int channel) {
        mine.signal(3);
        CHECK(write(channel, "3", 1) == 1);
        for (;;) pause();
    });
    stand_by(other.channel.get());
    const pid_t pid = other.pid;
    CHECK(!wait(other.fence, 4, 0));
    kill(pid, SIGKILL);
    siginfo_t info;
    CHECK(waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT) == 0);
    CHECK_THROWS(wait(other.fence, 4, 0), FenceBroken, "died with the fence at 3");  // a zombie
    other.end();
    CHECK_THROWS(wait(other.fence, 4, 0), FenceBroken, "died with the fence at 3");  // collected
    CHECK(wait(other.fence, 3, 0));                                                   // reached wins
    // Also whoever attaches only now.
    const auto late = other.again();
    CHECK(wait_woken(late, 3));
    CHECK_THROWS(wait(late, 4, 0), FenceBroken, std::to_string(pid).c_str());
    CHECK_THROWS(wait_woken(late, 4), FenceBroken, "died");
}

void a_stopped_signaller_is_not_dead() {
    Signaller other([](Timeline& mine, int channel) {
        stand_by(channel);
        mine.signal(1);
        for (;;) pause();
    });
    kill(other.pid, SIGSTOP);
    int status = 0;
    CHECK(waitpid(other.pid, &status, WUNTRACED) == other.pid && WIFSTOPPED(status));
    other.go();
    CHECK(!wait(other.fence, 1, 300 * kMillisecond));
    kill(other.pid, SIGCONT);
    CHECK(wait_woken(other.fence, 1));
    CHECK(!wait(other.fence, 2, 0));
}

void closing_ends_every_wait() {
    Signaller other([](Timeline& mine, int channel) {
        mine.signal(7);
        stand_by(channel);
        usleep(20'000);
        mine.close();
        for (;;) pause();
    });
    std::vector<std::thread> waiters;
    for (int i = 0; i < 4; ++i) {
        waiters.emplace_back([fence = other.again()] {
            CHECK_THROWS(wait_woken(fence, 8), FenceBroken, "closed the fence at 7");
        });
    }
    other.go();
    for (auto& waiter : waiters) waiter.join();
    CHECK(wait(other.fence, 7, 0));
}

// A hint that waiters garble costs time, never a value, a death or a wait that hangs.
void a_garbled_hint_delays_and_nothing_else() {
    for (const uint64_t garbage : {uint64_t{0}, UINT64_MAX}) {
        Signaller other([](Timeline& mine, int channel) {
            for (uint64_t i = 1; i <= 5; ++i) {
                stand_by(channel);
                usleep(10'000);
                mine.signal(i);
            }
            for (;;) pause();
        });
        Mapping page(other.fds[1].get(), MO_FENCE_BYTES, Access::read_write, "waiters' page");
        auto& waiters = *reinterpret_cast<mo_fence_waiters*>(page.data());
        std::atomic<bool> stop{false};
        std::thread vandal([&] {
            while (!stop) store_relaxed(waiters.asleep_after, garbage);
        });
        for (uint64_t i = 1; i <= 5; ++i) {
            other.go();
            CHECK(wait(other.fence, i));
        }
        other.end();
        CHECK_THROWS(wait(other.fence, 6), FenceBroken, "died with the fence at 5");
        stop = true;
        vandal.join();
    }
}

void a_waiter_that_may_write_nothing_still_sees_the_value_and_the_death() {
    Signaller other([](Timeline& mine, int channel) {
        stand_by(channel);
        usleep(10'000);
        mine.signal(1);
        for (;;) pause();
    });
    const auto reader = Timeline::attach(other.fds[0].get(), -1, other.fds[2].get());
    other.go();
    CHECK(wait(reader, 1));
    other.end();
    CHECK_THROWS(wait(reader, 2), FenceBroken, "died");
    // Not even a pidfd: it waits as long as it was told to, and cannot know better.
    CHECK(!wait(Timeline::attach(other.fds[0].get(), other.fds[1].get(), -1), 2, 20 * kMillisecond));
}

void several_fences_at_once() {
    constexpr auto obey = [](Timeline& mine, int channel) {
        for (uint64_t i = 1;; ++i) {
            stand_by(channel);
            mine.signal(i);
        }
    };
    for (const bool waitv : {true, false}) {
        pretend_no_futex_waitv(!waitv);
        Signaller a(obey), b(obey), c(obey);
        const FencePoint points[] = {{a.fence, 1}, {b.fence, 1}, {c.fence, 1}};
        CHECK(wait_any_until(std::span(points), deadline_after(0), plain_sleep).empty());
        CHECK(!wait_all_until(std::span(points), deadline_after(20 * kMillisecond), plain_sleep));
        b.go();
        CHECK(wait_any_until(std::span(points), kForever, sleep_until_woken) == std::vector<size_t>{1});
        c.go();
        std::thread later([&] {
            usleep(20'000);
            a.go();
        });
        CHECK(wait_all_until(std::span(points), kForever, sleep_until_woken));
        later.join();
        CHECK((wait_any_until(std::span(points), 0, plain_sleep) == std::vector<size_t>{0, 1, 2}));

        // One dies: no error for who waits for any and gets another, one at once for who waits for all.
        const FencePoint next[] = {{a.fence, 2}, {b.fence, 2}, {c.fence, 1}};
        a.end();
        CHECK(wait_any_until(std::span(next), kForever, sleep_until_woken) == std::vector<size_t>{2});
        CHECK_THROWS(wait_all_until(std::span(next), kForever, sleep_until_woken), FenceBroken, "died");
        CHECK_THROWS(wait_any_until(std::span(next, 2), kForever, sleep_until_woken), FenceBroken, "died");
        pretend_no_futex_waitv(false);
    }
    // More words than the kernel takes in one sleep.
    std::vector<std::shared_ptr<Timeline>> many;
    std::vector<FencePoint> points;
    for (int i = 0; i < 60; ++i) {
        many.push_back(Timeline::create(0));
        const auto fds = many.back()->fds();
        points.push_back({Timeline::attach(fds[0], fds[1], fds[2]), 1});
    }
    std::thread later([&] {
        for (const auto& fence : many) fence->signal(1);
    });
    CHECK(wait_all_until(std::span<const FencePoint>(points), deadline_after(kLong), plain_sleep));
    later.join();
}

#ifndef __SANITIZE_THREAD__  // which allows no threads after such a fork
void a_fork_watches_with_a_thread_of_its_own() {
    Signaller other(idle);
    const auto mine = Timeline::create(1);
    CHECK(!wait(other.fence, 1, kMillisecond));  // our thread runs
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    const pid_t middle = fork();
    if (middle == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        // Inherited: the fence of a third process, and the one of the parent, to which we are now a stranger.
        const pid_t child = fork();
        if (child == 0) {
            CHECK(!wait(mine, 2, kMillisecond));
            CHECK(write(ends[1], "r", 1) == 1);
            CHECK_THROWS(wait_woken(other.fence, 1), FenceBroken, "died with the fence at 0");
            CHECK(write(ends[1], "1", 1) == 1);
            _exit(0);
        }
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        _exit(0);
    }
    stand_by(ends[0]);
    other.end();
    CHECK_THROWS(wait_woken(other.fence, 1), FenceBroken, "died");  // the parent's thread goes on too
    stand_by(ends[0]);
    int status = 0;
    CHECK(waitpid(middle, &status, 0) == middle && status == 0);
    close(ends[0]);
    close(ends[1]);
}

void a_fork_sees_the_death_of_its_maker() {
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    const pid_t maker = fork();
    if (maker == 0) {
        const auto mine = Timeline::create(4);
        if (fork() == 0) {
            CHECK_THROWS(wait_woken(mine, 5), FenceBroken, "died with the fence at 4");
            CHECK(write(ends[1], "b", 1) == 1);
            _exit(0);
        }
        usleep(20'000);
        kill(getpid(), SIGKILL);
    }
    CHECK(waitpid(maker, nullptr, 0) == maker);
    close(ends[1]);
    stand_by(ends[0]);
    close(ends[0]);
}
#endif

void a_death_is_a_word_beside_others() {
    Signaller other(idle);
    DeathWatch death(Fd::duplicate(other.fds[2].get(), "process"));
    CHECK(death.pid() == other.pid && death.own_pid() == other.pid && !death.dead());
    const auto word = std::make_shared<uint32_t>(0);
    std::thread later([&] {
        usleep(20'000);
        kill(other.pid, SIGKILL);
    });
    WaitSet set;
    set.add(*word, 0, word);
    death.add_to(set);
    sleep_until_woken(set, 0);
    later.join();
    CHECK(death.dead());
    other.end();
    CHECK(death.dead());
    // A watch that is dropped while its process lives leaves nothing behind, a second one is independent.
    Signaller next(idle);
    for (int i = 0; i < 100; ++i) {
        DeathWatch brief(Fd::duplicate(next.fds[2].get(), "process"));
        WaitSet unused;
        brief.add_to(unused);
    }
    DeathWatch left(Fd::duplicate(next.fds[2].get(), "process"));
    DeathWatch right(Fd::duplicate(next.fds[2].get(), "process"));
    next.end();
    CHECK(left.watch()->wait_until(kForever, sleep_until_woken));
    CHECK(right.watch()->wait_until(kForever, sleep_until_woken));
}

void what_is_no_fence_is_refused_with_the_reason() {
    const auto mine = Timeline::create(0);
    const auto other = Timeline::create(0);
    const auto fds = mine->fds();
    CHECK_THROWS(Timeline::attach(fds[1], fds[1], fds[2]), RingError, "not sealed against writing");
    CHECK_THROWS(Timeline::attach(fds[0], fds[0], fds[2]), RingError, "not permitted");
    CHECK_THROWS(Timeline::attach(fds[0], other->fds()[1], fds[2]), RingError, "belongs to another fence");
    CHECK_THROWS(Timeline::attach(fds[0], fds[1], fds[0]), RingError, "no process descriptor (pidfd) but");
    CHECK_THROWS(Timeline::attach(1 << 20, -1, -1), RingError, "Bad file descriptor");
    Signaller stranger(idle);
    CHECK_THROWS(Timeline::attach(fds[0], fds[1], stranger.fds[2].get()), RingError,
                 std::to_string(stranger.pid).c_str());
    // A waiter cannot signal, whatever it does.
    CHECK_THROWS(Mapping(fds[0], MO_FENCE_BYTES, Access::read_write, "fence"), RingError, "not permitted");

    const auto forged = [](size_t bytes, auto&& write) {
        Fd file = create_memfd("forged", bytes);
        Mapping map(file.get(), bytes, Access::read_write, "forged");
        write(*reinterpret_cast<mo_fence*>(map.data()));
        add_seals(file.get(), F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW, "forged");
        return file;
    };
    const Fd empty = forged(MO_FENCE_BYTES, [](mo_fence&) {});
    CHECK_THROWS(Timeline::attach(empty.get(), -1, -1), RingError, "this file is not a fence");
    const Fd newer = forged(MO_FENCE_BYTES, [](mo_fence& fence) {
        fence.magic = MO_FENCE_MAGIC;
        fence.abi = MO_FENCE_ABI + 1;
    });
    CHECK_THROWS(Timeline::attach(newer.get(), -1, -1), RingError, "layout version 2, this program has 1");
    const Fd small = forged(2048, [](mo_fence&) {});
    CHECK_THROWS(Timeline::attach(small.get(), -1, -1), RingError, "too short");

    int ends[2];
    CHECK(pipe(ends) == 0);
    const Fd event(eventfd(0, EFD_CLOEXEC));
    CHECK_THROWS(SyncFile(ends[0]), RingError, "is no sync_file but pipe:[");
    CHECK_THROWS(SyncFile(fds[0]), RingError, "is no sync_file but /memfd:observatory-fence");
    CHECK_THROWS(SyncFile(event.get()), RingError, "is no sync_file but anon_inode:[eventfd]");
    CHECK_THROWS(SyncFile(1 << 20), RingError, "Bad file descriptor");
    close(ends[0]);
    close(ends[1]);
}

}  // namespace

int main() {
    RUN(a_value_moves_up_only_and_its_maker_alone_moves_it);
    RUN(every_wait_is_woken_by_its_value);
    RUN(what_was_written_before_a_signal_is_seen_after_the_wait);
    RUN(a_killed_signaller_is_an_error_for_every_waiter_at_once);
    RUN(who_comes_after_the_death_learns_of_it_without_waiting);
    RUN(a_stopped_signaller_is_not_dead);
    RUN(closing_ends_every_wait);
    RUN(a_garbled_hint_delays_and_nothing_else);
    RUN(a_waiter_that_may_write_nothing_still_sees_the_value_and_the_death);
    RUN(several_fences_at_once);
#ifndef __SANITIZE_THREAD__
    RUN(a_fork_watches_with_a_thread_of_its_own);
    RUN(a_fork_sees_the_death_of_its_maker);
#endif
    RUN(a_death_is_a_word_beside_others);
    RUN(what_is_no_fence_is_refused_with_the_reason);
}
