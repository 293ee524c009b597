#include "region.hpp"

namespace observatory {

namespace {

void keep(std::vector<Exit>& exits, const Exit& found) {
    if (!found.cost.possible()) return;
    const auto beats = [](const Exit& a, const Exit& b) {
        return a.outside == b.outside && a.cost.no_worse_than(b.cost) && (!a.through_card || b.through_card);
    };
    for (const Exit& exit : exits)
        if (beats(exit, found)) return;
    std::erase_if(exits, [&](const Exit& exit) { return beats(found, exit); });
    exits.push_back(found);
}

}  // namespace

void Region::refresh(const LinkCosts& costs, Search& search) {
    const int32_t count = core.vertices();
    fronts_.clear();
    front_begin_.assign(1, 0);
    std::vector<Label> start(1);
    for (int32_t from = 0; from < count; ++from) {
        start[0] = Label{Cost{}, from};
        search.run(core, costs, start);
        for (int32_t to = 0; to < count; ++to) {
            search.at(to, [&](const Cost& cost) { fronts_.push_back(cost); });
            front_begin_.push_back(static_cast<int32_t>(fronts_.size()));
        }
    }
}

double Region::seconds(const LinkCosts& costs, int32_t from, int32_t to, double bytes) const {
    double least = nowhere;
    between(costs, from, to, [&](const Cost& cost) {
        if (cost.possible()) least = std::min(least, cost.seconds(bytes));
    });
    return least;
}

std::vector<Exit> Region::exits(const LinkCosts& costs, int32_t from) const {
    std::vector<Exit> found;
    for (const Gateway& gateway : gateways) {
        const Terminal& terminal = terminals[static_cast<size_t>(gateway.terminal)];
        const Cost out = costs.at(gateway.link);
        if (gateway.terminal == from) {
            keep(found, {gateway.outside, out, terminal.card});
        } else if (terminal.forwards || terminal.card) {
            between(costs, from, gateway.terminal, [&](const Cost& cost) {
                keep(found, {gateway.outside, cost.then(out), terminal.card});
            });
        }
    }
    return found;
}

}  // namespace observatory
