// The module `_cost`: the costs of a cluster, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>
#include <utility>

#include "cluster.hpp"

namespace nb = nanobind;

namespace {

using Numbers = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Flags = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Values = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Array = nb::ndarray<nb::numpy, double>;

template <typename T>
std::vector<T> vector_of(const nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>& array) {
    return {array.data(), array.data() + array.shape(0)};
}

void check(bool holds, const char* words) {
    if (!holds) throw std::invalid_argument(words);
}

void check_numbers(const std::vector<int32_t>& numbers, int32_t least, int64_t end, const char* words) {
    for (const int32_t number : numbers) check(number >= least && number < end, words);
}

// A copy that Python owns.
Array array_of(const double* data, std::initializer_list<size_t> shape) {
    size_t count = 1;
    for (const size_t length : shape) count *= length;
    auto* copy = new double[count ? count : 1];
    std::copy(data, data + count, copy);
    nb::capsule owner(copy, [](void* memory) noexcept { delete[] static_cast<double*>(memory); });
    return Array(copy, shape, owner);
}

// A cluster with the number of its links, for checks.
struct Costs {
    observatory::Cluster cluster;
    size_t links;
    int32_t devices;
};

void make(Costs* self, int32_t regions, int32_t devices, const Numbers& region, const Flags& forwards,
          const Flags& card, const Numbers& a, const Numbers& b, const Numbers& representative,
          double message_bytes, double software_seconds) {
    const observatory::ClusterShape shape{regions,       devices,     vector_of(region),        vector_of(forwards),
                                          vector_of(card), vector_of(a), vector_of(b), vector_of(representative)};
    const auto vertices = static_cast<int64_t>(shape.region.size());
    check(regions >= 0 && devices >= 0 && devices <= vertices, "more devices than vertices");
    check(shape.forwards.size() == shape.region.size() && shape.card.size() == shape.region.size(),
          "columns of vertices differ in length");
    check(shape.a.size() == shape.b.size(), "columns of links differ in length");
    check(shape.representative.size() == static_cast<size_t>(regions), "one representative for each region");
    check_numbers(shape.region, -1, regions, "there is no such region");
    check_numbers(shape.a, 0, vertices, "there is no such vertex");
    check_numbers(shape.b, 0, vertices, "there is no such vertex");
    check_numbers(shape.representative, -1, devices, "there is no such device");
    for (int32_t i = 0; i < devices; ++i) check(shape.region[static_cast<size_t>(i)] >= 0, "a device outside");
    new (self) Costs{observatory::Cluster(shape, message_bytes, software_seconds), shape.a.size(), devices};
}

int64_t update(Costs& self, const Values& latency, const Values& rate) {
    check(latency.shape(0) == self.links && rate.shape(0) == self.links, "one value for each link");
    return self.cluster.update(latency.data(), rate.data());
}

Array within(const Costs& self, int32_t region) {
    check(region >= 0 && region < self.cluster.regions(), "there is no such region");
    const size_t count = self.cluster.devices_of(region).size();
    return array_of(self.cluster.within(region).data(), {count, count});
}

Array between(const Costs& self) {
    const auto count = static_cast<size_t>(self.cluster.regions());
    return array_of(self.cluster.between().data(), {count, count});
}

Array between_row(Costs& self, int32_t region) {
    check(region >= 0 && region < self.cluster.regions(), "there is no such region");
    self.cluster.refresh_row(region);
    const auto count = static_cast<size_t>(self.cluster.regions());
    return array_of(self.cluster.between().data() + static_cast<size_t>(region) * count, {count});
}

Array row(Costs& self, int32_t from, const Numbers& targets) {
    check(from >= 0 && from < self.devices, "there is no such device");
    for (size_t i = 0; i < targets.shape(0); ++i)
        check(targets.data()[i] >= 0 && targets.data()[i] < self.devices, "there is no such device");
    std::vector<double> seconds(targets.shape(0));
    self.cluster.row(from, targets.data(), static_cast<int64_t>(targets.shape(0)), seconds.data());
    return array_of(seconds.data(), {seconds.size()});
}

}  // namespace

NB_MODULE(_cost, module) {
    nb::class_<Costs>(module, "Costs")
        .def("__init__", &make, nb::arg("regions"), nb::arg("devices"), nb::arg("region"), nb::arg("forwards"),
             nb::arg("card"), nb::arg("a"), nb::arg("b"), nb::arg("representative"), nb::arg("message_bytes"),
             nb::arg("software_seconds"))
        .def("update", &update, nb::arg("latency"), nb::arg("rate"))
        .def("refresh", [](Costs& self) { return self.cluster.refresh(); })
        .def("refresh_between", [](Costs& self) { return self.cluster.refresh_between(); })
        .def("within", &within, nb::arg("region"))
        .def("between", &between)
        .def("between_row", &between_row, nb::arg("region"))
        .def("row", &row, nb::arg("device"), nb::arg("targets"));
}
