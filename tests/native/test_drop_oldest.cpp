// drop_oldest: the producer takes frames away from consumers that are too slow, and never what they hold.
#include "rig.hpp"

namespace {

using namespace rig;

void the_oldest_unread_frames_go() {
    auto p = producer(16, {{64, 3}});
    int handle;
    auto c = consumer(*p, MO_DROP_OLDEST, &handle);
    for (uint64_t i = 0; i < 3; ++i) CHECK(publish(*p, i));
    auto held = c->try_take();
    for (uint64_t i = 3; i < 10; ++i) CHECK(publish(*p, i));
    CHECK(holds(*held, 0));
    CHECK(p->dropped(handle) == 7 && p->backlog(handle) == 2);
    CHECK((p->take_dropped(handle) == std::vector<uint64_t>{1, 2, 3, 4, 5, 6, 7}) &&
          p->take_dropped(handle).empty());
    auto eight = c->try_take(), nine = c->try_take();
    CHECK(holds(*eight, 8) && holds(*nine, 9) && !c->try_take());
    // All three are held: now even drop_oldest has to wait.
    CHECK(!publish(*p, 10));
    c->release(*nine);
    CHECK(!publish(*p, 10) && c->acked() == 0);
    c->release(*held);
    CHECK(c->acked() == 8 && publish(*p, 10) && p->dropped(handle) == 7);
}

void descriptors_run_out_before_slots() {
    auto p = producer(4, {{64, 16}});
    int handle;
    auto c = consumer(*p, MO_DROP_OLDEST, &handle);
    for (uint64_t i = 0; i < 10; ++i) CHECK(publish(*p, i));
    CHECK(p->dropped(handle) == 6 && p->outstanding() == 4 && p->free_slots() == 12);
    CHECK(c->try_take()->descriptor.source_index == 6);
}

void a_blocking_sibling_still_blocks() {
    auto p = producer(16, {{64, 2}});
    int handle;
    auto dropping = consumer(*p, MO_DROP_OLDEST, &handle);
    auto blocking = consumer(*p);
    CHECK(publish(*p, 0) && publish(*p, 1) && !publish(*p, 2));
    CHECK(p->dropped(handle) == 0);  // it would not have helped
    auto slot = blocking->try_take();
    blocking->release(*slot);
    CHECK(publish(*p, 2) && p->dropped(handle) == 1);
    CHECK(dropping->try_take()->descriptor.source_index == 1);
}

void every_dropping_consumer_loses_only_its_own() {
    auto p = producer(16, {{64, 2}});
    int slow_handle, fast_handle;
    auto slow = consumer(*p, MO_DROP_OLDEST, &slow_handle), fast = consumer(*p, MO_DROP_OLDEST, &fast_handle);
    for (uint64_t i = 0; i < 10; ++i) {
        CHECK(publish(*p, i));
        auto slot = fast->try_take();
        CHECK(holds(*slot, i));
        fast->release(*slot);
    }
    CHECK(p->dropped(slow_handle) == 8 && p->dropped(fast_handle) == 0);
    CHECK(slow->try_take()->descriptor.source_index == 8);
}

void frames_can_be_dropped_before_the_consumer_attaches() {
    auto p = producer(16, {{64, 2}}, 1, 100);
    Consumer c(MO_DROP_OLDEST);
    const int handle = p->admit(c.page_fd(), MO_DROP_OLDEST);
    for (uint64_t i = 0; i < 5; ++i) CHECK(publish(*p, i));
    CHECK(p->dropped(handle) == 3);
    attach(c, *p);
    auto slot = c.try_take();
    CHECK(slot->descriptor.sequence == 103 && holds(*slot, 3) && c.acked() == 100);
    c.release(*slot);
    CHECK(c.acked() == 104 && p->outstanding() == 1);
}

void only_frames_count_as_dropped() {
    auto p = producer(4, {{64, 8}});
    int handle;
    auto c = consumer(*p, MO_DROP_OLDEST, &handle);
    mo_descriptor lost = unknown_descriptor(MO_FRAME_LOST);
    for (int i = 0; i < 4; ++i) CHECK(p->try_publish_empty(lost));
    for (uint64_t i = 0; i < 5; ++i) CHECK(publish(*p, i));
    CHECK(p->dropped(handle) == 1 && p->take_dropped(handle) == std::vector<uint64_t>{0});
}

void a_big_slot_is_freed_for_a_big_frame() {
    auto p = producer(16, {{64, 3}, {8192, 2}});
    int handle;
    auto c = consumer(*p, MO_DROP_OLDEST, &handle);
    CHECK(publish(*p, 0, 64) && publish(*p, 1, 8192) && publish(*p, 2, 64) && publish(*p, 3, 8192));
    CHECK(p->free_slots() == 1);
    CHECK(publish(*p, 4, 8192));  // frames 0 and 1 go: sequence order is the order of dropping
    CHECK(p->dropped(handle) == 2 && p->free_slots() == 2);
    CHECK(c->try_take()->descriptor.source_index == 2);
}

// Every frame reaches the consumer whole or is counted as dropped, never both, never neither.
void the_winner_of_the_race_owns_the_frame() {
    struct Case {
        uint32_t capacity;
        uint32_t slots;
    };
    // With one descriptor, a frame's own is rewritten as soon as it is taken.
    for (const auto& [capacity, slots] : {Case{4, 2}, Case{4, 3}, Case{4, 8}, Case{1, 8}}) {
        auto p = producer(capacity, {{256, slots}});
        int handle;
        auto c = consumer(*p, MO_DROP_OLDEST, &handle);
        const uint64_t count = static_cast<uint64_t>(rounds(120'000));
        std::vector<uint64_t> dropped;
        std::thread writer([&] {
            for (uint64_t i = 0; i < count; ++i) {
                const auto slot = p->acquire(256, kLong);
                CHECK(slot);
                fill(*slot, 256, i);
                p->publish(*slot, frame(i), 256);
                if (i % 64 == 0 || i + 1 == count)
                    for (const uint64_t index : p->take_dropped(handle)) dropped.push_back(index);
            }
            p->finish(MO_END_OF_STREAM);
        });
        std::vector<char> seen(count, 0);
        uint64_t next = 0;
        try {
            for (;;) {
                auto slot = c->take(kLong);
                CHECK(slot);
                const uint64_t index = slot->descriptor.source_index;
                CHECK(index >= next && holds(*slot, index));
                next = index + 1;
                seen[index] = 1;
                c->release(*slot);
            }
        } catch (const RingEnded& ended) {
            CHECK(ended.final_seq == count);
        }
        writer.join();
        CHECK(dropped.size() == p->dropped(handle));
        for (const uint64_t index : dropped) {
            CHECK(seen[index] == 0);
            seen[index] = 1;
        }
        for (const char each : seen) CHECK(each == 1);
        CHECK(p->outstanding() == 0 && p->free_slots() == slots);
        std::fprintf(stderr, "  %u descriptors, %u slots: %zu of %llu dropped\n", capacity, slots,
                     dropped.size(), static_cast<unsigned long long>(count));
    }
}

}  // namespace

int main() {
    RUN(the_oldest_unread_frames_go);
    RUN(descriptors_run_out_before_slots);
    RUN(a_blocking_sibling_still_blocks);
    RUN(every_dropping_consumer_loses_only_its_own);
    RUN(frames_can_be_dropped_before_the_consumer_attaches);
    RUN(only_frames_count_as_dropped);
    RUN(a_big_slot_is_freed_for_a_big_frame);
    RUN(the_winner_of_the_race_owns_the_frame);
}
