// Whatever is made and closed, or refused halfway, leaves no descriptor and no mapping behind.
#include <dirent.h>

#include "rig.hpp"

namespace {

using namespace rig;

size_t open_descriptors() {
    size_t count = 0;
    DIR* folder = opendir("/proc/self/fd");
    CHECK(folder != nullptr);
    while (readdir(folder) != nullptr) ++count;
    closedir(folder);
    return count;
}

// Mappings of our files only: the allocator and the sanitizers make others.
size_t our_mappings() {
    FILE* maps = std::fopen("/proc/self/maps", "re");
    CHECK(maps != nullptr);
    size_t count = 0;
    char line[512];
    while (std::fgets(line, sizeof line, maps) != nullptr)
        if (std::strstr(line, "/memfd:observatory-") != nullptr) ++count;
    std::fclose(maps);
    return count;
}

void use_everything() {
    auto p = producer(8, {{4096, 4, false, true, 3}, {1 << 20, 2}, {3 << 20, 1, true}});
    prefault(p->pool().mappings());
    CHECK(p->pool_stats(true).classes.size() == 3);
    const auto ring = EventRing::create(1024);
    p->trace({ring, 1, 1, 0, 0});
    EventRing::attach(ring->fd())->close();
    auto a = consumer(*p), b = consumer(*p, MO_DROP_OLDEST);
    Monitor monitor(p->ring_fd());
    monitor.watch(a->page_fd());
    monitor.seal_ring();
    CHECK(publish(*p, 1, 1 << 20));
    auto held = a->try_take();
    auto open = p->try_acquire(10);
    p->dismiss(1);
    a->close();
    CHECK(holds(*held, 1));  // the lease keeps its memory
    if (open->place.slot % 2 == 0) p->close();
}

void refuse_everything() {
    CHECK_THROWS(producer(8, {{4096, 4}, {0, 1}}), RingError, "not 1 of 0");
    CHECK_THROWS(producer(8, {{4096, 4}, {uint64_t{1} << 40, 16, true}}), RingError, "cannot reserve");
    CHECK_THROWS(producer(8, {{4096, 4, false, true, 1}, {4096, 1, false, false, 0, "n0/gpu0"}}), RingError, "n0/gpu0");
    auto p = producer(8, {{4096, 4}});
    Consumer c(MO_BLOCK);
    const int fds[] = {p->pool().fd(0), p->ring_fd()};
    const uint64_t sizes[] = {4096, 4096};
    CHECK_THROWS(c.attach(p->ring_fd(), fds, sizes), RingError, "slab 1 is not sealed against writing");
    CHECK_THROWS(p->admit(p->ring_fd(), MO_BLOCK), RingError, "not a consumer page");
    CHECK_THROWS(EventRing::attach(p->ring_fd()), RingError, "not an event ring");
    CHECK_THROWS(Monitor(p->pool().fd(0)), RingError, "Operation not permitted");
}

}  // namespace

int main() {
    use_everything();
    refuse_everything();
    const size_t descriptors = open_descriptors(), mappings = our_mappings();
    CHECK(mappings == 0);
    for (int i = 0; i < 20; ++i) {
        RUN(use_everything);
        RUN(refuse_everything);
    }
    CHECK(open_descriptors() == descriptors && our_mappings() == 0);
}
