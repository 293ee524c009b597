#include "producer.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <string_view>

#include "common.hpp"
#include "error.hpp"
#include "fast_calls.hpp"
#include "leases.hpp"
#include "names.hpp"

namespace bindings {
namespace {

using mo::Producer;
using mo::SizeClass;

// -- the hot path -------------------------------------------------------------------------------------------

PyObject* acquire(PyObject* self, PyObject* const* args, Py_ssize_t given, PyObject* keywords) noexcept {
    return guarded([&] {
        const Arguments<2> arguments("acquire", {"bytes", "timeout_seconds"}, args, given, keywords);
        const uint64_t bytes = to_count(arguments[0], "bytes");
        const double timeout_seconds = to_seconds(arguments[1], "timeout_seconds");
        Producer& producer = self_of<Producer>(self);
        auto slot = producer.try_acquire(bytes);
        if (!slot && timeout_seconds > 0)
            slot = producer.wait_until(
                deadline_in(timeout_seconds), [&] { return producer.try_acquire(bytes); }, sleep_without_gil);
        if (!slot) return Py_NewRef(Py_None);
        return new_write_lease(self, *slot).release().ptr();
    });
}

PyMethodDef fast_methods[] = {
    {"acquire", as_method(acquire), METH_FASTCALL | METH_KEYWORDS, "A slot to write, or None after the timeout."},
    {},
};

PyType_Slot slots[] = {
    {Py_tp_methods, fast_methods},
    {},
};

// -- the rest -----------------------------------------------------------------------------------------------

std::optional<uint64_t> publish_empty(Producer& self, const mo_descriptor& descriptor,
                                      double timeout_seconds) {
    return self.wait_until(
        deadline_in(timeout_seconds), [&] { return self.try_publish_empty(descriptor); }, sleep_without_gil);
}

nb::tuple size_classes(const Producer& self) {
    nb::list classes;
    for (size_t i = 0; i < self.pool().size(); ++i) classes.append(self.pool().made(i));
    return nb::tuple(classes);
}

nb::tuple slab_fds(const Producer& self) {
    nb::list fds;
    for (size_t i = 0; i < self.pool().size(); ++i) fds.append(self.pool().fd(i));
    return nb::tuple(fds);
}

}  // namespace

void bind_producer(nb::module_& m) {
    nb::class_<SizeClass>(m, "SizeClass", nb::is_final())
        .def(
            "__init__",
            [](SizeClass* self, uint64_t slot_bytes, uint64_t slot_count, bool huge_pages) {
                new (self) SizeClass{slot_bytes, slot_count, huge_pages};
            },
            nb::arg("slot_bytes"), nb::arg("slot_count"), nb::arg("huge_pages") = false)
        .def_ro("slot_bytes", &SizeClass::slot_bytes)
        .def_ro("slot_count", &SizeClass::slot_count)
        .def_ro("huge_pages", &SizeClass::huge_pages)
        .def("__repr__", [](const SizeClass& self) {
            return nb::str("SizeClass(slot_bytes={}, slot_count={}, huge_pages={})")
                .format(self.slot_bytes, self.slot_count, self.huge_pages);
        });

    bind_write_lease(m);

    nb::class_<Producer>(m, "RingProducer", nb::is_final(), nb::type_slots(slots))
        .def(nb::new_([](uint32_t capacity, const std::vector<SizeClass>& classes, uint64_t incarnation,
                         uint64_t first_sequence) {
                 return std::make_shared<Producer>(capacity, classes, incarnation, first_sequence);
             }),
             nb::kw_only(), nb::arg("capacity"), nb::arg("size_classes"), nb::arg("incarnation") = 1,
             nb::arg("first_sequence") = 0)
        .def_prop_ro("ring_fd", &Producer::ring_fd)
        .def_prop_ro("slab_fds", &slab_fds)
        .def_prop_ro("size_classes", &size_classes)
        .def("trace", &Producer::trace, nb::arg("trace"))
        .def(
            "admit",
            [](Producer& self, int page_fd, std::string_view policy) {
                return self.admit(page_fd, mo::parse_policy(policy));
            },
            nb::arg("page_fd"), nb::arg("policy"))
        .def("dismiss", &Producer::dismiss, nb::arg("consumer"))
        .def("publish_empty", &publish_empty, nb::arg("descriptor"), nb::arg("timeout_seconds"))
        .def(
            "finish",
            [](Producer& self, std::string_view reason) { return self.finish(mo::parse_end_reason(reason)); },
            nb::arg("reason") = "end_of_stream")
        .def_prop_ro("tail", &Producer::tail)
        .def_prop_ro("next_source_index", &Producer::next_source_index)
        .def_prop_ro("free_slots", &Producer::free_slots)
        .def_prop_ro("outstanding", &Producer::outstanding)
        .def("backlog", &Producer::backlog, nb::arg("consumer"))
        .def("held", &Producer::held, nb::arg("consumer"))
        .def("dropped", &Producer::dropped, nb::arg("consumer"))
        .def("take_dropped", &Producer::take_dropped, nb::arg("consumer"))
        .def(
            "wait_acknowledged",
            [](Producer& self, double timeout_seconds) {
                return self.wait_until(
                    deadline_in(timeout_seconds), [&] { return self.all_acknowledged(); }, sleep_without_gil);
            },
            nb::arg("timeout_seconds"))
        .def("close", &Producer::close);
}

}  // namespace bindings
