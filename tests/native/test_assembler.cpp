#include "assembler.hpp"

#include <algorithm>
#include <map>
#include <random>

#include "check.hpp"
#include "error.hpp"

namespace {

using mo::Assembler;
using Records = std::vector<mo_frame_record>;
using Events = std::vector<mo_frame_event>;

mo_frame_event event(unsigned kind, uint64_t source_index, uint32_t place, int64_t time_ns) {
    mo_frame_event made{};
    made.kind = static_cast<uint16_t>(kind);
    made.source_index = source_index;
    made.place = place;
    made.time_ns = time_ns;
    made.pts = static_cast<int64_t>(source_index) * 100;
    made.time_base_num = 1;
    made.time_base_den = 25;
    made.stream = 3;
    made.epoch = 4;
    made.slot = 17;
    made.bytes = kind <= MO_FENCE_SIGNAL ? 1000 : MO_UNKNOWN_U32;
    made.device = kind <= MO_FENCE_SIGNAL ? 20 : 30;
    return made;
}

Events producer_events(uint64_t source_index, uint32_t port) {
    const auto at = static_cast<int64_t>(source_index * 1000);
    return {event(MO_DMA_BUF_ALLOC, source_index, port, at + 1),
            event(MO_PRODUCER_KERNEL_LAUNCH, source_index, port, at + 2),
            event(MO_FENCE_SIGNAL, source_index, port, at + 3)};
}

Events consumer_events(uint64_t source_index, uint32_t hop) {
    const auto at = static_cast<int64_t>(source_index * 1000 + hop * 10);
    return {event(MO_CONSUMER_WAIT_FENCE, source_index, hop, at),
            event(MO_CONSUMER_KERNEL_LAUNCH, source_index, hop, at + 5),
            event(MO_SLOT_RELEASE, source_index, hop, at + 6)};
}

constexpr mo::HopDevices kDevices[] = {{0, 1, 2, 3}, {0, 4, 2, 5}, {6, 7, 8, 9}};

Assembler two_ports() { return Assembler({{0, 1}, {2}}, kDevices, {}); }

Records feed(Assembler& assembler, const Events& events) {
    Records out;
    assembler.feed(events.data(), events.size(), out);
    return out;
}

void a_hop_is_complete_when_both_ends_are_done() {
    Assembler assembler = two_ports();
    CHECK(feed(assembler, producer_events(7, 0)).empty() && assembler.open_records() == 2);
    const Records first = feed(assembler, consumer_events(7, 1));
    CHECK(first.size() == 1 && assembler.open_records() == 1);
    const mo_frame_record& record = first[0];
    CHECK(record.hop == 1 && record.source_index == 7 && record.stream == 3 && record.epoch == 4);
    CHECK(record.pts == 700 && record.time_base_num == 1 && record.time_base_den == 25);
    CHECK(record.slot == 17 && record.bytes == 1000 && record.flags == 0 && record.version == MO_RECORD_ABI);
    CHECK(record.producer_device == 0 && record.consumer_device == 4);
    CHECK(record.producer_real_device == 20 && record.consumer_real_device == 30);
    CHECK(record.times_ns[MO_FENCE_SIGNAL] == 7003 && record.times_ns[MO_LINK_START] == MO_UNKNOWN_I64);
    CHECK(record.times_ns[MO_CONSUMER_WAIT_FENCE] == 7010 && record.times_ns[MO_SLOT_RELEASE] == 7016);
    // The consumer's ring may be read first.
    CHECK(feed(assembler, consumer_events(8, 2)).empty());
    CHECK(feed(assembler, producer_events(8, 1)).size() == 1);
    CHECK(assembler.open_records() == 1 && assembler.unmatched_events() == 0);
}

void an_event_that_never_came_leaves_a_mark() {
    Assembler assembler = two_ports();
    Events events = producer_events(1, 1);
    events.erase(events.begin());
    feed(assembler, events);
    Records done = feed(assembler, consumer_events(1, 2));
    CHECK(done.size() == 1 && done[0].flags == MO_RECORD_INCOMPLETE);
    CHECK(done[0].times_ns[MO_DMA_BUF_ALLOC] == MO_UNKNOWN_I64);
    feed(assembler, consumer_events(2, 2));
    done.clear();
    assembler.flush(done);
    CHECK(done.size() == 1 && done[0].flags == MO_RECORD_INCOMPLETE && done[0].bytes == MO_UNKNOWN_U32);
    CHECK(done[0].pts == 200 && done[0].producer_real_device == 8 && done[0].consumer_real_device == 30);
    CHECK(assembler.open_records() == 0);
}

void links_are_waited_for_where_there_are_any() {
    Assembler assembler({{0, 1}}, {kDevices, 2}, {true, false});
    feed(assembler, producer_events(1, 0));
    CHECK(feed(assembler, consumer_events(1, 0)).empty());
    CHECK(feed(assembler, consumer_events(1, 1)).size() == 1);
    CHECK(feed(assembler, {event(MO_LINK_START, 1, 0, 11)}).empty());
    const Records done = feed(assembler, {event(MO_LINK_END, 1, 0, 12)});
    CHECK(done.size() == 1 && done[0].flags == 0 && done[0].times_ns[MO_LINK_END] == 12);
    CHECK_THROWS(Assembler({{0}}, {kDevices, 2}, {true}), mo::RingError, "expect_link");
    CHECK_THROWS(Assembler({{2}}, {kDevices, 2}, {}), mo::RingError, "hop 2 of 2");
}

void dropped_frames_are_closed() {
    Assembler assembler = two_ports();
    feed(assembler, producer_events(1, 0));
    Records out;
    const uint64_t dropped[] = {1, 2};
    assembler.drop(0, dropped, out);
    CHECK(out.size() == 1 && out[0].source_index == 1 && out[0].hop == 0 &&
          out[0].flags == MO_RECORD_DROPPED);
    // The drop was heard of before the producer's events were read.
    out = feed(assembler, producer_events(2, 0));
    CHECK(out.size() == 1 && out[0].source_index == 2 && out[0].flags == MO_RECORD_DROPPED &&
          out[0].stream == 3);
    CHECK(out[0].times_ns[MO_DMA_BUF_ALLOC] == 2001);
    CHECK(feed(assembler, consumer_events(1, 1)).size() == 1);  // the other hop goes on
    CHECK_THROWS(assembler.drop(3, dropped, out), mo::RingError, "no hop 3");
}

void strange_events_are_counted() {
    Assembler assembler = two_ports();
    CHECK(feed(assembler, {event(MO_FENCE_SIGNAL, 1, 2, 1), event(MO_SLOT_RELEASE, 1, 3, 1),
                           event(8, 1, 0, 1), event(65535, 1, 0, 1), event(0, 1, MO_UNKNOWN_U32, 1)})
              .empty());
    CHECK(assembler.unmatched_events() == 5 && assembler.open_records() == 0);
}

void a_frame_delivered_again_makes_its_own_record() {
    Assembler assembler = two_ports();
    for (int i = 0; i < 2; ++i) {
        CHECK(feed(assembler, producer_events(1, 1)).empty());
        CHECK(feed(assembler, consumer_events(1, 2)).size() == 1);
    }
    // The first attempt died before its release; the later events win, in whichever order they are read.
    Events again = consumer_events(2, 2);
    for (auto& each : again) each.time_ns += 500;
    again.pop_back();
    for (const bool reversed : {false, true}) {
        Events first = consumer_events(2, 2);
        first.pop_back();
        if (reversed) std::swap(first, again);
        feed(assembler, first);
        feed(assembler, again);
        feed(assembler, producer_events(2, 1));
        const Records done = feed(assembler, {event(MO_SLOT_RELEASE, 2, 2, 9999)});
        CHECK(done.size() == 1 && done[0].times_ns[MO_CONSUMER_KERNEL_LAUNCH] == 2525);
        if (reversed) std::swap(first, again);
    }
}

// What never completes must not fill the memory.
void lost_events_do_not_pile_up() {
    Assembler assembler = two_ports();
    Records out;
    const uint64_t most = Assembler::kMostOpenPerHop;
    for (uint64_t i = 0; i < most + 10; ++i) {
        const Events events = producer_events(i, 1);
        assembler.feed(events.data(), events.size(), out);
    }
    CHECK(out.size() == 10 && assembler.open_records() == most);
    CHECK(out[0].source_index == 0 && out[0].flags == MO_RECORD_INCOMPLETE);
    assembler.flush(out);
    CHECK(out.size() == most + 10 && out.back().source_index == most + 9 && assembler.open_records() == 0);
    CHECK(feed(assembler, producer_events(5, 1)).empty() && assembler.open_records() == 1);
}

// Random interleavings of the rings, keeping each ring's own order, against a map.
void agrees_with_a_map() {
    std::mt19937 random(7);
    for (int round = 0; round < rounds(240); ++round) {
        const uint64_t frames = 1 + random() % 200;
        std::vector<Events> rings(5);  // two producers, three consumers
        const uint64_t stride = random() % 2 != 0 ? 1 : (uint64_t{1} << 40) + random();
        for (uint64_t i = 0; i < frames; ++i) {
            for (uint32_t port = 0; port < 2; ++port)
                for (const auto& each : producer_events(i * stride, port)) rings[port].push_back(each);
            for (uint32_t hop = 0; hop < 3; ++hop)
                if (random() % 20 != 0)
                    for (const auto& each : consumer_events(i * stride, hop)) rings[2 + hop].push_back(each);
        }
        std::map<std::pair<uint32_t, uint64_t>, std::array<int64_t, MO_EVENT_KINDS>> model;
        for (const auto& ring : rings) {
            for (const auto& each : ring) {
                std::vector<uint32_t> hops = {each.place};
                if (each.kind <= MO_FENCE_SIGNAL)
                    hops = each.place == 0 ? std::vector<uint32_t>{0, 1} : std::vector<uint32_t>{2};
                for (const uint32_t hop : hops) {
                    auto [found, fresh] = model.try_emplace({hop, each.source_index});
                    if (fresh) found->second.fill(MO_UNKNOWN_I64);
                    found->second[each.kind] = each.time_ns;
                }
            }
        }
        Assembler assembler = two_ports();
        Records out;
        std::vector<size_t> positions(rings.size(), 0);
        for (size_t left = rings.size(); left > 0;) {
            const size_t which = random() % rings.size();
            if (positions[which] == rings[which].size()) continue;
            const size_t count = std::min<size_t>(1 + random() % 30, rings[which].size() - positions[which]);
            assembler.feed(rings[which].data() + positions[which], count, out);
            positions[which] += count;
            if (positions[which] == rings[which].size()) --left;
        }
        for (const auto& record : out) CHECK(record.flags == 0);
        const size_t complete = out.size();
        assembler.flush(out);
        CHECK(out.size() == model.size());
        for (size_t i = 0; i < out.size(); ++i) {
            const auto found = model.find({out[i].hop, out[i].source_index});
            CHECK(found != model.end());
            CHECK(std::equal(found->second.begin(), found->second.end(), out[i].times_ns));
            CHECK((found->second[MO_SLOT_RELEASE] != MO_UNKNOWN_I64) == (i < complete));
            model.erase(found);
        }
    }
}

}  // namespace

int main() {
    RUN(a_hop_is_complete_when_both_ends_are_done);
    RUN(an_event_that_never_came_leaves_a_mark);
    RUN(links_are_waited_for_where_there_are_any);
    RUN(dropped_frames_are_closed);
    RUN(strange_events_are_counted);
    RUN(a_frame_delivered_again_makes_its_own_record);
    RUN(lost_events_do_not_pile_up);
    RUN(agrees_with_a_map);
}
