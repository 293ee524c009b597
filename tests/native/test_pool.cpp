#include "slab_pool.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <random>
#include <set>
#include <vector>

#include "check.hpp"
#include "error.hpp"

namespace {

using namespace mo;

void free_set_gives_the_lowest() {
    std::mt19937 random(1);
    for (const uint32_t count : {1u, 63u, 64u, 65u, 1000u}) {
        FreeSet set(count);
        std::set<uint32_t> model, out;
        for (uint32_t i = 0; i < count; ++i) model.insert(i);
        for (int step = 0; step < 5000; ++step) {
            if (random() % 2 != 0 || out.empty()) {
                const auto got = set.take();
                CHECK(got.has_value() == !model.empty());
                if (!got) continue;
                CHECK(*got == *model.begin());
                model.erase(model.begin());
                out.insert(*got);
            } else {
                auto back = out.begin();
                std::advance(back, random() % out.size());
                set.put(*back);
                model.insert(*back);
                out.erase(back);
            }
            CHECK(set.count() == model.size());
        }
    }
}

void smallest_class_first_then_bigger() {
    const SizeClass classes[] = {{100'000, 1}, {100, 2}, {5'000, 1}};
    SlabPool pool(classes);
    CHECK(pool.made(0).slot_bytes == 102'400 && pool.made(1).slot_bytes == 4096 &&
          pool.made(2).slot_bytes == 8192);
    CHECK(pool.largest() == 102'400 && pool.free_slots() == 4);
    CHECK(pool.take(1)->slab == 1 && pool.take(4096)->slab == 1);
    CHECK(pool.take(1)->slab == 2 && pool.take(1)->slab == 0);
    CHECK(!pool.take(1));
    pool.put({1, 1});
    CHECK(pool.take(4097) == std::nullopt && pool.take(4096)->slot == 1);
}

bool maps(int fd, int protection, int flags = MAP_SHARED) {
    void* data = mmap(nullptr, 4096, protection, flags, fd, 0);
    if (data == MAP_FAILED) return false;
    munmap(data, 4096);
    return true;
}

void nobody_else_can_write_a_slab() {
    const SizeClass classes[] = {{4096, 4}};
    SlabPool pool(classes);
    const int fd = pool.fd(0);
    pool.data({0, 3})[0] = 7;  // the pool itself can

    CHECK(!maps(fd, PROT_READ | PROT_WRITE) && errno == EPERM);
    CHECK(!maps(fd, PROT_WRITE) && errno == EPERM);
    CHECK(maps(fd, PROT_READ));
    CHECK(pwrite(fd, "x", 1, 0) < 0 && errno == EPERM);
    CHECK(ftruncate(fd, 0) < 0 && errno == EPERM);
    CHECK(ftruncate(fd, 1 << 20) < 0 && errno == EPERM);
    CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) < 0 && errno == EPERM);
    CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) < 0 && errno == EPERM);

    // Not even by changing a mapping that exists.
    void* data = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(data != MAP_FAILED);
    CHECK(mprotect(data, 4096, PROT_READ | PROT_WRITE) < 0 && errno == EACCES);
    munmap(data, 4096);
    // Reopening the file does not lose the seals.
    char path[64];
    std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    const Fd again(open(path, O_RDWR | O_CLOEXEC));
    CHECK(again && !maps(again.get(), PROT_READ | PROT_WRITE));
}

void says_what_it_cannot_make() {
    const auto make = [](SizeClass wanted) { return SlabPool({&wanted, 1}); };
    CHECK_THROWS(make({0, 1}), RingError, "not 1 of 0");
    CHECK_THROWS(make({1, 0}), RingError, "not 0 of 1");
    CHECK_THROWS(make({1, 65537}), RingError, "not 65537 of 1");
    CHECK_THROWS(make({UINT64_MAX / 2, 3}), RingError, "of 9223372036854775807");
    // More than any machine here has: refused before it drives the machine out of memory.
    CHECK_THROWS(make({uint64_t{1} << 40, 16, true}), RingError, "cannot reserve 17592186044416 bytes");
}

void slabs_of_a_class_are_alike_and_filled_from_the_first() {
    const SizeClass classes[] = {{4096, 10, false, false, 4}, {8192, 2}};
    SlabPool pool(classes);
    // 10 slots in slabs of at most 4 are three slabs of 4, 4 and 2.
    CHECK(pool.size() == 4 && pool.classes().size() == 2 && pool.classes()[0].slab_count == 3);
    CHECK(file_bytes(pool.fd(0), "slab") == 16384 && file_bytes(pool.fd(1), "slab") == 16384);
    CHECK(file_bytes(pool.fd(2), "slab") == 8192 && file_bytes(pool.fd(3), "slab") == 16384);
    for (uint32_t i = 0; i < 10; ++i) {
        const auto slot = pool.take(1);
        CHECK(slot->slab == i / 4 && slot->slot == i % 4);
    }
    CHECK(pool.take(1)->slab == 3);  // of the bigger class now
    pool.put({1, 2});
    pool.put({0, 3});
    CHECK(pool.take(4096)->slab == 0);
    CHECK(pool.take(4096)->slot == 2);
}

