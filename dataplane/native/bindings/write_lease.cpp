#include <nanobind/stl/optional.h>

#include <string>

#include "error.hpp"
#include "fast_calls.hpp"
#include "leases.hpp"
#include "loops.hpp"

namespace bindings {
namespace {

PyObject* write_lease_type = nullptr;

WriteLease& lease_of(nb::handle self) noexcept { return self_of<WriteLease>(self.ptr()); }

const Lender lender = {
    [](PyObject* self) { return lease_of(self).lend(); },
    [](PyObject* self) noexcept { lease_of(self).end_export(); },
};

// -- the hot path -------------------------------------------------------------------------------------------

PyObject* publish(PyObject* self, PyObject* const* args, Py_ssize_t given, PyObject* keywords) noexcept {
    return guarded([&] {
        const Arguments<2> arguments("publish", {"descriptor", "bytes"}, args, given, keywords);
        const mo_descriptor& descriptor = descriptor_of(arguments[0]);
        const uint64_t bytes = to_count(arguments[1], "bytes");
        WriteLease& lease = lease_of(self);
        lease.require_publishable();
        const uint64_t sequence = lease.producer().publish(lease.slot, descriptor, bytes);
        lease.published();
        poke(&lease.producer());  // without consumers the slot is free at once
        return PyLong_FromUnsignedLongLong(sequence);
    });
}

PyObject* abandon(PyObject* self, PyObject*) noexcept {
    return guarded([&] {
        lease_of(self).require_open();
        lease_of(self).abandon();
        return Py_NewRef(Py_None);
    });
}

PyObject* leave(PyObject* self, PyObject* const*, Py_ssize_t) noexcept {
    lease_of(self).abandon();
    return Py_NewRef(Py_None);
}

PyMethodDef fast_methods[] = {
    {"publish", as_method(publish), METH_FASTCALL | METH_KEYWORDS, "Commit the payload."},
    {"abandon", abandon, METH_NOARGS, "Give the slot back unpublished."},
    {"__enter__", enter, METH_NOARGS, nullptr},
    {"__exit__", as_method(leave), METH_FASTCALL, "Abandon it, unless it was published."},
    {},
};

PyObject* refuse_new(PyTypeObject*, PyObject*, PyObject*) noexcept {
    PyErr_SetString(PyExc_TypeError, "a WriteLease is what RingProducer.acquire returns");
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

}  // namespace

void WriteLease::require_publishable() const {
    require_open();
    if (exports_ != 0) [[unlikely]]
        throw mo::LeaseError("the lease still has " + std::to_string(exports_) +
                             " view(s) alive (arrays, memoryviews, DLPack): drop them before publishing");
}

void WriteLease::give_back() noexcept {
    producer().abandon(slot.place);
    poke(&producer());
}

void WriteLease::abandon() noexcept {
    if (!open_) return;
    open_ = false;
    owed_ = exports_ != 0;
    if (!owed_) give_back();
}

Memory WriteLease::lend() {
    require_open();
    if (!memory_) memory_ = producer().pool().memory(slot.place);
    ++exports_;
    return {slot.data, slot.capacity_bytes, true};
}

void WriteLease::end_export() noexcept {
    if (--exports_ == 0 && owed_) {
        owed_ = false;
        give_back();
    }
}

nb::object new_write_lease(nb::handle producer, const mo::WriteSlot& slot) {
    return make_instance<WriteLease>(write_lease_type, producer, slot);
}

void bind_write_lease(nb::module_& m) {
    write_lease_type = nb::class_<WriteLease>(m, "WriteLease", nb::is_final(), nb::pooled(), nb::type_slots(slots))
                           .def_prop_ro("slab", [](const WriteLease& self) { return self.slot.place.slab; })
                           .def_prop_ro("slot", [](const WriteLease& self) { return self.slot.place.slot; })
                           .def_prop_ro("capacity_bytes", [](const WriteLease& self) { return self.slot.capacity_bytes; })
                           .def_prop_ro("alloc_ns", [](const WriteLease& self) { return known(self.slot.alloc_ns); })
                           .def_prop_ro("array", &whole_of)
                           .def(
                               "planes",
                               [](nb::handle self, const mo_descriptor& descriptor) {
                                   return planes_of(self, descriptor, lease_of(self).slot.capacity_bytes);
                               },
                               nb::arg("descriptor"))
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
                           .def("launch",
                                [](WriteLease& self) {
                                    self.require_open();
                                    self.slot.launch_ns = mo::monotonic_ns();
                                })
                           .ptr();
}

}  // namespace bindings
