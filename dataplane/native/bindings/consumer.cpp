#include "consumer.hpp"

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

using mo::Consumer;

// Behind every array of a lease: counts the arrays, keeps the memory mapped when the consumer is closed.
struct Export {
    std::shared_ptr<size_t> count;
    std::shared_ptr<const mo::Attachment> memory;

    Export(std::shared_ptr<size_t> counter, std::shared_ptr<const mo::Attachment> of)
        : count(std::move(counter)), memory(std::move(of)) {
        ++*count;
    }
    Export(Export&&) = default;  // the moved-from one has no counter
    ~Export() {
        if (count) --*count;
    }
};

struct ReadLease {
    std::shared_ptr<Consumer> consumer;
    mo::ReadSlot slot;
    std::shared_ptr<size_t> exports;  // made with the first array
    bool released = false;

    void require_open() const {
        if (released) throw mo::LeaseError("the lease has ended (released)");
    }

    nb::capsule export_owner() {
        require_open();
        if (!exports) exports = std::make_shared<size_t>(0);
        return owner_of(Export(exports, slot.attachment));
    }

    void release() {
        require_open();
        if (exports && *exports != 0)
            throw mo::LeaseError("the lease still has " + std::to_string(*exports) +
                                 " array(s) alive: drop them before releasing");
        consumer->release(slot);
        released = true;
        slot.attachment.reset();
    }
};

nb::object read_array(ReadLease& self) {
    return make_array<const uint8_t>(self.slot.data, self.slot.descriptor.bytes, self.export_owner());
}

nb::object read_plane(ReadLease& self, int index) {
    const mo_descriptor& descriptor = self.slot.descriptor;
    if (index < 0 || index >= descriptor.plane_count) throw nb::index_error("the payload has no such plane");
    const size_t shape[] = {mo::plane_rows(descriptor, index), descriptor.plane_stride[index]};
    const uint8_t* data = self.slot.data + descriptor.plane_offset[index];
    return nb::cast(nb::ndarray<nb::numpy, const uint8_t, nb::ndim<2>>(data, 2, shape, self.export_owner()),
                    nb::rv_policy::reference);
}

// An exception on its way out means that the work on the frame was not done: the frame stays unacknowledged.
void leave(ReadLease& self, nb::args exc) {
    const bool failed = exc.size() > 0 && !exc[0].is_none();
    if (!self.released && !failed) self.release();
}

std::optional<ReadLease> take(const std::shared_ptr<Consumer>& self, double timeout_seconds) {
    check_timeout(timeout_seconds);
    auto slot = self->try_take();
    if (!slot && timeout_seconds > 0)
        slot = self->take_until(deadline_in(timeout_seconds), sleep_without_gil);
    if (!slot) return std::nullopt;
    return ReadLease{self, std::move(*slot), nullptr, false};
}

std::vector<size_t> wait_any(const std::vector<std::shared_ptr<Consumer>>& consumers,
                             double timeout_seconds) {
    std::vector<Consumer*> pointers;
    for (const auto& consumer : consumers) pointers.push_back(consumer.get());
    return mo::wait_any_until(pointers, deadline_in(timeout_seconds), sleep_without_gil);
}

}  // namespace

void bind_consumer(nb::module_& m) {
    nb::class_<ReadLease>(m, "ReadLease", nb::is_final())
        .def_prop_ro("descriptor", [](const ReadLease& self) { return self.slot.descriptor; })
        .def_prop_ro("sequence", [](const ReadLease& self) { return self.slot.descriptor.sequence; })
        .def_prop_ro("array", &read_array)
        .def("plane", &read_plane, nb::arg("index"))
        .def_prop_ro("wait_ns", [](const ReadLease& self) { return self.slot.wait_ns; })
        .def("launch",
             [](ReadLease& self) {
                 self.require_open();
                 self.consumer->launch(self.slot);
             })
        .def("release", &ReadLease::release)
        .def("__enter__", [](nb::object self) { return self; })
        .def("__exit__", &leave);

    nb::class_<Consumer>(m, "RingConsumer", nb::is_final())
        .def(nb::new_([](std::string_view policy) {
                 return std::make_shared<Consumer>(mo::parse_policy(policy));
             }),
             nb::arg("policy") = "block")
        .def_prop_ro("page_fd", &Consumer::page_fd)
        .def(
            "attach",
            [](Consumer& self, int ring_fd, const std::vector<int>& slab_fds,
               const std::vector<uint64_t>& slot_bytes) { self.attach(ring_fd, slab_fds, slot_bytes); },
            nb::arg("ring_fd"), nb::arg("slab_fds"), nb::arg("slot_bytes"))
        .def("trace", &Consumer::trace, nb::arg("trace"))
        .def("take", &take, nb::arg("timeout_seconds"))
        .def(
            "end_at",
            [](Consumer& self, uint64_t final_seq, std::string_view reason) {
                self.end_at(final_seq, mo::parse_end_reason(reason));
            },
            nb::arg("final_seq"), nb::arg("reason"))
        .def_prop_ro("dismissed", &Consumer::dismissed)
        .def_prop_ro("taken", &Consumer::taken)
        .def_prop_ro("acked", &Consumer::acked)
        .def_prop_ro("held", &Consumer::held)
        .def_prop_ro("backlog", &Consumer::backlog)
        .def("close", &Consumer::close);

    m.def("wait_any", &wait_any, nb::arg("consumers"), nb::arg("timeout_seconds"));
}

}  // namespace bindings
