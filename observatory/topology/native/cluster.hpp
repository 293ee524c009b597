// Costs of moving one message between the devices of a cluster: dense inside each machine, one row per machine between
// them, and only what a change touches is worked out anew.
//
// A way leaves the machine it begins in once and enters the machine it ends in once: machines in between pass nothing on.
#pragma once

#include <cstdint>
#include <vector>

#include "region.hpp"

namespace observatory {

// The graph, by vertex and by link. `region` is the machine of a vertex, -1 outside of all; devices come first.
struct ClusterShape {
    int32_t regions = 0;
    int32_t devices = 0;
    std::vector<int32_t> region;
    std::vector<uint8_t> forwards;
    std::vector<uint8_t> card;
    std::vector<int32_t> a, b;               // by link
    std::vector<int32_t> representative;     // by region: a device, or -1
};

class Cluster {
public:
    Cluster(const ClusterShape& shape, double message_bytes, double software_seconds);

    // Takes the present costs of all links; returns how many are other than before.
    int64_t update(const double* latency, const double* rate);

    // Works out anew what changed links make stale inside the machines; returns how many machines that were.
    int64_t refresh();

    // Rows between machines that are stale and now worked out anew.
    int64_t refresh_between();

    // The same for one row.
    void refresh_row(int32_t region);

    [[nodiscard]] int32_t regions() const { return static_cast<int32_t>(regions_.size()); }
    [[nodiscard]] const std::vector<int32_t>& devices_of(int32_t region) const;

    // Seconds between the devices of a machine, row by row; infinite where there is no way. After `refresh`.
    [[nodiscard]] const std::vector<double>& within(int32_t region) const;

    // Seconds between the devices that stand for each machine. After `refresh_between`.
    [[nodiscard]] const std::vector<double>& between() const { return between_; }

    // Seconds from one device to every device in `targets`. After `refresh`.
    void row(int32_t from, const int32_t* targets, int64_t count, double* seconds);

private:
    struct Place {
        int32_t region;
        int32_t terminal;
    };
    struct Machine {
        Region region;
        std::vector<int32_t> devices;
        std::vector<double> within;
        std::vector<Exit> exits;  // of its representative
        bool stale = true;
        bool row_stale = true;
        bool leads_out = false;   // ways between its devices may lead through the outside
    };

    void place_vertices(const ClusterShape& shape);
    void place_links(const ClusterShape& shape);
    void find_cores(const ClusterShape& shape, const std::vector<std::vector<int32_t>>& inner);
    void work_out_within(Machine& machine);
    void work_out_between(size_t from, size_t to);  // after a search from the first
    void search_outside(const std::vector<Exit>& exits, bool through_cards);
    [[nodiscard]] double reached(const std::vector<Exit>& exits, bool through_cards) const;
    [[nodiscard]] double total(double seconds) const;

    double bytes_, software_;
    int32_t device_count_;
    LinkCosts costs_;
    std::vector<Machine> regions_;
    std::vector<Place> places_;           // by vertex; outside: region -1 and the number among those outside
    std::vector<int32_t> region_of_link_;  // -1: outside
    std::vector<int32_t> gateway_region_[2];  // by link: the machines whose exits it is part of, -1 none
    Adjacency outside_;
    Search search_;
    std::vector<Label> starts_;
    std::vector<double> between_;
    bool outside_stale_ = true;
};

}  // namespace observatory
