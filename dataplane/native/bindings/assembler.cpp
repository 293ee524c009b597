#include "assembler.hpp"

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <tuple>

#include "common.hpp"

namespace bindings {
namespace {

using mo::Assembler;
using Records = std::vector<mo_frame_record>;

nb::object to_array(const Records& records) {
    auto result = struct_array<mo_frame_record>(record_dtype(), records.size());
    if (!records.empty()) std::memcpy(result.data, records.data(), records.size() * sizeof(mo_frame_record));
    return result.array;
}

class BufferView {
  public:
    explicit BufferView(nb::handle array) {
        if (PyObject_GetBuffer(array.ptr(), &view_, PyBUF_C_CONTIGUOUS) != 0) throw nb::python_error();
    }
    ~BufferView() { PyBuffer_Release(&view_); }
    BufferView(const BufferView&) = delete;
    BufferView& operator=(const BufferView&) = delete;

    const void* data() const { return view_.buf; }
    size_t bytes() const { return static_cast<size_t>(view_.len); }

  private:
    Py_buffer view_;
};

nb::object feed(Assembler& self, nb::object events) {
    if (!nb::hasattr(events, "dtype") || !events.attr("dtype").equal(event_dtype()))
        throw nb::type_error("feed takes an array of frame events (observatory.model.event.EVENT_DTYPE)");
    const BufferView view(nb::module_::import_("numpy").attr("ascontiguousarray")(events));
    Records records;
    self.feed(view.data(), view.bytes() / sizeof(mo_frame_event), records);
    return to_array(records);
}

void construct(Assembler* self, std::vector<std::vector<uint32_t>> port_hops,
               const std::vector<std::tuple<uint16_t, uint16_t, uint16_t, uint16_t>>& hop_devices,
               const std::vector<bool>& expect_link) {
    std::vector<mo::HopDevices> devices;
    for (const auto& [producer, consumer, producer_real, consumer_real] : hop_devices)
        devices.push_back({producer, consumer, producer_real, consumer_real});
    new (self) Assembler(std::move(port_hops), devices, expect_link);
}

}  // namespace

void bind_assembler(nb::module_& m) {
    nb::class_<Assembler>(m, "Assembler", nb::is_final())
        .def("__init__", &construct, nb::arg("port_hops"), nb::arg("hop_devices"),
             nb::arg("expect_link") = nb::make_tuple())
        .def("feed", &feed, nb::arg("events"))
        .def(
            "drop",
            [](Assembler& self, uint32_t hop, const std::vector<uint64_t>& source_indices) {
                Records records;
                self.drop(hop, source_indices, records);
                return to_array(records);
            },
            nb::arg("hop"), nb::arg("source_indices"))
        .def("flush",
             [](Assembler& self) {
                 Records records;
                 self.flush(records);
                 return to_array(records);
             })
        .def_prop_ro("open_records", &Assembler::open_records)
        .def_prop_ro("unmatched_events", &Assembler::unmatched_events);
}

}  // namespace bindings
