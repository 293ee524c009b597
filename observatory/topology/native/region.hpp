// One machine of the cluster: the links inside it, its devices, and where links leave it.
#pragma once

#include <cstdint>
#include <vector>

#include "pareto.hpp"

namespace observatory {

// Where a way leaves the machine: the vertex outside that it comes to, its cost so far, and whether it leaves through a
// network card (which it does only on the way to another machine).
struct Exit {
    int32_t outside;
    Cost cost;
    bool through_card;

    bool operator==(const Exit&) const = default;
};

// A link that leaves the machine: from one of its terminals to a vertex outside.
struct Gateway {
    int32_t terminal;
    int32_t outside;
    int32_t link;
};

// What can be at the end of a way inside the machine. A vertex passes on if it forwards; a network card passes on between
// the machine and the outside only.
struct Terminal {
    int32_t vertex;
    bool forwards;
    bool card;
};

// The core are the vertices that forward and have two links or more: every way inside goes through those only. Ways
// between them are searched for; what hangs on them, on one link or several, is put before and after.
class Region {
public:
    std::vector<Terminal> terminals;      // the devices first, `devices` of them
    std::vector<Gateway> gateways;
    std::vector<std::vector<Edge>> onto;  // by terminal: the core vertices it hangs on
    std::vector<std::vector<Edge>> beside;  // by terminal: other terminals that it has a link to
    Adjacency core;
    int32_t devices = 0;
    int32_t representative = -1;          // the terminal that stands for the machine

    // Works out the ways between core vertices anew.
    void refresh(const LinkCosts& costs, Search& search);

    // Calls `visit(cost)` for ways between two different terminals, the best for any payload among them.
    template <typename Visit>
    void between(const LinkCosts& costs, int32_t from, int32_t to, Visit visit) const {
        for (const Edge edge : beside[static_cast<size_t>(from)])
            if (edge.to == to) visit(costs.at(edge.link));
        const auto size = static_cast<size_t>(core.vertices());
        for (const Edge first : onto[static_cast<size_t>(from)]) {
            const Cost begin = costs.at(first.link);
            if (!begin.possible()) continue;
            for (const Edge last : onto[static_cast<size_t>(to)]) {
                const Cost ends = begin.then(costs.at(last.link));
                if (!ends.possible()) continue;
                const size_t pair = static_cast<size_t>(first.to) * size + static_cast<size_t>(last.to);
                const auto stop = static_cast<size_t>(front_begin_[pair + 1]);
                for (auto i = static_cast<size_t>(front_begin_[pair]); i < stop; ++i) visit(ends.then(fronts_[i]));
            }
        }
    }

    // The least seconds inside the machine; infinite where there is no way.
    [[nodiscard]] double seconds(const LinkCosts& costs, int32_t from, int32_t to, double bytes) const;

    // Where ways from a terminal leave the machine, without those that are worse than another to the same vertex.
    [[nodiscard]] std::vector<Exit> exits(const LinkCosts& costs, int32_t from) const;

private:
    std::vector<Cost> fronts_;  // of every ordered pair of core vertices
    std::vector<int32_t> front_begin_;
};

}  // namespace observatory
