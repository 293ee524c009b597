#include "fabric.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <ctime>
#include <tuple>

#include "atomics.hpp"
#include "common.hpp"

namespace bindings {
namespace {

using mo::Fabric;

constexpr int64_t kSignalSlice = 100 * mo::kMillisecond;

void sleep_until(int64_t until_ns) {
    const timespec until{static_cast<time_t>(until_ns / 1'000'000'000), static_cast<long>(until_ns % 1'000'000'000)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr);
}

// Sleeps without the GIL, but lets Python's signal handlers have their turn; false once `deadline` is over.
mo::Mover::Sleep sleep_before(int64_t deadline) {
    return [deadline](int64_t until) {
        for (;;) {
            const int64_t now = mo::monotonic_ns();
            if (now >= deadline) return false;
            if (now >= until) return true;
            sleep_until(std::min({until, deadline, now + kSignalSlice}));
            const nb::gil_scoped_acquire acquired;
            if (PyErr_CheckSignals() != 0) throw nb::python_error();
        }
    };
}

using Times = std::tuple<int64_t, int64_t, int64_t>;

std::optional<Times> transfer(const std::shared_ptr<Fabric>& self, mo::Route route, uint64_t bytes,
                              double timeout_seconds) {
    const int64_t deadline = deadline_in(timeout_seconds);
    mo::Mover mover(self, std::move(route));
    const nb::gil_scoped_release release;
    const auto sleep = sleep_before(deadline);
    const auto moved = mover.move(bytes, mo::monotonic_ns(), sleep);
    mover.leave();
    if (!moved || (moved->end_ns > mo::monotonic_ns() && !sleep(moved->end_ns))) return std::nullopt;
    return Times(moved->start_ns, moved->end_ns, moved->queued_ns);
}

nb::dict counters(const Fabric& self, size_t way) {
    const mo_way& of = self.way(way);
    nb::dict result;
    result["bytes"] = mo::load_relaxed(of.bytes);
    result["transfers"] = mo::load_relaxed(of.transfers);
    result["queued_ns"] = mo::load_relaxed(of.queued_ns);
    result["active"] = self.on_way(way);
    return result;
}

nb::dict state(const Fabric& self, size_t link) {
    const mo_link_state found = self.state(link);
    nb::dict result;
    result["flags"] = found.flags;
    result["bandwidth_millionths"] = found.bandwidth_millionths;
    result["added_latency_ps"] = found.added_latency_ps;
    return result;
}

}  // namespace

void bind_fabric(nb::module_& m) {
    nb::class_<mo_link_constants>(m, "LinkConstants", nb::is_final())
        .def(
            "__init__",
            [](mo_link_constants* self, uint64_t advertised_bandwidth_bytes_per_second, uint64_t advertised_latency_ps,
               uint64_t bandwidth_bytes_per_second, uint64_t latency_ps, uint64_t overhead_ps, uint64_t jitter_ps,
               uint64_t jitter_seed, uint32_t sharing_loss_millionths, uint32_t chunk_bytes) {
                new (self) mo_link_constants{advertised_bandwidth_bytes_per_second,
                                             advertised_latency_ps,
                                             bandwidth_bytes_per_second,
                                             latency_ps,
                                             overhead_ps,
                                             jitter_ps,
                                             jitter_seed,
                                             sharing_loss_millionths,
                                             chunk_bytes};
            },
            nb::kw_only(), nb::arg("advertised_bandwidth_bytes_per_second"), nb::arg("advertised_latency_ps"),
            nb::arg("bandwidth_bytes_per_second"), nb::arg("latency_ps"), nb::arg("overhead_ps") = 0,
            nb::arg("jitter_ps") = 0, nb::arg("jitter_seed") = 0, nb::arg("sharing_loss_millionths") = 0,
            nb::arg("chunk_bytes") = 0)
        .def_ro("advertised_bandwidth_bytes_per_second", &mo_link_constants::advertised_bandwidth_bytes_per_second)
        .def_ro("advertised_latency_ps", &mo_link_constants::advertised_latency_ps)
        .def_ro("bandwidth_bytes_per_second", &mo_link_constants::bandwidth_bytes_per_second)
        .def_ro("latency_ps", &mo_link_constants::latency_ps)
        .def_ro("overhead_ps", &mo_link_constants::overhead_ps)
        .def_ro("jitter_ps", &mo_link_constants::jitter_ps)
        .def_ro("jitter_seed", &mo_link_constants::jitter_seed)
        .def_ro("sharing_loss_millionths", &mo_link_constants::sharing_loss_millionths)
        .def_ro("chunk_bytes", &mo_link_constants::chunk_bytes);

    nb::class_<Fabric>(m, "Fabric", nb::is_final())
        .def_static(
            "create",
            [](const std::vector<mo_link_constants>& links, double time_scale) {
                return Fabric::create(links, time_scale);
            },
            nb::arg("links"), nb::arg("time_scale"))
        .def_static("open", &Fabric::open, nb::arg("state_fd"), nb::arg("traffic_fd"))
        .def_prop_ro("state_fd", &Fabric::state_fd)
        .def_prop_ro("traffic_fd", &Fabric::traffic_fd)
        .def_prop_ro("links", &Fabric::size)
        .def_prop_ro("time_scale", &Fabric::time_scale)
        .def("constants", [](const Fabric& self, size_t link) { return self.constants(link); }, nb::arg("link"))
        .def("state", &state, nb::arg("link"))
        .def(
            "set_state",
            [](Fabric& self, size_t link, uint64_t flags, uint64_t bandwidth_millionths, uint64_t added_latency_ps) {
                self.set_state(link, {flags, bandwidth_millionths, added_latency_ps});
            },
            nb::arg("link"), nb::arg("flags"), nb::arg("bandwidth_millionths"), nb::arg("added_latency_ps") = 0)
        .def("counters", &counters, nb::arg("way"))
        .def("transfer", &transfer, nb::arg("route"), nb::arg("bytes"), nb::arg("timeout_seconds"));
}

}  // namespace bindings
