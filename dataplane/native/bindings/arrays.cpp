// Structured NumPy arrays of the ABI's structs. The dtypes are made here, from the compiler's own offsets.
#include <cstddef>
#include <string>

#include "common.hpp"

namespace bindings {
namespace {

// Never freed: the interpreter may be gone before our statics.
nb::object* cached_dtype(nb::list (*fields)()) {
    return new nb::object(nb::module_::import_("numpy").attr("dtype")(fields()));
}

void add(nb::list& fields, const char* name, const char* format) {
    fields.append(nb::make_tuple(name, format));
}

nb::list event_fields() {
    nb::list fields;
    add(fields, "time_ns", "<i8");
    add(fields, "source_index", "<u8");
    add(fields, "pts", "<i8");
    for (const char* name : {"time_base_num", "time_base_den", "stream", "epoch", "place", "slot", "bytes"})
        add(fields, name, "<u4");
    add(fields, "kind", "<u2");
    add(fields, "device", "<u2");
    add(fields, "reserved", "<u8");
    return fields;
}

nb::list record_fields() {
    nb::list fields;
    add(fields, "stream", "<u4");
    add(fields, "epoch", "<u4");
    add(fields, "source_index", "<u8");
    add(fields, "pts", "<i8");
    for (const char* name : {"time_base_num", "time_base_den", "hop", "slot", "bytes"})
        add(fields, name, "<u4");
    for (const char* name : {"producer_device", "consumer_device", "producer_real_device",
                             "consumer_real_device", "flags", "version"})
        add(fields, name, "<u2");
    fields.append(nb::make_tuple("times_ns", "<i8", nb::make_tuple(static_cast<int>(MO_EVENT_KINDS))));
    return fields;
}

}  // namespace

nb::handle event_dtype() {
    static nb::object* const dtype = cached_dtype(event_fields);
    return *dtype;
}

nb::handle record_dtype() {
    static nb::object* const dtype = cached_dtype(record_fields);
    return *dtype;
}

void* new_struct_array(nb::handle dtype, size_t count, nb::object& array) {
    static nb::object* const empty = new nb::object(nb::module_::import_("numpy").attr("empty"));
    array = (*empty)(count, dtype);
    Py_buffer view;
    if (PyObject_GetBuffer(array.ptr(), &view, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS) != 0)
        throw nb::python_error();
    void* data = view.buf;
    // The memory belongs to the array, which the caller holds.
    PyBuffer_Release(&view);
    return data;
}

}  // namespace bindings
