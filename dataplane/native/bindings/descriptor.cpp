#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <string>
#include <tuple>

#include "common.hpp"
#include "error.hpp"
#include "layout.hpp"
#include "leases.hpp"

namespace bindings {
namespace {

using Pair = std::pair<uint32_t, uint32_t>;

PyObject* descriptor_type = nullptr;

uint8_t color_part(nb::handle value) { return nb::cast<uint8_t>(value); }

void construct(mo_descriptor* self, uint16_t payload_kind, uint64_t source_index, int64_t pts, int64_t dts,
               int64_t duration, Pair time_base, uint32_t stream_index, uint16_t pixel_format, uint32_t width,
               uint32_t height, nb::sequence planes, nb::sequence color, Pair sample_aspect, uint32_t flags,
               uint32_t parent_count, uint32_t epoch) {
    mo_descriptor descriptor = mo::unknown_descriptor(payload_kind);
    descriptor.source_index = source_index;
    descriptor.pts = pts;
    descriptor.dts = dts;
    descriptor.duration = duration;
    descriptor.time_base_num = time_base.first;
    descriptor.time_base_den = time_base.second;
    descriptor.stream_index = stream_index;
    descriptor.pixel_format = pixel_format;
    descriptor.width = width;
    descriptor.height = height;
    const size_t plane_count = nb::len(planes);
    if (plane_count > MO_MAX_PLANES) throw nb::value_error("a payload has at most 4 planes");
    descriptor.plane_count = static_cast<uint16_t>(plane_count);
    for (size_t i = 0; i < plane_count; ++i) {
        const auto [offset, stride] = nb::cast<Pair>(planes[i]);
        descriptor.plane_offset[i] = offset;
        descriptor.plane_stride[i] = stride;
    }
    if (nb::len(color) != 4) throw nb::value_error("color is (primaries, transfer, matrix, range)");
    descriptor.color_primaries = color_part(color[0]);
    descriptor.color_transfer = color_part(color[1]);
    descriptor.color_matrix = color_part(color[2]);
    descriptor.color_range = color_part(color[3]);
    descriptor.sample_aspect_num = sample_aspect.first;
    descriptor.sample_aspect_den = sample_aspect.second;
    descriptor.flags = flags;
    descriptor.parent_count = parent_count;
    descriptor.epoch = epoch;
    if (const std::string problem = mo::problem_with_fields(descriptor); !problem.empty())
        throw nb::value_error(problem.c_str());
    new (self) mo_descriptor(descriptor);
}

nb::tuple planes_said(const mo_descriptor& self) {
    nb::list planes;
    for (unsigned i = 0; i < self.plane_count; ++i)
        planes.append(nb::make_tuple(self.plane_offset[i], self.plane_stride[i]));
    return nb::tuple(planes);
}

nb::bytes to_bytes(const mo_descriptor& self) {
    return nb::bytes(reinterpret_cast<const char*>(&self), sizeof self);
}

mo_descriptor from_bytes(nb::bytes raw) {
    if (raw.size() != sizeof(mo_descriptor))
        throw mo::RingError("a descriptor has " + std::to_string(sizeof(mo_descriptor)) + " bytes, not " +
                            std::to_string(raw.size()));
    mo_descriptor descriptor;
    std::memcpy(&descriptor, raw.c_str(), sizeof descriptor);
    if (const std::string problem = mo::problem_with_fields(descriptor); !problem.empty())
        throw mo::RingError(problem);
    return descriptor;
}

}  // namespace

const mo_descriptor& descriptor_of(PyObject* object) {
    if (Py_TYPE(object) != reinterpret_cast<PyTypeObject*>(descriptor_type) || !nb::inst_ready(object)) [[unlikely]]
        throw nb::type_error((std::string("descriptor is a Descriptor, not a ") + Py_TYPE(object)->tp_name).c_str());
    return *nb::inst_ptr<mo_descriptor>(object);
}

void bind_descriptor(nb::module_& m) {
    descriptor_type = nb::class_<mo_descriptor>(m, "Descriptor", nb::is_final(), nb::pooled())
        .def("__init__", &construct, nb::kw_only(), nb::arg("payload_kind"),
             nb::arg("source_index") = MO_UNKNOWN_U64, nb::arg("pts") = MO_UNKNOWN_I64,
             nb::arg("dts") = MO_UNKNOWN_I64, nb::arg("duration") = MO_UNKNOWN_I64,
             nb::arg("time_base") = nb::make_tuple(0, 1), nb::arg("stream_index") = 0,
             nb::arg("pixel_format") = 0, nb::arg("width") = 0, nb::arg("height") = 0,
             nb::arg("planes") = nb::make_tuple(), nb::arg("color") = nb::make_tuple(2, 2, 2, 0),
             nb::arg("sample_aspect") = nb::make_tuple(0, 1), nb::arg("flags") = 0,
             nb::arg("parent_count") = 0, nb::arg("epoch") = 0)
        .def_ro("sequence", &mo_descriptor::sequence)
        .def_ro("payload_kind", &mo_descriptor::payload_kind)
        .def_ro("source_index", &mo_descriptor::source_index)
        .def_ro("pts", &mo_descriptor::pts)
        .def_ro("dts", &mo_descriptor::dts)
        .def_ro("duration", &mo_descriptor::duration)
        .def_prop_ro("time_base",
                     [](const mo_descriptor& self) { return Pair(self.time_base_num, self.time_base_den); })
        .def_ro("stream_index", &mo_descriptor::stream_index)
        .def_ro("pixel_format", &mo_descriptor::pixel_format)
        .def_ro("width", &mo_descriptor::width)
        .def_ro("height", &mo_descriptor::height)
        .def_prop_ro("planes", &planes_said)
        .def_prop_ro("color",
                     [](const mo_descriptor& self) {
                         return nb::make_tuple(self.color_primaries, self.color_transfer, self.color_matrix,
                                               self.color_range);
                     })
        .def_prop_ro(
            "sample_aspect",
            [](const mo_descriptor& self) { return Pair(self.sample_aspect_num, self.sample_aspect_den); })
        .def_ro("flags", &mo_descriptor::flags)
        .def_ro("parent_count", &mo_descriptor::parent_count)
        .def_ro("epoch", &mo_descriptor::epoch)
        .def_ro("slab", &mo_descriptor::slab)
        .def_ro("slot", &mo_descriptor::slot)
        .def_ro("bytes", &mo_descriptor::bytes)
        .def_ro("alloc_ns", &mo_descriptor::alloc_ns)
        .def_ro("launch_ns", &mo_descriptor::launch_ns)
        .def_ro("signal_ns", &mo_descriptor::signal_ns)
        .def("to_bytes", &to_bytes)
        .def_static("from_bytes", &from_bytes, nb::arg("raw"))
        .ptr();
}

}  // namespace bindings
