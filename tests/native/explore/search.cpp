#include "search.hpp"

#include <bit>
#include <cstdlib>

namespace mo::explore {

void Footprint::add(int thing, bool write) {
    if (count_ == static_cast<int>(accesses_.size())) std::abort();
    accesses_[count_++] = {thing, write};
}

bool Footprint::depends_on(const Footprint& other) const {
    for (const Access& mine : *this)
        for (const Access& theirs : other)
            if (mine.thing == theirs.thing && (mine.write || theirs.write)) return true;
    return false;
}

void Search::forget_everything(int most_preemptions) {
    most_preemptions_ = most_preemptions;
    nodes_.clear();
    forced_.clear();
}

void Search::begin_execution() {
    ++execution_;
    depth_ = 0;
    last_ = -1;
    inherited_sleep_ = 0;
    preemptions_ = 0;
    for (Clock& clock : clocks_) clock.fill(0);
}

void Search::join(Clock& into, const Clock& other) {
    for (int i = 0; i < kThreads; ++i) into[i] = std::max(into[i], other[i]);
}

Search::Touched& Search::touched(int thing) {
    Touched& found = touched_[static_cast<size_t>(thing)];
    if (found.execution != execution_) {
        found.execution = execution_;
        found.last_write = found.last_writer = -1;
        found.write_clock.fill(0);
        found.readers = 0;
        found.read_clock.fill(0);
    }
    return found;
}

int Search::next(Mask enabled, const std::array<const Footprint*, kThreads>& pending) {
    if (depth_ < forced_.size()) {
        nodes_.resize(depth_ + 1);
        nodes_[depth_] = Node();
        nodes_[depth_].chosen = forced_[depth_].first;
        nodes_[depth_].choice = forced_[depth_].second;
    }
    if (depth_ == nodes_.size()) {
        Node node;
        node.enabled = enabled;
        node.sleep = inherited_sleep_;
        for (int i = 0; i < kThreads; ++i) node.steps[i] = clocks_[i][i];
        const Mask awake = enabled & ~node.sleep;
        if (awake == 0) return -1;
        constexpr Mask actors = bit(kActors) - 1;
        // Going on with the same one makes traces that can be read; nobody dies without a reason to try it.
        if (last_ >= 0 && (awake & bit(last_)) != 0 && last_ < kActors)
            node.chosen = last_;
        else
            node.chosen = std::countr_zero((awake & actors) != 0 ? awake & actors : awake);
        node.backtrack = bit(node.chosen);
        if (most_preemptions_ >= 0) {
            const bool free = node.chosen != last_ || preemptions_ < most_preemptions_;
            node.backtrack |= free ? enabled : enabled & ~actors;
        }
        nodes_.push_back(node);
    }
    Node& node = nodes_[depth_];
    if ((enabled & bit(node.chosen)) == 0) return -1;  // only by a schedule of something else
    if (last_ >= 0 && last_ < kActors && node.chosen < kActors && node.chosen != last_ && (enabled & bit(last_)) != 0)
        ++preemptions_;
    if (most_preemptions_ < 0) inherited_sleep_ = sleep_after(node, pending);
    return node.chosen;
}

Mask Search::sleep_after(const Node& node, const std::array<const Footprint*, kThreads>& pending) const {
    Mask sleeping = 0;
    for (Mask candidates = (node.sleep | node.done) & node.enabled & ~bit(node.chosen); candidates != 0;
         candidates &= candidates - 1) {
        const int thread = std::countr_zero(candidates);
        if (pending[thread] != nullptr && !pending[thread]->depends_on(*pending[node.chosen])) sleeping |= bit(thread);
    }
    return sleeping;
}

int Search::choose(int choices) {
    Node& node = nodes_[depth_];
    node.choices = choices;
    return std::min(node.choice, choices - 1);
}

void Search::race(int index, int thread) {
    Node& node = nodes_[static_cast<size_t>(index)];
    // Those that lead to the thread's step: the thread itself, or one that does something before it that it needs.
    Mask leading = node.enabled & bit(thread);
    for (int i = 0; i < kThreads; ++i)
        if ((node.enabled & bit(i)) != 0 && node.steps[i] < clocks_[thread][i] && i != node.chosen) leading |= bit(i);
    if (leading == 0) {
        node.backtrack |= node.enabled;
    } else if ((node.backtrack & leading) == 0) {
        node.backtrack |= (leading & bit(thread)) != 0 ? bit(thread) : bit(std::countr_zero(leading));
    }
}

void Search::races(int thread, const Footprint& footprint) {
    if (most_preemptions_ >= 0) return;
    const Clock& clock = clocks_[thread];
    for (const Access& access : footprint) {
        Touched& thing = touched(access.thing);
        bool raced = false;
        if (access.write) {
            for (Mask readers = thing.readers; readers != 0; readers &= readers - 1) {
                const int reader = std::countr_zero(readers);
                if (reader == thread || thing.last_read_step[reader] <= clock[reader]) continue;
                race(thing.last_read[reader], thread);
                raced = true;
            }
        }
        if (!raced && thing.last_write >= 0 && thing.last_writer != thread &&
            thing.last_write_step > clock[thing.last_writer])
            race(thing.last_write, thread);
    }
}

void Search::done(int thread, const Footprint& footprint) {
    races(thread, footprint);
    Clock& clock = clocks_[thread];
    for (const Access& access : footprint) {
        const Touched& thing = touched(access.thing);
        join(clock, thing.write_clock);
        if (access.write) join(clock, thing.read_clock);
    }
    ++clock[thread];
    const int node = static_cast<int>(depth_);
    for (const Access& access : footprint) {
        Touched& thing = touched(access.thing);
        if (access.write) {
            thing.last_write = node;
            thing.last_writer = thread;
            thing.last_write_step = clock[thread];
            thing.write_clock = clock;
            thing.readers = 0;
            thing.read_clock.fill(0);
        } else {
            thing.readers |= bit(thread);
            thing.last_read[thread] = node;
            thing.last_read_step[thread] = clock[thread];
            join(thing.read_clock, clock);
        }
    }
    if (thread < kActors) last_ = thread;
    ++depth_;
}

void Search::woke(int waker, int sleeper) { join(clocks_[sleeper], clocks_[waker]); }

void Search::finish(const std::array<const Footprint*, kThreads>& pending) {
    for (int thread = 0; thread < kThreads; ++thread)
        if (pending[thread] != nullptr) races(thread, *pending[thread]);
}

bool Search::advance() {
    while (!nodes_.empty()) {
        Node& node = nodes_.back();
        if (node.choice + 1 < node.choices) {
            ++node.choice;
            return true;
        }
        node.done |= bit(node.chosen);
        const Mask left = node.backtrack & ~node.done & ~node.sleep;
        if (left != 0) {
            node.chosen = std::countr_zero(left);
            node.choice = 0;
            node.choices = 1;
            return true;
        }
        nodes_.pop_back();
    }
    return false;
}

std::string Search::schedule() const {
    std::string text;
    for (size_t i = 0; i < depth_ && i < nodes_.size(); ++i) {
        text += static_cast<char>('a' + nodes_[i].chosen);
        if (nodes_[i].choice != 0) text += std::to_string(nodes_[i].choice);
    }
    return text;
}

}  // namespace mo::explore
