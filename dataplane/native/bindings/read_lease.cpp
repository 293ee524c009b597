#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <optional>
#include <nanobind/stl/optional.h>

#include <string>
#include <utility>

#include "error.hpp"
#include "fast_calls.hpp"
#include "leases.hpp"

namespace bindings {
namespace {

PyObject* read_lease_type = nullptr;

ReadLease& lease_of(nb::handle self) noexcept { return self_of<ReadLease>(self.ptr()); }

const Lender lender = {
    [](PyObject* self) { return lease_of(self).lend(); },
    [](PyObject* self) noexcept { lease_of(self).end_export(); },
};

// -- the hot path -------------------------------------------------------------------------------------------

PyObject* release(PyObject* self, PyObject*) noexcept {
    return guarded([&] {
        lease_of(self).release();
        return Py_NewRef(Py_None);
    });
}

// An exception on its way out means that the work on the frame was not done: the frame stays unacknowledged.
PyObject* leave(PyObject* self, PyObject* const* exc, Py_ssize_t given) noexcept {
    return guarded([&] {
        const bool failed = given > 0 && !Py_IsNone(exc[0]);
        if (lease_of(self).open() && !failed) lease_of(self).release();
        return Py_NewRef(Py_None);
    });
}

PyMethodDef fast_methods[] = {
    {"release", release, METH_NOARGS, "Acknowledge the payload."},
    {"__enter__", enter, METH_NOARGS, nullptr},
    {"__exit__", as_method(leave), METH_FASTCALL, "Release it, unless that was done or an exception is on its way."},
    {},
};

PyObject* refuse_new(PyTypeObject*, PyObject*, PyObject*) noexcept {
    PyErr_SetString(PyExc_TypeError, "a ReadLease is what RingConsumer.take returns");
    return nullptr;
}
int show(PyObject* self, Py_buffer* view, int flags) noexcept { return get_buffer(self, view, flags, lender); }
void stop_showing(PyObject* self, Py_buffer*) noexcept { lender.end(self); }

PyType_Slot slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(refuse_new)},
    {Py_tp_methods, fast_methods},
    {Py_bf_getbuffer, reinterpret_cast<void*>(show)},
    {Py_bf_releasebuffer, reinterpret_cast<void*>(stop_showing)},
    {},
};

// -- the rest -----------------------------------------------------------------------------------------------

nb::object descriptor(nb::handle self) {
    ReadLease& lease = lease_of(self);
    if (!lease.described.is_valid()) lease.described = nb::cast(lease.slot.descriptor);
    return lease.described;
}

nb::object plane(nb::handle self, int index) {
    ReadLease& lease = lease_of(self);
    const mo_descriptor& descriptor = lease.slot.descriptor;
    if (index < 0 || index >= descriptor.plane_count) throw nb::index_error("the payload has no such plane");
    Part part;
    part.offset = descriptor.plane_offset[index];
    part.dimensions = 2;
    part.shape[0] = mo::plane_rows(descriptor, static_cast<unsigned>(index));
    part.shape[1] = part.strides[0] = descriptor.plane_stride[index];
    part.strides[1] = 1;
    return part_of(self, part);
}

std::optional<std::pair<int64_t, int64_t>> link_ns(const ReadLease& self) {
    if (!self.slot.link.known()) return std::nullopt;
    return std::pair(self.slot.link.start_ns, self.slot.link.end_ns);
}

}  // namespace

void ReadLease::release() {
    require_open();
    if (exports_ != 0) [[unlikely]]
        throw mo::LeaseError("the lease still has " + std::to_string(exports_) +
                             " view(s) alive (arrays, memoryviews, DLPack): drop them before releasing");
    consumer().release(slot);
    released_ = true;
}

Memory ReadLease::lend() {
    require_open();
    ++exports_;
    return {const_cast<uint8_t*>(slot.data), slot.descriptor.bytes, false};
}

nb::object new_read_lease(nb::handle consumer) { return make_instance<ReadLease>(read_lease_type, consumer); }

void bind_read_lease(nb::module_& m) {
    read_lease_type = nb::class_<ReadLease>(m, "ReadLease", nb::is_final(), nb::pooled(), nb::type_slots(slots))
                          .def_prop_ro("descriptor", &descriptor)
                          .def_prop_ro("sequence", [](const ReadLease& self) { return self.slot.descriptor.sequence; })
                          .def_prop_ro("array", &whole_of)
                          .def("plane", &plane, nb::arg("index"))
                          .def_prop_ro("planes",
                                       [](nb::handle self) {
                                           const mo_descriptor& said = lease_of(self).slot.descriptor;
                                           return planes_of(self, said, said.bytes);
                                       })
                          .def("copy", &copy_of)
                          .def("__array__", &array_of, nb::arg("dtype") = nb::none(), nb::arg("copy") = nb::none())
                          .def(
                              "__dlpack__",
                              [](nb::handle self, nb::object stream, nb::object max_version, nb::object dl_device,
                                 nb::object copy) {
                                  return dlpack_of(self, lender, stream, max_version, dl_device, copy);
                              },
                              nb::kw_only(), nb::arg("stream") = nb::none(), nb::arg("max_version") = nb::none(),
                              nb::arg("dl_device") = nb::none(), nb::arg("copy") = nb::none())
                          .def("__dlpack_device__", [](nb::handle) { return dlpack_device(); })
                          .def_prop_ro("wait_ns", [](const ReadLease& self) { return known(self.slot.wait_ns); })
                          .def_prop_ro("link_ns", &link_ns)
                          .def("launch",
                               [](ReadLease& self) {
                                   self.require_open();
                                   self.consumer().launch(self.slot);
                               })
                          .ptr();
}

}  // namespace bindings
