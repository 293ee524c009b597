#include "pareto.hpp"

namespace observatory {

namespace {

// Least latency on top; of equals the least rate, so that the others are seen to be no better.
bool later(const Label& a, const Label& b) {
    return a.cost.latency != b.cost.latency ? a.cost.latency > b.cost.latency : a.cost.rate > b.cost.rate;
}

}  // namespace

bool Offers::take(const Cost& cost) {
    for (int i = 0; i < count; ++i)
        if (kept[static_cast<size_t>(i)].no_worse_than(cost)) return false;
    for (int i = 0; i < count; ++i) {
        if (!cost.no_worse_than(kept[static_cast<size_t>(i)])) continue;
        kept[static_cast<size_t>(i)] = cost;
        return true;
    }
    kept[static_cast<size_t>(next)] = cost;
    next = (next + 1) % most;
    count = std::min(count + 1, most);
    return true;
}

Adjacency Adjacency::of(const std::vector<std::vector<Edge>>& lists) {
    Adjacency made;
    for (const auto& list : lists) {
        made.edges.insert(made.edges.end(), list.begin(), list.end());
        made.begin.push_back(static_cast<int32_t>(made.edges.size()));
    }
    return made;
}

void Search::run(const Adjacency& graph, const LinkCosts& costs, const std::vector<Label>& starts) {
    const auto count = static_cast<size_t>(graph.vertices());
    heap_.clear();
    settled_.clear();
    next_.clear();
    head_.assign(count, -1);
    tail_.assign(count, -1);
    best_rate_.assign(count, nowhere);
    offers_.assign(count, Offers{});
    for (const Label& start : starts) offer(start);
    while (!heap_.empty()) {
        std::pop_heap(heap_.begin(), heap_.end(), later);
        const Label label = heap_.back();
        heap_.pop_back();
        const auto here = static_cast<size_t>(label.vertex);
        if (label.cost.rate >= best_rate_[here]) continue;
        settle(label);
        const auto begin = static_cast<size_t>(graph.begin[here]), end = static_cast<size_t>(graph.begin[here + 1]);
        for (size_t i = begin; i < end; ++i) {
            const Edge edge = graph.edges[i];
            offer({label.cost.then(costs.at(edge.link)), edge.to});
        }
    }
}

void Search::offer(const Label& label) {
    const auto there = static_cast<size_t>(label.vertex);
    if (!label.cost.possible() || label.cost.rate >= best_rate_[there]) return;
    if (!offers_[there].take(label.cost)) return;
    heap_.push_back(label);
    std::push_heap(heap_.begin(), heap_.end(), later);
}

void Search::settle(const Label& label) {
    const auto here = static_cast<size_t>(label.vertex);
    best_rate_[here] = label.cost.rate;
    const auto index = static_cast<int32_t>(settled_.size());
    settled_.push_back(label);
    next_.push_back(-1);
    if (tail_[here] < 0)
        head_[here] = index;
    else
        next_[static_cast<size_t>(tail_[here])] = index;
    tail_[here] = index;
}

}  // namespace observatory
