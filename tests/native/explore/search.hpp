// Which interleavings to run: depth-first, by dynamic partial-order reduction (Flanagan and Godefroid) with sleep sets.
//
// Steps that touch the same thing, at least one of them writing, depend on each other; executions that differ only in
// the order of independent steps are the same, and one of each kind is run. In every execution each pair of dependent
// steps that could have come the other way round makes an earlier node try the later step's thread first.
// Long scenarios are searched with a bound on the number of preemptions instead.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "memory.hpp"

namespace mo::explore {

using Mask = uint32_t;
constexpr Mask bit(int thread) { return Mask{1} << thread; }

struct Access {
    int thing;
    bool write;
};

// What a step touches. Which things there are is the machine's matter.
class Footprint {
  public:
    void clear() { count_ = 0; }
    void add(int thing, bool write);
    const Access* begin() const { return accesses_.data(); }
    const Access* end() const { return accesses_.data() + count_; }
    bool depends_on(const Footprint& other) const;

  private:
    std::array<Access, 40> accesses_{};
    int count_ = 0;
};

class Search {
  public:
    explicit Search(int things) : touched_(static_cast<size_t>(things)) {}

    // Negative: by partial orders, everything. Else all interleavings in which a thread that could have gone on is
    // interrupted at most that often (deaths do not count), of dependent and independent steps alike.
    void forget_everything(int most_preemptions = -1);
    void begin_execution();
    // Follows this list of (thread, choice) in the next execution, as far as it goes.
    void force(std::vector<std::pair<int, int>> forced) { forced_ = std::move(forced); }

    // The thread whose step comes next, or -1 when all of `enabled` would repeat other executions.
    // `pending` gives the next step's footprint of each thread in `enabled`.
    int next(Mask enabled, const std::array<const Footprint*, kThreads>& pending);
    // That step has `choices` variants: the one to take.
    int choose(int choices);
    // It has been done.
    void done(int thread, const Footprint& footprint);
    // `waker` made `sleeper` go on.
    void woke(int waker, int sleeper);
    // The execution is over: `pending` are the steps that were not done any more.
    void finish(const std::array<const Footprint*, kThreads>& pending);
    // To the next execution, or false when there is none.
    bool advance();

    // Whether that step of that thread comes before whatever `thread` does next, in every order.
    bool before(int other, uint16_t step, int thread) const { return step <= clocks_[thread][other]; }
    uint16_t step_of(int thread) const { return clocks_[thread][thread]; }

    size_t depth() const { return depth_; }
    std::string schedule() const;

  private:
    using Clock = std::array<uint16_t, kThreads>;

    struct Node {
        int chosen = -1;
        int choice = 0;
        int choices = 1;
        Mask enabled = 0;
        Mask sleep = 0;      // tried elsewhere, in an order that makes no difference
        Mask done = 0;       // tried here
        Mask backtrack = 0;  // to be tried here
        Clock steps{};       // of each thread, before this node
    };
    struct Touched {
        uint32_t execution = 0;
        int last_write = -1;  // node
        int last_writer = -1;
        uint16_t last_write_step = 0;
        Clock write_clock{};
        Mask readers = 0;  // since the last write
        std::array<int, kThreads> last_read{};
        std::array<uint16_t, kThreads> last_read_step{};
        Clock read_clock{};
    };

    Touched& touched(int thing);
    void races(int thread, const Footprint& footprint);
    void race(int node, int thread);
    Mask sleep_after(const Node& node, const std::array<const Footprint*, kThreads>& pending) const;
    static void join(Clock& into, const Clock& other);

    std::vector<Node> nodes_;
    std::vector<std::pair<int, int>> forced_;
    std::vector<Touched> touched_;
    std::array<Clock, kThreads> clocks_{};
    uint32_t execution_ = 0;
    size_t depth_ = 0;
    int last_ = -1;
    Mask inherited_sleep_ = 0;
    int most_preemptions_ = -1;
    int preemptions_ = 0;
};

}  // namespace mo::explore