uint64_t count(SlabPool& pool, Allocation how) { return pool.stats(false).allocations[static_cast<size_t>(how)]; }

// What is resident, in whole pages, as the page cache itself tells it.
uint64_t pages_in_memory(int fd) {
    const size_t bytes = file_bytes(fd, "slab");
    void* data = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(data != MAP_FAILED);
    std::vector<unsigned char> pages(bytes / 4096);
    CHECK(mincore(data, bytes, pages.data()) == 0);
    munmap(data, bytes);
    uint64_t count = 0;
    for (const unsigned char page : pages) count += page & 1;
    return count;
}

void the_books_are_right() {
    const SizeClass classes[] = {{16384, 4, false, false, 2}, {32768, 1}};
    SlabPool pool(classes);
    const auto a = *pool.take(10'000);  // slab 0
    pool.allocated(a, 10'000, false);
    std::memset(pool.data(a), 1, 10'000);  // three pages
    auto stats = pool.stats(true);
    CHECK(stats.classes[0].in_use == 1 && stats.classes[0].high_water == 1);
    CHECK(stats.classes[0].payload_bytes == 10'000 && stats.classes[0].internal_bytes() == 6'384);
    CHECK(stats.classes[0].resident_bytes == 3 * 4096 && pages_in_memory(pool.fd(0)) == 3);
    CHECK(stats.classes[0].external_bytes == 0 && stats.classes[0].idle_bytes == 0);
    pool.note_payload(a, 9'000);
    CHECK(pool.stats(false).classes[0].payload_bytes == 9'000);

    SlotRef more[3];
    for (SlotRef& slot : more) {
        slot = *pool.take(16384);
        pool.allocated(slot, 16384, false);
        std::memset(pool.data(slot), 1, 16384);
    }
    CHECK(more[0].slab == 0 && more[1].slab == 1 && more[2].slab == 1);
    for (const SlotRef slot : more) pool.put(slot);
    stats = pool.stats(true);
    // Slab 0 has one slot in use and, besides, the four pages of an idle one, less what the one in use could still
    // take; slab 1 has two idle slots and could be given back.
    CHECK(stats.classes[0].in_use == 1 && stats.classes[0].high_water == 4);
    CHECK(stats.classes[0].resident_bytes == (3 + 4 + 8) * 4096);
    CHECK(pages_in_memory(pool.fd(0)) + pages_in_memory(pool.fd(1)) == 15);
    CHECK(stats.classes[0].external_bytes == 3 * 4096 && stats.classes[0].idle_bytes == 8 * 4096);
    CHECK(pool.stats(false).classes[0].high_water == 1);  // since the last look
    pool.put(a);
    CHECK(pool.stats(false).classes[0].payload_bytes == 0 && pool.stats(false).classes[0].idle_bytes == 15 * 4096);
    CHECK(count(pool, Allocation::hit) == 4);
}

void allocations_count_once() {
    const SizeClass classes[] = {{4096, 1}, {8192, 1}};
    SlabPool pool(classes);
    const auto got = [&](uint64_t bytes, bool reclaimed = false) {
        const auto slot = pool.take(bytes);
        if (slot)
            pool.allocated(*slot, bytes, reclaimed);
        else
            pool.failed(Allocation::wait_for_slot);
        return slot;
    };
    const auto small = got(100), big = got(100);
    CHECK(small->slab == 0 && big->slab == 1);
    CHECK(count(pool, Allocation::hit) == 1 && count(pool, Allocation::fallback) == 1);
    CHECK(pool.stats(false).classes[1].internal_bytes() == 8092);
    CHECK(!got(5000) && !got(5000) && !got(5000));
    pool.put(*big);
    CHECK(got(5000));
    CHECK(count(pool, Allocation::wait_for_slot) == 1 && count(pool, Allocation::hit) == 1);
    pool.put(*small);
    CHECK(got(1, true));
    CHECK(count(pool, Allocation::reclaim) == 1 && count(pool, Allocation::hit) == 1);
    pool.failed(Allocation::too_big);
    pool.failed(Allocation::too_big);
    CHECK(count(pool, Allocation::too_big) == 2);
    pool.failed(Allocation::wait_for_descriptor);
    CHECK(count(pool, Allocation::wait_for_descriptor) == 1);
}

}  // namespace

int main() {
    RUN(free_set_gives_the_lowest);
    RUN(smallest_class_first_then_bigger);
    RUN(nobody_else_can_write_a_slab);
    RUN(says_what_it_cannot_make);
    RUN(slabs_of_a_class_are_alike_and_filled_from_the_first);
    RUN(the_books_are_right);
    RUN(allocations_count_once);
}
