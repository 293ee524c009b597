#include "producer.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "common.hpp"
#include "error.hpp"
#include "fast_calls.hpp"
#include "leases.hpp"
#include "loops.hpp"
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

uint64_t publish_together(const std::vector<WriteLease*>& leases, const std::vector<mo_descriptor>& descriptors,
                          const std::vector<uint64_t>& sizes) {
    if (leases.empty() || leases.size() != descriptors.size() || leases.size() != sizes.size())
        throw nb::value_error("as many leases as descriptors and sizes, and at least one");
    std::vector<mo::Publication> payloads;
    for (size_t i = 0; i < leases.size(); ++i) {
        leases[i]->require_publishable();
        if (&leases[i]->producer() != &leases[0]->producer())
            throw nb::value_error("the leases are of several producers");
        if (std::find(leases.begin(), leases.begin() + static_cast<ptrdiff_t>(i), leases[i]) !=
            leases.begin() + static_cast<ptrdiff_t>(i))
            throw nb::value_error("one lease is there twice");
        payloads.push_back({&leases[i]->slot, &descriptors[i], sizes[i]});
    }
    const uint64_t first = leases[0]->producer().publish_together(payloads);
    for (WriteLease* lease : leases) lease->published();
    poke(&leases[0]->producer());
    return first;
}

std::optional<uint64_t> publish_empty(Producer& self, const mo_descriptor& descriptor,
                                      double timeout_seconds) {
    return self.wait_until(
        deadline_in(timeout_seconds), [&] { return self.try_publish_empty(descriptor); }, sleep_without_gil);
}

nb::tuple size_classes(const Producer& self) {
    nb::list classes;
    for (const mo::MadeClass& made : self.pool().classes()) classes.append(made);
    return nb::tuple(classes);
}

nb::tuple slab_slot_bytes(const Producer& self) {
    nb::list bytes;
    for (size_t i = 0; i < self.pool().size(); ++i) bytes.append(self.pool().made(i).slot_bytes);
    return nb::tuple(bytes);
}

void prefault(const Producer& self) {
    const auto slabs = self.pool().mappings();
    const nb::gil_scoped_release release;
    mo::prefault(slabs);
}

nb::tuple slab_fds(const Producer& self) {
    nb::list fds;
    for (size_t i = 0; i < self.pool().size(); ++i) fds.append(self.pool().fd(i));
    return nb::tuple(fds);
}

}  // namespace

void bind_producer(nb::module_& m) {
    bind_write_lease(m);
    m.def("publish_together", &publish_together, nb::arg("leases"), nb::arg("descriptors"), nb::arg("sizes"));

    nb::class_<Producer>(m, "RingProducer", nb::is_final(), nb::type_slots(slots))
        .def(nb::new_([](uint32_t capacity, const std::vector<SizeClass>& classes, uint64_t incarnation,
                         std::optional<uint64_t> first_sequence) {
                 return std::make_shared<Producer>(capacity, classes, incarnation, first_sequence);
             }),
             nb::kw_only(), nb::arg("capacity"), nb::arg("size_classes"), nb::arg("incarnation") = 1,
             nb::arg("first_sequence").none() = 0)
        .def("begin", &Producer::begin, nb::arg("first_sequence"))
        .def_prop_ro("begun", &Producer::begun)
        .def_prop_ro("ring_fd", &Producer::ring_fd)
        .def_prop_ro("slab_fds", &slab_fds)
        .def_prop_ro("slab_slot_bytes", &slab_slot_bytes)
        .def_prop_ro("size_classes", &size_classes)
        .def("trace", &Producer::trace, nb::arg("trace"))
        .def(
            "admit",
            [](Producer& self, int page_fd, std::string_view policy) {
                return self.admit(page_fd, mo::parse_policy(policy));
            },
            nb::arg("page_fd"), nb::arg("policy"))
        .def(
            "admit_together",
            [](Producer& self, const std::vector<int>& page_fds, const std::vector<std::string>& policies) {
                if (page_fds.size() != policies.size()) throw mo::RingError("as many policies as pages are needed");
                std::vector<mo_edge_policy> parsed;
                for (const std::string& policy : policies) parsed.push_back(mo::parse_policy(policy));
                std::vector<int> handles;
                try {
                    for (size_t i = 0; i < page_fds.size(); ++i) handles.push_back(self.admit(page_fds[i], parsed[i]));
                } catch (...) {
                    for (const int handle : handles) self.dismiss(handle);
                    throw;
                }
                return std::make_tuple(handles, self.tail(), self.next_source_index());
            },
            nb::arg("page_fds"), nb::arg("policies"))
        .def(
            "replace",
            [](Producer& self, int consumer, int page_fd) {
                const nb::tuple replaced = replacement(self.replace(consumer, page_fd));
                poke(&self);
                return replaced;
            },
            nb::arg("consumer"), nb::arg("page_fd"))
        .def("cut", &Producer::cut, nb::arg("consumer"), nb::arg("page_fd"))
        .def(
            "stop",
            [](Producer& self, const std::vector<int>& consumers) {
                self.stop(consumers);
                return std::make_pair(self.tail(), self.next_source_index());
            },
            nb::arg("consumers"))
        .def(
            "dismiss",
            [](Producer& self, int consumer) {
                self.dismiss(consumer);
                poke(&self);
            },
            nb::arg("consumer"))
        .def("publish_empty", &publish_empty, nb::arg("descriptor"), nb::arg("timeout_seconds"))
        .def(
            "finish",
            [](Producer& self, std::string_view reason) {
                const uint64_t final_seq = self.finish(mo::parse_end_reason(reason));
                poke(&self);
                return final_seq;
            },
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
        .def("pool_stats", &Producer::pool_stats, nb::arg("reset") = true)
        .def("prefault", &prefault)
        .def("close", [](Producer& self) {
            self.close();
            poke(&self);
        });
}

}  // namespace bindings
