// What all parts of the module share: sleeping without the GIL, time-outs, arrays that own their memory.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "clock.hpp"
#include "error.hpp"
#include "event.h"
#include "futex.hpp"
#include "producer.hpp"
#include "record.h"

namespace nb = nanobind;

namespace bindings {

void bind_descriptor(nb::module_& m);
void bind_events(nb::module_& m);
void bind_assembler(nb::module_& m);
void bind_fabric(nb::module_& m);
void bind_pool(nb::module_& m);
void bind_producer(nb::module_& m);
void bind_consumer(nb::module_& m);
void bind_monitor(nb::module_& m);
void bind_fence(nb::module_& m);
void bind_loops(nb::module_& m);

// The module's exceptions.
nb::handle ring_error();
nb::handle lease_error();
void set_ring_ended(const mo::RingEnded& ended) noexcept;

inline void check_timeout(double seconds) {
    if (std::isnan(seconds)) throw nb::value_error("the timeout is not a number");
}

// Python's seconds as a deadline. Infinity waits for ever; what is negative does not wait.
inline int64_t deadline_in(double seconds) {
    check_timeout(seconds);
    if (seconds >= 9e9) return mo::kForever;
    return mo::deadline_after(seconds <= 0 ? 0 : static_cast<int64_t>(seconds * 1e9));
}

// A time as Python has it: None when it is unknown.
inline std::optional<int64_t> known(int64_t ns) noexcept {
    return ns == MO_UNKNOWN_I64 ? std::nullopt : std::optional(ns);
}

// One bounded sleep of the core (100 ms at most), after which Python's signal handlers get their turn.
inline constexpr auto sleep_without_gil = [](const mo::WaitSet& set, int64_t ns) {
    {
        const nb::gil_scoped_release release;
        set.sleep(ns);
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
};

// (start, lost source indices)
inline nb::tuple replacement(const mo::Replacement& made) {
    nb::list lost;
    for (const uint64_t source_index : made.lost) lost.append(source_index);
    return nb::make_tuple(made.start, lost);
}

// A fresh structured array, and where its elements are.
template <class T>
struct StructArray {
    nb::object array;
    T* data;
};
nb::handle event_dtype();
nb::handle record_dtype();
void* new_struct_array(nb::handle dtype, size_t count, nb::object& array);

template <class T>
StructArray<T> struct_array(nb::handle dtype, size_t count) {
    StructArray<T> result;
    result.data = static_cast<T*>(new_struct_array(dtype, count, result.array));
    return result;
}

}  // namespace bindings
