#include "monitor.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string_view.h>

#include <optional>
#include <string_view>

#include "common.hpp"
#include "names.hpp"

namespace bindings {

using mo::Monitor;

void bind_monitor(nb::module_& m) {
    nb::class_<Monitor>(m, "RingMonitor", nb::is_final())
        .def(nb::init<int>(), nb::arg("ring_fd"))
        .def("watch", &Monitor::watch, nb::arg("page_fd"))
        .def("unwatch", &Monitor::unwatch, nb::arg("handle"))
        .def("seal_ring", &Monitor::seal_ring)
        .def_prop_ro("first_sequence", &Monitor::first_sequence)
        .def_prop_ro("tail", &Monitor::tail)
        .def_prop_ro("ended", &Monitor::ended)
        .def(
            "end",
            [](Monitor& self, std::string_view reason) { return self.end(mo::parse_end_reason(reason)); },
            nb::arg("reason"))
        .def(
            "consumer",
            [](const Monitor& self, int handle) {
                const mo::PageCounters counters = self.consumer(handle);
                nb::dict result;
                result["taken"] = counters.taken;
                result["acked"] = counters.acked;
                result["held"] = counters.held;
                result["waiting"] = counters.waiting;
                return result;
            },
            nb::arg("handle"))
        .def(
            "start_of",
            [](const Monitor& self, int handle) -> std::optional<uint64_t> {
                const uint64_t start = self.start_of(handle);
                return start == MO_UNKNOWN_U64 ? std::nullopt : std::optional(start);
            },
            nb::arg("handle"))
        .def(
            "finish_cut",
            [](Monitor& self, int handle, int page_fd) -> std::optional<uint64_t> {
                const uint64_t start = self.finish_cut(handle, page_fd);
                return start == MO_UNKNOWN_U64 ? std::nullopt : std::optional(start);
            },
            nb::arg("handle"), nb::arg("page_fd"))
        .def("trail",
             [](const Monitor& self) {
                 nb::list result;
                 for (const mo_descriptor& descriptor : self.trail()) result.append(nb::cast(descriptor));
                 return result;
             })
        .def(
            "replace",
            [](Monitor& self, int handle, int page_fd) { return replacement(self.replace(handle, page_fd)); },
            nb::arg("handle"), nb::arg("page_fd"))
        .def("close", &Monitor::close);
}

}  // namespace bindings
