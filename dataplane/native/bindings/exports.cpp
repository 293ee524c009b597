#include "exports.hpp"

#include <memory>
#include <string>

#include "common.hpp"
#include "error.hpp"
#include "fast_calls.hpp"
#include "layout.hpp"

namespace bindings {
namespace {

// Where nothing is to be seen: some users of buffers do not like a null pointer, not even with no bytes behind it.
uint8_t nothing[1];

// NumPy's own functions. Never freed: the interpreter may be gone before our statics.
struct NumPy {
    nb::object frombuffer, ndarray, array, uint8, uint16;
};
const NumPy& numpy() {
    static const NumPy* const found = [] {
        const nb::module_ module = nb::module_::import_("numpy");
        const nb::object dtype = module.attr("dtype");
        return new NumPy{module.attr("frombuffer"), module.attr("ndarray"), module.attr("array"), dtype("u1"),
                         dtype("<u2")};
    }();
    return *found;
}

// -- DLPack -------------------------------------------------------------------------------------------------

// The standard's two managed tensors.
struct Legacy {
    nb::dlpack::dltensor tensor;
    void* context;
    void (*deleter)(Legacy*);
};
struct Version {
    uint32_t major, minor;
};
struct Versioned {
    Version version;
    void* context;
    void (*deleter)(Versioned*);
    uint64_t flags;
    nb::dlpack::dltensor tensor;
};
constexpr uint64_t kReadOnly = 1u << 0;
constexpr uint64_t kCopied = 1u << 1;

constexpr const char* kLegacyName = "dltensor";
constexpr const char* kVersionedName = "dltensor_versioned";

template <class Tensor>
constexpr const char* kName = std::is_same_v<Tensor, Versioned> ? kVersionedName : kLegacyName;

// Behind a capsule: the tensor, the shape it points to, and who lends the memory.
template <class Tensor>
struct Managed {
    Tensor managed{};
    int64_t shape[1];
    int64_t stride[1] = {1};
    PyObject* owner;  // a lease, or the array that a copy lies in
    void (*end)(PyObject*) noexcept;

    // May be called on any thread, and after the interpreter has gone, when there is nothing left to give back to.
    static void free(Tensor* tensor) {
        auto* self = static_cast<Managed*>(tensor->context);
        if (Py_IsInitialized()) {
            const nb::gil_scoped_acquire gil;
            if (self->end != nullptr) self->end(self->owner);
            Py_DECREF(self->owner);
        }
        delete self;
    }

