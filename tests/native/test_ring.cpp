// The ring in one thread: order, acknowledgements, admission, end, next incarnation.
#include "rig.hpp"

namespace {

using namespace rig;

void frames_arrive_in_order_and_slots_come_back() {
    auto p = producer(4, {{64, 3}});
    auto c = consumer(*p);
    CHECK(!c->try_take());
    for (uint64_t i = 0; i < 100; ++i) {
        CHECK(publish(*p, i));
        auto slot = c->try_take();
        CHECK(slot && slot->descriptor.sequence == i && slot->descriptor.source_index == i &&
              holds(*slot, i));
        CHECK(slot->descriptor.slot == 0);  // always the same warm slot
        // Nobody traces: only the first was waited for, and no time of the producer's is known.
        CHECK((slot->wait_ns != MO_UNKNOWN_I64) == (i == 0) && slot->descriptor.signal_ns == MO_UNKNOWN_I64);
        CHECK(c->held() == 1 && c->taken() == i + 1 && c->acked() == i && p->outstanding() == 1);
        c->release(*slot);
        CHECK(c->held() == 0 && c->acked() == i + 1 && p->outstanding() == 0 && p->free_slots() == 3);
    }
}

void releases_in_any_order() {
    auto p = producer(8, {{64, 4}});
    auto c = consumer(*p);
    std::vector<ReadSlot> held;
    for (uint64_t i = 0; i < 4; ++i) CHECK(publish(*p, i));
    CHECK(!publish(*p, 9));
    CHECK(p->backlog(0) == 4 && c->backlog() == 4);
    for (uint64_t i = 0; i < 4; ++i) held.push_back(*c->try_take());
    CHECK(p->backlog(0) == 0 && p->outstanding() == 4);
    c->release(held[2]);
    c->release(held[1]);
    CHECK(c->acked() == 0 && c->held() == 2 && !publish(*p, 9));
    CHECK_THROWS(c->release(held[1]), LeaseError, "not held");
    c->release(held[0]);
    CHECK(c->acked() == 3 && p->free_slots() == 3);
    for (uint64_t i = 4; i < 7; ++i) CHECK(publish(*p, i));
    c->release(held[3]);
    CHECK(c->acked() == 4 && p->free_slots() == 1);
}

void the_slowest_consumer_keeps_the_slot() {
    auto p = producer(4, {{64, 2}});
    auto a = consumer(*p), b = consumer(*p);
    CHECK(publish(*p, 0) && publish(*p, 1) && !publish(*p, 2));
    auto first = a->try_take(), second = a->try_take();
    a->release(*first);
    a->release(*second);
    CHECK(!publish(*p, 2));
    auto of_b = b->try_take();
    CHECK(holds(*of_b, 0));
    b->release(*of_b);
    CHECK(publish(*p, 2));
    CHECK(!publish(*p, 3));
    p->dismiss(1);
    CHECK(p->free_slots() == 1 && p->outstanding() == 1);
    CHECK_THROWS(b->try_take(), RingError, "dismissed");
    CHECK_THROWS(p->dismiss(1), RingError, "dismissed before");
    CHECK_THROWS(p->dismiss(7), RingError, "no consumer 7");
}

void a_descriptor_is_reused_only_when_acknowledged_by_all() {
    auto p = producer(2, {{64, 8}});
    auto c = consumer(*p);
    CHECK(publish(*p, 0) && publish(*p, 1) && !publish(*p, 2));
    auto first = c->try_take();
    CHECK(!publish(*p, 2));  // it may be needed again
    c->release(*first);
    CHECK(publish(*p, 2) && !publish(*p, 3));
    CHECK(!p->try_publish_empty(unknown_descriptor(MO_FRAME_LOST)));
    auto second = c->try_take(), third = c->try_take();
    CHECK(second->descriptor.source_index == 1 && third->descriptor.source_index == 2);
    CHECK(holds(*second, 1) && holds(*third, 2));
    c->release(*second);
    c->release(*third);
    // Open slots hold the right to a descriptor, so publishing never waits.
    auto one = p->try_acquire(64), two = p->try_acquire(64);
    CHECK(one && two && !p->try_acquire(64));
    p->abandon(two->place);
    CHECK(p->try_acquire(64)->place.slot == two->place.slot);
}

void lost_frames_need_no_slot() {
    auto p = producer(8, {{64, 1}});
    auto c = consumer(*p);
    mo_descriptor lost = unknown_descriptor(MO_FRAME_LOST);
    lost.source_index = 5;
    CHECK(p->try_publish_empty(lost) == 0);
    CHECK_THROWS(p->try_publish_empty(frame(1)), RingError, "only a lost frame");
    CHECK_THROWS(p->publish(*p->try_acquire(1), lost, 0), RingError, "no payload");
    auto slot = c->try_take();
    CHECK(slot && slot->data == nullptr && slot->descriptor.source_index == 5 && slot->descriptor.bytes == 0);
    c->release(*slot);
    CHECK(p->outstanding() == 0);
}

void with_nobody_listening_slots_are_free_at_once() {
    auto p = producer(2, {{64, 1}});
    for (uint64_t i = 0; i < 10; ++i) CHECK(publish(*p, i));
    CHECK(p->tail() == 10 && p->outstanding() == 0);
}

void the_start_does_not_depend_on_who_comes_first() {
    auto p = producer(8, {{64, 8}}, 1, 1000);
    Consumer early(MO_BLOCK), late(MO_BLOCK), drops(MO_DROP_OLDEST), outsider(MO_BLOCK);
    attach(early, *p);  // before admission
    attach(outsider, *p);
    CHECK(!early.try_take() && !early.ready() && early.backlog() == 0 && early.taken() == 1000);
    p->admit(early.page_fd(), MO_BLOCK);
    for (uint64_t i = 0; i < 3; ++i) CHECK(publish(*p, i));
    p->admit(late.page_fd(), MO_BLOCK);
    p->admit(drops.page_fd(), MO_DROP_OLDEST);
    for (uint64_t i = 3; i < 5; ++i) CHECK(publish(*p, i));
    attach(late, *p);  // after admission, and after more was published
    attach(drops, *p);
    CHECK(early.try_take()->descriptor.sequence == 1000 && early.backlog() == 4);
    CHECK(late.try_take()->descriptor.sequence == 1003 && late.acked() == 1003);
    CHECK(drops.try_take()->descriptor.sequence == 1003);
    CHECK(!outsider.try_take());  // sees nothing, instead of frames that nobody keeps for it
    CHECK_THROWS(p->admit(late.page_fd(), MO_BLOCK), RingError, "admitted already");
    CHECK_THROWS(p->admit(outsider.page_fd(), MO_DROP_OLDEST), RingError, "Operation not permitted");
    Consumer other(MO_DROP_OLDEST);
    CHECK_THROWS(p->admit(other.page_fd(), MO_BLOCK), RingError, "other policy");
    CHECK_THROWS(p->admit(p->ring_fd(), MO_BLOCK), RingError, "not a consumer page");
}

void sixty_four_consumers_and_no_more() {
    auto p = producer(8, {{64, 8}});
    std::vector<std::unique_ptr<Consumer>> all;
    for (int i = 0; i < MO_MAX_CONSUMERS; ++i) all.push_back(consumer(*p));
    Consumer one_more(MO_BLOCK);
    CHECK_THROWS(p->admit(one_more.page_fd(), MO_BLOCK), RingError, "at most 64");
    CHECK(publish(*p, 0));
    for (auto& c : all) {
        CHECK(p->free_slots() == 7);
        auto slot = c->try_take();
        c->release(*slot);
    }
    CHECK(p->free_slots() == 8);
    p->dismiss(10);
    CHECK(p->admit(one_more.page_fd(), MO_BLOCK) == 64);  // handles are not used again, places are
    CHECK(publish(*p, 1));
    attach(one_more, *p);
    CHECK(one_more.try_take()->descriptor.source_index == 1);
}

void the_end_comes_after_the_last_frame() {
    auto p = producer(4, {{64, 4}});
    auto c = consumer(*p);
    CHECK(publish(*p, 0) && publish(*p, 1));
    auto open = p->try_acquire(64);
    CHECK(p->finish(MO_END_STOPPED) == 2 && p->finish(MO_END_FAILED) == 2);
    CHECK_THROWS(publish(*p, 2), RingError, "ended");
    CHECK_THROWS(p->publish(*open, frame(2), 1), RingError, "ended");
    CHECK(c->ready() && c->try_take() && c->try_take());
    for (int i = 0; i < 2; ++i) {
        try {
            c->try_take();
            CHECK(false);
        } catch (const RingEnded& ended) {
            CHECK(ended.final_seq == 2 && std::strcmp(ended.reason, "stopped") == 0);
        }
    }
    CHECK(c->ready() && c->backlog() == 0);
}

void the_monitor_ends_a_dead_producers_ring() {
    auto p = producer(4, {{64, 4}});
    auto c = consumer(*p);
    Monitor monitor(p->ring_fd());
    const int handle = monitor.watch(c->page_fd());
    monitor.seal_ring();
    monitor.seal_ring();
    CHECK_THROWS(Monitor(p->ring_fd()), RingError, "Operation not permitted");
    CHECK(publish(*p, 0));
    auto slot = c->try_take();
    CHECK(monitor.tail() == 1 && !monitor.ended());
    const PageCounters counters = monitor.consumer(handle);
    CHECK(counters.taken == 1 && counters.acked == 0 && counters.held == 1 && counters.waiting == 0);
    CHECK(monitor.end(MO_END_FAILED) == 1 && monitor.ended() && monitor.end(MO_END_STOPPED) == 1);
    CHECK_THROWS(c->try_take(), RingEnded, "failed");
    CHECK_THROWS(publish(*p, 1), RingError, "ended");  // a producer that was only slow stops
    CHECK_THROWS(monitor.consumer(1), RingError, "no consumer page 1");
    monitor.close();
    CHECK_THROWS(monitor.tail(), RingError, "closed");
}

void the_supervisors_word_ends_a_ring_too() {
    auto p = producer(8, {{64, 8}});
    auto a = consumer(*p), b = consumer(*p);
    for (uint64_t i = 0; i < 3; ++i) CHECK(publish(*p, i));
    a->end_at(2, MO_END_FAILED);    // not all that is there
    b->end_at(9, MO_END_MIGRATED);  // more than ever came
    CHECK(a->try_take() && a->try_take());
    CHECK_THROWS(a->try_take(), RingEnded, "failed) at sequence 2");
    for (int i = 0; i < 3; ++i) CHECK(b->try_take());
    CHECK_THROWS(b->try_take(), RingEnded, "migrated) at sequence 3");
}

void the_next_incarnation_goes_on_in_order() {
    auto first = producer(4, {{64, 4}}, 1, 0);
    Consumer c(MO_BLOCK), d(MO_DROP_OLDEST);
    for (Consumer* each : {&c, &d}) {
        first->admit(each->page_fd(), each == &c ? MO_BLOCK : MO_DROP_OLDEST);
        attach(*each, *first);
    }
    for (uint64_t i = 0; i < 3; ++i) CHECK(publish(*first, i));
    auto second = producer(4, {{128, 2}}, 2, first->finish(MO_END_MIGRATED));
    second->admit(c.page_fd(), MO_BLOCK);  // while it still reads the first
    second->admit(d.page_fd(), MO_DROP_OLDEST);
    CHECK(publish(*second, 3) && publish(*second, 4));
    CHECK(!publish(*second,
                   5));  // d has not arrived: nothing is dropped for it in the middle of the other ring
    CHECK_THROWS(attach(c, *second), RingError, "not ended");
    for (Consumer* each : {&c, &d}) {
        std::vector<ReadSlot> held;
        for (uint64_t i = 0; i < 3; ++i) held.push_back(*each->try_take());
        CHECK_THROWS(each->try_take(), RingEnded, "migrated");
        attach(*each, *second);
        held.push_back(*each->try_take());
        CHECK(held.back().descriptor.sequence == 3 && holds(held.back(), 3) && holds(held[0], 0));
        CHECK(each->acked() == 0);
        for (auto& slot : held) each->release(slot);
        CHECK(each->acked() == 4);
    }
    CHECK(first->outstanding() == 0 && second->outstanding() == 1);
    CHECK_THROWS(c.attach(second->ring_fd(), {}, {}), RingError, "not ended");

    second->finish(MO_END_OF_STREAM);
    CHECK(c.try_take());
    CHECK_THROWS(c.try_take(), RingEnded, "end_of_stream");
    const auto wrong = producer(4, {{64, 1}}, 3, 7);
    CHECK_THROWS(attach(c, *wrong), RingError, "starts at sequence 7, the one before ended at 5");
}

void sequences_are_64_bit_and_payloads_may_be_8k() {
    constexpr uint64_t kStart = (uint64_t{1} << 32) - 2;
    constexpr uint64_t kBytes = 99'532'800;  // 7680 x 4320, 10 bit
    auto p = producer(4, {{kBytes, 2}}, 1, kStart);
    auto c = consumer(*p);
    for (uint64_t i = 0; i < 4; ++i) {
        auto out = p->try_acquire(kBytes);
        CHECK(out->place.slot == 0);
        out->data[0] = out->data[kBytes - 1] = static_cast<uint8_t>(i);
        mo_descriptor descriptor = frame(i);
        descriptor.pixel_format = MO_YUV420P10LE;
        descriptor.width = 7680;
        descriptor.height = 4320;
        descriptor.plane_count = 3;
        descriptor.plane_stride[0] = 15360;
        descriptor.plane_offset[1] = 66'355'200;
        descriptor.plane_offset[2] = 82'944'000;
        descriptor.plane_stride[1] = descriptor.plane_stride[2] = 7680;
        CHECK(p->publish(*out, descriptor, kBytes) == kStart + i);
        auto in = c->try_take();
        CHECK(in->descriptor.sequence == kStart + i && in->data[kBytes - 1] == i);
        c->release(*in);
    }
}

void acquire_says_no_at_once_when_it_never_can() {
    auto p = producer(4, {{64, 1}});
    CHECK_THROWS(p->acquire(5000, kLong), RingError, "no slot holds 5000 bytes: the largest has 4096");
    auto none = producer(4, {});
    CHECK_THROWS(none->acquire(0, kLong), RingError, "no slot");
    CHECK_THROWS(producer(0, {}), RingError, "not 0");
    const auto slot = p->try_acquire(10);
    CHECK_THROWS(p->publish(*slot, frame(0), 5000), RingError, "holds 4096 bytes");
    mo_descriptor outside = frame(0);
    outside.plane_count = 1;
    outside.height = 2;
    outside.plane_stride[0] = 33;
    CHECK_THROWS(p->publish(*slot, outside, 64), RingError, "plane 0 ends at byte 66 of 64");
    CHECK(p->publish(*slot, frame(0), 64) == 0);  // still possible after the refusals
    p->close();
    CHECK_THROWS(p->try_acquire(1), RingError, "closed");
}

void events_tell_the_life_of_a_frame_in_order() {
    auto p = producer(4, {{64, 2}, {8192, 2}});
    auto c = consumer(*p);
    const auto ring = EventRing::create(64);
    p->trace({ring, 5, 6, 7, 8});
    c->trace({ring, 5, 6, 9, 10});
    c->try_take();  // from here on it waits
    auto out = p->try_acquire(5000);
    out->launch_ns = monotonic_ns();
    p->publish(*out, frame(3), 5000);
    auto in = c->try_take();
    c->launch(*in);
    c->launch(*in);
    c->release(*in);
    p->publish(*p->try_acquire(10), unknown_descriptor(MO_AUDIO_PACKET), 10);
    in = c->try_take();
    c->release(*in);

    mo_frame_event events[64];
    CHECK(ring->drain(events, 64) == 6);
    const int kinds[] = {MO_DMA_BUF_ALLOC,       MO_PRODUCER_KERNEL_LAUNCH, MO_FENCE_SIGNAL,
                         MO_CONSUMER_WAIT_FENCE, MO_CONSUMER_KERNEL_LAUNCH, MO_SLOT_RELEASE};
    for (int i = 0; i < 6; ++i) {
        const bool producers = i < 3;
        CHECK(events[i].kind == kinds[i] && events[i].source_index == 3 && events[i].pts == 30);
        CHECK(events[i].time_base_num == 1 && events[i].time_base_den == 25);
        CHECK(events[i].stream == 5 && events[i].epoch == 6);
        CHECK(events[i].place == (producers ? 7 : 9) && events[i].device == (producers ? 8 : 10));
        CHECK(events[i].slot == 1u << 16 && events[i].bytes == (producers ? 5000 : MO_UNKNOWN_U32));
        if (i != 0 && i != 3) CHECK(events[i].time_ns >= events[i - 1].time_ns);
    }
    CHECK(events[3].time_ns < events[0].time_ns);  // it waited before the frame was begun
    CHECK(events[4].time_ns >= events[2].time_ns);
}

void a_frame_may_say_its_epoch_itself() {
    auto p = producer(4, {{64, 4}});
    auto c = consumer(*p);
    const auto ring = EventRing::create(64);
    p->trace({ring, 5, 6, 7, 8});
    c->trace({ring, 5, 6, 9, 10});
    // Taken and released in another order than published: each event has its own frame's epoch.
    const uint32_t said[] = {0, 17, UINT32_MAX, 0};
    std::optional<ReadSlot> taken[4];
    for (uint64_t i = 0; i < 4; ++i) {
        mo_descriptor descriptor = frame(i);
        descriptor.epoch = said[i];
        p->publish(*p->try_acquire(64), descriptor, 64);
    }
    for (auto& slot : taken) slot = c->try_take();
    for (const int i : {2, 0, 3, 1}) {
        CHECK(taken[i]->descriptor.epoch == said[i]);
        c->release(*taken[i]);
    }
    mo_frame_event events[64];
    CHECK(ring->drain(events, 64) == 4 * 6);
    for (int i = 0; i < 4 * 6; ++i) {
        const uint32_t own = said[events[i].source_index];
        CHECK(events[i].epoch == (own == 0 ? 6 : own));
        CHECK(events[i].stream == 5);
    }
}

void the_producer_knows_the_next_source_index() {
    auto p = producer(8, {{64, 8}});
    CHECK(p->next_source_index() == 0);
    p->publish(*p->try_acquire(64), unknown_descriptor(MO_CODEC_PARAMETERS), 64);
    p->publish(*p->try_acquire(64), unknown_descriptor(MO_VIDEO_FRAME), 64);  // of unknown index
    CHECK(p->next_source_index() == 0);
    publish(*p, 6);
    CHECK(p->next_source_index() == 7);
    publish(*p, 4);  // coding order
    CHECK(p->next_source_index() == 7);
    mo_descriptor lost = unknown_descriptor(MO_FRAME_LOST);
    lost.source_index = 9;
    p->try_publish_empty(lost);
    CHECK(p->next_source_index() == 10);
}

}  // namespace

int main() {
    RUN(frames_arrive_in_order_and_slots_come_back);
    RUN(releases_in_any_order);
    RUN(the_slowest_consumer_keeps_the_slot);
    RUN(a_descriptor_is_reused_only_when_acknowledged_by_all);
    RUN(lost_frames_need_no_slot);
    RUN(with_nobody_listening_slots_are_free_at_once);
    RUN(the_start_does_not_depend_on_who_comes_first);
    RUN(sixty_four_consumers_and_no_more);
    RUN(the_end_comes_after_the_last_frame);
    RUN(the_monitor_ends_a_dead_producers_ring);
    RUN(the_supervisors_word_ends_a_ring_too);
    RUN(the_next_incarnation_goes_on_in_order);
    RUN(sequences_are_64_bit_and_payloads_may_be_8k);
    RUN(acquire_says_no_at_once_when_it_never_can);
    RUN(events_tell_the_life_of_a_frame_in_order);
    RUN(a_frame_may_say_its_epoch_itself);
    RUN(the_producer_knows_the_next_source_index);
}
