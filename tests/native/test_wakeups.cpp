// Waiting for rings through a file descriptor: no wake-up is lost, none comes for nothing.
#include "wakeups.hpp"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "rig.hpp"

using namespace rig;

namespace {

bool readable(const Wakeups& wakeups, int64_t for_ns) {
    pollfd fd{wakeups.fd(), POLLIN, 0};
    int result;
    do result = poll(&fd, 1, static_cast<int>(for_ns / kMillisecond));
    while (result < 0);
    return result > 0;
}

// A word of our own to wait for.
struct Word {
    uint32_t value = 0;

    WaitSet seen() const {
        WaitSet set;
        set.add(value, load_seq_cst(value), nullptr);
        return set;
    }
    void change() {
        fetch_add(value, 1u);
        futex_wake(value);
    }
};

// Sleeps through a file descriptor, as an event loop does; until woken, however short a sleep was asked for.
struct Loop {
    Wakeups wakeups{kLong};
    uint64_t token = 0;
    uint64_t sleeps = 0;

    void sleep(WaitSet on, WaitSet look_at) {
        wakeups.watch(++token, std::move(on), std::move(look_at));
        CHECK(readable(wakeups, kLong));
        CHECK(wakeups.fired() == std::vector{token});
        ++sleeps;
    }
};

void a_change_makes_it_readable() {
    Word word, other;
    Wakeups wakeups;
    wakeups.watch(1, word.seen(), WaitSet());
    wakeups.watch(2, other.seen(), WaitSet());
    CHECK(!readable(wakeups, 120 * kMillisecond));
    word.change();
    CHECK(readable(wakeups, kLong));
    CHECK(wakeups.fired() == std::vector<uint64_t>{1});
    CHECK(!readable(wakeups, 0));
    word.change();  // that watch is over
    CHECK(!readable(wakeups, 120 * kMillisecond));
    other.change();
    CHECK(readable(wakeups, kLong));
    CHECK(wakeups.fired() == std::vector<uint64_t>{2});
}

void what_changed_before_the_watch_fires_at_once() {
    Word word;
    Loop loop;
    const WaitSet before = word.seen();
    word.change();
    loop.sleep(before, WaitSet());
}

void what_nobody_wakes_is_looked_at() {
    Word silent;
    Wakeups wakeups;
    wakeups.watch(1, WaitSet(), silent.seen());
    CHECK(!readable(wakeups, 120 * kMillisecond));
    store_seq_cst(silent.value, 5u);
    CHECK(readable(wakeups, kLong));
    CHECK(wakeups.fired() == std::vector<uint64_t>{1});
}

void forgotten_watches_do_not_fire() {
    Word word;
    Wakeups wakeups(kLong);
    wakeups.watch(1, word.seen(), WaitSet());
    wakeups.watch(2, word.seen(), WaitSet());
    wakeups.forget(1);
    word.change();
    CHECK(readable(wakeups, kLong));
    CHECK(wakeups.fired() == std::vector<uint64_t>{2});
    wakeups.watch(3, word.seen(), WaitSet());
    word.change();
    CHECK(readable(wakeups, kLong));
    wakeups.forget(3);  // fired already, and not asked for yet
    CHECK(wakeups.fired().empty());
    wakeups.watch(4, word.seen(), WaitSet());
    wakeups.fire(4);
    wakeups.fire(4);
    wakeups.fire(99);
    CHECK(wakeups.fired() == std::vector<uint64_t>{4});
}

void it_ends_while_it_sleeps() {
    for (int i = 0; i < 200; ++i) {
        Word word;
        Wakeups wakeups(kLong);
        if (i % 3 != 0) wakeups.watch(1, word.seen(), WaitSet());
        if (i % 3 == 2) word.change();
    }
}

// Two threads hand frames over as fast as they can, both sides sleeping through file descriptors.
void no_wake_up_is_lost(mo_edge_policy policy, uint32_t slots) {
    constexpr uint64_t kFrames = 30'000;
    auto from = producer(4, {{4096, slots}});
    auto to = consumer(*from, policy);
    std::atomic<uint64_t> read{0}, slept{0};
    std::thread reader([&] {
        Loop loop;
        try {
            for (;;) {
                if (auto slot = to->try_take()) {
                    to->release(*slot);
                    ++read;
                    continue;
                }
                const Consumer::WaitingFlag flag = to->waiting_flag();
                WaitSet doorbell;
                to->add_doorbell(doorbell);
                if (!to->ready()) loop.sleep(std::move(doorbell), WaitSet());
            }
        } catch (const RingEnded&) {
        }
        slept += loop.sleeps;
    });
    Loop loop;
    for (uint64_t i = 0; i < kFrames; ++i) {
        auto slot = from->try_acquire(16);
        while (!slot) {
            const Producer::WaitingFlag flag = from->waiting_flag();
            loop.sleep(from->room(), WaitSet());
            slot = from->try_acquire(16);
        }
        from->publish(*slot, frame(i), 16);
    }
    from->finish(MO_END_OF_STREAM);
    reader.join();
    slept += loop.sleeps;
    CHECK(read + from->dropped(0) == kFrames);
    CHECK(slept > 0);
    std::fprintf(stderr, "  %llu frames read, %llu sleeps\n", static_cast<unsigned long long>(read.load()),
                 static_cast<unsigned long long>(slept.load()));
}

void nothing_is_lost_under_block() { no_wake_up_is_lost(MO_BLOCK, 2); }
void nothing_is_lost_under_drop_oldest() { no_wake_up_is_lost(MO_DROP_OLDEST, 3); }

void a_forked_child_leaves_the_parents_alone() {
    Word word;
    Wakeups wakeups(kLong);
    wakeups.watch(1, word.seen(), WaitSet());
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK_THROWS(wakeups.watch(2, word.seen(), WaitSet()), RingError, "forked");
        wakeups.fire(1);
        wakeups.forget(1);
        CHECK(wakeups.fired().empty());
        wakeups.~Wakeups();
        _exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(!readable(wakeups, 50 * kMillisecond));
    word.change();
    CHECK(readable(wakeups, kLong));
    CHECK(wakeups.fired() == std::vector<uint64_t>{1});
}

}  // namespace

int main() {
    RUN(a_change_makes_it_readable);
    RUN(what_changed_before_the_watch_fires_at_once);
    RUN(what_nobody_wakes_is_looked_at);
    RUN(forgotten_watches_do_not_fire);
    RUN(it_ends_while_it_sleeps);
    RUN(nothing_is_lost_under_block);
    RUN(nothing_is_lost_under_drop_oldest);
    RUN(a_forked_child_leaves_the_parents_alone);
    return 0;
}
