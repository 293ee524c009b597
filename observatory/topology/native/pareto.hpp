// Ways through a graph whose cost has two parts: seconds that add up, and seconds per byte of which the most counts.
//
// Neither part alone finds the best way for a payload, so a search keeps, at every vertex, all ways of which none is
// better in both (Martins, "On a multicriteria shortest path problem", 1984, with one sum and one maximum).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <vector>

namespace observatory {

inline constexpr double nowhere = std::numeric_limits<double>::infinity();

// What a way costs: `latency` in seconds, `rate` in seconds per byte.
struct Cost {
    double latency = 0;
    double rate = 0;

    [[nodiscard]] Cost then(const Cost& next) const {
        return {latency + next.latency, std::max(rate, next.rate)};
    }
    [[nodiscard]] double seconds(double bytes) const { return latency + rate * bytes; }
    [[nodiscard]] bool possible() const { return latency < nowhere && rate < nowhere; }
    [[nodiscard]] bool no_worse_than(const Cost& other) const {
        return latency <= other.latency && rate <= other.rate;
    }
    bool operator==(const Cost&) const = default;
};

// An edge of a search graph: where it leads, and the link whose cost it has (-1: it is free).
struct Edge {
    int32_t to;
    int32_t link;
};

// Edges by vertex, in one piece.
struct Adjacency {
    std::vector<int32_t> begin{0};
    std::vector<Edge> edges;

    [[nodiscard]] int32_t vertices() const { return static_cast<int32_t>(begin.size()) - 1; }
    static Adjacency of(const std::vector<std::vector<Edge>>& lists);
};

// The costs of all links; a link that is down or not known is impossible.
struct LinkCosts {
    std::vector<Cost> of;

    [[nodiscard]] Cost at(int32_t link) const { return link < 0 ? Cost{} : of[static_cast<size_t>(link)]; }
};

// Where a way is, and what it has cost so far.
struct Label {
    Cost cost;
    int32_t vertex;
};

// Some of the ways that were offered to a vertex, none better than another: what is no better need not be looked at.
struct Offers {
    static constexpr int most = 4;
    std::array<Cost, most> kept;
    int count = 0;
    int next = 0;

    // Keeps the offer unless another is as good; whether it was kept.
    bool take(const Cost& cost);
};

// A search from one or several beginnings; its memory is kept for the next one.
class Search {
public:
    // All ways from `starts` that are better than every other in one part. Through every vertex of the graph.
    void run(const Adjacency& graph, const LinkCosts& costs, const std::vector<Label>& starts);

    // Calls `visit(cost)` for every one that ends at `vertex`, those of less latency first.
    template <typename Visit>
    void at(int32_t vertex, Visit visit) const {
        for (int32_t i = first(vertex); i >= 0; i = next_[static_cast<size_t>(i)])
            visit(settled_[static_cast<size_t>(i)].cost);
    }

    // The least seconds of a way to `vertex` that goes on at the cost `rest`; `most` unless it is less.
    [[nodiscard]] double seconds(int32_t vertex, const Cost& rest, double bytes, double most) const {
        int32_t i = first(vertex);
        if (i < 0) return most;
        const Cost fastest{settled_[static_cast<size_t>(i)].cost.latency, best_rate_[static_cast<size_t>(vertex)]};
        if (fastest.then(rest).seconds(bytes) >= most) return most;  // not even the best of both parts
        for (; i >= 0; i = next_[static_cast<size_t>(i)]) {
            const Cost& cost = settled_[static_cast<size_t>(i)].cost;
            most = std::min(most, cost.then(rest).seconds(bytes));
            if (cost.rate <= rest.rate) break;  // the following have more latency, and no better bottleneck
        }
        return most;
    }

private:
    // The first label of a vertex, -1 where none is.
    [[nodiscard]] int32_t first(int32_t vertex) const {
        const auto index = static_cast<size_t>(vertex);
        return index < head_.size() ? head_[index] : -1;
    }
    void offer(const Label& label);
    void settle(const Label& label);

    std::vector<Label> heap_;
    std::vector<Label> settled_;
    std::vector<int32_t> head_, tail_, next_;
    std::vector<double> best_rate_;   // of what is settled at the vertex
    std::vector<Offers> offers_;      // what is not settled yet
};

}  // namespace observatory
