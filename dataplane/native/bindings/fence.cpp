#include "fence.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "common.hpp"

namespace bindings {
namespace {

using mo::DeathWatch;
using mo::Fence;
using mo::SyncFile;
using mo::Timeline;

using Points = std::vector<std::pair<std::shared_ptr<Fence>, uint64_t>>;

std::vector<mo::FencePoint> points_of(const Points& given) {
    std::vector<mo::FencePoint> points;
    points.reserve(given.size());
    for (const auto& [fence, value] : given) points.push_back({fence, value});
    return points;
}

bool wait(const std::shared_ptr<Fence>& self, uint64_t value, double timeout_seconds) {
    check_timeout(timeout_seconds);
    if (self->reached(value)) return true;
    if (timeout_seconds <= 0) return false;
    const mo::FencePoint point{self, value};
    return !mo::wait_any_until(std::span(&point, 1), deadline_in(timeout_seconds), sleep_without_gil).empty();
}

std::vector<size_t> wait_any_fence(const Points& points, double timeout_seconds) {
    return mo::wait_any_until(std::span<const mo::FencePoint>(points_of(points)), deadline_in(timeout_seconds),
                              sleep_without_gil);
}

bool wait_all_fences(const Points& points, double timeout_seconds) {
    return mo::wait_all_until(std::span<const mo::FencePoint>(points_of(points)), deadline_in(timeout_seconds),
                              sleep_without_gil);
}

nb::object none_or(bool known, int64_t value) { return known ? nb::cast(value) : nb::none(); }

nb::dict sync_file_info(const SyncFile& self) {
    const SyncFile::Info info = self.info();
    nb::dict result;
    result["name"] = info.name;
    result["status"] = info.status;
    result["fences"] = info.names;
    result["signalled_ns"] = none_or(info.signalled_ns != MO_UNKNOWN_I64, info.signalled_ns);
    return result;
}

// FenceBroken is a RingError with attributes, which nb::exception cannot have.
void bind_fence_broken(nb::module_& m) {
    const nb::object base = m.attr("RingError");
    PyObject* type = PyErr_NewException("dataplane._ring.FenceBroken", base.ptr(), nullptr);
    if (type == nullptr) throw nb::python_error();
    m.attr("FenceBroken") = nb::steal(type);
    nb::register_exception_translator(
        [](const std::exception_ptr& pointer, void* payload) {
            try {
                std::rethrow_exception(pointer);
            } catch (const mo::FenceBroken& broken) {
                const nb::handle type(static_cast<PyObject*>(payload));
                const nb::object error = type(broken.what());
                error.attr("pid") = none_or(broken.pid >= 0, broken.pid);
                error.attr("value") = broken.value;
                error.attr("errno") = none_or(broken.error != 0, broken.error);
                PyErr_SetObject(type.ptr(), error.ptr());
            }
        },
        type);
}

}  // namespace

void bind_fence(nb::module_& m) {
    bind_fence_broken(m);

    nb::class_<Fence>(m, "Fence")
        .def_prop_ro("value", &Fence::value)
        .def("wait", &wait, nb::arg("value"), nb::arg("timeout_seconds"))
        .def("close", &Fence::close);

    nb::class_<Timeline, Fence>(m, "TimelineFence", nb::is_final())
        .def_static("create", &Timeline::create, nb::arg("value") = 0)
        .def_static("attach", &Timeline::attach, nb::arg("fence_fd"), nb::arg("waiters_fd"), nb::arg("pidfd"))
        .def_prop_ro("fds",
                     [](const Timeline& self) {
                         const auto fds = self.fds();
                         return nb::make_tuple(fds[0], fds[1], fds[2]);
                     })
        .def_prop_ro("signaller_pid", &Timeline::signaller_pid)
        .def("signal", &Timeline::signal, nb::arg("value"));

    nb::class_<SyncFile, Fence>(m, "SyncFileFence", nb::is_final())
        .def(nb::new_([](int fd) { return std::make_shared<SyncFile>(fd); }), nb::arg("fd"))
        .def("info", &sync_file_info);

    m.def("wait_any_fence", &wait_any_fence, nb::arg("points"), nb::arg("timeout_seconds"));
    m.def("wait_all_fences", &wait_all_fences, nb::arg("points"), nb::arg("timeout_seconds"));

    nb::class_<DeathWatch>(m, "DeathWatch", nb::is_final())
        .def(
            "__init__",
            [](DeathWatch* self, int pidfd) { new (self) DeathWatch(mo::Fd::duplicate(pidfd, "process")); },
            nb::arg("pidfd"))
        .def_prop_ro("pid", [](const DeathWatch& self) { return none_or(self.pid() > 0, self.pid()); })
        .def_prop_ro("dead", &DeathWatch::dead)
        .def(
            "wait",
            [](const DeathWatch& self, double timeout_seconds) {
                const auto watch = self.watch();
                return watch->wait_until(deadline_in(timeout_seconds), sleep_without_gil);
            },
            nb::arg("timeout_seconds"));
}

}  // namespace bindings
