#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>

#include "common.hpp"
#include "event_ring.hpp"
#include "trace.hpp"

namespace bindings {
namespace {

using mo::EventRing;

bool emit(EventRing& self, uint16_t kind, int64_t time_ns, uint64_t source_index, int64_t pts,
          std::pair<uint32_t, uint32_t> time_base, uint32_t stream, uint32_t epoch, uint32_t place,
          uint32_t slot, uint32_t bytes, uint16_t device) {
    self.capacity();  // refuses a closed ring
    const mo_frame_event event{
        time_ns, source_index, pts, time_base.first, time_base.second, stream, epoch, place, slot, bytes,
        kind,    device,       0};
    return self.emit(&event, 1) == 1;
}

nb::object drain(EventRing& self, size_t limit) {
    const size_t count = std::min(self.waiting(), limit);
    auto events = struct_array<mo_frame_event>(event_dtype(), count);
    // The writer may have added some meanwhile, but took none away.
    self.drain(events.data, count);
    return events.array;
}

}  // namespace

void bind_events(nb::module_& m) {
    nb::class_<EventRing>(m, "EventRing", nb::is_final())
        .def_static("create", &EventRing::create, nb::arg("capacity"))
        .def_static("attach", &EventRing::attach, nb::arg("fd"))
        .def_prop_ro("fd", &EventRing::fd)
        .def_prop_ro("capacity", &EventRing::capacity)
        .def_prop_ro("written", &EventRing::written)
        .def_prop_ro("lost", &EventRing::lost)
        .def("emit", &emit, nb::arg("kind"), nb::arg("time_ns"), nb::arg("source_index"), nb::arg("pts"),
             nb::arg("time_base"), nb::arg("stream"), nb::arg("epoch"), nb::arg("place"), nb::arg("slot"),
             nb::arg("bytes"), nb::arg("device"))
        .def("drain", &drain, nb::arg("limit") = 65536)
        .def("close", &EventRing::close);

    m.def("probes_built", [] {
        const mo::ProbesBuilt built = mo::probes_built();
        nb::dict result;
        result["usdt"] = built.usdt;
        result["lttng"] = built.lttng;
        return result;
    });
    m.def("load_lttng_provider", &mo::load_lttng_provider);

    nb::class_<mo::Trace>(m, "Trace", nb::is_final())
        .def(
            "__init__",
            [](mo::Trace* self, std::shared_ptr<EventRing> events, uint32_t stream, uint32_t epoch,
               uint32_t place,
               uint16_t device) { new (self) mo::Trace{std::move(events), stream, epoch, place, device}; },
            nb::arg("events"), nb::arg("stream"), nb::arg("epoch"), nb::arg("place"), nb::arg("device"));
}

}  // namespace bindings
