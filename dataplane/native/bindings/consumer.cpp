#include "consumer.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string_view>

#include "common.hpp"
#include "error.hpp"
#include "fast_calls.hpp"
#include "leases.hpp"
#include "loops.hpp"
#include "names.hpp"

namespace bindings {
namespace {

using mo::Consumer;

// -- the hot path -------------------------------------------------------------------------------------------

PyObject* take(PyObject* self, PyObject* const* args, Py_ssize_t given, PyObject* keywords) noexcept {
    return guarded([&] {
        const Arguments<1> arguments("take", {"timeout_seconds"}, args, given, keywords);
        const double timeout_seconds = to_seconds(arguments[0], "timeout_seconds");
        Consumer& consumer = self_of<Consumer>(self);
        nb::object lease = new_read_lease(self);
        mo::ReadSlot& slot = self_of<ReadLease>(lease.ptr()).slot;
        if (consumer.try_take(slot)) return lease.release().ptr();
        if (timeout_seconds > 0) {
            const int64_t deadline = deadline_in(timeout_seconds);
            if (consumer.spin() > 0) {
                const Consumer::Spot spot = consumer.spot();
                const nb::gil_scoped_release release;
                spot.wait(std::min(consumer.spin(), deadline - mo::monotonic_ns()));
            }
            if (auto waited_for = consumer.take_until(deadline, sleep_without_gil)) {
                slot = std::move(*waited_for);
                return lease.release().ptr();
            }
        }
        return Py_NewRef(Py_None);
    });
}

PyMethodDef fast_methods[] = {
    {"take", as_method(take), METH_FASTCALL | METH_KEYWORDS, "The next payload, or None after the timeout."},
    {},
};

PyType_Slot slots[] = {
    {Py_tp_methods, fast_methods},
    {},
};

// -- the rest -----------------------------------------------------------------------------------------------

std::vector<size_t> wait_any(const std::vector<std::shared_ptr<Consumer>>& consumers,
                             double timeout_seconds) {
    std::vector<Consumer*> pointers;
    for (const auto& consumer : consumers) pointers.push_back(consumer.get());
    return mo::wait_any_until(pointers, deadline_in(timeout_seconds), sleep_without_gil);
}

}  // namespace

void bind_consumer(nb::module_& m) {
    bind_read_lease(m);

    nb::class_<Consumer>(m, "RingConsumer", nb::is_final(), nb::type_slots(slots))
        .def(nb::new_([](std::string_view policy) {
                 return std::make_shared<Consumer>(mo::parse_policy(policy));
             }),
             nb::arg("policy") = "block")
        .def_prop_ro("page_fd", &Consumer::page_fd)
        .def(
            "attach",
            [](Consumer& self, int ring_fd, const std::vector<int>& slab_fds,
               const std::vector<uint64_t>& slot_bytes, bool populate) {
                self.attach(ring_fd, slab_fds, slot_bytes, populate);
                poke(&self);
            },
            nb::arg("ring_fd"), nb::arg("slab_fds"), nb::arg("slot_bytes"), nb::arg("populate") = false)
        .def("link", &Consumer::link, nb::arg("fabric"), nb::arg("route"))
        .def("trace", &Consumer::trace, nb::arg("trace"))
        .def_prop_rw(
            "spin_seconds", [](const Consumer& self) { return static_cast<double>(self.spin()) * 1e-9; },
            [](Consumer& self, double seconds) {
                if (!(seconds >= 0 && seconds <= 1)) throw nb::value_error("spin_seconds is between 0 and 1");
                self.spin(static_cast<int64_t>(seconds * 1e9));
            })
        .def(
            "end_at",
            [](Consumer& self, uint64_t final_seq, std::string_view reason) {
                self.end_at(final_seq, mo::parse_end_reason(reason));
                poke(&self);
            },
            nb::arg("final_seq"), nb::arg("reason"))
        .def_prop_ro("dismissed", &Consumer::dismissed)
        .def_prop_ro("taken", &Consumer::taken)
        .def_prop_ro("acked", &Consumer::acked)
        .def_prop_ro("held", &Consumer::held)
        .def_prop_ro("backlog", &Consumer::backlog)
        .def("close", [](Consumer& self) {
            self.close();
            poke(&self);
        });

    m.def("wait_any", &wait_any, nb::arg("consumers"), nb::arg("timeout_seconds"));
}

}  // namespace bindings
