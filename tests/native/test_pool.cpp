#include "slab_pool.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <random>
#include <set>

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

void huge_pages_or_reserved_small_ones() {
    const SizeClass classes[] = {{3'000'000, 2, true}};
    SlabPool pool(classes);
    CHECK(pool.made(0).slot_bytes == 3'002'368);
    const size_t bytes = file_bytes(pool.fd(0), "slab");
    CHECK(bytes == (pool.made(0).huge_pages ? size_t{3} << 21 : size_t{6'004'736}));
    std::memset(pool.data({0, 1}), 1, 3'000'000);
}

}  // namespace

int main() {
    RUN(free_set_gives_the_lowest);
    RUN(smallest_class_first_then_bigger);
    RUN(nobody_else_can_write_a_slab);
    RUN(says_what_it_cannot_make);
    RUN(huge_pages_or_reserved_small_ones);
}
