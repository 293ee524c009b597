// What a broken or hostile peer writes is refused, and hurts nobody but itself.
#include <fcntl.h>
#include <sys/mman.h>

#include <functional>

#include "rig.hpp"

namespace {

using namespace rig;

// A second writable mapping of a ring not sealed yet: stores what a broken producer could.
struct Vandal {
    explicit Vandal(const Producer& p) : ring(RingMap::open(p.ring_fd(), Access::read_write)) {}
    std::shared_ptr<RingMap> ring;
};

void a_broken_descriptor_is_refused() {
    const std::vector<std::pair<const char*, std::function<void(mo_descriptor&)>>> damages = {
        {"says sequence 9", [](auto& d) { d.sequence = 9; }},
        {"payload kind 0", [](auto& d) { d.payload_kind = 0; }},
        {"payload kind 6", [](auto& d) { d.payload_kind = 6; }},
        {"pixel format 5", [](auto& d) { d.pixel_format = 5; }},
        {"5 planes", [](auto& d) { d.plane_count = 5; }},
        {"color range 3", [](auto& d) { d.color_range = 3; }},
        {"slab 1 of 1", [](auto& d) { d.slab = 1; }},
        {"slab 4294967295", [](auto& d) { d.slab = MO_UNKNOWN_U32; }},
        {"slot 3 is beyond", [](auto& d) { d.slot = 3; }},
        {"slot 4294967295 is beyond", [](auto& d) { d.slot = MO_UNKNOWN_U32; }},
        {"offset", [](auto& d) { d.offset += 1; }},
        {"offset", [](auto& d) { d.offset = MO_UNKNOWN_U64; }},
        {"4097 bytes in a slot of 4096", [](auto& d) { d.bytes = 4097; }},
        {"bytes in a slot", [](auto& d) { d.bytes = MO_UNKNOWN_U64; }},
        {"plane 0 ends", [](auto& d) { d.plane_offset[0] = 61; }},
        {"plane 0 ends", [](auto& d) { d.plane_offset[0] = MO_UNKNOWN_U32; }},
        {"plane 0 ends", [](auto& d) { d.plane_stride[0] = MO_UNKNOWN_U32; }},
        {"plane 0 ends", [](auto& d) { d.height = MO_UNKNOWN_U32; }},
        {"plane 0 ends", [](auto& d) { d.height = d.plane_stride[0] = MO_UNKNOWN_U32; }},
        {"a lost frame with a payload", [](auto& d) { d.payload_kind = MO_FRAME_LOST; }},
    };
    for (const auto policy : {MO_BLOCK, MO_DROP_OLDEST}) {
        for (const auto& [words, damage] : damages) {
            auto p = producer(4, {{4096, 3}});
            auto c = consumer(*p, policy);
            mo_descriptor good = frame(1);
            good.height = 1;
            good.plane_count = 1;
            good.plane_stride[0] = 4;
            p->publish(*p->try_acquire(64), good, 64);
            damage(Vandal(*p).ring->cell(0));
            CHECK_THROWS(c->try_take(), RingError, words);
            CHECK(c->held() == 0);
        }
    }
}

void a_garbled_ring_header_is_refused() {
    auto p = producer(4, {{64, 1}});
    const Vandal vandal(*p);
    auto& header = vandal.ring->header();
    const auto refused = [&](const char* words) {
        Consumer c(MO_BLOCK);
        CHECK_THROWS(attach(c, *p), RingError, words);
        CHECK_THROWS(Monitor(p->ring_fd()), RingError, words);
    };
    header.magic ^= 1;
    refused("not a ring");
    header.magic ^= 1;
    header.abi = 1;
    refused("layout version 1");
    header.abi = MO_RING_ABI;
    for (const uint32_t capacity : {0u, 3u, 1u << 16, 1u << 31}) {
        header.capacity = capacity;
        refused("contradicts itself");
    }
    header.capacity = 4;
    header.descriptor_bytes = 128;
    refused("contradicts itself");
    header.descriptor_bytes = sizeof(mo_descriptor);
    header.first_sequence = uint64_t{1} << 63;
    refused("contradicts itself");
    header.first_sequence = MO_UNKNOWN_U64;
    refused("has not begun");
}

void an_admission_that_cannot_be_is_refused() {
    auto p = producer(4, {{64, 2}});
    auto c = consumer(*p);
    Vandal(*p).ring->header().admissions[0].start = 3;  // beyond the tail
    CHECK_THROWS(c->try_take(), RingError, "broken producer");
}

void a_slab_that_could_change_under_us_is_refused() {
    auto p = producer(4, {{4096, 2}});
    const uint64_t slot_bytes[] = {4096};
    const auto attach_to = [&](int fd, uint64_t size = 4096) {
        Consumer c(MO_BLOCK);
        const int fds[] = {fd};
        const uint64_t sizes[] = {size};
        c.attach(p->ring_fd(), fds, sizes);
    };
    const Fd open_file = create_memfd("slab", 8192);
    CHECK_THROWS(attach_to(open_file.get()), RingError, "slab 0 is not sealed against shrinking writing");
    add_seals(open_file.get(), F_SEAL_SHRINK, "slab");
    CHECK_THROWS(attach_to(open_file.get()), RingError, "not sealed against writing");
    CHECK_THROWS(attach_to(p->pool().fd(0), 8193), RingError, "too short");
    CHECK_THROWS(attach_to(p->pool().fd(0), 0), RingError, "too short");
    CHECK_THROWS(attach_to(-1), RingError, "Bad file descriptor");
    Consumer c(MO_BLOCK);
    CHECK_THROWS(c.attach(p->ring_fd(), {}, slot_bytes), RingError, "0 slabs, but slot sizes for 1");
    CHECK_THROWS(c.attach(p->pool().fd(0), {}, {}), RingError, "not a ring");
    CHECK_THROWS(c.try_take(), RingError, "not attached");
    const int fd = p->pool().fd(0);
    c.attach(p->ring_fd(), {&fd, 1}, slot_bytes);  // a refused attach left nothing behind
}

void a_garbled_page_frees_only_its_own_frames() {
    auto p = producer(8, {{64, 4}});
    auto honest = consumer(*p);
    // A page that its owner can write at will: unlike a real consumer's it stays mapped here.
    Fd fd;
    const auto page = PageMap::create(MO_BLOCK, fd);
    const int handle = p->admit(fd.get(), MO_BLOCK);
    auto& words = page->page();
    for (uint64_t i = 0; i < 4; ++i) CHECK(publish(*p, i));
    for (const uint64_t lie : {MO_UNKNOWN_U64, MO_UNKNOWN_U64 - 1, uint64_t{1} << 63, uint64_t{5}}) {
        store_seq_cst(words.acked, lie);
        store_seq_cst(words.taken, lie);
        CHECK(!publish(*p, 9) && p->outstanding() == 4);
        CHECK(p->backlog(handle) <= 4);
    }
    store_seq_cst(words.acked, uint64_t{0});  // backwards
    auto slot = honest->try_take();
    CHECK(holds(*slot, 0));
    honest->release(*slot);
    CHECK(publish(*p, 4) && !publish(*p, 5));
}

void a_garbled_drop_oldest_page_neither_hangs_nor_breaks() {
    auto p = producer(8, {{64, 2}});
    Fd fd;
    const auto page = PageMap::create(MO_DROP_OLDEST, fd);
    const int handle = p->admit(fd.get(), MO_DROP_OLDEST);
    CHECK(page->page().taken == 0);
    for (uint64_t i = 0; i < 6; ++i) CHECK(publish(*p, i));
    CHECK(p->dropped(handle) == 4);
    for (const uint64_t lie : {uint64_t{1}, uint64_t{1000}, MO_UNKNOWN_U64}) {
        store_seq_cst(page->page().taken, lie);
        publish(*p, 6);
        publish(*p, 7);
    }
    p->dismiss(handle);
    CHECK(p->free_slots() == 2);
}

void a_page_must_be_one() {
    auto p = producer(4, {{64, 2}});
    const auto refused = [&](const char* words, auto damage) {
        const Fd fd = create_memfd("page", MO_PAGE_BYTES);
        Mapping map(fd.get(), MO_PAGE_BYTES, Access::read_write, "page");
        auto& page = *reinterpret_cast<mo_consumer_page*>(map.data());
        page.magic = MO_PAGE_MAGIC;
        page.abi = MO_RING_ABI;
        page.page_id = 1;
        damage(page, fd.get());
        CHECK_THROWS(p->admit(fd.get(), MO_BLOCK), RingError, words);
    };
    refused("not sealed", [](mo_consumer_page&, int) {});
    const auto seal = [](int fd) { add_seals(fd, F_SEAL_SHRINK, "page"); };
    refused("not a consumer page", [&](auto& page, int fd) { page.magic = 0, seal(fd); });
    refused("layout version 7", [&](auto& page, int fd) { page.abi = 7, seal(fd); });
    refused("contradicts itself", [&](auto& page, int fd) { page.policy = 2, seal(fd); });
    refused("contradicts itself", [&](auto& page, int fd) { page.page_id = 0, seal(fd); });
    refused("too short", [&](auto&, int fd) {
        CHECK(ftruncate(fd, 100) == 0);
        seal(fd);
    });
    CHECK(p->tail() == 0 && p->admit(Consumer(MO_BLOCK).page_fd(), MO_BLOCK) == 0);
}

void only_the_owner_writes_a_block_page_and_a_sealed_ring() {
    auto p = producer(4, {{64, 2}});
    Consumer block(MO_BLOCK), drop(MO_DROP_OLDEST);
    CHECK_THROWS(PageMap::open(block.page_fd(), Access::read_write), RingError, "Operation not permitted");
    CHECK(PageMap::open(drop.page_fd(), Access::read_write));
    Monitor monitor(p->ring_fd());
    monitor.seal_ring();
    CHECK_THROWS(RingMap::open(p->ring_fd(), Access::read_write), RingError, "Operation not permitted");
#ifndef __SANITIZE_THREAD__  // where all mappings of a file are the writable one
    const auto readable = RingMap::open(p->ring_fd(), Access::read_only);
    CHECK(mprotect(&readable->header(), 4096, PROT_READ | PROT_WRITE) < 0 && errno == EACCES);
#endif
}

}  // namespace

int main() {
    RUN(a_broken_descriptor_is_refused);
    RUN(a_garbled_ring_header_is_refused);
    RUN(an_admission_that_cannot_be_is_refused);
    RUN(a_slab_that_could_change_under_us_is_refused);
    RUN(a_garbled_page_frees_only_its_own_frames);
    RUN(a_garbled_drop_oldest_page_neither_hangs_nor_breaks);
    RUN(a_page_must_be_one);
    RUN(only_the_owner_writes_a_block_page_and_a_sealed_ring);
}
