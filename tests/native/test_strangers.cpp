// What a producer and a consumer need to know of each other when nobody supervises them.
#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>

#include <mutex>
#include <thread>

#include "rig.hpp"

namespace {

using namespace rig;

void held_counts_what_is_kept_from_the_producer() {
    auto p = producer(8, {{64, 4}});
    int handle;
    auto c = consumer(*p, MO_DROP_OLDEST, &handle);
    CHECK(p->held(handle) == 0);
    for (uint64_t i = 0; i < 4; ++i) CHECK(publish(*p, i));
    CHECK(p->held(handle) == 0);
    auto kept = c->try_take();
    CHECK(p->held(handle) == 1);
    // 1 to 3 are dropped for 4 to 6: `taken` has moved on by more than one frame that is really held.
    for (uint64_t i = 4; i < 7; ++i) CHECK(publish(*p, i));
    CHECK(p->dropped(handle) == 3 && p->held(handle) == 1);
    auto second = c->try_take();
    CHECK(second->descriptor.source_index == 4 && p->held(handle) == 2);
    c->release(*second);  // acknowledged is a prefix: the first one keeps it
    CHECK(p->held(handle) == 2);
    c->release(*kept);
    CHECK(p->held(handle) == 0);
    p->dismiss(handle);
    CHECK(p->held(handle) == 0);
}

void a_page_that_lies_is_believed_to_hold_no_more_than_there_is() {
    auto p = producer(8, {{64, 4}});
    Fd fd;
    const auto page = PageMap::create(MO_DROP_OLDEST, fd);
    const int handle = p->admit(fd.get(), MO_DROP_OLDEST);
    for (uint64_t i = 0; i < 3; ++i) CHECK(publish(*p, i));
    store_seq_cst(page->page().taken, MO_UNKNOWN_U64 - 1);
    CHECK(p->held(handle) == 3);
    store_seq_cst(page->page().acked, MO_UNKNOWN_U64);
    CHECK(p->held(handle) == 0);
}

void a_page_that_cannot_be_dropped_for_counts_as_holding_everything() {
    for (const uint64_t lie : {uint64_t{0}, MO_UNKNOWN_U64}) {  // back, and as if it had never come
        auto p = producer(8, {{64, 4}});
        auto honest = consumer(*p, MO_DROP_OLDEST);
        Fd fd;
        const auto page = PageMap::create(MO_DROP_OLDEST, fd);
        const int handle = p->admit(fd.get(), MO_DROP_OLDEST);
        for (uint64_t i = 0; i < 6; ++i) CHECK(publish(*p, i));
        CHECK(p->held(handle) == 0);
        store_seq_cst(page->page().taken, lie);
        CHECK(!publish(*p, 6) && p->held(handle) == 4);
        p->dismiss(handle);
        CHECK(publish(*p, 6));
    }
}

void what_is_acknowledged_keeps_no_descriptor() {
    auto p = producer(4, {{64, 8}});
    Fd fd;
    const auto page = PageMap::create(MO_DROP_OLDEST, fd);
    const int handle = p->admit(fd.get(), MO_DROP_OLDEST);
    for (uint64_t i = 0; i < 100; ++i) {
        CHECK(publish(*p, i));
        store_seq_cst(page->page().acked, MO_UNKNOWN_U64 - 1 - i);  // another one every time: it is read again
        store_seq_cst(page->page().taken, uint64_t{0});
    }
    CHECK(p->held(handle) == 0);
}

void a_dismissed_consumer_can_know() {
    auto p = producer(8, {{64, 2}});
    int handle;
    auto c = consumer(*p, MO_DROP_OLDEST, &handle);
    CHECK(!c->dismissed());  // it has not even begun
    CHECK(publish(*p, 0));
    auto slot = c->try_take();
    CHECK(!c->dismissed());
    p->dismiss(handle);
    CHECK(c->dismissed());
    CHECK(publish(*p, 1));
    CHECK_THROWS(c->try_take(), RingError, "dismissed");
}

// Calls into a producer or consumer while another thread sleeps in it: one lock stands for Python's, which is given up
// while sleeping, and only then. Sleeps have no slices here, so a wake-up that does not come fails the test.
struct Sleeping {
    std::mutex lock;
    std::atomic<bool> asleep{false};

    auto sleep() {
        return [this](const WaitSet& set, int64_t ns) {
            lock.unlock();
            asleep = true;
            sleep_until_woken(set, ns);
            lock.lock();
        };
    }

    template <class Wait, class Act>
    void run(Wait wait, Act act) {
        std::thread sleeper([&] {
            const std::lock_guard guard(lock);
            wait();
        });
        while (!asleep) std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::milliseconds(100));  // it says so just before it is
        {
            const std::lock_guard guard(lock);
            act();
        }
        sleeper.join();
    }
};

void a_dismissal_wakes_a_producer_without_room() {
    auto p = producer(8, {{64, 1}});
    int handle;
    auto c = consumer(*p, MO_BLOCK, &handle);
    CHECK(publish(*p, 0));
    Sleeping sleeping;
    bool got = false;
    sleeping.run(
        [&] {
            got = p->wait_until(deadline_after(kLong), [&] { return p->try_acquire(64); }, sleeping.sleep())
                      .has_value();
        },
        [&] { p->dismiss(handle); });
    CHECK(got);
}

void the_word_of_a_death_wakes_a_consumer() {
    auto p = producer(8, {{64, 1}});
    auto c = consumer(*p);
    Sleeping sleeping;
    sleeping.run(
        [&] { CHECK_THROWS(c->take_until(deadline_after(kLong), sleeping.sleep()), RingEnded, "failed"); },
        [&] { c->end_at(uint64_t{1} << 62, MO_END_FAILED); });
}

void a_page_on_huge_pages_is_refused() {
    auto p = producer(4, {{64, 2}});
    const Fd fd(memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB | MFD_HUGE_2MB));
    if (!fd || ftruncate(fd.get(), kHugePageBytes) != 0) return;  // no such file system here
    add_seals(fd.get(), F_SEAL_SHRINK, "page");
    CHECK_THROWS(p->admit(fd.get(), MO_BLOCK), RingError, "on huge pages");
}

}  // namespace

int main() {
    RUN(held_counts_what_is_kept_from_the_producer);
    RUN(a_page_that_lies_is_believed_to_hold_no_more_than_there_is);
    RUN(a_page_that_cannot_be_dropped_for_counts_as_holding_everything);
    RUN(what_is_acknowledged_keeps_no_descriptor);
    RUN(a_dismissed_consumer_can_know);
    RUN(a_dismissal_wakes_a_producer_without_room);
    RUN(the_word_of_a_death_wakes_a_consumer);
    RUN(a_page_on_huge_pages_is_refused);
}
