// The module `_ring`: errors, the layouts as the compiler sees them, and two small functions; the rest is
// bound in the other files of this folder.
#include <cstddef>

#include "common.hpp"
#include "error.hpp"
#include "fabric.h"
#include "fence.h"
#include "futex.hpp"
#include "ring.h"
#include "sys.hpp"

namespace {

nb::dict layout(size_t size, unsigned version,
                std::initializer_list<std::pair<const char*, size_t>> offsets) {
    nb::dict fields;
    for (const auto& [name, offset] : offsets) fields[name] = offset;
    nb::dict result;
    result["size"] = size;
    result["version"] = version;
    result["fields"] = fields;
    return result;
}

#define FIELD(name) {#name, offsetof(Struct, name)}

nb::dict event_layout() {
    using Struct = mo_frame_event;
    return layout(sizeof(Struct), MO_EVENT_ABI,
                  {FIELD(time_ns), FIELD(source_index), FIELD(pts), FIELD(time_base_num),
                   FIELD(time_base_den), FIELD(stream), FIELD(epoch), FIELD(place), FIELD(slot), FIELD(bytes),
                   FIELD(kind), FIELD(device), FIELD(reserved)});
}

nb::dict event_ring_layout() {
    using Struct = mo_event_ring;
    return layout(sizeof(Struct), MO_EVENT_ABI,
                  {FIELD(magic), FIELD(abi), FIELD(capacity), FIELD(event_bytes), FIELD(reserved),
                   FIELD(head), FIELD(lost), FIELD(tail)});
}

nb::dict record_layout() {
    using Struct = mo_frame_record;
    return layout(sizeof(Struct), MO_RECORD_ABI,
                  {FIELD(stream), FIELD(epoch), FIELD(source_index), FIELD(pts), FIELD(time_base_num),
                   FIELD(time_base_den), FIELD(hop), FIELD(slot), FIELD(bytes), FIELD(producer_device),
                   FIELD(consumer_device), FIELD(producer_real_device), FIELD(consumer_real_device),
                   FIELD(flags), FIELD(version), FIELD(times_ns)});
}

nb::dict descriptor_layout() {
    using Struct = mo_descriptor;
    return layout(sizeof(Struct), MO_RING_ABI,
                  {FIELD(sequence),
                   FIELD(source_index),
                   FIELD(pts),
                   FIELD(dts),
                   FIELD(duration),
                   FIELD(time_base_num),
                   FIELD(time_base_den),
                   FIELD(stream_index),
                   FIELD(payload_kind),
                   FIELD(pixel_format),
                   FIELD(width),
                   FIELD(height),
                   FIELD(slab),
                   FIELD(slot),
                   FIELD(offset),
                   FIELD(bytes),
                   FIELD(plane_offset),
                   FIELD(plane_stride),
                   FIELD(plane_count),
                   FIELD(color_primaries),
                   FIELD(color_transfer),
                   FIELD(color_matrix),
                   FIELD(color_range),
                   FIELD(reserved0),
                   FIELD(sample_aspect_num),
                   FIELD(sample_aspect_den),
                   FIELD(flags),
                   FIELD(parent_count),
                   FIELD(fence_value),
                   FIELD(alloc_ns),
                   FIELD(launch_ns),
                   FIELD(signal_ns),
                   FIELD(epoch),
                   FIELD(reserved1),
                   FIELD(reserved2)});
}

nb::dict ring_layout() {
    using Struct = mo_ring_header;
    return layout(
        sizeof(Struct), MO_RING_ABI,
        {FIELD(magic), FIELD(abi), FIELD(capacity), FIELD(descriptor_bytes), FIELD(incarnation),
         FIELD(first_sequence), FIELD(producer_pid), FIELD(reserved0), FIELD(tail), FIELD(doorbell),
         FIELD(producer_waiting), FIELD(final_seq), FIELD(end_reason), FIELD(reserved1), FIELD(admissions)});
}

nb::dict page_layout() {
    using Struct = mo_consumer_page;
    return layout(sizeof(Struct), MO_RING_ABI,
                  {FIELD(magic), FIELD(abi), FIELD(consumer_pid), FIELD(policy), FIELD(page_id), FIELD(taken),
                   FIELD(acked), FIELD(held), FIELD(waiting)});
}

nb::dict fabric_layout() {
    using Struct = mo_fabric_header;
    return layout(sizeof(Struct), MO_FABRIC_ABI,
                  {FIELD(magic), FIELD(abi), FIELD(links), FIELD(link_bytes), FIELD(fabric_id),
                   FIELD(time_scale_millionths), FIELD(reserved)});
}

nb::dict link_layout() {
    using Struct = mo_link;
    return layout(sizeof(Struct), MO_FABRIC_ABI, {FIELD(constants), FIELD(sequence), FIELD(states)});
}

nb::dict traffic_layout() {
    using Struct = mo_traffic_header;
    return layout(sizeof(Struct), MO_FABRIC_ABI,
                  {FIELD(magic), FIELD(abi), FIELD(ways), FIELD(way_bytes), FIELD(fabric_id), FIELD(reserved)});
}

nb::dict way_layout() {
    using Struct = mo_way;
    return layout(sizeof(Struct), MO_FABRIC_ABI,
                  {FIELD(bytes), FIELD(transfers), FIELD(queued_ns), FIELD(seats)});
}

nb::dict fence_layout() {
    using Struct = mo_fence;
    return layout(sizeof(Struct), MO_FENCE_ABI,
                  {FIELD(magic), FIELD(abi), FIELD(fence_id), FIELD(signaller_pid), FIELD(reserved0),
                   FIELD(value), FIELD(closed)});
}

nb::dict fence_waiters_layout() {
    using Struct = mo_fence_waiters;
    return layout(sizeof(Struct), MO_FENCE_ABI,
                  {FIELD(magic), FIELD(abi), FIELD(fence_id), FIELD(asleep_after)});
}

nb::dict layouts() {
    nb::dict result;
    result["mo_frame_event"] = event_layout();
    result["mo_event_ring"] = event_ring_layout();
    result["mo_frame_record"] = record_layout();
    result["mo_descriptor"] = descriptor_layout();
    result["mo_ring_header"] = ring_layout();
    result["mo_consumer_page"] = page_layout();
    result["mo_fabric_header"] = fabric_layout();
    result["mo_link"] = link_layout();
    result["mo_traffic_header"] = traffic_layout();
    result["mo_way"] = way_layout();
    result["mo_fence"] = fence_layout();
    result["mo_fence_waiters"] = fence_waiters_layout();
    return result;
}

// The exceptions' types, which live as long as the interpreter.
PyObject* ring_error_type = nullptr;
PyObject* lease_error_type = nullptr;
PyObject* ring_ended_type = nullptr;

// RingEnded carries what happened as attributes, which nb::exception cannot.
void bind_ring_ended(nb::module_& m) {
    ring_ended_type = PyErr_NewException("dataplane._ring.RingEnded", PyExc_Exception, nullptr);
    if (ring_ended_type == nullptr) throw nb::python_error();
    m.attr("RingEnded") = nb::borrow(ring_ended_type);
    nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
        try {
            std::rethrow_exception(pointer);
        } catch (const mo::RingEnded& ended) {
            bindings::set_ring_ended(ended);
        }
    });
}

