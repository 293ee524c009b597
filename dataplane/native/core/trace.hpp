// Where the events of a port or an edge go, and the labels that are the same for all of them: but for the epoch, which
// a frame may say itself, because a discontinuity of the source begins another one while the rings stay.
#pragma once

#include <memory>

#include "event_ring.hpp"
#include "ring.h"

namespace mo {

struct Trace {
    std::shared_ptr<EventRing> events;  // null: not traced
    uint32_t stream = 0;
    uint32_t epoch = 0;  // of frames that do not say theirs
    uint32_t place = 0;
    uint16_t device = MO_UNKNOWN_U16;

    explicit operator bool() const noexcept { return events != nullptr; }

    mo_frame_event event(mo_event_kind kind, int64_t time_ns, const mo_descriptor& frame) const noexcept {
        mo_frame_event event;
        event.time_ns = time_ns;
        event.source_index = frame.source_index;
        event.pts = frame.pts;
        event.time_base_num = frame.time_base_num;
        event.time_base_den = frame.time_base_den;
        event.stream = stream;
        event.epoch = frame.epoch != 0 ? frame.epoch : epoch;
        event.place = place;
        event.slot = frame.slab << 16 | frame.slot;
        const bool producer = kind <= MO_FENCE_SIGNAL;
        event.bytes =
            producer && frame.bytes < MO_UNKNOWN_U32 ? static_cast<uint32_t>(frame.bytes) : MO_UNKNOWN_U32;
        event.kind = kind;
        event.device = device;
        event.reserved = 0;
        return event;
    }

    void emit(mo_event_kind kind, int64_t time_ns, const mo_descriptor& frame) const noexcept {
        const mo_frame_event single = event(kind, time_ns, frame);
        events->emit(&single, 1);
    }
};

}  // namespace mo
