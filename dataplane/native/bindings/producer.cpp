#include "producer.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <string_view>

#include "common.hpp"
#include "error.hpp"
#include "names.hpp"

namespace bindings {
namespace {

using mo::Producer;
using mo::SizeClass;

// Shared by the lease and every array made from it: a lease that is simply forgotten gives its slot back, but
// not while somebody can still write through an array.
struct Writing {
    std::shared_ptr<Producer> producer;
    mo::WriteSlot slot;
    std::shared_ptr<const mo::Mapping> memory;
    bool open = true;

    Writing(std::shared_ptr<Producer> of, const mo::WriteSlot& lent)
        : producer(std::move(of)), slot(lent), memory(producer->pool().memory(lent.place)) {}
    Writing(const Writing&) = delete;
    Writing& operator=(const Writing&) = delete;
    ~Writing() { abandon(); }

    void abandon() noexcept {
        if (open) producer->abandon(slot.place);
        open = false;
    }
};

struct WriteLease {
    std::shared_ptr<Writing> state;

    Writing& open() const {
        if (!state->open) throw mo::LeaseError("the lease has ended (published or abandoned)");
        return *state;
    }
};

nb::object write_array(const WriteLease& self) {
    const Writing& writing = self.open();
    return make_array<uint8_t>(writing.slot.data, writing.slot.capacity_bytes, owner_of(self.state));
}

uint64_t publish(const WriteLease& self, const mo_descriptor& descriptor, uint64_t bytes) {
    Writing& writing = self.open();
    const uint64_t sequence = writing.producer->publish(writing.slot, descriptor, bytes);
    writing.open = false;
    return sequence;
}

std::optional<WriteLease> acquire(const std::shared_ptr<Producer>& self, uint64_t bytes,
                                  double timeout_seconds) {
    check_timeout(timeout_seconds);
    auto slot = self->try_acquire(bytes);
    if (!slot && timeout_seconds > 0)
        slot = self->wait_until(
            deadline_in(timeout_seconds), [&] { return self->try_acquire(bytes); }, sleep_without_gil);
    if (!slot) return std::nullopt;
    return WriteLease{std::make_shared<Writing>(self, *slot)};
}

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

void bind_leases(nb::module_& m) {
    nb::class_<WriteLease>(m, "WriteLease", nb::is_final())
        .def_prop_ro("slab", [](const WriteLease& self) { return self.state->slot.place.slab; })
        .def_prop_ro("slot", [](const WriteLease& self) { return self.state->slot.place.slot; })
        .def_prop_ro("capacity_bytes", [](const WriteLease& self) { return self.state->slot.capacity_bytes; })
        .def_prop_ro("alloc_ns", [](const WriteLease& self) { return self.state->slot.alloc_ns; })
        .def_prop_ro("array", &write_array)
        .def("launch", [](const WriteLease& self) { self.open().slot.launch_ns = mo::monotonic_ns(); })
        .def("publish", &publish, nb::arg("descriptor"), nb::arg("bytes"))
        .def("abandon", [](const WriteLease& self) { self.open().abandon(); })
        .def("__enter__", [](nb::object self) { return self; })
        .def("__exit__", [](const WriteLease& self, nb::args) { self.state->abandon(); });
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

    bind_leases(m);

    nb::class_<Producer>(m, "RingProducer", nb::is_final())
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
        .def("acquire", &acquire, nb::arg("bytes"), nb::arg("timeout_seconds"))
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