    // A capsule that nobody took the tensor out of (whoever does renames it).
    static void drop(PyObject* capsule) {
        if (!PyCapsule_IsValid(capsule, kName<Tensor>)) return;
        auto* tensor = static_cast<Tensor*>(PyCapsule_GetPointer(capsule, kName<Tensor>));
        tensor->deleter(tensor);
    }
};

// `owner` is kept; `end` (may be null) is called when the tensor is over, and also when this throws.
template <class Tensor>
nb::object capsule_of(const Memory& memory, uint64_t flags, nb::object owner, void (*end)(PyObject*) noexcept) {
    auto made = std::make_unique<Managed<Tensor>>();
    made->shape[0] = static_cast<int64_t>(memory.bytes);
    made->managed.tensor.data = memory.data;
    made->managed.tensor.device = {nb::device::cpu::value, 0};
    made->managed.tensor.ndim = 1;
    made->managed.tensor.dtype = {static_cast<uint8_t>(nb::dlpack::dtype_code::UInt), 8, 1};
    made->managed.tensor.shape = made->shape;
    made->managed.tensor.strides = made->stride;
    made->managed.context = made.get();
    made->managed.deleter = &Managed<Tensor>::free;
    if constexpr (std::is_same_v<Tensor, Versioned>) {
        made->managed.version = {1, 0};
        made->managed.flags = flags;
    }
    nb::object capsule = nb::steal(PyCapsule_New(&made->managed, kName<Tensor>, &Managed<Tensor>::drop));
    if (!capsule.is_valid()) {
        if (end != nullptr) end(owner.ptr());
        throw nb::python_error();
    }
    made->owner = owner.release().ptr();
    made->end = end;
    made.release();  // NOLINT: the capsule's now
    return capsule;
}

// Whether the other side can read versioned capsules.
bool knows_versions(nb::handle max_version) {
    return !max_version.is_none() && nb::cast<int>(max_version[0]) >= 1;
}

}  // namespace

nb::object dlpack_of(nb::handle lease, const Lender& lender, nb::object stream, nb::object max_version,
                     nb::object device, nb::object copy) {
    if (!stream.is_none()) throw nb::value_error("memory of the CPU has no streams: stream is None");
    if (!device.is_none() && !device.equal(dlpack_device()))
        throw nb::buffer_error("the memory is the CPU's and stays there: dl_device is (1, 0)");
    const bool versioned = knows_versions(max_version);
    if (!copy.is_none() && nb::cast<bool>(copy)) {
        const nb::object own = copy_of(lease);
        const Memory memory{static_cast<uint8_t*>(nb::cast<nb::ndarray<>>(own).data()), nb::len(own), true};
        if (versioned) return capsule_of<Versioned>(memory, kCopied, own, nullptr);
        return capsule_of<Legacy>(memory, 0, own, nullptr);
    }
    const Memory memory = lender.lend(lease.ptr());
    if (versioned)
        return capsule_of<Versioned>(memory, memory.writable ? 0 : kReadOnly, nb::borrow(lease), lender.end);
    if (!memory.writable) {
        lender.end(lease.ptr());
        throw nb::buffer_error(
            "only DLPack 1.0 and later can say that memory is read-only: ask with max_version=(1, 0), or for a copy");
    }
    return capsule_of<Legacy>(memory, 0, nb::borrow(lease), lender.end);
}

nb::tuple dlpack_device() { return nb::make_tuple(nb::device::cpu::value, 0); }

// -- buffers and arrays -------------------------------------------------------------------------------------

int get_buffer(PyObject* lease, Py_buffer* view, int flags, const Lender& lender) noexcept {
    view->obj = nullptr;
    try {
        const Memory memory = lender.lend(lease);
        uint8_t* data = memory.data == nullptr ? nothing : memory.data;
        if (PyBuffer_FillInfo(view, lease, data, static_cast<Py_ssize_t>(memory.bytes), memory.writable ? 0 : 1,
                              flags) == 0)
            return 0;
        lender.end(lease);
    } catch (...) {
        raise_handled();
    }
    return -1;
}

nb::object whole_of(nb::handle lease) {
    const NumPy& np = numpy();
    PyObject* arguments[] = {lease.ptr(), np.uint8.ptr()};
    nb::object array = nb::steal(PyObject_Vectorcall(np.frombuffer.ptr(), arguments, 2, nullptr));
    if (!array.is_valid()) throw nb::python_error();
    return array;
}

nb::object part_of(nb::handle lease, const Part& part) {
    const NumPy& np = numpy();
    nb::list shape, strides;
    for (size_t i = 0; i < part.dimensions; ++i) {
        shape.append(part.shape[i]);
        strides.append(part.strides[i]);
    }
    // Over an array and not over the lease: this constructor keeps what it is given, but no buffer of it.
    return np.ndarray(nb::tuple(shape), part.item_bytes == 2 ? np.uint16 : np.uint8, whole_of(lease), part.offset,
                      nb::tuple(strides));
}

nb::object copy_of(nb::handle lease) { return whole_of(lease).attr("copy")(); }

nb::object array_of(nb::handle lease, nb::object dtype, nb::object copy) {
    const nb::object whole = whole_of(lease);
    if (dtype.is_none() && copy.is_none()) return whole;
    return numpy().array(whole, nb::arg("dtype") = dtype, nb::arg("copy") = copy);
}

// -- planes -------------------------------------------------------------------------------------------------

namespace {

// Samples of one row of a plane, and how many of them lie together in one place (2: interleaved chroma).
struct Row {
    size_t places;
    size_t together;
};

Row row_of(const mo_descriptor& descriptor, unsigned plane) {
    const size_t half = (size_t{descriptor.width} + 1) / 2;
    if (plane == 0) return {descriptor.width, 1};
    const bool interleaved = descriptor.pixel_format == MO_NV12 || descriptor.pixel_format == MO_P010LE;
    return {half, interleaved ? 2u : 1u};
}

Part part_of_plane(const mo_descriptor& descriptor, unsigned plane, size_t bytes) {
    const bool wide = descriptor.pixel_format == MO_YUV420P10LE || descriptor.pixel_format == MO_P010LE;
    const Row row = row_of(descriptor, plane);
    Part part;
    part.offset = descriptor.plane_offset[plane];
    part.item_bytes = wide ? 2 : 1;
    part.dimensions = row.together == 1 ? 2 : 3;
    const size_t rows = mo::plane_rows(descriptor, plane);
    const size_t stride = descriptor.plane_stride[plane];
    const size_t row_bytes = row.places * row.together * part.item_bytes;
    const std::string name = "plane " + std::to_string(plane);
    if (row_bytes > stride)
        throw mo::RingError(name + " has rows of " + std::to_string(row_bytes) + " bytes, but a stride of " +
                            std::to_string(stride));
    if (part.offset + rows * stride > bytes)
        throw mo::RingError(name + " does not lie within the " + std::to_string(bytes) + " bytes of the payload");
    if (part.offset % part.item_bytes != 0 || stride % part.item_bytes != 0)
        throw mo::RingError(name + " of 16-bit samples begins or goes on at an odd byte");
    const size_t shape[] = {rows, row.places, row.together};
    const size_t strides[] = {stride, row.together * part.item_bytes, part.item_bytes};
    std::copy(shape, shape + 3, part.shape);
    std::copy(strides, strides + 3, part.strides);
    return part;
}

}  // namespace

nb::tuple planes_of(nb::handle lease, const mo_descriptor& descriptor, size_t bytes) {
    if (descriptor.pixel_format == MO_PIXEL_NONE || descriptor.plane_count == 0)
        throw mo::RingError("the descriptor says no pixel format or no planes: `array` has the bytes");
    nb::list planes;
    for (unsigned i = 0; i < descriptor.plane_count; ++i)
        planes.append(part_of(lease, part_of_plane(descriptor, i, bytes)));
    return nb::tuple(planes);
}

}  // namespace bindings