void bind_errors(nb::module_& m) {
    ring_error_type = nb::exception<mo::RingError>(m, "RingError").release().ptr();
    lease_error_type = nb::exception<mo::LeaseError>(m, "LeaseError").release().ptr();
    bind_ring_ended(m);
}

}  // namespace

namespace bindings {

nb::handle ring_error() { return ring_error_type; }
nb::handle lease_error() { return lease_error_type; }

void set_ring_ended(const mo::RingEnded& ended) noexcept {
    try {
        const nb::object error = nb::handle(ring_ended_type)(ended.what());
        error.attr("reason") = ended.reason;
        error.attr("final_seq") = ended.final_seq;
        PyErr_SetObject(ring_ended_type, error.ptr());
    } catch (nb::python_error& error) {
        error.restore();
    }
}

}  // namespace bindings

NB_MODULE(_ring, m) {
    // Objects that live until the interpreter ends are no leak worth a message on people's screens.
    nb::set_leak_warnings(false);

    bind_errors(m);

    m.def("layouts", &layouts);
    m.def("monotonic_ns", &mo::monotonic_ns);
    m.def("has_futex_waitv", &mo::have_futex_waitv);
    m.def("die_with_parent", &mo::die_with_parent, nb::arg("parent_pid"));

    bindings::bind_descriptor(m);
    bindings::bind_events(m);
    bindings::bind_assembler(m);
    bindings::bind_fabric(m);
    bindings::bind_pool(m);
    bindings::bind_producer(m);
    bindings::bind_consumer(m);
    bindings::bind_monitor(m);
    bindings::bind_fence(m);
    bindings::bind_loops(m);
}
