#include "cluster.hpp"

#include <utility>

namespace observatory {

Cluster::Cluster(const ClusterShape& shape, double message_bytes, double software_seconds)
    : bytes_(message_bytes),
      software_(software_seconds),
      device_count_(shape.devices),
      regions_(static_cast<size_t>(shape.regions)),
      places_(shape.region.size(), Place{-1, -1}),
      region_of_link_(shape.a.size(), -1) {
    costs_.of.assign(shape.a.size(), Cost{nowhere, nowhere});
    place_vertices(shape);
    place_links(shape);
    for (size_t r = 0; r < regions_.size(); ++r) {
        Machine& machine = regions_[r];
        const int32_t stands_for_it = shape.representative[r];
        if (stands_for_it >= 0) machine.region.representative = places_[static_cast<size_t>(stands_for_it)].terminal;
        for (const Gateway& gateway : machine.region.gateways)
            machine.leads_out |= !machine.region.terminals[static_cast<size_t>(gateway.terminal)].card;
        machine.within.assign(machine.devices.size() * machine.devices.size(), nowhere);
    }
    between_.assign(regions_.size() * regions_.size(), nowhere);
}

void Cluster::place_vertices(const ClusterShape& shape) {
    int32_t outside = 0;
    for (size_t v = 0; v < shape.region.size(); ++v) {
        const int32_t region = shape.region[v];
        if (region < 0) {
            places_[v] = {-1, outside++};
            continue;
        }
        Machine& machine = regions_[static_cast<size_t>(region)];
        places_[v] = {region, static_cast<int32_t>(machine.region.terminals.size())};
        machine.region.terminals.push_back(
            {static_cast<int32_t>(v), shape.forwards[v] != 0, shape.card[v] != 0 && shape.forwards[v] == 0});
        if (static_cast<int32_t>(v) < shape.devices) machine.devices.push_back(static_cast<int32_t>(v));
    }
    for (Machine& machine : regions_) {
        machine.region.devices = static_cast<int32_t>(machine.devices.size());
        machine.region.onto.resize(machine.region.terminals.size());
        machine.region.beside.resize(machine.region.terminals.size());
    }
}

void Cluster::place_links(const ClusterShape& shape) {
    std::vector<std::vector<Edge>> outside;
    for (const Place& place : places_)
        if (place.region < 0) outside.emplace_back();
    for (auto& regions : gateway_region_) regions.assign(shape.a.size(), -1);
    std::vector<std::vector<int32_t>> inner(regions_.size());
    for (size_t l = 0; l < shape.a.size(); ++l) {
        const auto link = static_cast<int32_t>(l);
        const Place a = places_[static_cast<size_t>(shape.a[l])], b = places_[static_cast<size_t>(shape.b[l])];
        if (a.region < 0 && b.region < 0) {
            outside[static_cast<size_t>(a.terminal)].push_back({b.terminal, link});
            outside[static_cast<size_t>(b.terminal)].push_back({a.terminal, link});
        } else if (a.region == b.region) {
            region_of_link_[l] = a.region;
            inner[static_cast<size_t>(a.region)].push_back(link);
        } else if (a.region < 0 || b.region < 0) {
            const Place in = a.region < 0 ? b : a, out = a.region < 0 ? a : b;
            gateway_region_[0][l] = in.region;
            regions_[static_cast<size_t>(in.region)].region.gateways.push_back({in.terminal, out.terminal, link});
        } else {  // from machine to machine: a vertex between them, free on one side
            const auto middle = static_cast<int32_t>(outside.size());
            outside.emplace_back();
            gateway_region_[0][l] = a.region;
            gateway_region_[1][l] = b.region;
            regions_[static_cast<size_t>(a.region)].region.gateways.push_back({a.terminal, middle, link});
            regions_[static_cast<size_t>(b.region)].region.gateways.push_back({b.terminal, middle, -1});
        }
    }
    outside_ = Adjacency::of(outside);
    find_cores(shape, inner);
}

void Cluster::find_cores(const ClusterShape& shape, const std::vector<std::vector<int32_t>>& inner) {
    for (size_t r = 0; r < regions_.size(); ++r) {
        Region& region = regions_[r].region;
        std::vector<int32_t> degree(region.terminals.size(), 0), number(region.terminals.size(), -1);
        const auto ends = [&](int32_t link) {
            const auto l = static_cast<size_t>(link);
            return std::pair{static_cast<size_t>(places_[static_cast<size_t>(shape.a[l])].terminal),
                             static_cast<size_t>(places_[static_cast<size_t>(shape.b[l])].terminal)};
        };
        for (const int32_t link : inner[r]) {
            const auto [a, b] = ends(link);
            ++degree[a];
            ++degree[b];
        }
        int32_t count = 0;
        for (size_t t = 0; t < region.terminals.size(); ++t) {
            if (!region.terminals[t].forwards || degree[t] < 2) continue;
            number[t] = count++;
            region.onto[t].push_back({number[t], -1});
        }
        std::vector<std::vector<Edge>> core(static_cast<size_t>(count));
        for (const int32_t link : inner[r]) {
            const auto [a, b] = ends(link);
            if (number[a] >= 0 && number[b] >= 0) {
                core[static_cast<size_t>(number[a])].push_back({number[b], link});
                core[static_cast<size_t>(number[b])].push_back({number[a], link});
            } else if (number[a] >= 0 || number[b] >= 0) {
                const size_t leaf = number[a] >= 0 ? b : a, on = number[a] >= 0 ? a : b;
                region.onto[leaf].push_back({number[on], link});
            } else {
                region.beside[a].push_back({static_cast<int32_t>(b), link});
                region.beside[b].push_back({static_cast<int32_t>(a), link});
            }
        }
        region.core = Adjacency::of(core);
    }
}

int64_t Cluster::update(const double* latency, const double* rate) {
    int64_t changed = 0;
    for (size_t l = 0; l < costs_.of.size(); ++l) {
        const Cost now{latency[l], rate[l]};
        if (costs_.of[l] == now) continue;
        costs_.of[l] = now;
        ++changed;
        const int32_t inside = region_of_link_[l];
        if (inside >= 0) {
            regions_[static_cast<size_t>(inside)].stale = true;
            continue;
        }
        bool is_gateway = false;
        for (const auto& regions : gateway_region_) {
            if (regions[l] < 0) continue;
            regions_[static_cast<size_t>(regions[l])].stale = true;
            is_gateway = true;
        }
        outside_stale_ |= !is_gateway;
    }
    return changed;
}

int64_t Cluster::refresh() {
    int64_t count = 0;
    for (Machine& machine : regions_) {
        if (machine.leads_out && outside_stale_) machine.stale = true;
        machine.row_stale |= outside_stale_;
        if (!machine.stale) continue;
        machine.region.refresh(costs_, search_);
        work_out_within(machine);
        std::vector<Exit> exits;
        if (machine.region.representative >= 0)
            exits = machine.region.exits(costs_, machine.region.representative);
        std::sort(exits.begin(), exits.end(), [this](const Exit& a, const Exit& b) {
            return a.cost.seconds(bytes_) < b.cost.seconds(bytes_);  // so that most are seen to be no better
        });
        machine.row_stale |= exits != machine.exits;
        machine.exits = std::move(exits);
        machine.stale = false;
        ++count;
    }
    outside_stale_ = false;
    return count;
}

void Cluster::work_out_within(Machine& machine) {
    const auto count = static_cast<size_t>(machine.region.devices);
    std::vector<std::vector<Exit>> exits(machine.leads_out ? count : 0);
    for (size_t i = 0; i < exits.size(); ++i)
        exits[i] = machine.region.exits(costs_, static_cast<int32_t>(i));
    for (size_t i = 0; i < count; ++i) {
        if (machine.leads_out) search_outside(exits[i], false);
        machine.within[i * count + i] = 0;
        for (size_t j = i + 1; j < count; ++j) {
            double least =
                machine.region.seconds(costs_, static_cast<int32_t>(i), static_cast<int32_t>(j), bytes_);
            if (machine.leads_out) least = std::min(least, reached(exits[j], false));
            machine.within[i * count + j] = machine.within[j * count + i] = total(least);
        }
    }
}

int64_t Cluster::refresh_between() {
    const size_t count = regions_.size();
    int64_t rows = 0;
    for (size_t i = 0; i < count; ++i) {
        Machine& machine = regions_[i];
        if (!machine.row_stale) continue;
        ++rows;
        search_outside(machine.exits, true);
        for (size_t j = 0; j < count; ++j)
            if (j >= i || !regions_[j].row_stale) work_out_between(i, j);  // else its own row had this
    }
    for (Machine& machine : regions_) machine.row_stale = false;
    return rows;
}

void Cluster::refresh_row(int32_t region) {
    const auto i = static_cast<size_t>(region);
    const bool whole = regions_[i].row_stale;
    if (!whole && std::none_of(regions_.begin(), regions_.end(), [](const Machine& m) { return m.row_stale; })) return;
    search_outside(regions_[i].exits, true);
    for (size_t j = 0; j < regions_.size(); ++j)
        if (whole || regions_[j].row_stale) work_out_between(i, j);
    regions_[i].row_stale = false;
}

void Cluster::work_out_between(size_t from, size_t to) {
    double seconds = nowhere;
    if (regions_[from].region.representative >= 0 && regions_[to].region.representative >= 0)
        seconds = from == to ? 0 : total(reached(regions_[to].exits, true));
    between_[from * regions_.size() + to] = between_[to * regions_.size() + from] = seconds;
}

void Cluster::row(int32_t from, const int32_t* targets, int64_t count, double* seconds) {
    const Place here = places_[static_cast<size_t>(from)];
    const Machine& machine = regions_[static_cast<size_t>(here.region)];
    bool searched = false;
    for (int64_t i = 0; i < count; ++i) {
        const Place there = places_[static_cast<size_t>(targets[i])];
        if (there.region == here.region) {
            seconds[i] = machine.within[static_cast<size_t>(here.terminal) * machine.devices.size() +
                                        static_cast<size_t>(there.terminal)];
            continue;
        }
        if (!searched) search_outside(machine.region.exits(costs_, here.terminal), true);
        searched = true;
        seconds[i] = total(
            reached(regions_[static_cast<size_t>(there.region)].region.exits(costs_, there.terminal), true));
    }
}

void Cluster::search_outside(const std::vector<Exit>& exits, bool through_cards) {
    starts_.clear();
    for (const Exit& exit : exits)
        if (through_cards || !exit.through_card) starts_.push_back({exit.cost, exit.outside});
    search_.run(outside_, costs_, starts_);
}

double Cluster::reached(const std::vector<Exit>& exits, bool through_cards) const {
    double least = nowhere;
    for (const Exit& exit : exits) {
        if (!through_cards && exit.through_card) continue;
        least = search_.seconds(exit.outside, exit.cost, bytes_, least);
    }
    return least;
}

double Cluster::total(double seconds) const { return seconds + software_; }

const std::vector<int32_t>& Cluster::devices_of(int32_t region) const {
    return regions_[static_cast<size_t>(region)].devices;
}

const std::vector<double>& Cluster::within(int32_t region) const {
    return regions_[static_cast<size_t>(region)].within;
}

}  // namespace observatory
