// Size classes as asked for and as made, the pool's books, and what the machine's memory is like.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "common.hpp"
#include "host_memory.hpp"
#include "slab_pool.hpp"

namespace bindings {
namespace {

using mo::Allocation;
using mo::ClassStats;
using mo::MadeClass;
using mo::PoolStats;
using mo::SizeClass;

std::optional<std::string> known(const std::string& words) {
    return words.empty() ? std::nullopt : std::optional(words);
}

uint64_t count(const PoolStats& self, Allocation how) { return self.allocations[static_cast<size_t>(how)]; }

// Of all allocations that were answered, how many got a slot of the right class at once.
std::optional<double> hit_rate(const PoolStats& self) {
    uint64_t all = 0;
    for (size_t i = 0; i < mo::kAllocations; ++i)
        if (static_cast<Allocation>(i) != Allocation::too_big) all += self.allocations[i];
    if (all == 0) return std::nullopt;
    return static_cast<double>(count(self, Allocation::hit)) / static_cast<double>(all);
}

std::optional<std::pair<uint64_t, std::string>> node_memory(int node, const std::string& root) {
    const auto found = mo::node_memory(node, root);
    if (!found) return std::nullopt;
    return std::pair(found->bytes, found->origin);
}

void bind_classes(nb::module_& m) {
    nb::class_<SizeClass>(m, "SizeClass", nb::is_final())
        .def(
            "__init__",
            [](SizeClass* self, uint64_t slot_bytes, uint64_t slot_count, bool huge_pages, bool reserve,
               uint64_t slab_slots, std::optional<std::string> domain) {
                new (self) SizeClass{slot_bytes, slot_count,  huge_pages,
                                     reserve,    slab_slots, std::move(domain).value_or("")};
            },
            nb::arg("slot_bytes"), nb::arg("slot_count"), nb::arg("huge_pages") = false, nb::kw_only(),
            nb::arg("reserve") = false, nb::arg("slab_slots") = 0, nb::arg("domain") = nb::none())
        .def_ro("slot_bytes", &SizeClass::slot_bytes)
        .def_ro("slot_count", &SizeClass::slot_count)
        .def_ro("huge_pages", &SizeClass::huge_pages)
        .def_ro("reserve", &SizeClass::reserve)
        .def_ro("slab_slots", &SizeClass::slab_slots)
        .def_prop_ro("domain", [](const SizeClass& self) { return known(self.domain); })
        .def("__repr__", [](const SizeClass& self) {
            return nb::str("SizeClass(slot_bytes={}, slot_count={}, huge_pages={})")
                .format(self.slot_bytes, self.slot_count, self.huge_pages);
        });

    nb::class_<MadeClass>(m, "MadeClass", nb::is_final())
        .def_ro("slot_bytes", &MadeClass::slot_bytes)
        .def_ro("slot_count", &MadeClass::slot_count)
        .def_ro("slab_slots", &MadeClass::slab_slots)
        .def_ro("slab_count", &MadeClass::slab_count)
        .def_ro("slab_bytes", &MadeClass::slab_bytes)
        .def_ro("reserved", &MadeClass::reserved)
        .def_prop_ro("waste_bytes", &MadeClass::waste_bytes)
        .def_prop_ro("page_bytes", &MadeClass::page_bytes)
        .def_prop_ro("pages", [](const MadeClass& self) { return mo::pages_name(self.pages); })
        .def_prop_ro("huge_pages", [](const MadeClass& self) { return self.pages != mo::Pages::small; })
        .def_prop_ro("domain", [](const MadeClass& self) { return known(self.domain); })
        .def_prop_ro("note", [](const MadeClass& self) { return known(self.note); })
        .def("__repr__", [](const MadeClass& self) {
            return nb::str("MadeClass(slot_bytes={}, slot_count={}, pages={})")
                .format(self.slot_bytes, self.slot_count, mo::pages_name(self.pages));
        });
}

void bind_stats(nb::module_& m) {
    nb::class_<ClassStats>(m, "ClassStats", nb::is_final())
        .def_ro("made", &ClassStats::made)
        .def_ro("in_use", &ClassStats::in_use)
        .def_ro("high_water", &ClassStats::high_water)
        .def_ro("payload_bytes", &ClassStats::payload_bytes)
        .def_ro("resident_bytes", &ClassStats::resident_bytes)
        .def_ro("external_bytes", &ClassStats::external_bytes)
        .def_ro("idle_bytes", &ClassStats::idle_bytes)
        .def_prop_ro("internal_bytes", &ClassStats::internal_bytes);

    const auto counter = [](Allocation how) { return [how](const PoolStats& self) { return count(self, how); }; };
    nb::class_<PoolStats>(m, "PoolStats", nb::is_final())
        .def_prop_ro("classes",
                     [](const PoolStats& self) {
                         nb::list classes;
                         for (const ClassStats& one : self.classes) classes.append(one);
                         return nb::tuple(classes);
                     })
        .def_prop_ro("hits", counter(Allocation::hit))
        .def_prop_ro("fallbacks", counter(Allocation::fallback))
        .def_prop_ro("reclaims", counter(Allocation::reclaim))
        .def_prop_ro("waits_for_slot", counter(Allocation::wait_for_slot))
        .def_prop_ro("waits_for_descriptor", counter(Allocation::wait_for_descriptor))
        .def_prop_ro("too_big", counter(Allocation::too_big))
        .def_prop_ro("hit_rate", &hit_rate);
}

}  // namespace

void bind_pool(nb::module_& m) {
    bind_classes(m);
    bind_stats(m);
    m.def(
        "available_memory",
        [](const std::string& root) {
            const mo::Available found = mo::available_memory(root);
            return std::pair(found.bytes, found.origin);
        },
        nb::arg("root") = "");
    m.def("memory_nodes", [](const std::string& root) { return nb::tuple(nb::cast(mo::memory_nodes(root))); },
          nb::arg("root") = "");
    m.def("node_memory", &node_memory, nb::arg("node"), nb::arg("root") = "");
    m.def(
        "free_hugetlb_bytes",
        [](std::optional<int> node, const std::string& root) {
            return mo::free_hugetlb_bytes(node.value_or(-1), root);
        },
        nb::arg("node") = nb::none(), nb::arg("root") = "");
}

}  // namespace bindings
