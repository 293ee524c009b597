// How the memory of a lease is shown to others: buffers, NumPy arrays, DLPack. Every export is counted by the lease
// that lends it, which cannot end before they do, and keeps the lease (and so the mapping) alive.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>

#include "ring.h"

namespace nb = nanobind;

namespace bindings {

// The bytes that a lease lends now.
struct Memory {
    uint8_t* data;
    size_t bytes;
    bool writable;
};

// What a type with exports tells about itself.
struct Lender {
    Memory (*lend)(PyObject* lease);  // checks that the lease is open and counts one export; throws LeaseError
    void (*end)(PyObject* lease) noexcept;  // one export is over
};

// The buffer protocol of a lender, for Py_bf_getbuffer.
int get_buffer(PyObject* lease, Py_buffer* view, int flags, const Lender& lender) noexcept;

// An array over (a part of) a lease's buffer. Strides in bytes; item_bytes 1 or 2 (little-endian, unsigned).
struct Part {
    size_t offset = 0;
    size_t item_bytes = 1;
    size_t dimensions = 1;
    size_t shape[3] = {};
    size_t strides[3] = {};
};
nb::object part_of(nb::handle lease, const Part& part);
// All of it, as bytes.
nb::object whole_of(nb::handle lease);
// A copy of it that is NumPy's own.
nb::object copy_of(nb::handle lease);
// What `numpy.asarray` and `numpy.array` call.
nb::object array_of(nb::handle lease, nb::object dtype, nb::object copy);

// One array per plane: (rows, samples), or (rows, pairs, 2) where chroma is interleaved. Throws RingError when the
// descriptor does not say how the payload is laid out, or says nonsense.
nb::tuple planes_of(nb::handle lease, const mo_descriptor& descriptor, size_t bytes);

// A DLPack capsule of the whole memory: versioned when `max_version` allows, which read-only memory needs.
nb::object dlpack_of(nb::handle lease, const Lender& lender, nb::object stream, nb::object max_version,
                     nb::object device, nb::object copy);
nb::tuple dlpack_device();

}  // namespace bindings
